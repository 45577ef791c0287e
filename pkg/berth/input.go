package berth

import (
	"fmt"
	"slices"
	"time"
)

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

// InputDigests that the tasks name, ascending, each once: the order of the locks.
func InputDigests(tasks []NewTask) []string {
	var digests []string
	for _, k := range tasks {
		for _, in := range k.Inputs {
			digests = append(digests, in.Digest)
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests)
}

// BindInputs is the tasks' inputs with their sizes, of the inputs that may be
// used. What is not among them is a fault of its field.
func BindInputs(tasks []NewTask, usable []Input) ([][]InputRef, error) {
	sizes := make(map[string]int64, len(usable))
	for _, in := range usable {
		sizes[in.Digest] = in.Size
	}
	var f Faults
	bound := make([][]InputRef, len(tasks))
	for i, k := range tasks {
		bound[i] = slices.Clone(k.Inputs)
		for j := range bound[i] {
			size, ok := sizes[bound[i][j].Digest]
			if !ok {
				f.Add(fmt.Sprintf("tasks[%d].inputs[%d].digest", i, j), "you have uploaded no such input, or it has expired",
					"upload the file first: `berth input put FILE`")
			}
			bound[i][j].Size = size
		}
	}
	return bound, f.Err()
}
