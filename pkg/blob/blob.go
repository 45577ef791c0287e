// Package blob keeps bytes under keys: the content of artifacts and logs. The
// database says what a blob is and which one counts; a blob store knows nothing
// but keys.
package blob

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
)

// Store keeps blobs. All of its methods may be called by several goroutines.
type Store interface {
	// Put streams r into the blob key and returns its size in bytes and the
	// SHA-256 of its bytes in lower-case hex. When it returns nil the blob is
	// whole and survives a crash of the machine; otherwise no blob of that key
	// was made or changed, and nothing is left behind.
	//
	// More than limit bytes is berth.ErrTooLarge; an existing key is
	// berth.ErrExists (blobs never change); a bad key is berth.ErrInvalid; a full
	// store wraps ErrFull. An error of r is returned as it is.
	Put(ctx context.Context, key Key, r io.Reader, limit int64) (size int64, sha256 string, err error)
	// Get opens a blob and says how long it is, or returns berth.ErrNotFound.
	// The reader may be read after the blob was deleted.
	Get(ctx context.Context, key Key) (r io.ReadCloser, size int64, err error)
	// GetFrom is Get from the byte offset on; size is the whole blob's. An offset
	// below 0 or behind the end is berth.ErrInvalid.
	GetFrom(ctx context.Context, key Key, offset int64) (r io.ReadCloser, size int64, err error)
	// Stat says what List would of one blob, or returns berth.ErrNotFound.
	Stat(ctx context.Context, key Key) (Info, error)
	// Delete removes a blob; one that is not there is no error.
	Delete(ctx context.Context, key Key) error
	// List returns at most limit blobs whose keys begin with prefix, in an order
	// of the store's own, that come after the key after in that order (the key of
	// a blob that was listed, also of one deleted since; "" begins). Blobs that
	// are put or deleted meanwhile may be in the list or not; all others are,
	// once. Fewer than limit is the end.
	List(ctx context.Context, prefix string, after Key, limit int) ([]Info, error)
	// Tidy removes what Puts left that broke off before olderThan, of processes
	// that died: space that no List shows. It never touches a blob, nor what Puts
	// of keys that are not Made left.
	Tidy(ctx context.Context, olderThan time.Time) error
}

// Info is what List tells of a blob.
type Info struct {
	Key  Key
	Size int64
	// ModTime is when it was put, by the store's clock.
	ModTime time.Time
}

// Key names a blob: path segments joined by slashes, each of letters, digits
// and . _ -, none starting with a dot; at most MaxKeyLen bytes.
type Key string

// MaxKeyLen bounds a key.
const MaxKeyLen = 200

// Kind is what a blob belongs to: the first segment of its key.
type Kind string

// The kinds.
const (
	KindArtifact Kind = "artifacts"
	KindLog      Kind = "logs"
	KindInput    Kind = "inputs"
)

// NewKey makes a key that no other call makes.
func NewKey(kind Kind) Key { return Key(string(kind) + "/" + uuid.NewString()) }

// Made reports whether NewKey makes such keys. What else lies where the blobs do
// is somebody else's: of another program in the bucket, or of an installation
// whose prefix begins with this one's.
func (k Key) Made() bool {
	kind, id, _ := strings.Cut(string(k), "/")
	switch Kind(kind) {
	case KindArtifact, KindLog, KindInput:
		return len(id) == 36 && uuid.Validate(id) == nil // as NewKey spells it
	}
	return false
}

// Valid is nil or berth.ErrInvalid.
func (k Key) Valid() error {
	if k == "" || len(k) > MaxKeyLen {
		return fmt.Errorf("blob key of %d bytes: %w", len(k), berth.ErrInvalid)
	}
	for segment := range strings.SplitSeq(string(k), "/") {
		if segment == "" || segment[0] == '.' || strings.ContainsFunc(segment, unsafe) {
			return fmt.Errorf("blob key has an unsafe segment: %w", berth.ErrInvalid)
		}
	}
	return nil
}

func unsafe(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		return false
	}
	return true
}
