package store

import (
	"encoding/hex"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
)

// The checks of inputs that both engines make before they take any lock.

const reasonRemedy = "use lower-case letters, digits and _, at most 64"

// CheckComplete judges the items of a completion: a berth.InvalidError names
// every fault, and then none of them is done.
func CheckComplete(items []CompleteItem) error {
	var f berth.Faults
	for i, item := range items {
		if !item.Outcome.ReportableByAgent() {
			f.Add(fmt.Sprintf("items[%d].outcome", i), "no outcome that an agent reports", "use succeeded, failed, infra_failed, timed_out or cancelled")
		}
		if item.Reason != "" && !berth.ValidReason(item.Reason) {
			f.Add(fmt.Sprintf("items[%d].reason", i), "is no reason code", reasonRemedy)
		}
	}
	return f.Err()
}

// CheckRelease judges the reason of a hand-back; "" is fine.
func CheckRelease(reason string) error {
	if reason != "" && !berth.ValidReason(reason) {
		return berth.Invalid("reason", "is no reason code", reasonRemedy)
	}
	return nil
}

// CheckChunk judges a chunk of a log: an empty one is berth.ErrInvalid, one of
// more than MaxLogChunk bytes berth.ErrTooLarge.
func CheckChunk(c berth.LogChunk) error {
	switch {
	case c.Size <= 0 || c.Offset < 0:
		return berth.Invalid("size", "the chunk is empty or before the log", "send at least one byte at an offset of 0 or more")
	case c.Size > MaxLogChunk:
		return berth.TooLarge("the chunk", c.Size, MaxLogChunk)
	}
	return checkDigest(c.SHA256)
}

// CheckArtifact judges an artifact's size and digest.
func CheckArtifact(a berth.Artifact) error {
	if a.Size < 0 {
		return berth.Invalid("size", "is negative", "send the number of bytes")
	}
	return checkDigest(a.SHA256)
}

func checkDigest(sum string) error {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != 32 {
		return berth.Invalid("sha256", "is not a SHA-256 in hex", "send 64 hex digits")
	}
	return nil
}
