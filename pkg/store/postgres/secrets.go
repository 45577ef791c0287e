package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// secretColumns reads a secret with its grants, without its value.
const secretColumns = `
SELECT s.name, s.description, s.version, s.created_at, s.updated_at, g.kinds, g.grantees
FROM secrets s CROSS JOIN LATERAL (
    SELECT array_agg(g.kind ORDER BY g.kind, g.grantee) AS kinds, array_agg(g.grantee ORDER BY g.kind, g.grantee) AS grantees
    FROM secret_grants g WHERE g.secret = s.name) g`

func scanSecret(row pgx.CollectableRow) (s berth.Secret, err error) {
	var kinds, grantees []string
	err = row.Scan(&s.Name, &s.Description, &s.Version, &s.CreatedAt, &s.UpdatedAt, &kinds, &grantees)
	s.Grants = grantsOf(kinds, grantees)
	return s, err
}

func grantsOf(kinds, grantees []string) (grants []berth.SecretGrant) {
	for i := range kinds {
		grants = append(grants, berth.SecretGrant{Kind: berth.GrantKind(kinds[i]), Grantee: grantees[i]})
	}
	return grants
}

// PutSecret is documented at store.Secrets.
func (s *Store) PutSecret(ctx context.Context, p store.PutSecretParams) (secret berth.Secret, err error) {
	if p.Grants, err = p.Grants.Normalise(); err != nil {
		return berth.Secret{}, err
	}
	err = s.write(ctx, "PutSecret", func(t *tx) error {
		old, known, err := t.lockSecret(p.Name)
		if err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if err := t.checkGrantees(p.Grants); err != nil {
			return err
		}
		grants, err := p.Grants.Of(old.Grants)
		if err != nil {
			return err
		}
		p := p // the closure may run again
		if same, err := t.sameSecret(p, old); err != nil {
			return err
		} else if same {
			p.Seal = nil
		}
		secret = berth.ChangedSecret(old, p.Name, p.Seal != nil, p.Description, grants, now)
		if !known {
			return t.addSecret(p, secret)
		}
		before, after := berth.SecretChange(old, secret)
		if before == "" && after == "" {
			secret = old
			return nil
		}
		return t.changeSecret(p, secret, grants != nil, before, after)
	})
	return only(secret, err)
}

// lockSecret locks a secret's row and reads it in a later statement.
func (t *tx) lockSecret(name string) (s berth.Secret, known bool, err error) {
	_, known, err = first(t, column[string], `SELECT name FROM secrets WHERE name = $1 FOR NO KEY UPDATE`, clean(name))
	if err != nil || !known {
		return s, false, err
	}
	s, err = found(t, "secret", scanSecret, secretColumns+` WHERE s.name = $1`, clean(name))
	return s, true, err
}

// sameSecret reports whether the value to be put is the one that is there.
func (t *tx) sameSecret(p store.PutSecretParams, old berth.Secret) (bool, error) {
	if p.Seal == nil || p.Same == nil || old.Version == 0 {
		return false, nil
	}
	sealed, err := found(t, "secret", column[[]byte], `SELECT sealed FROM secrets WHERE name = $1`, old.Name)
	if err != nil {
		return false, err
	}
	return p.Same(store.SealedValue{Kind: store.SealedSecret, ID: old.Name, Version: old.Version, Value: redact.NewBytes(sealed)}), nil
}

// checkGrantees finds the users that grants name.
func (t *tx) checkGrantees(change berth.GrantChange) error {
	users := berth.GrantedUsers(change.Granted())
	if len(users) == 0 {
		return nil
	}
	known, err := collect(t, column[berth.UserID], `SELECT id FROM users WHERE id = ANY ($1)`, uids(users))
	if err != nil {
		return err
	}
	return change.Unknown(known)
}

