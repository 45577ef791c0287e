package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const keyColumns = `SELECT id, algorithm, public_key, private_key, created_at FROM signing_keys`

func scanSigningKey(row pgx.CollectableRow) (k store.SigningKey, err error) {
	var private []byte
	err = row.Scan(&k.ID, &k.Algorithm, &k.Public, &private, &k.CreatedAt)
	k.Private = redact.NewBytes(private)
	return k, err
}

// SigningKeys is documented at store.Accounts.
func (s *Store) SigningKeys(ctx context.Context) (keys []store.SigningKey, err error) {
	err = s.read(ctx, "SigningKeys", func(t *tx) error {
		keys, err = collect(t, scanSigningKey, keyColumns+` ORDER BY created_at DESC, id DESC`)
		return err
	})
	return keys, err
}

// AddSigningKey is documented at store.Accounts. The advisory lock makes
// processes that start at once take turns; each judges after it has it.
func (s *Store) AddSigningKey(ctx context.Context, key store.SigningKey, olderThan time.Duration) (newest store.SigningKey, err error) {
	err = s.write(ctx, "AddSigningKey", func(t *tx) error {
		if _, err := t.exec(`SELECT pg_advisory_xact_lock(hashtextextended('berth.signing_keys', 0))`); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		k, ok, err := first(t, scanSigningKey, keyColumns+` ORDER BY created_at DESC, id DESC LIMIT 1`)
		if err != nil {
			return err
		}
		if ok && k.CreatedAt.After(now.Add(-olderThan)) {
			newest = k
			return nil
		}
		if _, err := t.exec(`INSERT INTO signing_keys (id, algorithm, public_key, private_key, created_at) VALUES ($1, $2, $3, $4, $5)`,
			key.ID, key.Algorithm, key.Public, key.Private.Reveal(), now); err != nil {
			if sqlState(err) == uniqueViolation {
				err = fmt.Errorf("a signing key of that id: %w", berth.ErrExists)
			}
			return err
		}
		newest = key
		newest.CreatedAt = now
		return t.auditAct(system(), now, berth.AuditKeyCreated, "signing_key", key.ID, "")
	})
	return only(newest, err)
}
