package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/redact"
)

func TestWriterMasksValuesSpreadOverWrites(t *testing.T) {
	secrets := redact.Strings{"a": redact.NewString("secret"), "b": redact.NewString("secretary"), "c": redact.NewString("aab"), "empty": {}}
	const text = "a secret, a secretary, secre t, aaab, secsecret"
	want := secrets.Mask(text)
	if want != "a [redacted], a [redacted], secre t, a[redacted], sec[redacted]" {
		t.Fatalf("Mask gives %q", want)
	}
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := secrets.Writer(&out)
		for i := 0; i < len(text); i += size {
			piece := text[i:min(i+size, len(text))]
			if n, err := w.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatalf("Write gives %d, %v", n, err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("in pieces of %d: %q", size, out.String())
		}
	}
}

func TestWhatAValueLooksLikeElsewhereIsMasked(t *testing.T) {
	const value = "p\"ä&+/ w0rd<>secret"
	key := " -----BEGIN KEY-----\nbWFkZSB1cCBmb3IgdGhpcw\nshort\n-----END KEY-----\n"
	m := redact.Strings{"a": redact.NewString(value), "key": redact.NewString(key), "b": redact.NewString("ab")}.Masker()
	quoted, err := json.Marshal(map[string]string{"x": "<" + value + ">"})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		value, url.QueryEscape(value), "/login/" + url.PathEscape(value) + "?x", string(quoted), strings.TrimSpace(key), key,
		"key: |\n  -----BEGIN KEY-----\n  bWFkZSB1cCBmb3IgdGhpcw\n",
	} {
		got := m.Mask("before " + text + " after")
		if !strings.Contains(got, redact.Placeholder) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%q is %q", text, got)
		}
		for _, part := range []string{"w0rd", "secret", "bWFk"} {
			if strings.Contains(got, part) {
				t.Errorf("%q shows %s of %q", got, part, text)
			}
		}
	}
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for before := range 4 {
			for after := range 4 {
				text := enc.EncodeToString([]byte(strings.Repeat("u", before) + value + strings.Repeat("v", after)))
				got := m.Mask(text)
				if kept := len(got) - len(redact.Placeholder); !strings.Contains(got, redact.Placeholder) || kept > 14 {
					t.Errorf("%d and %d beside it: %s is %s", before, after, text, got)
				}
			}
		}
	}
	if got := m.Mask("ab is too short, and so is sho"); strings.Contains(got, redact.Placeholder) {
		t.Errorf("too much is masked: %s", got)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if got := fmt.Sprintf(verb, []any{m, &m, struct{ m redact.Masker }{m}}); strings.Contains(got, "secret") || strings.Contains(got, fmt.Sprintf("%x", "secret")) {
			t.Errorf("%s prints %s", verb, got)
		}
	}
	var none redact.Masker
	if got := none.Mask(value); got != value {
		t.Errorf("no values: %q", got)
	}
}

func TestAValueIsReadFromJSONAndNotQuotedInErrors(t *testing.T) {
	var got redact.Strings
	if err := json.Unmarshal([]byte(`{"a":"s3cr3t\u0021"}`), &got); err != nil || got["a"].Reveal() != "s3cr3t!" {
		t.Errorf("read %q, %v", got["a"].Reveal(), err)
	}
	err := json.Unmarshal([]byte(`{"a":[12345678]}`), &got)
	if err == nil || strings.Contains(err.Error(), "1234") {
		t.Errorf("read from a list: %v", err)
	}
}
