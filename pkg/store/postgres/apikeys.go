package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const apiKeyColumns = `
SELECT k.id, k.user_id, u.name, k.name, k.prefix, k.roles, k.created_at, k.expires_at, k.last_used_at, k.revoked_at
FROM api_keys k JOIN users u ON u.id = k.user_id `

func scanAPIKey(row pgx.CollectableRow) (k berth.APIKey, err error) {
	var roles []string
	err = row.Scan(&k.ID, &k.User, &k.UserName, &k.Name, &k.Prefix, &roles, &k.CreatedAt, instant(&k.ExpiresAt), instant(&k.LastUsedAt), instant(&k.RevokedAt))
	k.Roles = rolesOf(roles)
	return k, err
}

// CreateAPIKey is documented at store.APIKeys.
func (s *Store) CreateAPIKey(ctx context.Context, p store.CreateAPIKeyParams) (k berth.APIKey, err error) {
	err = s.write(ctx, "CreateAPIKey", func(t *tx) error {
		ids, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.Key.ID)})
		if err != nil {
			return err
		}
		if replayed {
			k, err = found(t, "API key", scanAPIKey, apiKeyColumns+`WHERE k.id = $1 AND k.secret_hash = $2`, uid(ids[0]), p.Hash[:])
			if errors.Is(err, berth.ErrNotFound) {
				return fmt.Errorf("API key: %w", berth.ErrExists)
			}
			return err
		}
		u, err := t.lockUser(p.Key.User)
		if err != nil {
			return err
		}
		if err := u.MayHaveAPIKeys(); err != nil {
			return err
		}
		if err := t.insertAPIKey(p); err != nil {
			return err
		}
		if k, err = found(t, "API key", scanAPIKey, apiKeyColumns+`WHERE k.id = $1`, uid(p.Key.ID)); err != nil {
			return err
		}
		return t.auditChange(p.Actor, k.CreatedAt, berth.AuditAPIKeyCreated, "api_key", string(k.ID), "", k.Facts())
	})
	return only(k, err)
}

func (t *tx) insertAPIKey(p store.CreateAPIKeyParams) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	var expires time.Time
	if p.TTL > 0 {
		expires = now.Add(p.TTL)
	}
	_, err = t.exec(`
INSERT INTO api_keys (id, user_id, name, prefix, secret_hash, roles, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		uid(p.Key.ID), uid(p.Key.User), clean(p.Key.Name), p.Key.Prefix, p.Hash[:], roleTexts(berth.SortedRoles(p.Key.Roles)), now, orNull(expires))
	if sqlState(err) == uniqueViolation {
		return fmt.Errorf("API key: %w", berth.ErrExists)
	}
	return err
}

// ListAPIKeys is documented at store.APIKeys.
func (s *Store) ListAPIKeys(ctx context.Context, user berth.UserID, page store.Page) (keys []berth.APIKey, next string, err error) {
	where, args := `WHERE ($1::uuid IS NULL OR k.id > $1) ORDER BY k.id LIMIT $2`, []any{uid(berth.APIKeyID(page.After)), page.Limit() + 1}
	if user != "" {
		where, args = `WHERE k.user_id = $3 AND ($1::uuid IS NULL OR k.id > $1) ORDER BY k.id LIMIT $2`, append(args, uid(user))
	}
	err = s.read(ctx, "ListAPIKeys", func(t *tx) error {
		keys, err = collect(t, scanAPIKey, apiKeyColumns+where, args...)
		return err
	})
	keys, next = cut(keys, page, func(k berth.APIKey) string { return string(k.ID) })
	return keys, next, err
}

// RevokeAPIKey is documented at store.APIKeys.
func (s *Store) RevokeAPIKey(ctx context.Context, actor berth.Actor, owner berth.UserID, id berth.APIKeyID) error {
	return s.write(ctx, "RevokeAPIKey", func(t *tx) error {
		if _, err := t.exec(`SELECT 1 FROM api_keys WHERE id = $1 FOR NO KEY UPDATE`, uid(id)); err != nil {
			return err
		}
		k, err := found(t, "API key", scanAPIKey, apiKeyColumns+`WHERE k.id = $1`, uid(id))
		switch {
		case err != nil:
			return err
		case owner != "" && k.User != owner:
			return fmt.Errorf("API key: %w", berth.ErrNotFound)
		case !k.RevokedAt.IsZero():
			return nil
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE api_keys SET revoked_at = $2 WHERE id = $1`, uid(id), now); err != nil {
			return err
		}
		return t.auditChange(actor, now, berth.AuditAPIKeyRevoked, "api_key", string(id), k.Facts(), "")
	})
}

// UseAPIKey is documented at store.APIKeys.
func (s *Store) UseAPIKey(ctx context.Context, hash [32]byte) (berth.APIKey, berth.User, error) {
	type use struct {
		key  berth.APIKey
		user userRow
		due  bool
	}
	var u use
	err := s.read(ctx, "UseAPIKey", func(t *tx) (err error) {
		u, err = found(t, "API key", func(row pgx.CollectableRow) (u use, err error) {
			var asked, has []string
			err = row.Scan(&u.key.ID, &u.key.User, &u.key.Name, &u.key.Prefix, &asked, &u.key.CreatedAt, instant(&u.key.ExpiresAt), instant(&u.key.LastUsedAt),
				&u.user.Name, &has, &u.user.HasPassword, nullable(&u.user.Issuer), nullable(&u.user.Subject), &u.user.Version, &u.user.CreatedAt, &u.due)
			u.key.Roles, u.user.Roles, u.user.ID, u.key.UserName = rolesOf(asked), rolesOf(has), u.key.User, u.user.Name
			return u, err
		}, `
SELECT k.id, k.user_id, k.name, k.prefix, k.roles, k.created_at, k.expires_at, k.last_used_at,
       u.name, u.roles, u.password_hash <> '', u.issuer, u.subject, u.version, u.created_at,
       k.last_used_at IS NULL OR k.last_used_at + make_interval(secs => $2) <= n.now
FROM api_keys k JOIN users u ON u.id = k.user_id, (SELECT berth_now() AS now OFFSET 0) n
WHERE k.secret_hash = $1 AND k.revoked_at IS NULL AND NOT u.disabled AND (k.expires_at IS NULL OR k.expires_at > n.now)`,
			hash[:], berth.APIKeyUseStep.Seconds())
		return err
	})
	if err == nil && u.due {
		err = s.noteUse(ctx, u.key.ID)
	}
	if err != nil {
		return berth.APIKey{}, berth.User{}, err
	}
	return u.key, u.user.User, nil
}

// noteUse writes the last use down, unless another call has just done so: that
// one is not waited for.
func (s *Store) noteUse(ctx context.Context, id berth.APIKeyID) error {
	return s.write(ctx, "UseAPIKey", func(t *tx) error {
		_, err := t.exec(`
UPDATE api_keys SET last_used_at = berth_now() WHERE id = (
    SELECT id FROM api_keys WHERE id = $1 AND (last_used_at IS NULL OR last_used_at + make_interval(secs => $2) <= berth_now())
    FOR NO KEY UPDATE SKIP LOCKED)`, uid(id), berth.APIKeyUseStep.Seconds())
		return err
	})
}
