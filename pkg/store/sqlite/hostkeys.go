package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// keysOf reads the keys of a host that is not revoked.
func keysOf(t *tx, id berth.HostID) (store.HostKeys, error) {
	keys, ok, err := queryOne(t, func(r row) (k store.HostKeys, err error) {
		return k, r.Scan(&k.Current, &k.Next)
	}, "SELECT public_key, next_public_key FROM hosts WHERE id = ?1 AND state <> 'revoked'", id)
	if err == nil && !ok {
		err = notFound("host")
	}
	return keys, err
}

// HostKeys implements store.HostKeyring.
func (s *Store) HostKeys(ctx context.Context, id berth.HostID) (keys store.HostKeys, err error) {
	err = s.read(ctx, "HostKeys", func(t *tx) error {
		keys, err = keysOf(t, id)
		return err
	})
	if err != nil {
		return store.HostKeys{}, err
	}
	return keys, nil
}

// OfferHostKey implements store.HostKeyring.
func (s *Store) OfferHostKey(ctx context.Context, p store.OfferHostKeyParams) error {
	return s.write(ctx, "OfferHostKey", func(t *tx) error {
		if _, err := callingHost(t, p.AgentCall); err != nil {
			return err
		}
		keys, err := keysOf(t, p.Host)
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
		if err := t.execOne("UPDATE hosts SET next_public_key = ?2 WHERE id = ?1", p.Host, p.Key); err != nil {
			return err
		}
		return auditChange(t, p.Actor, berth.AuditHostKeyOffered, "host", string(p.Host), berth.HostKeyFacts(keys.Next), berth.HostKeyFacts(p.Key))
	})
}

// PromoteHostKey implements store.HostKeyring.
func (s *Store) PromoteHostKey(ctx context.Context, actor berth.Actor, id berth.HostID, key []byte) error {
	return s.write(ctx, "PromoteHostKey", func(t *tx) error {
		keys, err := keysOf(t, id)
		switch {
		case err != nil:
			return err
		case bytes.Equal(keys.Current, key):
			return nil
		case !bytes.Equal(keys.Next, key):
			return notFound("host key")
		}
		err = t.execOne(`UPDATE hosts SET public_key = ?2, next_public_key = NULL, key_changed_at = ?3, key_rotation_requested_at = NULL
			WHERE id = ?1`, id, key, micros(t.now))
		if err != nil {
			return err
		}
		return auditChange(t, actor, berth.AuditHostKeyRotated, "host", string(id), berth.HostKeyFacts(keys.Current), berth.HostKeyFacts(key))
	})
}

// RequestKeyRotation implements store.HostKeyring.
func (s *Store) RequestKeyRotation(ctx context.Context, actor berth.Actor, id berth.HostID) (h berth.Host, err error) {
	err = s.write(ctx, "RequestKeyRotation", func(t *tx) error {
		if h, err = loadHost(t, id); err != nil {
			return err
		}
		if h.State == berth.HostRevoked {
			return &berth.WrongStateError{Thing: "host", State: string(h.State), Message: "a revoked host has no key to change"}
		}
		n, err := t.exec("UPDATE hosts SET key_rotation_requested_at = ?2 WHERE id = ?1 AND key_rotation_requested_at IS NULL", id, micros(t.now))
		if err != nil || n == 0 {
			return err
		}
		if err := auditChange(t, actor, berth.AuditKeyRotationAsked, "host", string(id), berth.KeyRotationFacts(false), berth.KeyRotationFacts(true)); err != nil {
			return err
		}
		h, err = loadHost(t, id)
		return err
	})
	if err != nil {
		return berth.Host{}, err
	}
	return h, nil
}
