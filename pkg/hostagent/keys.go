package hostagent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
)

// The files of the host's private keys in the state directory, mode 0600.
const (
	keyFile     = "host-key.pem"
	nextKeyFile = "host-key-next.pem"
)

// DefaultKeyMaxAge is the age from which a Host Agent changes its key unasked.
const DefaultKeyMaxAge = 30 * 24 * time.Hour

// keyring is the host's private key and, while that is being changed, the one that
// follows. A change goes so, and may be broken off anywhere:
//
//  1. the next key is written to its file;
//  2. the server is offered it, and takes both from then on;
//  3. the server gives a token under it, and takes it alone from then on;
//  4. its file takes the place of the old one's.
//
// Whatever is on the disk, one of its keys is one that the server takes. The file of
// the next key is never written over: whether the server has it in force is only
// known when it has given a token.
type keyring struct {
	dir string
	// step, for tests, is called after each of the four.
	step func(n int)

	mu      sync.Mutex
	current ed25519.PrivateKey
	next    ed25519.PrivateKey // nil while none follows
	// unsaved: current is in the next one's file still.
	unsaved bool
}

// openKeyring reads the keys, and makes the first one.
func openKeyring(dir string) (*keyring, error) {
	current, err := loadKey(filepath.Join(dir, keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		current, err = makeKey(filepath.Join(dir, keyFile))
	}
	if err != nil {
		return nil, err
	}
	next, err := loadKey(filepath.Join(dir, nextKeyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &keyring{dir: dir, step: func(int) {}, current: current, next: next}, nil
}

// makeKey makes a key and writes it, so that it survives whatever comes.
func makeKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func loadKey(path string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file: move it away and enrol again", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s holds no Ed25519 key: move it away and enrol again", path)
	}
	return key, nil
}

// keys are those that the server may take, the likelier one first.
func (k *keyring) keys() []ed25519.PrivateKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next == nil {
		return []ed25519.PrivateKey{k.current}
	}
	return []ed25519.PrivateKey{k.current, k.next}
}

// follow gives the key in force and the one that is to follow, which it makes and
// writes unless it is there.
func (k *keyring) follow() (current, next ed25519.PrivateKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unsaved {
		if err := k.save(); err != nil {
			return nil, nil, err
		}
	}
	if k.next == nil {
		if k.next, err = makeKey(filepath.Join(k.dir, nextKeyFile)); err != nil {
			k.next = nil
			return nil, nil, err
		}
		k.step(1)
	}
	return k.current, k.next, nil
}

// used notes that the server gave a token under a key: the next one is in force
// then, and the old one dead. An error means that it could not take its place on the
// disk; it is in force all the same, and tried again.
func (k *keyring) used(key ed25519.PrivateKey) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next == nil || !bytes.Equal(key, k.next) {
		return false, nil
	}
	k.step(3)
	k.current, k.next, k.unsaved = k.next, nil, true
	return true, k.save()
}

// save puts the next key's file in the place of the old one's.
func (k *keyring) save() error {
	if err := os.Rename(filepath.Join(k.dir, nextKeyFile), filepath.Join(k.dir, keyFile)); err != nil {
		return fmt.Errorf("put the new key in the old one's place: %w", err)
	}
	k.unsaved = false
	err := syncDir(k.dir)
	k.step(4)
	return err
}

// due reports whether the key is to be changed: a change was begun, or the key is
// older than most; 0 is never.
func (k *keyring) due(now time.Time, most time.Duration) bool {
	k.mu.Lock()
	begun := k.next != nil || k.unsaved
	k.mu.Unlock()
	if begun || most <= 0 {
		return begun
	}
	at, err := os.Stat(filepath.Join(k.dir, keyFile))
	return err == nil && now.Sub(at.ModTime()) > most
}

// keyEvery is how often the key's age is looked at. A change that failed is tried
// again after a second, two, four, up to that.
const keyEvery = time.Minute

// keyLoop changes the host's key when it is asked to, and by its age.
func (a *Agent) keyLoop(ctx context.Context) {
	failures := 0
	for {
		asked, wait := false, keyEvery
		if a.id.keys.due(a.cfg.Wall(), a.cfg.KeyMaxAge) {
			wait = min(keyEvery, time.Second<<min(failures, 6)-time.Second)
		}
		t := time.NewTimer(jitter(wait, 0.2))
		select {
		case <-ctx.Done():
		case asked = <-a.rotate:
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
		if !asked && !a.id.keys.due(a.cfg.Wall(), a.cfg.KeyMaxAge) {
			continue
		}
		err := a.changeKey(ctx)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		if failures == 1 && ctx.Err() == nil {
			a.log.Warn("the host's key could not be changed yet; it is tried again", zap.Error(err))
		}
	}
}

// askRotation has the key changed soon.
func (a *Agent) askRotation() {
	select {
	case a.rotate <- true:
	default:
	}
}

// changeKey takes the steps of a change that are left.
func (a *Agent) changeKey(ctx context.Context) error {
	current, next, err := a.id.keys.follow()
	if err != nil {
		return err
	}
	offer, err := identity.NewKeyOffer(current, next, a.id.HostID, a.id.Audience, a.api.now())
	if err != nil {
		return err
	}
	req := protocol.KeyRequest{PublicKey: offer.Key, Consent: offer.Consent.Reveal(), Proof: offer.Proof.Reveal()}
	if err := a.call(ctx, http.MethodPost, protocol.PathKeys, req, nil, a.timeout()); err != nil {
		return err
	}
	a.id.keys.step(2)
	ctx, stop := context.WithTimeout(ctx, a.conf().RequestTimeout.Duration())
	defer stop()
	return a.api.renewToken(ctx, next)
}

// fingerprint names a key's public half.
func fingerprint(key ed25519.PrivateKey) string {
	public, _ := key.Public().(ed25519.PublicKey)
	return berth.KeyFingerprint(public)
}
