package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// secretGrants are the grants of secret s as JSON, by kind and grantee.
const secretGrants = `(SELECT json_group_array(json_object('Kind', g.kind, 'Grantee', g.grantee)) FROM (
	SELECT kind, grantee FROM secret_grants WHERE secret = s.name ORDER BY kind, grantee) g)`

// secretSelect reads a secret with its grants, without its value.
const secretSelect = `SELECT s.name, s.description, s.version, s.created_at, s.updated_at, ` + secretGrants + ` FROM secrets s`

func scanSecret(r row) (s berth.Secret, err error) {
	err = r.Scan(&s.Name, &s.Description, &s.Version, at(&s.CreatedAt), at(&s.UpdatedAt), fromJSON(&s.Grants))
	if len(s.Grants) == 0 {
		s.Grants = nil
	}
	return s, err
}

// PutSecret implements store.Secrets.
func (s *Store) PutSecret(ctx context.Context, p store.PutSecretParams) (secret berth.Secret, err error) {
	if p.Grants, err = p.Grants.Normalise(); err != nil {
		return berth.Secret{}, err
	}
	err = s.write(ctx, "PutSecret", func(t *tx) error {
		old, known, err := queryOne(t, scanSecret, secretSelect+" WHERE s.name = ?1", p.Name)
		if err != nil {
			return err
		}
		if err := checkGrantees(t, p.Grants); err != nil {
			return err
		}
		grants, err := p.Grants.Of(old.Grants)
		if err != nil {
			return err
		}
		p := p // the closure may run again
		if same, err := sameSecret(t, p, old); err != nil {
			return err
		} else if same {
			p.Seal = nil
		}
		secret = berth.ChangedSecret(old, p.Name, p.Seal != nil, p.Description, grants, t.now)
		if !known {
			return addSecret(t, p, secret)
		}
		before, after := berth.SecretChange(old, secret)
		if before == "" && after == "" {
			secret = old
			return nil
		}
		return changeSecret(t, p, secret, grants != nil, before, after)
	})
	if err != nil {
		return berth.Secret{}, err
	}
	return secret, nil
}

// sameSecret reports whether the value to be put is the one that is there.
func sameSecret(t *tx, p store.PutSecretParams, old berth.Secret) (bool, error) {
	if p.Seal == nil || p.Same == nil || old.Version == 0 {
		return false, nil
	}
	sealed, _, err := queryOne(t, func(r row) (b []byte, err error) { return b, r.Scan(&b) }, "SELECT sealed FROM secrets WHERE name = ?1", old.Name)
	if err != nil {
		return false, err
	}
	return p.Same(store.SealedValue{Kind: store.SealedSecret, ID: old.Name, Version: old.Version, Value: redact.NewBytes(sealed)}), nil
}

// checkGrantees finds the users that grants name.
func checkGrantees(t *tx, change berth.GrantChange) error {
	known, err := queryAll(t, func(r row) (id berth.UserID, err error) {
		return id, r.Scan(&id)
	}, "SELECT id FROM users WHERE id IN (SELECT value FROM json_each(?1))", list(berth.GrantedUsers(change.Granted())))
	if err != nil {
		return err
	}
	return change.Unknown(known)
}

func addSecret(t *tx, p store.PutSecretParams, s berth.Secret) error {
	if p.Seal == nil {
		return berth.Invalid("value", "a new secret needs a value", "send one")
	}
	sealed, err := p.Seal(s.Version)
	if err != nil {
		return err
	}
	err = t.execOne("INSERT INTO secrets (name, sealed, version, description, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?5)",
		s.Name, sealed.Reveal(), s.Version, s.Description, micros(t.now))
	if err != nil {
		return err
	}
	if err := writeGrants(t, s); err != nil {
		return err
	}
	_, after := berth.SecretChange(berth.Secret{}, s)
	return auditChange(t, p.Actor, berth.AuditSecretCreated, "secret", s.Name, "", after)
}

func changeSecret(t *tx, p store.PutSecretParams, s berth.Secret, grants bool, before, after berth.Facts) error {
	if p.Seal != nil {
		sealed, err := p.Seal(s.Version)
		if err != nil {
			return err
		}
		if err := t.execOne("UPDATE secrets SET sealed = ?2, version = ?3 WHERE name = ?1", s.Name, sealed.Reveal(), s.Version); err != nil {
			return err
		}
	}
	if err := t.execOne("UPDATE secrets SET description = ?2, updated_at = ?3 WHERE name = ?1", s.Name, s.Description, micros(t.now)); err != nil {
		return err
	}
	if grants {
		if _, err := t.exec("DELETE FROM secret_grants WHERE secret = ?1", s.Name); err != nil {
			return err
		}
		if err := writeGrants(t, s); err != nil {
			return err
		}
	}
	return auditChange(t, p.Actor, berth.AuditSecretChanged, "secret", s.Name, before, after)
}

func writeGrants(t *tx, s berth.Secret) error {
	for _, g := range s.Grants {
		if err := t.execOne("INSERT INTO secret_grants (secret, kind, grantee) VALUES (?1, ?2, ?3)", s.Name, g.Kind, g.Grantee); err != nil {
			return err
		}
	}
	return nil
}

// GetSecret implements store.Secrets.
func (s *Store) GetSecret(ctx context.Context, name string) (secret berth.Secret, err error) {
	err = s.read(ctx, "GetSecret", func(t *tx) error {
		var ok bool
		if secret, ok, err = queryOne(t, scanSecret, secretSelect+" WHERE s.name = ?1", name); err == nil && !ok {
			err = notFound("secret")
		}
		return err
	})
	return secret, err
}

