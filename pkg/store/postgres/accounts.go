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

// system is the actor of what nobody asked for.
func system() berth.Actor { return berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem}} }

// BootstrapAdmin is documented at store.Accounts.
func (s *Store) BootstrapAdmin(ctx context.Context, id berth.UserID, name string, passwordHash redact.String) (created bool, err error) {
	err = s.write(ctx, "BootstrapAdmin", func(t *tx) error {
		created, err = t.addUser(system(), berth.User{ID: id, Name: name, Roles: []berth.Role{berth.RoleAdmin}}, passwordHash)
		return err
	})
	return only(created, err)
}

// CreateUser is documented at store.Accounts.
func (s *Store) CreateUser(ctx context.Context, actor berth.Actor, user berth.User, passwordHash redact.String) error {
	return s.write(ctx, "CreateUser", func(t *tx) error {
		created, err := t.addUser(actor, user, passwordHash)
		if err == nil && !created {
			err = fmt.Errorf("a user of that name: %w", berth.ErrExists)
		}
		return err
	})
}

// addUser adds a user unless the name is taken. Where another transaction is
// adding it just now, the insert waits for its end.
func (t *tx) addUser(actor berth.Actor, u berth.User, hash redact.String) (bool, error) {
	at, ok, err := first(t, column[time.Time], `
INSERT INTO users (id, name, roles, password_hash, disabled, created_at) VALUES ($1, $2, $3, $4, $5, berth_now())
ON CONFLICT DO NOTHING RETURNING created_at`,
		uid(u.ID), clean(u.Name), mapped(u.Roles, func(r berth.Role) string { return string(r) }), hash.Reveal(), u.Disabled)
	if err != nil || !ok {
		return false, err
	}
	return true, t.auditAct(actor, at, berth.AuditUserCreated, "user", string(u.ID), "")
}

type userRow struct {
	berth.User
	hash redact.String
}

const userColumns = `SELECT id, name, roles, disabled, password_hash FROM users`

func scanUser(row pgx.CollectableRow) (u userRow, err error) {
	var hash string
	var roles []string
	err = row.Scan(&u.ID, &u.Name, &roles, &u.Disabled, &hash)
	u.Roles = mapped(roles, func(r string) berth.Role { return berth.Role(r) })
	u.hash = redact.NewString(hash)
	return u, err
}

// UserByName is documented at store.Accounts.
func (s *Store) UserByName(ctx context.Context, name string) (berth.User, redact.String, error) {
	var u userRow
	err := s.read(ctx, "UserByName", func(t *tx) (err error) {
		u, err = found(t, "user", scanUser, userColumns+` WHERE name = $1`, clean(name))
		return err
	})
	return u.User, u.hash, err
}

// UserByID is documented at store.Accounts.
func (s *Store) UserByID(ctx context.Context, id berth.UserID) (berth.User, error) {
	var u userRow
	err := s.read(ctx, "UserByID", func(t *tx) (err error) {
		u, err = found(t, "user", scanUser, userColumns+` WHERE id = $1`, uid(id))
		return err
	})
	return u.User, err
}

// RecordLogin is documented at store.Accounts.
func (s *Store) RecordLogin(ctx context.Context, actor berth.Actor, name string, ok bool) error {
	action := berth.AuditLogin
	if !ok {
		action = berth.AuditLoginFailed
	}
	return s.write(ctx, "RecordLogin", func(t *tx) error {
		who, known, err := first(t, pgx.RowTo[string], `SELECT id::text FROM users WHERE name = $1`, name)
		if err != nil {
			return err
		}
		if !known {
			who = store.UnknownUser
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		return t.auditAct(actor, now, action, "user", who, "")
	})
}

const keyColumns = `SELECT id, algorithm, public_key, private_key, created_at FROM signing_keys`

func scanSigningKey(row pgx.CollectableRow) (k store.SigningKey, err error) {
	var private []byte
	err = row.Scan(&k.ID, &k.Algorithm, &k.Public, &private, &k.CreatedAt)
	k.Private = redact.NewBytes(private)
	return k, err
}

// SigningKeys is documented at store.Accounts.
func (s *Store) SigningKeys(ctx context.Context) (keys []store.SigningKey, err error) {
	err = s.read(ctx, "SigningKeys", func(t *tx) error {
		keys, err = collect(t, scanSigningKey, keyColumns+` ORDER BY created_at DESC, id DESC`)
		return err
	})
	return keys, err
}

// AddSigningKey is documented at store.Accounts. The advisory lock makes
// processes that start at once take turns; each judges after it has it.
func (s *Store) AddSigningKey(ctx context.Context, key store.SigningKey, olderThan time.Duration) (newest store.SigningKey, err error) {
	err = s.write(ctx, "AddSigningKey", func(t *tx) error {
		if _, err := t.exec(`SELECT pg_advisory_xact_lock(hashtextextended('berth.signing_keys', 0))`); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		k, ok, err := first(t, scanSigningKey, keyColumns+` ORDER BY created_at DESC, id DESC LIMIT 1`)
		if err != nil {
			return err
		}
		if ok && k.CreatedAt.After(now.Add(-olderThan)) {
			newest = k
			return nil
		}
		if _, err := t.exec(`INSERT INTO signing_keys (id, algorithm, public_key, private_key, created_at) VALUES ($1, $2, $3, $4, $5)`,
			key.ID, key.Algorithm, key.Public, key.Private.Reveal(), now); err != nil {
			if sqlState(err) == uniqueViolation {
				err = fmt.Errorf("a signing key of that id: %w", berth.ErrExists)
			}
			return err
		}
		newest = key
		newest.CreatedAt = now
		return t.auditAct(system(), now, berth.AuditKeyCreated, "signing_key", key.ID, "")
	})
	return only(newest, err)
}
