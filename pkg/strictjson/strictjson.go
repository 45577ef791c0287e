// Package strictjson refuses what JSON parsers disagree about, and what is only
// there to cost memory, before anything else reads a body.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
)

const (
	// maxDepth of a body: deeper ones cost parsers their stack and serve nobody.
	maxDepth = 64
	// maxValues of a body: each costs many times its bytes once it is parsed.
	maxValues = 500_000
)

// Hidden stands in paths for keys that are the sender's own.
const Hidden = "*"

// Check refuses duplicate keys, trailing content, broken UTF-8, numbers that no
// float64 holds, and values that are too many or nested too deeply, so that no
// two readers of one body understand different things. The error is an
// *berth.InvalidError that names the path, of keys those that known says yes to
// (nil: none; others may be content), and never a value.
func Check(body []byte, known func(key string) bool) error {
	if !utf8.Valid(body) {
		return berth.Invalid("", "the body is not valid UTF-8", "encode it as UTF-8")
	}
	return check(body, scanner{known: known})
}

// CheckAround is Check for a body that carries others' content as it is, under
// the keys opaque: that is only held to be JSON, and bytes that are no UTF-8
// pass.
func CheckAround(body []byte, opaque ...string) error {
	return check(body, scanner{opaque: opaque})
}

func check(body []byte, s scanner) error {
	s.dec = json.NewDecoder(bytes.NewReader(body))
	s.dec.UseNumber()
	if err := s.value("", 0); err != nil {
		return err
	}
	if _, err := s.dec.Token(); !errors.Is(err, io.EOF) {
		return berth.Invalid("", "something follows the JSON value", "send exactly one JSON value")
	}
	return nil
}

type scanner struct {
	dec   *json.Decoder
	known func(string) bool
	// opaque keys' values are passed over.
	opaque []string
	count  int
}

func (s *scanner) value(path string, depth int) error {
	if depth > maxDepth {
		return berth.Invalid(path, "the JSON is nested too deeply", "use at most "+strconv.Itoa(maxDepth)+" levels")
	}
	if s.count++; s.count > maxValues {
		return berth.Invalid("", "the JSON has too many values", "send at most "+strconv.Itoa(maxValues))
	}
	t, err := s.dec.Token()
	if err != nil {
		return s.syntax()
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return s.object(path, depth)
		}
		return s.array(path, depth)
	case json.Number:
		if _, err := strconv.ParseFloat(string(t), 64); err != nil {
			return berth.Invalid(path, "the number is too large", "use a number that fits 64 bits, or a string")
		}
	}
	return nil
}

func (s *scanner) object(path string, depth int) error {
	seen := map[string]bool{}
	for s.dec.More() {
		t, err := s.dec.Token()
		if err != nil {
			return s.syntax()
		}
		key, ok := t.(string)
		if !ok {
			return s.syntax()
		}
		at := s.join(path, key)
		if seen[key] {
			return berth.Invalid(at, "the key stands there twice", "name each key once")
		}
		seen[key] = true
		if slices.Contains(s.opaque, key) {
			var content json.RawMessage
			if s.dec.Decode(&content) != nil {
				return s.syntax()
			}
			continue
		}
		if err := s.value(at, depth+1); err != nil {
			return err
		}
	}
	return s.end()
}

func (s *scanner) array(path string, depth int) error {
	for i := 0; s.dec.More(); i++ {
		if err := s.value(joinIndex(path, i), depth+1); err != nil {
			return err
		}
	}
	return s.end()
}

func (s *scanner) end() error {
	if _, err := s.dec.Token(); err != nil {
		return s.syntax()
	}
	return nil
}

func (s *scanner) syntax() error {
	return berth.Invalid("", "the body is not JSON, from byte "+strconv.FormatInt(s.dec.InputOffset(), 10)+" on", "send one well-formed JSON value")
}

func (s *scanner) join(path, key string) string {
	if s.known == nil || !s.known(key) {
		key = Hidden
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func joinIndex(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
