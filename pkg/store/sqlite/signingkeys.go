package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const keySelect = "SELECT id, algorithm, public_key, private_key, created_at FROM signing_keys ORDER BY created_at DESC, id DESC"

func scanKey(r row) (k store.SigningKey, err error) {
	var private []byte
	err = r.Scan(&k.ID, &k.Algorithm, &k.Public, &private, at(&k.CreatedAt))
	k.Private = redact.NewBytes(private)
	return k, err
}

// SigningKeys implements store.Accounts.
func (s *Store) SigningKeys(ctx context.Context) (keys []store.SigningKey, err error) {
	err = s.read(ctx, "SigningKeys", func(t *tx) error {
		keys, err = queryAll(t, scanKey, keySelect)
		return err
	})
	return keys, err
}

// AddSigningKey implements store.Accounts.
func (s *Store) AddSigningKey(ctx context.Context, key store.SigningKey, olderThan time.Duration) (newest store.SigningKey, err error) {
	err = s.write(ctx, "AddSigningKey", func(t *tx) error {
		var ok bool
		newest, ok, err = queryOne(t, scanKey, keySelect+" LIMIT 1")
		if err != nil || ok && newest.CreatedAt.After(t.now.Add(-olderThan)) {
			return err
		}
		newest = key
		newest.CreatedAt = t.now
		err = t.execOne("INSERT INTO signing_keys (id, algorithm, public_key, private_key, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
			key.ID, key.Algorithm, key.Public, key.Private.Reveal(), micros(t.now))
		if err != nil {
			return err
		}
		return auditAct(t, systemActor(), berth.AuditKeyCreated, "signing_key", key.ID)
	})
	if err != nil {
		return store.SigningKey{}, err
	}
	return newest, nil
}
