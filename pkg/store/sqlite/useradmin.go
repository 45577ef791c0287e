package sqlite

import (
	"context"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ListUsers implements store.UserAdmin.
func (s *Store) ListUsers(ctx context.Context, name string, p store.Page) (users []berth.User, next string, err error) {
	err = s.read(ctx, "ListUsers", func(t *tx) error {
		users, err = queryAll(t, func(r row) (berth.User, error) {
			a, err := scanAccount(r)
			return a.User, err
		}, accountSelect+" WHERE name > ?1 AND (?2 = '' OR name = ?2) ORDER BY name LIMIT ?3", p.After, name, p.Limit()+1)
		return err
	})
	users, next = page(users, p.Limit(), func(u berth.User) string { return u.Name })
	return users, next, err
}

// AddUser implements store.UserAdmin.
func (s *Store) AddUser(ctx context.Context, p store.AddUserParams) (u berth.User, err error) {
	err = s.write(ctx, "AddUser", func(t *tx) error {
		ids, replayed, err := once(t, p.Actor, p.Once, []berth.UserID{p.User.ID})
		if err != nil {
			return err
		}
		id := p.User.ID
		if replayed {
			id = ids[0]
		} else if _, taken, err := queryOne(t, scanText, "SELECT id FROM users WHERE name = ?1", p.User.Name); err != nil {
			return err
		} else if taken {
			return &berth.ExistsError{What: "a user named " + p.User.Name}
		} else if err := insertUser(t, p.Actor, p.User, p.PasswordHash); err != nil {
			return err
		}
		a, err := loadAccount(t, id)
		u = a.User
		return err
	})
	if err != nil {
		return berth.User{}, err
	}
	return u, nil
}

// ProvisionUser implements store.UserAdmin.
func (s *Store) ProvisionUser(ctx context.Context, p store.ProvisionParams) (u berth.User, err error) {
	known := func(t *tx) (bool, error) {
		a, ok, err := queryOne(t, scanAccount, accountSelect+" WHERE issuer = ?1 AND subject = ?2", p.Issuer, p.Subject)
		u = a.User
		return ok, err
	}
	var ok bool
	err = s.read(ctx, "ProvisionUser", func(t *tx) error {
		ok, err = known(t)
		return err
	})
	if err == nil && (!ok || u.SeenWith(p.Roles).Version != u.Version) {
		err = s.write(ctx, "ProvisionUser", func(t *tx) error {
			if ok, err := known(t); err != nil {
				return err
			} else if ok {
				return seenWith(t, p, &u)
			}
			return provision(t, p, known)
		})
	}
	if err != nil {
		return berth.User{}, err
	}
	return u, nil
}

// seenWith gives a user the roles of its newest token.
func seenWith(t *tx, p store.ProvisionParams, u *berth.User) error {
	old := *u
	*u = u.SeenWith(p.Roles)
	if u.Version == old.Version {
		return nil
	}
	if err := t.execOne("UPDATE users SET roles = ?2, version = ?3 WHERE id = ?1", u.ID, list(u.Roles), u.Version); err != nil {
		return err
	}
	return auditChange(t, p.Actor, berth.AuditUserChanged, "user", string(u.ID), old.Facts(), u.Facts())
}

func provision(t *tx, p store.ProvisionParams, known func(*tx) (bool, error)) error {
	for _, name := range p.Names {
		_, taken, err := queryOne(t, scanText, "SELECT id FROM users WHERE name = ?1", name)
		if err != nil {
			return err
		}
		if taken {
			continue
		}
		if err := insertUser(t, p.Actor, berth.User{ID: p.ID, Name: name, Issuer: p.Issuer, Subject: p.Subject, Roles: p.Roles}, redact.String{}); err != nil {
			return err
		}
		_, err = known(t)
		return err
	}
	return fmt.Errorf("a user of each of the names: %w", berth.ErrExists)
}

// ChangeUser implements store.UserAdmin.
func (s *Store) ChangeUser(ctx context.Context, p store.ChangeUserParams) (user berth.User, err error) {
	err = s.write(ctx, "ChangeUser", func(t *tx) error {
		old, err := loadAccount(t, p.User)
		if err != nil {
			return err
		}
		others, _, err := queryOne(t, scanInt, `SELECT EXISTS (SELECT 1 FROM users WHERE id <> ?1 AND NOT disabled AND password_hash <> ''
			AND EXISTS (SELECT 1 FROM json_each(roles) WHERE value = 'admin'))`, p.User)
		if err != nil {
			return err
		}
		user, err = old.Changed(berth.UserChange{Roles: p.Roles, Disabled: p.Disabled, Version: p.Version}, others == 1)
		if err != nil || user.Version == old.Version {
			return err
		}
		err = t.execOne("UPDATE users SET roles = ?2, disabled = ?3, version = ?4 WHERE id = ?1", user.ID, list(user.Roles), user.Disabled, user.Version)
		if err != nil {
			return err
		}
		if user.Disabled {
			if err := endSessions(t, user.ID, ""); err != nil {
				return err
			}
		}
		return auditChange(t, p.Actor, berth.AuditUserChanged, "user", string(user.ID), old.Facts(), user.Facts())
	})
	if err != nil {
		return berth.User{}, err
	}
	return user, nil
}

// SetPassword implements store.UserAdmin.
func (s *Store) SetPassword(ctx context.Context, p store.SetPasswordParams) (user berth.User, err error) {
	err = s.write(ctx, "SetPassword", func(t *tx) error {
		a, err := loadAccount(t, p.User)
		if err != nil {
			return err
		}
		if err := a.MayHavePassword(a.hash, p.Was.Reveal()); err != nil {
			return err
		}
		if err := t.execOne("UPDATE users SET password_hash = ?2 WHERE id = ?1", p.User, p.Hash.Reveal()); err != nil {
			return err
		}
		if err := endSessions(t, p.User, p.KeepSession); err != nil {
			return err
		}
		user = a.User
		user.HasPassword = true
		return auditAct(t, p.Actor, berth.AuditPasswordChanged, "user", string(p.User))
	})
	if err != nil {
		return berth.User{}, err
	}
	return user, nil
}
