package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/strictjson"
)

// FuzzCheck holds Check against the standard library's other reader: what passes
// is one JSON value whose tree has as many members as the text has keys, no deeper
// than is said and with numbers that fit; what does not pass lacks one of these.
// No fault names a key of the sender's.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[1,]", `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"x":{"x":{}},"y":[{"x":1,"y":[]}]}`, `{"a":1}{}`, `{"a" 1}`, `[1 2]`,
		`{"\ud800":1,"\ud801":2}`, `[1e400]`, `[-0, 1E5, 0.1]`, "{\"\xff\":1}", `"\u0000"`, "[" + strings.Repeat("[", 64) + strings.Repeat("]", 65),
		strings.Repeat(`[{"a":`, 33) + "1" + strings.Repeat("}]", 33), "\ufeff{}", " {} \n", "[tru]", `{"a":nul`, "[}", "{]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		known := func(key string) bool { return key == "a" }
		err := strictjson.Check(body, known)
		if fits := sound(body); fits != (err == nil) {
			t.Fatalf("%q: sound %v, said %v", body, fits, err)
		}
		if err != nil {
			judgeFault(t, err)
			return
		}
		// What passes as a whole passes around others' content, too.
		if err := strictjson.CheckAround(body, "result"); err != nil {
			t.Fatalf("%q: around content: %v", body, err)
		}
	})
}

// FuzzCheckAround: what passes is JSON, whatever stands under the opaque keys.
func FuzzCheckAround(f *testing.F) {
	for _, s := range []string{
		`{"items":[{"result":{"a":1,"a":2},"fence":1}]}`, `{"result":1,"result":2}`, `{"result":{]}`, "{\"result\":\"\xff\"}", `{"result"`, `{"result":`, `{"result":1,}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if err := strictjson.CheckAround(body, "result"); err != nil {
			judgeFault(t, err)
		} else if !json.Valid(body) {
			t.Fatalf("%q passes", body)
		}
	})
}

// judgeFault holds an error to what Check promises of it.
func judgeFault(t *testing.T, err error) {
	t.Helper()
	var invalid *berth.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Fields) != 1 || invalid.Fields[0].Message == "" || invalid.Fields[0].Remedy == "" || len(err.Error()) > 1000 {
		t.Fatalf("no fault with its remedy: %v", err)
	}
	// Of a path there is nothing but the known key, the hidden ones and indexes.
	for _, part := range strings.FieldsFunc(invalid.Fields[0].Path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if _, err := strconv.Atoi(part); err != nil && part != "a" && part != strictjson.Hidden {
			t.Fatalf("the path %q has a key of the sender's", invalid.Fields[0].Path)
		}
	}
}

// sound says by other means what Check is to say.
func sound(body []byte) bool {
	if !utf8.Valid(body) || !json.Valid(body) {
		return false
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if dec.Decode(&tree) != nil {
		return false
	}
	members, values, fits := count(tree, 0)
	return fits && members == keys(body) && values <= 500_000
}

// count is how many members and values the tree has, and whether it is no deeper
// than 64 levels and has no number that overflows.
func count(v any, depth int) (members, values int, fits bool) {
	values, fits = 1, depth <= 64
	add := func(child any) {
		m, n, ok := count(child, depth+1)
		members, values, fits = members+m, values+n, fits && ok
	}
	switch v := v.(type) {
	case map[string]any:
		members = len(v)
		for _, child := range v {
			add(child)
		}
	case []any:
		for _, child := range v {
			add(child)
		}
	case json.Number:
		_, err := v.Float64()
		fits = fits && err == nil
	}
	return members, values, fits
}

// keys counts the colons outside of strings: one a member.
func keys(body []byte) int {
	n, in, escaped := 0, false, false
	for _, c := range body {
		switch {
		case escaped:
			escaped = false
		case in && c == '\\':
			escaped = true
		case c == '"':
			in = !in
		case !in && c == ':':
			n++
		}
	}
	return n
}

// The oracle itself tells what it is to tell.
func TestTheOracleOfCheck(t *testing.T) {
	for body, want := range map[string]bool{`{"a":1,"a":2}`: false, `{"a:":1,"b\":":2}`: true, "[1e400]": false, "[": false, `{}`: true} {
		if sound([]byte(body)) != want {
			t.Errorf("%s: not %v", body, want)
		}
	}
	if got := keys([]byte(`{"a:":{"b":":"},"\\":[1]}`)); got != 3 {
		t.Errorf("%d keys", got)
	}
}
