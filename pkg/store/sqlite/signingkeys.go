package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// signingKeysOf reads the keys, newest first.
func signingKeysOf(t *tx) ([]store.SigningKey, error) {
	return queryAll(t, func(r row) (k store.SigningKey, err error) {
		var private []byte
		err = r.Scan(&k.ID, &k.Algorithm, &k.Public, &private, at(&k.CreatedAt))
		k.Private, k.Age = redact.NewBytes(private), t.now.Sub(k.CreatedAt)
		return k, err
	}, "SELECT id, algorithm, public_key, private_key, created_at FROM signing_keys ORDER BY created_at DESC, id DESC")
}

// SigningKeys implements store.SigningKeys.
func (s *Store) SigningKeys(ctx context.Context) (keys []store.SigningKey, err error) {
	err = s.read(ctx, "SigningKeys", func(t *tx) error {
		keys, err = signingKeysOf(t)
		return err
	})
	return keys, err
}

// AddSigningKey implements store.SigningKeys.
func (s *Store) AddSigningKey(ctx context.Context, key store.SigningKey, olderThan time.Duration) (newest store.SigningKey, err error) {
	err = s.write(ctx, "AddSigningKey", func(t *tx) error {
		keys, err := signingKeysOf(t)
		if err != nil {
			return err
		}
		if len(keys) > 0 && keys[0].Age < olderThan {
			newest = keys[0]
			return nil
		}
		newest, err = insertSigningKey(t, berth.System(), key)
		return err
	})
	if err != nil {
		return store.SigningKey{}, err
	}
	return newest, nil
}

func insertSigningKey(t *tx, actor berth.Actor, key store.SigningKey) (store.SigningKey, error) {
	err := t.execOne("INSERT INTO signing_keys (id, algorithm, public_key, private_key, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
		key.ID, key.Algorithm, key.Public, key.Private.Reveal(), micros(t.now))
	if err != nil {
		return key, err
	}
	key.CreatedAt, key.Age = t.now, 0
	return key, auditChange(t, actor, berth.AuditKeyCreated, "signing_key", key.ID, "", key.Facts())
}

// RotateSigningKey implements store.SigningKeys.
func (s *Store) RotateSigningKey(ctx context.Context, p store.RotateKeyParams) error {
	return s.write(ctx, "RotateSigningKey", func(t *tx) error {
		_, replayed, err := once(t, p.Actor, p.Once, []string{p.Key.ID})
		if err != nil || replayed {
			return err
		}
		n, _, err := queryOne(t, scanInt, "SELECT count(*) FROM signing_keys")
		if err != nil {
			return err
		}
		if n >= store.MaxSigningKeys {
			return store.TooManySigningKeys()
		}
		_, err = insertSigningKey(t, p.Actor, p.Key)
		return err
	})
}

// RemoveSigningKeys implements store.SigningKeys.
func (s *Store) RemoveSigningKeys(ctx context.Context, actor berth.Actor, over time.Duration) (removed []string, err error) {
	err = s.write(ctx, "RemoveSigningKeys", func(t *tx) error {
		keys, err := signingKeysOf(t)
		if err != nil {
			return err
		}
		for _, k := range store.Superseded(keys, over) {
			if err := t.execOne("DELETE FROM signing_keys WHERE id = ?1", k.ID); err != nil {
				return err
			}
			if err := auditChange(t, actor, berth.AuditKeyRemoved, "signing_key", k.ID, k.Facts(), ""); err != nil {
				return err
			}
			removed = append(removed, k.ID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}
