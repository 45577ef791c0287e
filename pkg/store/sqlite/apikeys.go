package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const apiKeySelect = `SELECT k.id, k.user_id, u.name, k.name, k.prefix, k.roles, k.created_at, k.expires_at, k.last_used_at, k.revoked_at
	FROM api_keys k JOIN users u ON u.id = k.user_id`

func scanAPIKey(r row) (k berth.APIKey, err error) {
	return k, r.Scan(&k.ID, &k.User, &k.UserName, &k.Name, &k.Prefix, fromJSON(&k.Roles), at(&k.CreatedAt), at(&k.ExpiresAt), at(&k.LastUsedAt), at(&k.RevokedAt))
}

func loadAPIKey(t *tx, id berth.APIKeyID) (berth.APIKey, error) {
	k, ok, err := queryOne(t, scanAPIKey, apiKeySelect+" WHERE k.id = ?1", id)
	if err == nil && !ok {
		err = notFound("API key")
	}
	return k, err
}

// CreateAPIKey implements store.APIKeys.
func (s *Store) CreateAPIKey(ctx context.Context, p store.CreateAPIKeyParams) (k berth.APIKey, err error) {
	err = s.write(ctx, "CreateAPIKey", func(t *tx) error {
		ids, replayed, err := once(t, p.Actor, p.Once, []berth.APIKeyID{p.Key.ID})
		if err != nil {
			return err
		}
		if replayed {
			var ok bool
			k, ok, err = queryOne(t, scanAPIKey, apiKeySelect+" WHERE k.id = ?1 AND k.secret_hash = ?2", ids[0], p.Hash[:])
			if err == nil && !ok {
				err = fmt.Errorf("API key: %w", berth.ErrExists)
			}
			return err
		}
		a, err := loadAccount(t, p.Key.User)
		if err != nil {
			return err
		}
		if err := a.MayHaveAPIKeys(); err != nil {
			return err
		}
		var expires time.Time
		if p.TTL > 0 {
			expires = t.now.Add(p.TTL)
		}
		err = t.execOne(`INSERT INTO api_keys (id, user_id, name, prefix, secret_hash, roles, created_at, expires_at)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)`,
			p.Key.ID, p.Key.User, p.Key.Name, p.Key.Prefix, p.Hash[:], list(berth.SortedRoles(p.Key.Roles)), micros(t.now), micros(expires))
		if err != nil {
			return err
		}
		if k, err = loadAPIKey(t, p.Key.ID); err != nil {
			return err
		}
		return auditChange(t, p.Actor, berth.AuditAPIKeyCreated, "api_key", string(k.ID), "", k.Facts())
	})
	if err != nil {
		return berth.APIKey{}, err
	}
	return k, nil
}

// ListAPIKeys implements store.APIKeys.
func (s *Store) ListAPIKeys(ctx context.Context, user berth.UserID, p store.Page) (keys []berth.APIKey, next string, err error) {
	where, args := " WHERE k.id > ?1 ORDER BY k.id LIMIT ?2", []any{p.After, p.Limit() + 1}
	if user != "" {
		where, args = " WHERE k.user_id = ?3 AND k.id > ?1 ORDER BY k.id LIMIT ?2", append(args, user)
	}
	err = s.read(ctx, "ListAPIKeys", func(t *tx) error {
		keys, err = queryAll(t, scanAPIKey, apiKeySelect+where, args...)
		return err
	})
	keys, next = page(keys, p.Limit(), func(k berth.APIKey) string { return string(k.ID) })
	return keys, next, err
}

// RevokeAPIKey implements store.APIKeys.
func (s *Store) RevokeAPIKey(ctx context.Context, actor berth.Actor, owner berth.UserID, id berth.APIKeyID) error {
	return s.write(ctx, "RevokeAPIKey", func(t *tx) error {
		k, err := loadAPIKey(t, id)
		switch {
		case err != nil:
			return err
		case owner != "" && k.User != owner:
			return notFound("API key")
		case !k.RevokedAt.IsZero():
			return nil
		}
		if err := t.execOne("UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1", id, micros(t.now)); err != nil {
			return err
		}
		return auditChange(t, actor, berth.AuditAPIKeyRevoked, "api_key", string(id), k.Facts(), "")
	})
}

// UseAPIKey implements store.APIKeys.
func (s *Store) UseAPIKey(ctx context.Context, hash [32]byte) (key berth.APIKey, user berth.User, err error) {
	var due bool
	err = s.read(ctx, "UseAPIKey", func(t *tx) error {
		k, ok, err := queryOne(t, scanAPIKey, apiKeySelect+` WHERE k.secret_hash = ?1 AND k.revoked_at IS NULL AND NOT u.disabled
			AND (k.expires_at IS NULL OR k.expires_at > ?2)`, hash[:], micros(t.now))
		if err != nil || !ok {
			return orNotFound(err, "API key")
		}
		a, err := loadAccount(t, k.User)
		key, user, due = k, a.User, usedBefore(k, t.now)
		return err
	})
	if err == nil && due {
		err = s.noteUse(ctx, key.ID)
	}
	if err != nil {
		return berth.APIKey{}, berth.User{}, err
	}
	return key, user, nil
}

// usedBefore: the last use that is noted is long enough ago.
func usedBefore(k berth.APIKey, now time.Time) bool {
	return k.LastUsedAt.IsZero() || now.Sub(k.LastUsedAt) >= berth.APIKeyUseStep
}

// noteUse writes the last use down, unless another call has just done so.
func (s *Store) noteUse(ctx context.Context, id berth.APIKeyID) error {
	return s.write(ctx, "UseAPIKey", func(t *tx) error {
		k, err := loadAPIKey(t, id)
		if err != nil || !usedBefore(k, t.now) {
			return err
		}
		return t.execOne("UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1", id, micros(t.now))
	})
}
