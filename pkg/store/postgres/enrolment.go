package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const enrolmentColumns = `
SELECT e.id, e.pool_id, p.name, e.pattern, e.created_at, e.expires_at, e.used_at, e.used_by, e.revoked_at
FROM enrolment_tokens e JOIN pools p ON p.id = e.pool_id`

func scanEnrolment(row pgx.CollectableRow) (e berth.EnrolmentToken, err error) {
	return e, row.Scan(&e.ID, &e.Pool, &e.PoolName, &e.Pattern, &e.CreatedAt, &e.ExpiresAt, instant(&e.UsedAt), nullable(&e.UsedBy), instant(&e.RevokedAt))
}

// CreateEnrolment is documented at store.Fleet.
func (s *Store) CreateEnrolment(ctx context.Context, p store.CreateEnrolmentParams) (e berth.EnrolmentToken, err error) {
	err = s.write(ctx, "CreateEnrolment", func(t *tx) error {
		ids, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.ID)})
		if err != nil {
			return err
		}
		if replayed {
			e, err = found(t, "enrolment token", scanEnrolment, enrolmentColumns+` WHERE e.id = $1 AND e.token_hash = $2`, uid(ids[0]), p.TokenHash[:])
			if errors.Is(err, berth.ErrNotFound) {
				return fmt.Errorf("enrolment token: %w", berth.ErrExists)
			}
			return err
		}
		n, err := t.exec(`
INSERT INTO enrolment_tokens (id, token_hash, pool_id, pattern, created_at, expires_at)
SELECT $1, $2, p.id, $4, n.now, n.now + make_interval(secs => $5)
FROM pools p, (SELECT berth_now() AS now OFFSET 0) n WHERE p.id = $3`,
			uid(p.ID), p.TokenHash[:], uid(p.Pool), clean(p.Pattern), p.TTL.Seconds())
		switch {
		case sqlState(err) == uniqueViolation:
			return fmt.Errorf("enrolment token: %w", berth.ErrExists)
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("pool: %w", berth.ErrNotFound)
		}
		if e, err = found(t, "enrolment token", scanEnrolment, enrolmentColumns+` WHERE e.id = $1`, uid(p.ID)); err != nil {
			return err
		}
		return t.auditChange(p.Actor, e.CreatedAt, berth.AuditEnrolmentCreated, "enrolment", string(p.ID),
			"", berth.EnrolmentFacts(e.Pool, e.Pattern, e.ExpiresAt))
	})
	return only(e, err)
}

// ListEnrolments is documented at store.Fleet.
func (s *Store) ListEnrolments(ctx context.Context, page store.Page) (tokens []berth.EnrolmentToken, next string, err error) {
	err = s.read(ctx, "ListEnrolments", func(t *tx) error {
		tokens, err = collect(t, scanEnrolment, enrolmentColumns+` WHERE ($1::uuid IS NULL OR e.id > $1) ORDER BY e.id LIMIT $2`,
			uid(berth.EnrolmentID(page.After)), page.Limit()+1)
		return err
	})
	tokens, next = cut(tokens, page, func(e berth.EnrolmentToken) string { return string(e.ID) })
	return tokens, next, err
}

