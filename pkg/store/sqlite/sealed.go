package sqlite

import (
	"context"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// SealedValues implements store.Sealed. The cursor is "kind id".
func (s *Store) SealedValues(ctx context.Context, after string, limit int) (values []store.SealedValue, next string, err error) {
	p := store.Page{Size: limit}
	kind, id, _ := strings.Cut(after, " ")
	err = s.read(ctx, "SealedValues", func(t *tx) error {
		values, err = queryAll(t, func(r row) (v store.SealedValue, err error) {
			var sealed []byte
			err = r.Scan(&v.Kind, &v.ID, &v.Version, &v.Public, &sealed)
			v.Value = redact.NewBytes(sealed)
			return v, err
		}, `SELECT kind, id, version, public, sealed FROM (
			SELECT 'secret' AS kind, name AS id, version, NULL AS public, sealed FROM secrets
			UNION ALL SELECT 'signing_key', id, 0, public_key, private_key FROM signing_keys)
			WHERE (kind, id) > (?1, ?2) ORDER BY kind, id LIMIT ?3`, kind, id, p.Limit()+1)
		return err
	})
	values, next = page(values, p.Limit(), func(v store.SealedValue) string { return v.Kind + " " + v.ID })
	return values, next, err
}

// ReplaceSealed implements store.Sealed.
func (s *Store) ReplaceSealed(ctx context.Context, actor berth.Actor, old, anew store.SealedValue) (replaced bool, err error) {
	err = s.write(ctx, "ReplaceSealed", func(t *tx) error {
		n, err := replaceSealed(t, old, anew)
		if err != nil || n == 0 {
			return err
		}
		replaced = true
		return auditChange(t, actor, berth.AuditResealed, old.Kind, old.ID, old.Facts(), anew.Facts())
	})
	return replaced && err == nil, err
}

func replaceSealed(t *tx, old, anew store.SealedValue) (int64, error) {
	if old.Kind == store.SealedSecret {
		return t.exec("UPDATE secrets SET sealed = ?4 WHERE name = ?1 AND version = ?2 AND sealed = ?3",
			old.ID, old.Version, old.Value.Reveal(), anew.Value.Reveal())
	}
	return t.exec("UPDATE signing_keys SET private_key = ?3 WHERE id = ?1 AND private_key = ?2", old.ID, old.Value.Reveal(), anew.Value.Reveal())
}
