package berth

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
)

// KeyFingerprint names a public key for people and for the audit trail.
func KeyFingerprint(key []byte) string {
	if len(key) == 0 {
		return ""
	}
	sum := sha256.Sum256(key)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// HostKeyFacts are a host's key as the trail tells it, "" without one.
func HostKeyFacts(key []byte) Facts {
	if len(key) == 0 {
		return ""
	}
	return NewFacts(map[string]string{"key": KeyFingerprint(key)})
}

// KeyRotationFacts say whether a host's agent is to change its key.
func KeyRotationFacts(asked bool) Facts {
	return Fact("key_rotation_requested", strconv.FormatBool(asked))
}

// HostNameFacts are a host's name.
func HostNameFacts(name string) Facts { return NewFacts(map[string]string{"name": name}) }

// maxHostName bounds the name of a host.
const maxHostName = 63

// FormerHostName is what a revoked host is called once another one has enrolled
// under its name: that name, cut where it is too long, with the end of the id.
// What was recorded of it names it by its id, which it keeps.
func FormerHostName(name string, id HostID) string {
	end := strings.ReplaceAll(string(id), "-", "")
	end = "-" + end[max(len(end)-12, 0):]
	return name[:min(len(name), maxHostName-len(end))] + end
}
