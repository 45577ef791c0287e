package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// living tells the tokens that keep a session alive; both indexes of them have
// the same condition.
const living = `rotated_at IS NULL AND revoked_at IS NULL`

// AddRefreshToken is documented at store.Sessions.
func (s *Store) AddRefreshToken(ctx context.Context, r store.RefreshToken) error {
	return s.write(ctx, "AddRefreshToken", func(t *tx) error {
		u, err := t.lockUser(r.User)
		if err != nil {
			return err
		}
		if u.Disabled || !r.PasswordHash.IsZero() && r.PasswordHash.Reveal() != u.hash.Reveal() {
			return fmt.Errorf("user: %w", berth.ErrNotFound)
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if err := t.insertRefreshToken(refreshRow{hash: r.Hash[:], family: r.Family, user: r.User, generation: 1}, now, r.TTL); err != nil {
			return err
		}
		return t.auditAct(u.in(r.Actor, r.Family), now, berth.AuditLogin, "user", string(r.User))
	})
}

func (t *tx) insertRefreshToken(r refreshRow, now time.Time, ttl time.Duration) error {
	_, err := t.exec(`
INSERT INTO refresh_tokens (token_hash, family, user_id, generation, parent, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6::timestamptz, $6::timestamptz + make_interval(secs => $7))`,
		r.hash, uid(r.family), uid(r.user), r.generation, r.parent, now, ttl.Seconds())
	if sqlState(err) == uniqueViolation {
		return fmt.Errorf("refresh token: %w", berth.ErrExists)
	}
	return err
}

// refreshRow is a stored refresh token.
type refreshRow struct {
	berth.RefreshToken
	hash, parent []byte
	family       string
	user         berth.UserID
	generation   int
	now          time.Time
}

// refreshToken finds a token by its hash and locks its user, so that two uses of
// one session, and the end of all sessions of a user, take turns. What it
// returns was read under the lock.
func (t *tx) refreshToken(hash [32]byte) (r refreshRow, u userRow, err error) {
	user, err := found(t, "refresh token", column[string], `SELECT user_id::text FROM refresh_tokens WHERE token_hash = $1`, hash[:])
	if err != nil {
		return r, u, err
	}
	if u, err = t.lockUser(berth.UserID(user)); err != nil {
		return r, u, err
	}
	r, err = found(t, "refresh token", func(row pgx.CollectableRow) (r refreshRow, err error) {
		return r, row.Scan(&r.hash, &r.parent, &r.family, &r.user, &r.generation, &r.ExpiresAt, instant(&r.RotatedAt), instant(&r.RevokedAt),
			&r.Settled, &r.SessionLives, &r.now)
	}, `
SELECT token_hash, parent, family, user_id, generation, expires_at, rotated_at, revoked_at, settled,
       EXISTS (SELECT 1 FROM refresh_tokens x WHERE x.family = r.family AND x.rotated_at IS NULL AND x.revoked_at IS NULL), berth_now()
FROM refresh_tokens r WHERE token_hash = $1`, hash[:])
	return r, u, err
}

// RotateRefreshToken is documented at store.Sessions.
func (s *Store) RotateRefreshToken(ctx context.Context, p store.RotateParams) (user berth.User, session string, err error) {
	var refused error
	err = s.write(ctx, "RotateRefreshToken", func(t *tx) error {
		refused = nil
		r, u, err := t.refreshToken(p.Old)
		if err != nil {
			return err
		}
		if u.Disabled {
			return fmt.Errorf("user: %w", berth.ErrNotFound)
		}
		user, session = u.User, r.family
		switch err := r.Use(r.now); {
		case errors.Is(err, berth.ErrUsed):
			// The refusal is an answer; the revocation is to stay.
			refused = err
			return t.endSession(u.in(p.Actor, r.family), berth.AuditSessionRevoked, r)
		case err != nil:
			return err
		}
		if err := t.rotated(r); err != nil {
			return err
		}
		next := refreshRow{hash: p.Next[:], parent: r.hash, family: r.family, user: r.user, generation: r.generation + 1}
		return t.insertRefreshToken(next, r.now, p.TTL)
	})
	if err == nil {
		err = refused
	}
	return committed(user, session, err)
}

// rotated notes the use of a token, and at its first one that the token before it
// is no immediate predecessor any more.
func (t *tx) rotated(r refreshRow) error {
	if !r.RotatedAt.IsZero() {
		return nil
	}
	if _, err := t.exec(`UPDATE refresh_tokens SET rotated_at = $2 WHERE token_hash = $1`, r.hash, r.now); err != nil {
		return err
	}
	if r.parent == nil {
		return nil
	}
	_, err := t.exec(`UPDATE refresh_tokens SET settled = true WHERE token_hash = $1 AND NOT settled`, r.parent)
	return err
}

// endSession revokes what is alive of a session. One that is over already leaves
// no row.
func (t *tx) endSession(actor berth.Actor, action berth.AuditAction, r refreshRow) error {
	n, err := t.exec(`UPDATE refresh_tokens SET revoked_at = $2 WHERE family = $1 AND `+living, uid(r.family), r.now)
	if err != nil || n == 0 {
		return err
	}
	return t.auditAct(actor, r.now, action, "user", string(r.user))
}

// endSessions revokes all sessions of a user but one ("": none).
func (t *tx) endSessions(user berth.UserID, but string, now time.Time) error {
	_, err := t.exec(`UPDATE refresh_tokens SET revoked_at = $3 WHERE user_id = $1 AND family IS DISTINCT FROM $2 AND `+living,
		uid(user), uid(but), now)
	return err
}

// RevokeRefreshFamily is documented at store.Sessions.
func (s *Store) RevokeRefreshFamily(ctx context.Context, actor berth.Actor, token [32]byte) error {
	err := s.write(ctx, "RevokeRefreshFamily", func(t *tx) error {
		r, u, err := t.refreshToken(token)
		if err != nil {
			return err
		}
		return t.endSession(u.in(actor, r.family), berth.AuditLogout, r)
	})
	if errors.Is(err, berth.ErrNotFound) {
		return nil
	}
	return err
}

// SessionUser is documented at store.Sessions.
func (s *Store) SessionUser(ctx context.Context, session string, user berth.UserID) (berth.User, error) {
	var u userRow
	err := s.read(ctx, "SessionUser", func(t *tx) (err error) {
		u, err = found(t, "session", scanUser, userColumns+`
WHERE id = $2 AND NOT disabled AND EXISTS (
    SELECT 1 FROM refresh_tokens WHERE family = $1 AND user_id = $2 AND expires_at > berth_now() AND `+living+`)`, uid(session), uid(user))
		return err
	})
	return u.User, err
}
