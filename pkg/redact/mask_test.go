package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
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

// TestEveryWayToEscapeAValueIsMasked holds values against what programs of other
// kinds make of them on their way into a URL, a page, a log.
func TestEveryWayToEscapeAValueIsMasked(t *testing.T) {
	const value = `p@ss w0rd!/ä&<"'\$~*`
	m := redact.Strings{"a": redact.NewString(value)}.Masker()
	for name, text := range map[string]string{
		"encodeURIComponent": `p%40ss%20w0rd!%2F%C3%A4%26%3C%22'%5C%24~*`,
		"encodeURI":          `p@ss%20w0rd!/%C3%A4&%3C%22'%5C$~*`,
		"a form":             `p%40ss+w0rd%21%2F%C3%A4%26%3C%22%27%5C%24%7E*`,
		"curl":               `p%40ss%20w0rd%21%2F%C3%A4%26%3C%22%27%5C%24~%2A`,
		"Python's quote":     `p%40ss%20w0rd%21/%C3%A4%26%3C%22%27%5C%24~%2A`,
		"small hex digits":   `p%40ss%20w0rd%21%2f%c3%a4%26%3c%22%27%5c%24~%2a`,
		"a browser's URL":    `p@ss%20w0rd!/%C3%A4&%3C%22'\$~*`,
		"Python's JSON":      `p@ss w0rd!/\u00e4&<\"'\\$~*`,
		"PHP's JSON":         `p@ss w0rd!\/\u00e4&<\"'\\$~*`,
		"Go's JSON":          `p@ss w0rd!/ä\u0026\u003c\"'\\$~*`,
		"Go's HTML":          `p@ss w0rd!/ä&amp;&lt;&#34;&#39;\$~*`,
		"Python's HTML":      `p@ss w0rd!/ä&amp;&lt;&quot;&#x27;\$~*`,
		"all as references":  `&#112;&#64;&#115;&#115;&#32;&#119;&#48;&#114;&#100;&#33;&#47;&#228;&#38;&#60;&#34;&#39;&#92;&#36;&#126;&#42;`,
		"bytes of Python":    `p@ss w0rd!/\xc3\xa4&<"\'\\$~*`,
		"bash's %q":          `p@ss\ w0rd\!/ä\&\<\"\'\\\$~\*`,
		"bash's -x":          `p@ss w0rd!/ä&<"'\''\$~*`,
	} {
		text = "x=" + text + ";"
		if got := m.Mask(text); got != "x=[redacted];" {
			t.Errorf("%s: %s is %s", name, text, got)
		}
		for size := 1; size < 4; size++ {
			var out bytes.Buffer
			w := m.Writer(&out)
			for piece := range slices.Chunk([]byte(text), size) {
				_, _ = w.Write(piece)
			}
			_ = w.Close()
			if out.String() != "x=[redacted];" {
				t.Errorf("%s in pieces of %d: %s", name, size, out.String())
			}
		}
		if cut := text[:len(text)-3]; m.Mask(cut) != cut {
			t.Errorf("%s, cut off: %s is %s", name, cut, m.Mask(cut))
		}
	}
	if got := m.Mask("P@SS W0RD"); got != "P@SS W0RD" {
		t.Errorf("another case is another text: %s", got)
	}
	many := redact.Strings{"a": redact.NewString(strings.Repeat(`\`, 8<<10))}.Masker() // no text takes long
	if got := many.Mask(strings.Repeat(`\`, 20<<10)); !strings.HasPrefix(got, "[redacted]") {
		t.Errorf("backslashes: %.40s", got)
	}
}