func (t *tx) addSecret(p store.PutSecretParams, s berth.Secret) error {
	if p.Seal == nil {
		return berth.Invalid("value", "a new secret needs a value", "send one")
	}
	sealed, err := p.Seal(s.Version)
	if err != nil {
		return err
	}
	n, err := t.exec(`
INSERT INTO secrets (name, sealed, version, description, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT DO NOTHING`,
		s.Name, sealed.Reveal(), s.Version, clean(s.Description), s.UpdatedAt)
	if err == nil && n == 0 {
		err = errStartOver // another call made it just now
	}
	if err != nil {
		return err
	}
	if err := t.writeGrants(s); err != nil {
		return err
	}
	_, after := berth.SecretChange(berth.Secret{}, s)
	return t.auditChange(p.Actor, s.UpdatedAt, berth.AuditSecretCreated, "secret", s.Name, "", after)
}

func (t *tx) changeSecret(p store.PutSecretParams, s berth.Secret, grants bool, before, after berth.Facts) error {
	if p.Seal != nil {
		sealed, err := p.Seal(s.Version)
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE secrets SET sealed = $2, version = $3 WHERE name = $1`, s.Name, sealed.Reveal(), s.Version); err != nil {
			return err
		}
	}
	if _, err := t.exec(`UPDATE secrets SET description = $2, updated_at = $3 WHERE name = $1`, s.Name, clean(s.Description), s.UpdatedAt); err != nil {
		return err
	}
	if grants {
		if _, err := t.exec(`DELETE FROM secret_grants WHERE secret = $1`, s.Name); err != nil {
			return err
		}
		if err := t.writeGrants(s); err != nil {
			return err
		}
	}
	return t.auditChange(p.Actor, s.UpdatedAt, berth.AuditSecretChanged, "secret", s.Name, before, after)
}

func (t *tx) writeGrants(s berth.Secret) error {
	if len(s.Grants) == 0 {
		return nil
	}
	_, err := t.exec(`INSERT INTO secret_grants (secret, kind, grantee) SELECT $1, * FROM unnest($2::text[], $3::text[])`, s.Name,
		mapped(s.Grants, func(g berth.SecretGrant) string { return string(g.Kind) }),
		mapped(s.Grants, func(g berth.SecretGrant) string { return g.Grantee }))
	return err
}

// GetSecret is documented at store.Secrets.
func (s *Store) GetSecret(ctx context.Context, name string) (secret berth.Secret, err error) {
	err = s.read(ctx, "GetSecret", func(t *tx) error {
		secret, err = found(t, "secret", scanSecret, secretColumns+` WHERE s.name = $1`, clean(name))
		return err
	})
	return secret, err
}

// ListSecrets is documented at store.Secrets.
func (s *Store) ListSecrets(ctx context.Context, grantee *store.Grantee, page store.Page) (secrets []berth.Secret, next string, err error) {
	var who store.Grantee
	if grantee != nil {
		who = *grantee
	}
	err = s.read(ctx, "ListSecrets", func(t *tx) error {
		secrets, err = collect(t, scanSecret, secretColumns+`
WHERE s.name > $1 AND ($2 OR EXISTS (
    SELECT 1 FROM secret_grants e WHERE e.secret = s.name
    AND (e.kind = 'user' AND e.grantee = $3 OR e.kind = 'role' AND e.grantee = ANY ($4::text[]))))
ORDER BY s.name LIMIT $5`, clean(page.After), grantee == nil, string(who.User), roleTexts(berth.ImpliedRoles(who.Roles)), page.Limit()+1)
		return err
	})
	secrets, next = cut(secrets, page, func(s berth.Secret) string { return s.Name })
	return secrets, next, err
}

// DeleteSecret is documented at store.Secrets.
func (s *Store) DeleteSecret(ctx context.Context, actor berth.Actor, name string) error {
	return s.write(ctx, "DeleteSecret", func(t *tx) error {
		old, known, err := t.lockSecret(name)
		if err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("secret: %w", berth.ErrNotFound)
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`DELETE FROM secrets WHERE name = $1`, old.Name); err != nil {
			return err
		}
		before, _ := berth.SecretChange(old, berth.Secret{})
		return t.auditChange(actor, now, berth.AuditSecretDeleted, "secret", old.Name, before, "")
	})
}

// checkSecrets is the fault of the secrets that the submitter may not name. What
// is withdrawn at this moment is left out at the delivery.
func (t *tx) checkSecrets(p store.SubmitParams) error {
	names := berth.SecretNames(p.Tasks)
	if len(names) == 0 {
		return nil
	}
	user, roles, err := t.grantee(p.Actor.Principal)
	if err != nil {
		return err
	}
	secrets, err := collect(t, scanSecret, secretColumns+` WHERE s.name = ANY ($1)`, mapped(names, clean))
	if err != nil {
		return err
	}
	var granted []string
	for _, s := range secrets {
		if s.GrantedTo(user, berth.Within(p.Roles, roles)) {
			granted = append(granted, s.Name)
		}
	}
	return berth.CheckSecrets(p.Tasks, granted)
}

// grantee is the user that a principal is, with its roles; a disabled one and
// what is no user have none.
func (t *tx) grantee(p berth.Principal) (berth.UserID, []berth.Role, error) {
	if p.Kind != berth.ActorUser {
		return "", nil, nil
	}
	roles, ok, err := first(t, column[[]string], `SELECT roles FROM users WHERE id = $1 AND NOT disabled`, uid(p.ID))
	if err != nil || !ok {
		return "", nil, err
	}
	return berth.UserID(p.ID), rolesOf(roles), nil
}

// delivery is a secret that an attempt's task names, with who may have it.
type delivery struct {
	event  berth.AuditEvent
	secret berth.Secret
	user   berth.UserID
	roles  []string
	sealed []byte
}

func scanDelivery(row pgx.CollectableRow) (d delivery, err error) {
	var kinds, grantees []string
	err = row.Scan(&d.event.Attempt, &d.event.Number, &d.event.Device, &d.secret.Name, &d.secret.Version, &d.sealed, &d.user, &d.roles, &kinds, &grantees)
	d.secret.Grants = grantsOf(kinds, grantees)
	return d, err
}

// SecretValues is documented at store.Secrets.
func (s *Store) SecretValues(ctx context.Context, call store.AgentCall, attempts []berth.AttemptID) (values map[berth.AttemptID][]store.SealedValue, err error) {
	err = s.write(ctx, "SecretValues", func(t *tx) error {
		values = map[berth.AttemptID][]store.SealedValue{}
		h, err := t.judgeCaller(call.Host, call.Epoch)
		if err != nil {
			return err
		}
		all, err := collect(t, scanDelivery, `
SELECT a.id, a.number, a.device_id, s.name, s.version, s.sealed, u.id, u.roles, g.kinds, g.grantees
FROM attempts a
JOIN tasks t ON t.id = a.task_id
JOIN users u ON t.submitter_kind = 'user' AND t.submitter_id = u.id::text AND NOT u.disabled
JOIN secrets s ON s.name = ANY (t.secrets)
CROSS JOIN LATERAL (
    SELECT array_agg(g.kind) AS kinds, array_agg(g.grantee) AS grantees FROM secret_grants g WHERE g.secret = s.name) g
WHERE a.id = ANY ($1) AND a.host_id = $2 AND a.state = 'claimed' AND a.ended_at IS NULL
ORDER BY a.id, s.name`, uids(attempts), uid(call.Host))
		if err != nil {
			return err
		}
		var events []berth.AuditEvent
		for _, d := range all {
			if !d.secret.GrantedTo(d.user, rolesOf(d.roles)) {
				continue
			}
			values[d.event.Attempt] = append(values[d.event.Attempt], store.SealedValue{
				Kind: store.SealedSecret, ID: d.secret.Name, Version: d.secret.Version, Value: redact.NewBytes(d.sealed),
			})
			events = append(events, deliveredEvent(call, d, h.now))
		}
		return t.auditEvents(events)
	})
	return only(values, err)
}

func deliveredEvent(call store.AgentCall, d delivery, at time.Time) berth.AuditEvent {
	e := d.event
	_, e.After = berth.SecretChange(berth.Secret{}, berth.Secret{Version: d.secret.Version})
	e.At, e.Actor, e.Action, e.TargetKind, e.TargetID, e.Host = at, call.Actor, berth.AuditSecretDelivered, "secret", d.secret.Name, call.Host
	return e
}
