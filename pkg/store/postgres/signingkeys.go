package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const keyColumns = `
SELECT id, algorithm, public_key, private_key, created_at, (extract(epoch FROM n.now - created_at) * 1000000)::bigint
FROM signing_keys, (SELECT berth_now() AS now OFFSET 0) n`

const newestFirst = ` ORDER BY created_at DESC, id DESC`

func scanSigningKey(row pgx.CollectableRow) (k store.SigningKey, err error) {
	var private []byte
	var age int64
	err = row.Scan(&k.ID, &k.Algorithm, &k.Public, &private, &k.CreatedAt, &age)
	k.Private, k.Age = redact.NewBytes(private), microseconds(age)
	return k, err
}

// SigningKeys is documented at store.SigningKeys.
func (s *Store) SigningKeys(ctx context.Context) (keys []store.SigningKey, err error) {
	err = s.read(ctx, "SigningKeys", func(t *tx) error {
		keys, err = collect(t, scanSigningKey, keyColumns+newestFirst)
		return err
	})
	return keys, err
}

// lockSigningKeys makes those who change the set of keys take turns; each judges
// after it has the lock.
func (t *tx) lockSigningKeys() error {
	_, err := t.exec(`SELECT pg_advisory_xact_lock(hashtextextended('berth.signing_keys', 0))`)
	return err
}

// AddSigningKey is documented at store.SigningKeys.
func (s *Store) AddSigningKey(ctx context.Context, key store.SigningKey, olderThan time.Duration) (newest store.SigningKey, err error) {
	err = s.write(ctx, "AddSigningKey", func(t *tx) error {
		if err := t.lockSigningKeys(); err != nil {
			return err
		}
		k, ok, err := first(t, scanSigningKey, keyColumns+newestFirst+` LIMIT 1`)
		if err != nil {
			return err
		}
		if ok && k.Age < olderThan {
			newest = k
			return nil
		}
		newest, err = t.insertSigningKey(berth.System(), key)
		return err
	})
	return only(newest, err)
}

// insertSigningKey stores a key under the lock.
func (t *tx) insertSigningKey(actor berth.Actor, key store.SigningKey) (store.SigningKey, error) {
	now, err := t.now()
	if err != nil {
		return key, err
	}
	if _, err := t.exec(`INSERT INTO signing_keys (id, algorithm, public_key, private_key, created_at) VALUES ($1, $2, $3, $4, $5)`,
		key.ID, key.Algorithm, key.Public, key.Private.Reveal(), now); err != nil {
		if sqlState(err) == uniqueViolation {
			err = fmt.Errorf("a signing key of that id: %w", berth.ErrExists)
		}
		return key, err
	}
	key.CreatedAt, key.Age = now, 0
	return key, t.auditChange(actor, now, berth.AuditKeyCreated, "signing_key", key.ID, "", key.Facts())
}

// RotateSigningKey is documented at store.SigningKeys.
func (s *Store) RotateSigningKey(ctx context.Context, p store.RotateKeyParams) error {
	return s.write(ctx, "RotateSigningKey", func(t *tx) error {
		_, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.Key.ID)})
		if err != nil || replayed {
			return err
		}
		if err := t.lockSigningKeys(); err != nil {
			return err
		}
		n, _, err := first(t, column[int], `SELECT count(*) FROM signing_keys`)
		if err != nil {
			return err
		}
		if n >= store.MaxSigningKeys {
			return store.TooManySigningKeys()
		}
		_, err = t.insertSigningKey(p.Actor, p.Key)
		return err
	})
}

// RemoveSigningKeys is documented at store.SigningKeys.
func (s *Store) RemoveSigningKeys(ctx context.Context, actor berth.Actor, over time.Duration) (removed []string, err error) {
	err = s.write(ctx, "RemoveSigningKeys", func(t *tx) error {
		removed = nil
		if err := t.lockSigningKeys(); err != nil {
			return err
		}
		keys, err := collect(t, scanSigningKey, keyColumns+newestFirst)
		if err != nil {
			return err
		}
		gone := store.Superseded(keys, over)
		if len(gone) == 0 {
			return nil
		}
		removed = mapped(gone, func(k store.SigningKey) string { return k.ID })
		if _, err := t.exec(`DELETE FROM signing_keys WHERE id = ANY($1)`, removed); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		return t.auditEvents(mapped(gone, func(k store.SigningKey) berth.AuditEvent {
			return berth.AuditEvent{
				At: now, Actor: actor, Action: berth.AuditKeyRemoved, TargetKind: "signing_key", TargetID: k.ID, Before: k.Facts(),
			}
		}))
	})
	return only(removed, err)
}
