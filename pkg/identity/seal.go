package identity

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ErrMasterKey says that what is in the database was sealed under another
// master key than the configured ones.
var ErrMasterKey error = &berth.SetupError{
	What:   "what is secret in the database is sealed under another master key",
	Remedy: "configure the one that this installation was set up with (BERTH_MASTER_KEY_FILE), and beside a new one the one before it (BERTH_MASTER_KEY_OLD_FILE)",
}

// MasterKey seals private keys in the database. It prints as [redacted].
type MasterKey struct{ key redact.String }

// ParseMasterKey reads 32 bytes in hex or base64. The error does not repeat
// them.
func ParseMasterKey(text string) (MasterKey, error) {
	text = strings.TrimSpace(text)
	for _, decode := range []func(string) ([]byte, error){
		hex.DecodeString, base64.StdEncoding.DecodeString, base64.RawStdEncoding.DecodeString,
		base64.URLEncoding.DecodeString, base64.RawURLEncoding.DecodeString,
	} {
		if b, err := decode(text); err == nil && len(b) == 32 {
			return MasterKey{key: redact.NewString(string(b))}, nil
		}
	}
	return MasterKey{}, errors.New("the master key is not 32 bytes in hex or base64; make one with: openssl rand -hex 32")
}

// ParseMasterKeys reads a list of master keys, separated by commas or white
// space, such as a file with one a line. Without any the list is empty.
func ParseMasterKeys(text string) (keys []MasterKey, err error) {
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		key, err := ParseMasterKey(field)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// LoadMasterKey reads a master key from a file.
func LoadMasterKey(path string) (MasterKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return MasterKey{}, fmt.Errorf("read the master key: %w", err)
	}
	key, err := ParseMasterKey(string(text))
	if err != nil {
		return MasterKey{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// LoadOrCreateMasterKey reads the master key of a local installation and makes
// it, readable by its owner alone, when the file is missing. Of several
// processes that start at once one makes it and all get the same.
func LoadOrCreateMasterKey(path string) (MasterKey, error) {
	key, err := LoadMasterKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return MasterKey{}, fmt.Errorf("make a master key: %w", err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".master-key-") // mode 0600
	if err != nil {
		return MasterKey{}, fmt.Errorf("make a master key: %w", err)
	}
	defer func() { _ = os.Remove(temp.Name()) }()
	_, err = temp.WriteString(hex.EncodeToString(secret) + "\n")
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return MasterKey{}, fmt.Errorf("write the master key: %w", err)
	}
	// A link never replaces what another process made meanwhile.
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return MasterKey{}, fmt.Errorf("write the master key: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return MasterKey{}, fmt.Errorf("write the master key: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return MasterKey{}, fmt.Errorf("write the master key: %w", err)
	}
	return LoadMasterKey(path)
}

// IsZero reports whether there is no key.
func (m MasterKey) IsZero() bool { return m.key.IsZero() }

// sealVersion leads every sealed value; the master key's mark follows it, so
// that a wrong key is told from a damaged value.
const sealVersion = 1

func (m MasterKey) mark() [8]byte {
	sum := sha256.Sum256([]byte("berth master key mark:" + m.key.Reveal()))
	return [8]byte(sum[:8])
}

func (m MasterKey) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher([]byte(m.key.Reveal()))
	if err != nil {
		return nil, errors.New("no master key") // AES takes every key of 32 bytes
	}
	return cipher.NewGCM(block)
}

// derive makes a secret that the master key and the parts determine.
func (m MasterKey) derive(parts ...string) (secret [32]byte, err error) {
	if m.IsZero() {
		return secret, errors.New("no master key")
	}
	mac := hmac.New(sha256.New, []byte(m.key.Reveal()))
	for _, p := range parts { // each with its length, so that no two lists look alike
		mac.Write(binary.AppendUvarint(nil, uint64(len(p))))
		mac.Write([]byte(p))
	}
	return [32]byte(mac.Sum(nil)), nil
}

// seal encrypts secret with AES-256-GCM and binds it to context.
func (m MasterKey) seal(secret, context []byte) ([]byte, error) {
	aead, err := m.aead()
	if err != nil {
		return nil, err
	}
	mark := m.mark()
	out := append([]byte{sealVersion}, mark[:]...)
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	out = append(out, nonce...)
	return aead.Seal(out, nonce, secret, context), nil
}

// open decrypts what seal made. Another master key is ErrMasterKey.
func (m MasterKey) open(sealed, context []byte) ([]byte, error) {
	aead, err := m.aead()
	if err != nil {
		return nil, err
	}
	mark := m.mark()
	lead := 1 + len(mark)
	if len(sealed) < lead+aead.NonceSize() || sealed[0] != sealVersion {
		return nil, errDamaged
	}
	if [8]byte(sealed[1:lead]) != mark {
		return nil, ErrMasterKey
	}
	nonce := sealed[lead : lead+aead.NonceSize()]
	secret, err := aead.Open(nil, nonce, sealed[lead+aead.NonceSize():], context)
	if err != nil {
		return nil, errDamaged
	}
	return secret, nil
}

var errDamaged = errors.New("a sealed value in the database is damaged")

// vault seals under the current master key and opens what it or an old one
// sealed.
type vault struct {
	current MasterKey
	old     []MasterKey
}

func (v vault) seal(secret, context []byte) ([]byte, error) { return v.current.seal(secret, context) }

// open decrypts what seal made. Another master key than the configured ones is
// ErrMasterKey.
func (v vault) open(sealed, context []byte) ([]byte, error) {
	for _, m := range v.old {
		if m.sealed(sealed) {
			return m.open(sealed, context)
		}
	}
	return v.current.open(sealed, context)
}

// sealed reports whether a value bears m's mark.
func (m MasterKey) sealed(value []byte) bool {
	mark := m.mark()
	return len(value) > len(mark) && value[0] == sealVersion && [8]byte(value[1:1+len(mark)]) == mark
}

// name is m's mark, as the audit trail tells master keys apart.
func (m MasterKey) name() string {
	mark := m.mark()
	return hex.EncodeToString(mark[:])
}

// markName is the name of the master key that a value is sealed under, "" where it
// is none of ours.
func markName(value []byte) string {
	if len(value) < 9 || value[0] != sealVersion {
		return ""
	}
	return hex.EncodeToString(value[1:9])
}

// SealSecret seals a secret's value under the current master key, bound to its
// name and version.
func (s *Service) SealSecret(name string, version int, value redact.String) (redact.Bytes, error) {
	sealed, err := s.vault.seal([]byte(value.Reveal()), secretContext(name, version))
	if err != nil {
		return redact.Bytes{}, err
	}
	return redact.NewBytes(sealed), nil
}

// OpenSecret returns the value that SealSecret sealed, also under an old master
// key. A value that was moved to another name or version is an error, as a
// damaged one; another master key than the configured ones is ErrMasterKey.
func (s *Service) OpenSecret(v store.SealedValue) (redact.String, error) {
	if v.Kind != store.SealedSecret {
		return redact.String{}, fmt.Errorf("a sealed value of kind %s is no secret", v.Kind)
	}
	value, err := s.vault.open(v.Value.Reveal(), secretContext(v.ID, v.Version))
	if err != nil {
		return redact.String{}, fmt.Errorf("secret %s: %w", v.ID, err)
	}
	return redact.NewString(string(value)), nil
}

func secretContext(name string, version int) []byte {
	return fmt.Appendf(nil, "berth secret %q %d", name, version)
}
