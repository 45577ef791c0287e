package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// AddRefreshToken is documented at store.Accounts.
func (s *Store) AddRefreshToken(ctx context.Context, r store.RefreshToken) error {
	return s.write(ctx, "AddRefreshToken", func(t *tx) error {
		return t.insertRefreshToken(r.Hash, r.Family, r.User, 1, r.TTL)
	})
}

func (t *tx) insertRefreshToken(hash [32]byte, family string, user berth.UserID, generation int, ttl time.Duration) error {
	_, err := t.exec(`
INSERT INTO refresh_tokens (token_hash, family, user_id, generation, created_at, expires_at)
SELECT $1, $2, $3, $4, n.now, n.now + make_interval(secs => $5) FROM (SELECT berth_now() AS now OFFSET 0) n`,
		hash[:], uid(family), uid(user), generation, ttl.Seconds())
	switch sqlState(err) {
	case uniqueViolation:
		return fmt.Errorf("refresh token: %w", berth.ErrExists)
	case "23503":
		return fmt.Errorf("user: %w", berth.ErrNotFound)
	}
	return err
}

// refreshRow is a token with its family's newest generation.
type refreshRow struct {
	family                          string
	user                            berth.UserID
	generation, newest              int
	expiresAt, rotatedAt, revokedAt time.Time
	now                             time.Time
}

// RotateRefreshToken is documented at store.Accounts. All tokens of the family
// are locked first, so that two uses of one family take turns.
func (s *Store) RotateRefreshToken(ctx context.Context, old, next [32]byte, ttl time.Duration) (user berth.User, err error) {
	var refused error
	err = s.write(ctx, "RotateRefreshToken", func(t *tx) error {
		user, refused = berth.User{}, nil
		if _, err := t.exec(`
SELECT 1 FROM refresh_tokens WHERE family = (SELECT family FROM refresh_tokens WHERE token_hash = $1)
ORDER BY token_hash FOR NO KEY UPDATE`, old[:]); err != nil {
			return err
		}
		r, err := found(t, "refresh token", func(row pgx.CollectableRow) (r refreshRow, err error) {
			return r, row.Scan(&r.family, &r.user, &r.generation, &r.newest, &r.expiresAt, instant(&r.rotatedAt), instant(&r.revokedAt), &r.now)
		}, `
SELECT r.family, r.user_id, r.generation, (SELECT max(generation) FROM refresh_tokens x WHERE x.family = r.family),
       r.expires_at, r.rotated_at, r.revoked_at, berth_now()
FROM refresh_tokens r WHERE r.token_hash = $1`, old[:])
		if err != nil {
			return err
		}
		if !r.revokedAt.IsZero() || !r.now.Before(r.expiresAt) {
			return fmt.Errorf("refresh token: %w", berth.ErrExpired)
		}
		u, err := found(t, "user", scanUser, userColumns+` WHERE id = $1 AND NOT disabled`, uid(r.user))
		if err != nil {
			return err
		}
		if !r.rotatedAt.IsZero() && !r.graceful() {
			// The refusal is an answer; the revocation is to stay.
			refused = fmt.Errorf("refresh token: %w", berth.ErrUsed)
			return t.revokeFamily(r.family, r.now)
		}
		if _, err := t.exec(`UPDATE refresh_tokens SET rotated_at = COALESCE(rotated_at, $2) WHERE token_hash = $1`, old[:], r.now); err != nil {
			return err
		}
		user = u.User
		return t.insertRefreshToken(next, r.family, r.user, r.generation+1, ttl)
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return berth.User{}, err
	}
	return user, nil
}

// graceful reports whether a token that was rotated before may be answered
// again: its answer was lost, or the client refreshed twice at once.
func (r refreshRow) graceful() bool {
	return r.generation == r.newest-1 && r.now.Sub(r.rotatedAt) <= store.RefreshGrace
}

func (t *tx) revokeFamily(family string, now time.Time) error {
	_, err := t.exec(`UPDATE refresh_tokens SET revoked_at = $2 WHERE family = $1 AND revoked_at IS NULL`, uid(family), now)
	return err
}

// RevokeRefreshFamily is documented at store.Accounts.
func (s *Store) RevokeRefreshFamily(ctx context.Context, token [32]byte) error {
	return s.write(ctx, "RevokeRefreshFamily", func(t *tx) error {
		families, err := collect(t, column[string], `
SELECT family::text FROM refresh_tokens WHERE family = (SELECT family FROM refresh_tokens WHERE token_hash = $1)
ORDER BY token_hash FOR NO KEY UPDATE`, token[:])
		if err != nil || len(families) == 0 {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		return t.revokeFamily(families[0], now)
	})
}
