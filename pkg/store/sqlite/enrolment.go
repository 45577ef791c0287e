package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const enrolmentSelect = `SELECT e.id, e.pool_id, p.name, e.pattern, e.created_at, e.expires_at, e.used_at, e.used_by, e.revoked_at, e.used_key
	FROM enrolment_tokens e JOIN pools p ON p.id = e.pool_id`

// enrolment is a token with the key that used it.
type enrolment struct {
	berth.EnrolmentToken
	usedKey []byte
}

func scanEnrolment(r row) (e enrolment, err error) {
	return e, r.Scan(&e.ID, &e.Pool, &e.PoolName, &e.Pattern, at(&e.CreatedAt), at(&e.ExpiresAt), at(&e.UsedAt), opt(&e.UsedBy),
		at(&e.RevokedAt), &e.usedKey)
}

func loadEnrolment(t *tx, id berth.EnrolmentID) (enrolment, error) {
	e, ok, err := queryOne(t, scanEnrolment, enrolmentSelect+" WHERE e.id = ?1", id)
	if err == nil && !ok {
		err = notFound("enrolment token")
	}
	return e, err
}

// CreateEnrolment implements store.Fleet.
func (s *Store) CreateEnrolment(ctx context.Context, p store.CreateEnrolmentParams) (token berth.EnrolmentToken, err error) {
	err = s.write(ctx, "CreateEnrolment", func(t *tx) error {
		ids, replayed, err := once(t, p.Actor, p.Once, []berth.EnrolmentID{p.ID})
		if err != nil {
			return err
		}
		if replayed {
			e, ok, err := queryOne(t, scanEnrolment, enrolmentSelect+" WHERE e.id = ?1 AND e.token_hash = ?2", ids[0], p.TokenHash[:])
			if err == nil && !ok {
				err = fmt.Errorf("enrolment token: %w", berth.ErrExists)
			}
			token = e.EnrolmentToken
			return err
		}
		if _, ok, err := queryOne(t, scanText, "SELECT id FROM pools WHERE id = ?1", p.Pool); err != nil || !ok {
			return orNotFound(err, "pool")
		}
		err = t.execOne(`INSERT INTO enrolment_tokens (id, token_hash, pool_id, pattern, created_at, expires_at)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6)`, p.ID, p.TokenHash[:], p.Pool, p.Pattern, micros(t.now), micros(t.now.Add(p.TTL)))
		if err != nil {
			return err
		}
		e, err := loadEnrolment(t, p.ID)
		if err != nil {
			return err
		}
		token = e.EnrolmentToken
		return auditChange(t, p.Actor, berth.AuditEnrolmentCreated, "enrolment", string(p.ID),
			"", berth.EnrolmentFacts(e.Pool, e.Pattern, e.ExpiresAt))
	})
	if err != nil {
		return berth.EnrolmentToken{}, err
	}
	return token, nil
}

func orNotFound(err error, thing string) error {
	if err != nil {
		return err
	}
	return notFound(thing)
}

// ListEnrolments implements store.Fleet.
func (s *Store) ListEnrolments(ctx context.Context, p store.Page) (tokens []berth.EnrolmentToken, next string, err error) {
	err = s.read(ctx, "ListEnrolments", func(t *tx) error {
		tokens, err = queryAll(t, func(r row) (berth.EnrolmentToken, error) {
			e, err := scanEnrolment(r)
			return e.EnrolmentToken, err
		}, enrolmentSelect+" WHERE e.id > ?1 ORDER BY e.id LIMIT ?2", p.After, p.Limit()+1)
		return err
	})
	tokens, next = page(tokens, p.Limit(), func(e berth.EnrolmentToken) string { return string(e.ID) })
	return tokens, next, err
}

// RevokeEnrolment implements store.Fleet.
func (s *Store) RevokeEnrolment(ctx context.Context, actor berth.Actor, id berth.EnrolmentID) error {
	return s.write(ctx, "RevokeEnrolment", func(t *tx) error {
		e, err := loadEnrolment(t, id)
		if err != nil || !e.RevokedAt.IsZero() {
			return err
		}
		if !e.UsedAt.IsZero() {
			return &berth.WrongStateError{Thing: "enrolment token", State: "used", Message: "revoke the host that used it instead"}
		}
		if err := t.execOne("UPDATE enrolment_tokens SET revoked_at = ?2 WHERE id = ?1", id, micros(t.now)); err != nil {
			return err
		}
		return auditChange(t, actor, berth.AuditEnrolmentRevoked, "enrolment", string(id),
			berth.EnrolmentFacts(e.Pool, e.Pattern, e.ExpiresAt), "")
	})
}

