package berth

import "time"

// Input is a file that tasks bring (an app package, a test bundle), kept once
// by the digest of its bytes. A principal may use an input that it uploaded
// itself: to know a digest is not to have the bytes.
type Input struct {
	Digest string // SHA-256, lower-case hex
	Size   int64  // bytes
	// Received is how many bytes are there; Size when it is stored.
	Received   int64
	Stored     bool
	CreatedAt  time.Time
	LastUsedAt time.Time // last submit that named it, or the upload's end
}

// InputRef is how a task names an input: the file name that the work sees.
type InputRef struct {
	Name   string `json:"name"` // ValidArtifactName
	Digest string `json:"digest"`
	Size   int64  `json:"size"` // filled in by the server
}

// InputPart is a piece of an input's bytes in the blob store.
type InputPart struct {
	Offset  int64
	Size    int64
	BlobKey string
}

// Limits of inputs.
const (
	MaxInputBytes = 4 << 30
	// MaxInputPart is how much one append takes.
	MaxInputPart  = 64 << 20
	MaxTaskInputs = 20
	// InputUploadWithin is how long an unfinished upload is kept after its last part.
	InputUploadWithin = 24 * time.Hour
	// InputUnusedFor is how long an input that no task names is kept after its
	// last use.
	InputUnusedFor = 7 * 24 * time.Hour
)

// ValidDigest reports whether s is a SHA-256 in lower-case hex.
func ValidDigest(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, r := range s {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return true
}
