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
