package redact_test

import (
	"bytes"
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
