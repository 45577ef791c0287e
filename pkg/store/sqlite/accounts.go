package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// account is a user with the hash of the password.
type account struct {
	berth.User
	hash string
}

// in is the actor of the user's own act in a session, unless somebody else's is
// named.
func (a account) in(actor berth.Actor, session string) berth.Actor {
	return actor.ActorOr(berth.Principal{Kind: berth.ActorUser, ID: string(a.ID)}, berth.SessionCredential(session))
}

const accountSelect = "SELECT id, name, roles, disabled, password_hash, issuer, subject, version, created_at FROM users"

func scanAccount(r row) (a account, err error) {
	err = r.Scan(&a.ID, &a.Name, fromJSON(&a.Roles), &a.Disabled, &a.hash, opt(&a.Issuer), opt(&a.Subject), &a.Version, at(&a.CreatedAt))
	a.HasPassword = a.hash != ""
	return a, err
}

func loadAccount(t *tx, id berth.UserID) (account, error) {
	a, ok, err := queryOne(t, scanAccount, accountSelect+" WHERE id = ?1", id)
	if err == nil && !ok {
		err = notFound("user")
	}
	return a, err
}

func insertUser(t *tx, actor berth.Actor, u berth.User, hash redact.String) error {
	u.Roles = berth.SortedRoles(u.Roles)
	err := t.execOne(`INSERT INTO users (id, name, roles, password_hash, disabled, issuer, subject, created_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)`,
		u.ID, u.Name, list(u.Roles), hash.Reveal(), u.Disabled, null(u.Issuer), null(u.Subject), micros(t.now))
	if err != nil {
		return err
	}
	action := berth.AuditUserCreated
	if u.Issuer != "" {
		action = berth.AuditUserProvisioned
	}
	return auditChange(t, actor, action, "user", string(u.ID), "", u.Facts())
}

// BootstrapAdmin implements store.Users.
func (s *Store) BootstrapAdmin(ctx context.Context, id berth.UserID, name string, hash redact.String) (created bool, err error) {
	err = s.write(ctx, "BootstrapAdmin", func(t *tx) error {
		n, _, err := queryOne(t, scanInt, "SELECT count(*) FROM users WHERE name = ?1", name)
		if err != nil || n > 0 {
			return err
		}
		created = true
		return insertUser(t, berth.System(), berth.User{ID: id, Name: name, Roles: []berth.Role{berth.RoleAdmin}}, hash)
	})
	return created && err == nil, err
}

// CreateUser implements store.Users.
func (s *Store) CreateUser(ctx context.Context, actor berth.Actor, user berth.User, hash redact.String) error {
	return s.write(ctx, "CreateUser", func(t *tx) error { return insertUser(t, actor, user, hash) })
}

// UserByName implements store.Users.
func (s *Store) UserByName(ctx context.Context, name string) (berth.User, redact.String, error) {
	a, err := s.account(ctx, "UserByName", " WHERE name = ?1", name)
	return a.User, redact.NewString(a.hash), err
}

// UserByID implements store.Users.
func (s *Store) UserByID(ctx context.Context, id berth.UserID) (berth.User, error) {
	a, err := s.account(ctx, "UserByID", " WHERE id = ?1", string(id))
	return a.User, err
}

func (s *Store) account(ctx context.Context, op, where, arg string) (a account, err error) {
	err = s.read(ctx, op, func(t *tx) error {
		var ok bool
		a, ok, err = queryOne(t, scanAccount, accountSelect+where, arg)
		if err == nil && !ok {
			err = notFound("user")
		}
		return err
	})
	return a, err
}

// RefuseLogin implements store.Users.
func (s *Store) RefuseLogin(ctx context.Context, actor berth.Actor, name string) error {
	return s.write(ctx, "RefuseLogin", func(t *tx) error {
		id, known, err := queryOne(t, scanText, "SELECT id FROM users WHERE name = ?1", name)
		if err != nil {
			return err
		}
		if !known {
			id = store.UnknownUser
		}
		return auditAct(t, actor, berth.AuditLoginFailed, "user", id)
	})
}
