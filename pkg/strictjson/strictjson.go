package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
)

// maxDepth of a JSON body: deeper ones cost parsers their stack and serve
// nobody.
const maxDepth = 64

// strictJSON refuses what JSON parsers disagree about, so that no two readers
// of one body understand different things: duplicate keys, trailing content,
// broken UTF-8, numbers that no float64 holds. The error is an
// *berth.InvalidError that names the path and never a value.
func strictJSON(body []byte) error {
	if !utf8.Valid(body) {
		return berth.Invalid("", "the body is not valid UTF-8", "encode it as UTF-8")
	}
	s := scanner{dec: json.NewDecoder(bytes.NewReader(body))}
	s.dec.UseNumber()
	if err := s.value("", 0); err != nil {
		return err
	}
	if _, err := s.dec.Token(); !errors.Is(err, io.EOF) {
		return berth.Invalid("", "something follows the JSON value", "send exactly one JSON value")
	}
	return nil
}

type scanner struct{ dec *json.Decoder }

func (s scanner) value(path string, depth int) error {
	if depth > maxDepth {
		return berth.Invalid(path, "the JSON is nested too deeply", "use at most "+strconv.Itoa(maxDepth)+" levels")
	}
	t, err := s.dec.Token()
	if err != nil {
		return s.syntax(path)
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

func (s scanner) object(path string, depth int) error {
	seen := map[string]bool{}
	for s.dec.More() {
		t, err := s.dec.Token()
		if err != nil {
			return s.syntax(path)
		}
		key, ok := t.(string)
		if !ok {
			return s.syntax(path)
		}
		at := joinPath(path, key)
		if seen[key] {
			return berth.Invalid(at, "the key stands there twice", "name each key once")
		}
		seen[key] = true
		if err := s.value(at, depth+1); err != nil {
			return err
		}
	}
	return s.end(path)
}

func (s scanner) array(path string, depth int) error {
	for i := 0; s.dec.More(); i++ {
		if err := s.value(joinIndex(path, i), depth+1); err != nil {
			return err
		}
	}
	return s.end(path)
}

func (s scanner) end(path string) error {
	if _, err := s.dec.Token(); err != nil {
		return s.syntax(path)
	}
	return nil
}

func (s scanner) syntax(path string) error {
	return berth.Invalid(path, "the body is not JSON, from byte "+strconv.FormatInt(s.dec.InputOffset(), 10)+" on", "send one well-formed JSON value")
}

func joinPath(path, key string) string {
	key = berth.Clip(key, 80)
	if path == "" {
		return key
	}
	return path + "." + key
}

func joinIndex(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
