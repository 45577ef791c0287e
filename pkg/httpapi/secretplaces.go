package httpapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
)

// maxSecretPlaces bounds the list of a plugin, which its author writes.
const maxSecretPlaces = 32

// secretPlaces are the places of a plugin's payloads that name secrets. Its schema
// lists them in the member x-berth-secrets: steps.*.type.secret, say, where * is
// every item or member.
func secretPlaces(schema []byte) (places [][]string) {
	var doc struct {
		Secrets []string `json:"x-berth-secrets"`
	}
	if json.Unmarshal(schema, &doc) != nil {
		return nil // it is not what this release means by it
	}
	for _, place := range doc.Secrets[:min(len(doc.Secrets), maxSecretPlaces)] {
		places = append(places, strings.Split(place, "."))
	}
	return places
}

// unnamedSecrets adds a fault for each secret that a payload names at the places
// and that is none of the task's.
func unnamedSecrets(path string, payload []byte, places [][]string, secrets []string, f *berth.Faults) {
	var v any
	if len(places) == 0 || json.Unmarshal(payload, &v) != nil {
		return
	}
	for _, place := range places {
		unnamedAt(path, v, place, secrets, f)
	}
}

// unnamedAt does so at one place in v. It does not repeat what stands there: it
// may be the value, given in the wrong field.
func unnamedAt(path string, v any, place, secrets []string, f *berth.Faults) {
	if len(place) == 0 {
		if name, ok := v.(string); ok && !slices.Contains(secrets, name) {
			f.Add(path, "names none of the task's secrets", "name the secret in the task's `secrets`, too (`berth task submit --secret NAME`)")
		}
		return
	}
	switch v := v.(type) {
	case map[string]any:
		if place[0] != "*" {
			unnamedAt(joinPath(path, place[0]), v[place[0]], place[1:], secrets, f)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) { // the payload's own words
			unnamedAt(joinPath(path, "*"), v[key], place[1:], secrets, f)
		}
	case []any:
		for i, item := range v {
			if place[0] == "*" {
				unnamedAt(joinIndex(path, i), item, place[1:], secrets, f)
			}
		}
	}
}