// Enrol implements store.Agents.
func (s *Store) Enrol(ctx context.Context, p store.EnrolParams) (host berth.Host, err error) {
	if err := store.CheckEnrol(p); err != nil {
		return host, err
	}
	err = s.write(ctx, "Enrol", func(t *tx) error {
		e, ok, err := queryOne(t, scanEnrolment, enrolmentSelect+" WHERE e.token_hash = ?1", p.TokenHash[:])
		if err != nil || !ok {
			return orNotFound(err, "enrolment token")
		}
		id, err := admit(t, p, e)
		if err != nil {
			return err
		}
		host, err = loadHost(t, id)
		return err
	})
	if err != nil {
		return berth.Host{}, err
	}
	return host, nil
}

// admit decides whether the token lets the host in, and makes it or finds the
// one that this call repeats.
func admit(t *tx, p store.EnrolParams, e enrolment) (berth.HostID, error) {
	switch {
	case !e.UsedAt.IsZero() && bytes.Equal(e.usedKey, p.PublicKey) && t.now.Sub(e.UsedAt) <= berth.EnrolmentRepeatWithin:
		return repeatEnrolment(t, p, e)
	case !e.UsedAt.IsZero():
		return "", berth.ErrUsed
	case !e.RevokedAt.IsZero(), !t.now.Before(e.ExpiresAt):
		return "", berth.ErrExpired
	case !berth.HostNameMatches(e.Pattern, p.Name):
		return "", berth.Invalid("name", "the token is not for a host of that name", "use a name that fits the token's pattern, or make another token")
	}
	if err := freeName(t, p); err != nil {
		return "", err
	}
	taken, _, err := queryOne(t, scanInt, "SELECT count(*) FROM hosts WHERE name = ?1 OR id = ?2", p.Name, p.Host)
	if err != nil {
		return "", err
	}
	if taken > 0 {
		return "", &berth.ExistsError{What: "a host named " + p.Name}
	}
	err = t.execOne("INSERT INTO hosts (id, name, pool_id, public_key, state, enrolled_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
		p.Host, p.Name, e.Pool, p.PublicKey, berth.HostEnrolled, micros(t.now))
	if err != nil {
		return "", err
	}
	err = t.execOne("UPDATE enrolment_tokens SET used_at = ?2, used_by = ?3, used_key = ?4 WHERE id = ?1 AND used_at IS NULL",
		e.ID, micros(t.now), p.Host, p.PublicKey)
	if err != nil {
		return "", err
	}
	actor := p.Actor
	if actor.ID == "" {
		actor.Principal = berth.Principal{Kind: berth.ActorHost, ID: string(p.Host)}
	}
	return p.Host, auditChange(t, actor, berth.AuditHostEnrolled, "host", string(p.Host), "", berth.EnrolledFacts(p.Name, e.ID))
}

// repeatEnrolment finds the host that the same key made with the token, unless it
// has another name or was revoked since.
func repeatEnrolment(t *tx, p store.EnrolParams, e enrolment) (berth.HostID, error) {
	_, ok, err := queryOne(t, scanText, "SELECT id FROM hosts WHERE id = ?1 AND name = ?2 AND state <> 'revoked'", e.UsedBy, p.Name)
	if err == nil && !ok {
		err = berth.ErrUsed
	}
	return e.UsedBy, err
}

// freeName has a revoked host give up the name.
func freeName(t *tx, p store.EnrolParams) error {
	id, ok, err := queryOne(t, scanText, "SELECT id FROM hosts WHERE name = ?1 AND state = 'revoked'", p.Name)
	if err != nil || !ok {
		return err
	}
	former := berth.FormerHostName(p.Name, berth.HostID(id))
	if err := t.execOne("UPDATE hosts SET name = ?2 WHERE id = ?1", id, former); err != nil {
		return err
	}
	actor := p.Actor
	if actor.ID == "" {
		actor.Principal = berth.Principal{Kind: berth.ActorHost, ID: string(p.Host)}
	}
	return auditChange(t, actor, berth.AuditHostRenamed, "host", id, berth.HostNameFacts(p.Name), berth.HostNameFacts(former))
}