// RevokeEnrolment is documented at store.Fleet.
func (s *Store) RevokeEnrolment(ctx context.Context, actor berth.Actor, id berth.EnrolmentID) error {
	return s.write(ctx, "RevokeEnrolment", func(t *tx) error {
		if _, err := t.exec(`SELECT 1 FROM enrolment_tokens WHERE id = $1 FOR NO KEY UPDATE`, uid(id)); err != nil {
			return err
		}
		e, err := found(t, "enrolment token", scanEnrolment, enrolmentColumns+` WHERE e.id = $1`, uid(id))
		switch {
		case err != nil:
			return err
		case !e.UsedAt.IsZero():
			return &berth.WrongStateError{Thing: "enrolment token", State: "used", Message: "a used token cannot be revoked; revoke its host instead"}
		case !e.RevokedAt.IsZero():
			return nil
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE enrolment_tokens SET revoked_at = $2 WHERE id = $1`, uid(id), now); err != nil {
			return err
		}
		return t.auditChange(actor, now, berth.AuditEnrolmentRevoked, "enrolment", string(id),
			berth.EnrolmentFacts(e.Pool, e.Pattern, e.ExpiresAt), "")
	})
}

// enrolling is an enrolment token as the one who uses it finds it.
type enrolling struct {
	id                        berth.EnrolmentID
	pattern                   string
	expires, usedAt, revokedA time.Time
	usedBy                    berth.HostID
	usedKey                   []byte
	usedName                  string // "" of a host that was revoked since
	now                       time.Time
}

// Enrol is documented at store.Agents.
func (s *Store) Enrol(ctx context.Context, p store.EnrolParams) (h berth.Host, err error) {
	if err := store.CheckEnrol(p); err != nil {
		return h, err
	}
	err = s.write(ctx, "Enrol", func(t *tx) error {
		if _, err := t.exec(`SELECT 1 FROM enrolment_tokens WHERE token_hash = $1 FOR NO KEY UPDATE`, p.TokenHash[:]); err != nil {
			return err
		}
		e, err := found(t, "enrolment token", func(row pgx.CollectableRow) (e enrolling, err error) {
			return e, row.Scan(&e.id, &e.pattern, &e.expires, instant(&e.usedAt), instant(&e.revokedA), nullable(&e.usedBy), &e.usedKey, nullable(&e.usedName), &e.now)
		}, `
SELECT e.id, e.pattern, e.expires_at, e.used_at, e.revoked_at, e.used_by, e.used_key, h.name, berth_now()
FROM enrolment_tokens e LEFT JOIN hosts h ON h.id = e.used_by AND h.state <> 'revoked' WHERE e.token_hash = $1`, p.TokenHash[:])
		if err != nil {
			return err
		}
		host := p.Host
		switch {
		case !e.usedAt.IsZero() && e.usedName == p.Name && bytes.Equal(e.usedKey, p.PublicKey) && e.now.Sub(e.usedAt) <= berth.EnrolmentRepeatWithin:
			host = e.usedBy
		case !e.usedAt.IsZero():
			return fmt.Errorf("enrolment token: %w", berth.ErrUsed)
		case !e.revokedA.IsZero(), !e.now.Before(e.expires):
			return fmt.Errorf("enrolment token: %w", berth.ErrExpired)
		case !berth.HostNameMatches(e.pattern, p.Name):
			return berth.Invalid("name", "the token does not allow this host name", "use a name that matches "+e.pattern)
		default:
			if err := t.addHost(p, e); err != nil {
				return err
			}
		}
		h, err = found(t, "host", scanHost, hostColumns+` WHERE h.id = $1`, uid(host))
		return err
	})
	return only(h, err)
}

// addHost makes the host and consumes the token.
func (t *tx) addHost(p store.EnrolParams, e enrolling) error {
	if err := t.freeName(p, e.now); err != nil {
		return err
	}
	n, err := t.exec(`
INSERT INTO hosts (id, name, pool_id, public_key, enrolled_at)
SELECT $1, $2, pool_id, $3, $4 FROM enrolment_tokens WHERE id = $5
ON CONFLICT DO NOTHING`, uid(p.Host), p.Name, p.PublicKey, e.now, uid(e.id))
	if err != nil {
		return err
	}
	if n == 0 {
		return &berth.ExistsError{What: "a host named " + p.Name}
	}
	if _, err := t.exec(`UPDATE enrolment_tokens SET used_at = $2, used_by = $3, used_key = $4 WHERE id = $1`,
		uid(e.id), e.now, uid(p.Host), p.PublicKey); err != nil {
		return err
	}
	actor := p.Actor
	if actor.ID == "" {
		actor.Principal = berth.Principal{Kind: berth.ActorHost, ID: string(p.Host)}
	}
	return t.auditChange(actor, e.now, berth.AuditHostEnrolled, "host", string(p.Host), "", berth.EnrolledFacts(p.Name, e.id))
}

// freeName has a revoked host give up the name.
func (t *tx) freeName(p store.EnrolParams, now time.Time) error {
	id, ok, err := first(t, column[berth.HostID], `SELECT id FROM hosts WHERE name = $1 AND state = 'revoked' FOR NO KEY UPDATE`, p.Name)
	if err != nil || !ok {
		return err
	}
	former := berth.FormerHostName(p.Name, id)
	if _, err := t.exec(`UPDATE hosts SET name = $2 WHERE id = $1`, uid(id), former); err != nil {
		return err
	}
	actor := p.Actor
	if actor.ID == "" {
		actor.Principal = berth.Principal{Kind: berth.ActorHost, ID: string(p.Host)}
	}
	return t.auditChange(actor, now, berth.AuditHostRenamed, "host", string(id), berth.HostNameFacts(p.Name), berth.HostNameFacts(former))
}