// ListSecrets implements store.Secrets.
func (s *Store) ListSecrets(ctx context.Context, grantee *store.Grantee, p store.Page) (secrets []berth.Secret, next string, err error) {
	var who store.Grantee
	if grantee != nil {
		who = *grantee
	}
	err = s.read(ctx, "ListSecrets", func(t *tx) error {
		secrets, err = queryAll(t, scanSecret, secretSelect+` WHERE s.name > ?1 AND (?2 OR EXISTS (
			SELECT 1 FROM secret_grants e WHERE e.secret = s.name
			AND (e.kind = 'user' AND e.grantee = ?3 OR e.kind = 'role' AND e.grantee IN (SELECT value FROM json_each(?4)))))
			ORDER BY s.name LIMIT ?5`, p.After, grantee == nil, who.User, list(berth.ImpliedRoles(who.Roles)), p.Limit()+1)
		return err
	})
	secrets, next = page(secrets, p.Limit(), func(s berth.Secret) string { return s.Name })
	return secrets, next, err
}

// DeleteSecret implements store.Secrets.
func (s *Store) DeleteSecret(ctx context.Context, actor berth.Actor, name string) error {
	return s.write(ctx, "DeleteSecret", func(t *tx) error {
		old, known, err := queryOne(t, scanSecret, secretSelect+" WHERE s.name = ?1", name)
		if err != nil || !known {
			return orNotFound(err, "secret")
		}
		if _, err := t.exec("DELETE FROM secret_grants WHERE secret = ?1", name); err != nil {
			return err
		}
		if err := t.execOne("DELETE FROM secrets WHERE name = ?1", name); err != nil {
			return err
		}
		before, _ := berth.SecretChange(old, berth.Secret{})
		return auditChange(t, actor, berth.AuditSecretDeleted, "secret", name, before, "")
	})
}

// checkSecrets is the fault of the secrets that the submitter may not name.
func checkSecrets(t *tx, p store.SubmitParams) error {
	names := berth.SecretNames(p.Tasks)
	if len(names) == 0 {
		return nil
	}
	user, roles, err := granteeOf(t, p.Actor.Principal)
	if err != nil {
		return err
	}
	secrets, err := queryAll(t, scanSecret, secretSelect+" WHERE s.name IN (SELECT value FROM json_each(?1))", list(names))
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

// granteeOf is the user that a principal is, with its roles; a disabled one and
// what is no user have none.
func granteeOf(t *tx, p berth.Principal) (user berth.UserID, roles []berth.Role, err error) {
	if p.Kind != berth.ActorUser {
		return "", nil, nil
	}
	roles, ok, err := queryOne(t, func(r row) (roles []berth.Role, err error) {
		return roles, r.Scan(fromJSON(&roles))
	}, "SELECT roles FROM users WHERE id = ?1 AND disabled = 0", p.ID)
	if err != nil || !ok {
		return "", nil, err
	}
	return berth.UserID(p.ID), roles, nil
}

// delivery is a secret that an attempt's task names, with who may have it.
type delivery struct {
	event  berth.AuditEvent
	secret berth.Secret
	user   berth.UserID
	roles  []berth.Role
	sealed []byte
}

func scanDelivery(r row) (d delivery, err error) {
	return d, r.Scan(&d.event.Attempt, &d.event.Number, &d.event.Device, &d.secret.Name, &d.secret.Version, &d.sealed,
		&d.user, fromJSON(&d.roles), fromJSON(&d.secret.Grants))
}

// SecretValues implements store.Secrets.
func (s *Store) SecretValues(ctx context.Context, call store.AgentCall, attempts []berth.AttemptID) (values map[berth.AttemptID][]store.SealedValue, err error) {
	err = s.write(ctx, "SecretValues", func(t *tx) error {
		values = map[berth.AttemptID][]store.SealedValue{}
		if _, err := callingHost(t, call); err != nil {
			return err
		}
		all, err := queryAll(t, scanDelivery, `SELECT a.id, a.number, a.device_id, s.name, s.version, s.sealed, u.id, u.roles, `+secretGrants+`
			FROM json_each(?1) j
			JOIN attempts a ON a.id = j.value
			JOIN tasks t ON t.id = a.task_id
			JOIN users u ON t.submitter_kind = 'user' AND u.id = t.submitter_id AND u.disabled = 0
			JOIN secrets s ON s.name IN (SELECT value FROM json_each(t.secrets))
			WHERE a.host_id = ?2 AND a.state = 'claimed' AND a.ended_at IS NULL
			ORDER BY a.id, s.name`, list(attempts), call.Host)
		if err != nil {
			return err
		}
		for _, d := range all {
			if !d.secret.GrantedTo(d.user, d.roles) {
				continue
			}
			values[d.event.Attempt] = append(values[d.event.Attempt], store.SealedValue{
				Kind: store.SealedSecret, ID: d.secret.Name, Version: d.secret.Version, Value: redact.NewBytes(d.sealed),
			})
			if err := auditEvent(t, deliveredEvent(call, d)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

func deliveredEvent(call store.AgentCall, d delivery) berth.AuditEvent {
	e := d.event
	_, e.After = berth.SecretChange(berth.Secret{}, berth.Secret{Version: d.secret.Version})
	e.Actor, e.Action, e.TargetKind, e.TargetID, e.Host = call.Actor, berth.AuditSecretDelivered, "secret", d.secret.Name, call.Host
	return e
}
