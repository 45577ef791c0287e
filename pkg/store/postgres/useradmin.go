package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ListUsers is documented at store.UserAdmin.
func (s *Store) ListUsers(ctx context.Context, name string, page store.Page) (users []berth.User, next string, err error) {
	err = s.read(ctx, "ListUsers", func(t *tx) error {
		rows, err := collect(t, scanUser, userColumns+`WHERE name > $1 AND ($2 = '' OR name = $2) ORDER BY name LIMIT $3`,
			clean(page.After), clean(name), page.Limit()+1)
		users = mapped(rows, func(u userRow) berth.User { return u.User })
		return err
	})
	users, next = cut(users, page, func(u berth.User) string { return u.Name })
	return users, next, err
}

// AddUser is documented at store.UserAdmin.
func (s *Store) AddUser(ctx context.Context, p store.AddUserParams) (berth.User, error) {
	var u userRow
	err := s.write(ctx, "AddUser", func(t *tx) error {
		ids, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.User.ID)})
		if err != nil {
			return err
		}
		id := p.User.ID
		if replayed {
			id = berth.UserID(ids[0])
		} else if created, err := t.addUser(p.Actor, p.User, p.PasswordHash); err != nil {
			return err
		} else if !created {
			return &berth.ExistsError{What: "a user named " + p.User.Name}
		}
		u, err = found(t, "user", scanUser, userColumns+`WHERE id = $1`, uid(id))
		return err
	})
	return only(u.User, err)
}

// ProvisionUser is documented at store.UserAdmin. Where several do it at once,
// the insert waits for the first of them and finds its user.
func (s *Store) ProvisionUser(ctx context.Context, p store.ProvisionParams) (berth.User, error) {
	const known = userColumns + `WHERE issuer = $1 AND subject = $2`
	var u userRow
	var ok bool
	err := s.read(ctx, "ProvisionUser", func(t *tx) (err error) {
		u, ok, err = first(t, scanUser, known, clean(p.Issuer), clean(p.Subject))
		return err
	})
	if err != nil || ok && u.SeenWith(p.Roles).Version == u.Version {
		return only(u.User, err)
	}
	err = s.write(ctx, "ProvisionUser", func(t *tx) (err error) {
		if u, ok, err = first(t, scanUser, known+` FOR NO KEY UPDATE`, clean(p.Issuer), clean(p.Subject)); err != nil {
			return err
		}
		if ok {
			return t.seenWith(p, &u.User)
		}
		for _, name := range p.Names {
			_, err := t.addUser(p.Actor, berth.User{ID: p.ID, Name: name, Issuer: clean(p.Issuer), Subject: clean(p.Subject), Roles: p.Roles}, redact.String{})
			if err != nil {
				return err
			}
			if u, ok, err = first(t, scanUser, known, clean(p.Issuer), clean(p.Subject)); err != nil || ok {
				return err
			}
		}
		return fmt.Errorf("a user of each of the names: %w", berth.ErrExists)
	})
	return only(u.User, err)
}

// seenWith gives a locked user the roles of its newest token.
func (t *tx) seenWith(p store.ProvisionParams, u *berth.User) error {
	old := *u
	*u = u.SeenWith(p.Roles)
	if u.Version == old.Version {
		return nil
	}
	now, err := t.now()
	if err != nil {
		return err
	}
	if _, err := t.exec(`UPDATE users SET roles = $2, version = $3 WHERE id = $1`, uid(u.ID), roleTexts(u.Roles), u.Version); err != nil {
		return err
	}
	return t.auditChange(p.Actor, now, berth.AuditUserChanged, "user", string(u.ID), old.Facts(), u.Facts())
}

// ChangeUser is documented at store.UserAdmin. All who might be the last
// administrator are locked, ascending, so that two changes take turns and the
// second sees the first.
func (s *Store) ChangeUser(ctx context.Context, p store.ChangeUserParams) (user berth.User, err error) {
	err = s.write(ctx, "ChangeUser", func(t *tx) error {
		if _, err := t.exec(`
SELECT 1 FROM users WHERE id = $1 OR ('admin' = ANY (roles) AND NOT disabled AND password_hash <> '')
ORDER BY id FOR NO KEY UPDATE`, uid(p.User)); err != nil {
			return err
		}
		old, err := found(t, "user", scanUser, userColumns+`WHERE id = $1`, uid(p.User))
		if err != nil {
			return err
		}
		others, err := collect(t, scanUser, userColumns+`WHERE id <> $1 AND 'admin' = ANY (roles) AND NOT disabled AND password_hash <> '' LIMIT 1`, uid(p.User))
		if err != nil {
			return err
		}
		user, err = old.Changed(berth.UserChange{Roles: p.Roles, Disabled: p.Disabled, Version: p.Version}, len(others) > 0)
		if err != nil || user.Version == old.Version {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE users SET roles = $2, disabled = $3, version = $4 WHERE id = $1`,
			uid(user.ID), roleTexts(user.Roles), user.Disabled, user.Version); err != nil {
			return err
		}
		if user.Disabled {
			if err := t.endSessions(user.ID, "", now); err != nil {
				return err
			}
		}
		return t.auditChange(p.Actor, now, berth.AuditUserChanged, "user", string(user.ID), old.Facts(), user.Facts())
	})
	return only(user, err)
}

// SetPassword is documented at store.UserAdmin.
func (s *Store) SetPassword(ctx context.Context, p store.SetPasswordParams) (user berth.User, err error) {
	err = s.write(ctx, "SetPassword", func(t *tx) error {
		u, err := t.lockUser(p.User)
		if err != nil {
			return err
		}
		if err := u.MayHavePassword(u.hash.Reveal(), p.Was.Reveal()); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE users SET password_hash = $2 WHERE id = $1`, uid(p.User), p.Hash.Reveal()); err != nil {
			return err
		}
		if err := t.endSessions(p.User, p.KeepSession, now); err != nil {
			return err
		}
		user = u.User
		user.HasPassword = true
		return t.auditAct(p.Actor, now, berth.AuditPasswordChanged, "user", string(p.User))
	})
	return only(user, err)
}
