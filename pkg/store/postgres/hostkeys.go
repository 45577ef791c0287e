package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// keysOf reads the keys of a host that is not revoked.
func (t *tx) keysOf(id berth.HostID) (store.HostKeys, error) {
	return found(t, "host", func(row pgx.CollectableRow) (k store.HostKeys, err error) {
		return k, row.Scan(&k.Current, &k.Next)
	}, `SELECT public_key, next_public_key FROM hosts WHERE id = $1 AND state <> 'revoked'`, uid(id))
}

// lockedHost locks one host's row and tells the time after that.
func (t *tx) lockedHost(id berth.HostID) (time.Time, error) {
	if err := t.lockHost(id); err != nil {
		return time.Time{}, err
	}
	return t.now()
}

// HostKeys is documented at store.HostKeyring.
func (s *Store) HostKeys(ctx context.Context, id berth.HostID) (keys store.HostKeys, err error) {
	err = s.read(ctx, "HostKeys", func(t *tx) error {
		keys, err = t.keysOf(id)
		return err
	})
	return only(keys, err)
}

// OfferHostKey is documented at store.HostKeyring.
func (s *Store) OfferHostKey(ctx context.Context, p store.OfferHostKeyParams) error {
	return s.write(ctx, "OfferHostKey", func(t *tx) error {
		now, err := t.lockedHost(p.Host)
		if err != nil {
			return err
		}
		if _, err := t.judgeCaller(p.Host, p.Epoch); err != nil {
			return err
		}
		keys, err := t.keysOf(p.Host)
		switch {
		case err != nil:
			return err
		case bytes.Equal(keys.Current, p.Key):
			return nil
		case !bytes.Equal(keys.Current, p.Under):
			return fmt.Errorf("host key: %w", berth.ErrUnauthenticated)
		case bytes.Equal(keys.Next, p.Key):
			return nil
		}
		if _, err := t.exec(`UPDATE hosts SET next_public_key = $2 WHERE id = $1`, uid(p.Host), p.Key); err != nil {
			return err
		}
		return t.auditChange(p.Actor, now, berth.AuditHostKeyOffered, "host", string(p.Host),
			berth.HostKeyFacts(keys.Next), berth.HostKeyFacts(p.Key))
	})
}

// PromoteHostKey is documented at store.HostKeyring.
func (s *Store) PromoteHostKey(ctx context.Context, actor berth.Actor, id berth.HostID, key []byte) error {
	return s.write(ctx, "PromoteHostKey", func(t *tx) error {
		now, err := t.lockedHost(id)
		if err != nil {
			return err
		}
		keys, err := t.keysOf(id)
		switch {
		case err != nil:
			return err
		case bytes.Equal(keys.Current, key):
			return nil
		case !bytes.Equal(keys.Next, key):
			return fmt.Errorf("host key: %w", berth.ErrNotFound)
		}
		if _, err := t.exec(`
UPDATE hosts SET public_key = $2, next_public_key = NULL, key_changed_at = $3, key_rotation_requested_at = NULL WHERE id = $1`,
			uid(id), key, now); err != nil {
			return err
		}
		return t.auditChange(actor, now, berth.AuditHostKeyRotated, "host", string(id), berth.HostKeyFacts(keys.Current), berth.HostKeyFacts(key))
	})
}

// RequestKeyRotation is documented at store.HostKeyring.
func (s *Store) RequestKeyRotation(ctx context.Context, actor berth.Actor, id berth.HostID) (h berth.Host, err error) {
	err = s.write(ctx, "RequestKeyRotation", func(t *tx) error {
		now, err := t.lockedHost(id)
		if err != nil {
			return err
		}
		if h, err = t.shownHost(id); err != nil {
			return err
		}
		if h.State == berth.HostRevoked {
			return &berth.WrongStateError{Thing: "host", State: string(h.State), Message: "a revoked host has no key to change"}
		}
		n, err := t.exec(`UPDATE hosts SET key_rotation_requested_at = $2 WHERE id = $1 AND key_rotation_requested_at IS NULL`, uid(id), now)
		if err != nil || n == 0 {
			return err
		}
		if err := t.auditChange(actor, now, berth.AuditKeyRotationAsked, "host", string(id), berth.KeyRotationFacts(false), berth.KeyRotationFacts(true)); err != nil {
			return err
		}
		h, err = t.shownHost(id)
		return err
	})
	return only(h, err)
}
