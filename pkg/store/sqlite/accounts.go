package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// account is a user with the hash of the password.
type account struct {
	berth.User
	hash string
}

const accountSelect = "SELECT id, name, roles, disabled, password_hash FROM users"

func scanAccount(r row) (a account, err error) {
	return a, r.Scan(&a.ID, &a.Name, fromJSON(&a.Roles), &a.Disabled, &a.hash)
}

func insertUser(t *tx, actor berth.Actor, u berth.User, hash redact.String) error {
	err := t.execOne("INSERT INTO users (id, name, roles, password_hash, disabled, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
		u.ID, u.Name, list(u.Roles), hash.Reveal(), u.Disabled, micros(t.now))
	if err != nil {
		return err
	}
	return auditAct(t, actor, berth.AuditUserCreated, "user", string(u.ID))
}

// systemActor acts where no caller does.
func systemActor() berth.Actor {
	return berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "berth"}}
}

// BootstrapAdmin implements store.Accounts.
func (s *Store) BootstrapAdmin(ctx context.Context, id berth.UserID, name string, hash redact.String) (created bool, err error) {
	err = s.write(ctx, "BootstrapAdmin", func(t *tx) error {
		n, _, err := queryOne(t, scanInt, "SELECT count(*) FROM users WHERE name = ?1", name)
		if err != nil || n > 0 {
			return err
		}
		created = true
		return insertUser(t, systemActor(), berth.User{ID: id, Name: name, Roles: []berth.Role{berth.RoleAdmin}}, hash)
	})
	return created && err == nil, err
}

// CreateUser implements store.Accounts.
func (s *Store) CreateUser(ctx context.Context, actor berth.Actor, user berth.User, hash redact.String) error {
	return s.write(ctx, "CreateUser", func(t *tx) error { return insertUser(t, actor, user, hash) })
}

// UserByName implements store.Accounts.
func (s *Store) UserByName(ctx context.Context, name string) (berth.User, redact.String, error) {
	a, err := s.account(ctx, "UserByName", " WHERE name = ?1", name)
	return a.User, redact.NewString(a.hash), err
}

// UserByID implements store.Accounts.
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

// RecordLogin implements store.Accounts.
func (s *Store) RecordLogin(ctx context.Context, actor berth.Actor, name string, ok bool) error {
	return s.write(ctx, "RecordLogin", func(t *tx) error {
		id, known, err := queryOne(t, scanText, "SELECT id FROM users WHERE name = ?1", name)
		if err != nil {
			return err
		}
		if !known {
			id = store.UnknownUser
		}
		action := berth.AuditLogin
		if !ok {
			action = berth.AuditLoginFailed
		}
		return auditAct(t, actor, action, "user", id)
	})
}

// refreshRow is a stored refresh token.
type refreshRow struct {
	family                      string
	user                        berth.UserID
	generation                  int
	expires, rotated, revokedAt time.Time
}

func loadRefresh(t *tx, hash [32]byte) (refreshRow, bool, error) {
	return queryOne(t, func(r row) (f refreshRow, err error) {
		return f, r.Scan(&f.family, &f.user, &f.generation, at(&f.expires), at(&f.rotated), at(&f.revokedAt))
	}, "SELECT family, user_id, generation, expires_at, rotated_at, revoked_at FROM refresh_tokens WHERE token_hash = ?1", hash[:])
}

func insertRefresh(t *tx, token store.RefreshToken, generation int) error {
	return t.execOne(`INSERT INTO refresh_tokens (token_hash, family, user_id, generation, created_at, expires_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6)`, token.Hash[:], token.Family, token.User, generation, micros(t.now), micros(t.now.Add(token.TTL)))
}

// AddRefreshToken implements store.Accounts.
func (s *Store) AddRefreshToken(ctx context.Context, token store.RefreshToken) error {
	return s.write(ctx, "AddRefreshToken", func(t *tx) error { return insertRefresh(t, token, 1) })
}

// RotateRefreshToken implements store.Accounts.
func (s *Store) RotateRefreshToken(ctx context.Context, old, next [32]byte, ttl time.Duration) (user berth.User, err error) {
	reused := false
	err = s.write(ctx, "RotateRefreshToken", func(t *tx) error {
		f, ok, err := loadRefresh(t, old)
		if err != nil || !ok {
			return orNotFound(err, "refresh token")
		}
		if !f.revokedAt.IsZero() || !t.now.Before(f.expires) {
			return berth.ErrExpired
		}
		a, ok, err := queryOne(t, scanAccount, accountSelect+" WHERE id = ?1", f.user)
		if err != nil || !ok || a.Disabled {
			return orNotFound(err, "user")
		}
		user = a.User
		if reused, err = reuse(t, f); err != nil {
			return err
		}
		if reused {
			// The revocation must be committed; the error follows.
			return revokeFamily(t, f.family)
		}
		if f.rotated.IsZero() {
			if err := t.execOne("UPDATE refresh_tokens SET rotated_at = ?2 WHERE token_hash = ?1", old[:], micros(t.now)); err != nil {
				return err
			}
		}
		return insertRefresh(t, store.RefreshToken{Hash: next, Family: f.family, User: f.user, TTL: ttl}, f.generation+1)
	})
	if err == nil && reused {
		err = berth.ErrUsed
	}
	if err != nil {
		return berth.User{}, err
	}
	return user, nil
}

// reuse reports whether a token that was rotated before is more than a client's
// second try: not the immediate predecessor of the newest, or too late.
func reuse(t *tx, f refreshRow) (bool, error) {
	if f.rotated.IsZero() {
		return false, nil
	}
	newest, _, err := queryOne(t, scanInt, "SELECT max(generation) FROM refresh_tokens WHERE family = ?1", f.family)
	return int(newest) != f.generation+1 || t.now.Sub(f.rotated) > store.RefreshGrace, err
}

func revokeFamily(t *tx, family string) error {
	_, err := t.exec("UPDATE refresh_tokens SET revoked_at = ?2 WHERE family = ?1 AND revoked_at IS NULL", family, micros(t.now))
	return err
}

// RevokeRefreshFamily implements store.Accounts.
func (s *Store) RevokeRefreshFamily(ctx context.Context, token [32]byte) error {
	return s.write(ctx, "RevokeRefreshFamily", func(t *tx) error {
		f, ok, err := loadRefresh(t, token)
		if err != nil || !ok {
			return err
		}
		return revokeFamily(t, f.family)
	})
}
