package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// living tells the tokens that keep a session alive; both indexes of them have
// the same condition.
const living = "rotated_at IS NULL AND revoked_at IS NULL"

// refreshRow is a stored refresh token.
type refreshRow struct {
	berth.RefreshToken
	hash, parent []byte
	family       string
	user         berth.UserID
	generation   int
}

func loadRefresh(t *tx, hash [32]byte) (f refreshRow, a account, err error) {
	f, ok, err := queryOne(t, func(r row) (f refreshRow, err error) {
		return f, r.Scan(&f.hash, &f.parent, &f.family, &f.user, &f.generation, at(&f.ExpiresAt), at(&f.RotatedAt), at(&f.RevokedAt),
			&f.Settled, &f.SessionLives)
	}, `SELECT token_hash, parent, family, user_id, generation, expires_at, rotated_at, revoked_at, settled,
		EXISTS (SELECT 1 FROM refresh_tokens x INDEXED BY refresh_tokens_living
			WHERE x.family = r.family AND x.rotated_at IS NULL AND x.revoked_at IS NULL)
		FROM refresh_tokens r WHERE token_hash = ?1`, hash[:])
	if err != nil || !ok {
		return f, a, orNotFound(err, "refresh token")
	}
	a, err = loadAccount(t, f.user)
	return f, a, err
}

func insertRefresh(t *tx, f refreshRow, ttl time.Duration) error {
	return t.execOne(`INSERT INTO refresh_tokens (token_hash, family, user_id, generation, parent, created_at, expires_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`, f.hash, f.family, f.user, f.generation, f.parent, micros(t.now), micros(t.now.Add(ttl)))
}

// AddRefreshToken implements store.Sessions.
func (s *Store) AddRefreshToken(ctx context.Context, token store.RefreshToken) error {
	return s.write(ctx, "AddRefreshToken", func(t *tx) error {
		a, err := loadAccount(t, token.User)
		if err != nil {
			return err
		}
		if a.Disabled || !token.PasswordHash.IsZero() && token.PasswordHash.Reveal() != a.hash {
			return notFound("user")
		}
		if err := insertRefresh(t, refreshRow{hash: token.Hash[:], family: token.Family, user: token.User, generation: 1}, token.TTL); err != nil {
			return err
		}
		return auditAct(t, a.in(token.Actor, token.Family), berth.AuditLogin, "user", string(token.User))
	})
}

// RotateRefreshToken implements store.Sessions.
func (s *Store) RotateRefreshToken(ctx context.Context, p store.RotateParams) (user berth.User, session string, err error) {
	var refused error
	err = s.write(ctx, "RotateRefreshToken", func(t *tx) error {
		f, a, err := loadRefresh(t, p.Old)
		if err != nil {
			return err
		}
		if a.Disabled {
			return notFound("user")
		}
		user, session = a.User, f.family
		switch err := f.Use(t.now); {
		case errors.Is(err, berth.ErrUsed):
			// The refusal is an answer; the revocation is to stay.
			refused = err
			return endSession(t, a.in(p.Actor, f.family), berth.AuditSessionRevoked, f)
		case err != nil:
			return err
		}
		if err := rotated(t, f); err != nil {
			return err
		}
		return insertRefresh(t, refreshRow{hash: p.Next[:], parent: f.hash, family: f.family, user: f.user, generation: f.generation + 1}, p.TTL)
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return berth.User{}, "", err
	}
	return user, session, nil
}

// rotated notes the use of a token, and at its first one that the token before it
// is no immediate predecessor any more.
func rotated(t *tx, f refreshRow) error {
	if !f.RotatedAt.IsZero() {
		return nil
	}
	if err := t.execOne("UPDATE refresh_tokens SET rotated_at = ?2 WHERE token_hash = ?1", f.hash, micros(t.now)); err != nil {
		return err
	}
	if f.parent == nil {
		return nil
	}
	_, err := t.exec("UPDATE refresh_tokens SET settled = 1 WHERE token_hash = ?1 AND NOT settled", f.parent)
	return err
}

// endSession revokes what is alive of a session. One that is over already leaves
// no row.
func endSession(t *tx, actor berth.Actor, action berth.AuditAction, f refreshRow) error {
	n, err := t.exec("UPDATE refresh_tokens INDEXED BY refresh_tokens_living SET revoked_at = ?2 WHERE family = ?1 AND "+living, f.family, micros(t.now))
	if err != nil || n == 0 {
		return err
	}
	return auditAct(t, actor, action, "user", string(f.user))
}

// endSessions revokes all sessions of a user but one ("": none).
func endSessions(t *tx, user berth.UserID, but string) error {
	_, err := t.exec("UPDATE refresh_tokens INDEXED BY refresh_tokens_user SET revoked_at = ?3 WHERE user_id = ?1 AND family <> ?2 AND "+living,
		user, but, micros(t.now))
	return err
}

// RevokeRefreshFamily implements store.Sessions.
func (s *Store) RevokeRefreshFamily(ctx context.Context, actor berth.Actor, token [32]byte) error {
	err := s.write(ctx, "RevokeRefreshFamily", func(t *tx) error {
		f, a, err := loadRefresh(t, token)
		if err != nil {
			return err
		}
		return endSession(t, a.in(actor, f.family), berth.AuditLogout, f)
	})
	if errors.Is(err, berth.ErrNotFound) {
		return nil
	}
	return err
}

// SessionUser implements store.Sessions.
func (s *Store) SessionUser(ctx context.Context, session string, user berth.UserID) (u berth.User, err error) {
	err = s.read(ctx, "SessionUser", func(t *tx) error {
		a, ok, err := queryOne(t, scanAccount, accountSelect+` WHERE id = ?2 AND NOT disabled AND EXISTS (
			SELECT 1 FROM refresh_tokens INDEXED BY refresh_tokens_living
			WHERE family = ?1 AND user_id = ?2 AND expires_at > ?3 AND `+living+")", session, user, micros(t.now))
		if err == nil && !ok {
			err = notFound("session")
		}
		u = a.User
		return err
	})
	return u, err
}
