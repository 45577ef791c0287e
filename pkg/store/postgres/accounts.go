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

// BootstrapAdmin is documented at store.Users.
func (s *Store) BootstrapAdmin(ctx context.Context, id berth.UserID, name string, passwordHash redact.String) (created bool, err error) {
	err = s.write(ctx, "BootstrapAdmin", func(t *tx) error {
		created, err = t.addUser(berth.System(), berth.User{ID: id, Name: name, Roles: []berth.Role{berth.RoleAdmin}}, passwordHash)
		return err
	})
	return only(created, err)
}

// CreateUser is documented at store.Users.
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
	u.Roles = berth.SortedRoles(u.Roles)
	at, ok, err := first(t, column[time.Time], `
INSERT INTO users (id, name, roles, password_hash, disabled, issuer, subject, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, berth_now())
ON CONFLICT DO NOTHING RETURNING created_at`,
		uid(u.ID), clean(u.Name), roleTexts(u.Roles), hash.Reveal(), u.Disabled, textOrNull(u.Issuer), textOrNull(u.Subject))
	if err != nil || !ok {
		return false, err
	}
	action := berth.AuditUserCreated
	if u.Issuer != "" {
		action = berth.AuditUserProvisioned
	}
	return true, t.auditChange(actor, at, action, "user", string(u.ID), "", u.Facts())
}

func roleTexts(roles []berth.Role) []string {
	return mapped(roles, func(r berth.Role) string { return string(r) })
}

func rolesOf(texts []string) []berth.Role {
	return mapped(texts, func(r string) berth.Role { return berth.Role(r) })
}

type userRow struct {
	berth.User
	hash redact.String
}

// in is the actor of the user's own act in a session, unless somebody else's is
// named.
func (u userRow) in(actor berth.Actor, session string) berth.Actor {
	return actor.ActorOr(berth.Principal{Kind: berth.ActorUser, ID: string(u.ID)}, berth.SessionCredential(session))
}

const userColumns = `SELECT id, name, roles, disabled, password_hash, issuer, subject, version, created_at FROM users `

func scanUser(row pgx.CollectableRow) (u userRow, err error) {
	var hash string
	var roles []string
	err = row.Scan(&u.ID, &u.Name, &roles, &u.Disabled, &hash, nullable(&u.Issuer), nullable(&u.Subject), &u.Version, &u.CreatedAt)
	u.Roles, u.HasPassword, u.hash = rolesOf(roles), hash != "", redact.NewString(hash)
	return u, err
}

// lockUser reads a user under its lock.
func (t *tx) lockUser(id berth.UserID) (userRow, error) {
	return found(t, "user", scanUser, userColumns+`WHERE id = $1 FOR NO KEY UPDATE`, uid(id))
}

// UserByName is documented at store.Users.
func (s *Store) UserByName(ctx context.Context, name string) (berth.User, redact.String, error) {
	var u userRow
	err := s.read(ctx, "UserByName", func(t *tx) (err error) {
		u, err = found(t, "user", scanUser, userColumns+`WHERE name = $1`, clean(name))
		return err
	})
	return u.User, u.hash, err
}

// UserByID is documented at store.Users.
func (s *Store) UserByID(ctx context.Context, id berth.UserID) (berth.User, error) {
	var u userRow
	err := s.read(ctx, "UserByID", func(t *tx) (err error) {
		u, err = found(t, "user", scanUser, userColumns+`WHERE id = $1`, uid(id))
		return err
	})
	return u.User, err
}

// RefuseLogin is documented at store.Users.
func (s *Store) RefuseLogin(ctx context.Context, actor berth.Actor, name string) error {
	return s.write(ctx, "RefuseLogin", func(t *tx) error {
		who, known, err := first(t, pgx.RowTo[string], `SELECT id::text FROM users WHERE name = $1`, clean(name))
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
		return t.auditAct(actor, now, berth.AuditLoginFailed, "user", who)
	})
}
