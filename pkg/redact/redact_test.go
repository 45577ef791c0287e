package redact_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/redact"
)

const mark = "s3cr3t-mark"

func TestNoFormPrintsTheContent(t *testing.T) {
	type holder struct {
		B redact.Bytes
		S redact.String
		P *redact.String
		b redact.Bytes // fmt cannot call methods here
		s redact.String
	}
	s := redact.NewString(mark)
	h := holder{B: redact.NewBytes([]byte(mark)), S: s, P: &s, b: redact.NewBytes([]byte(mark)), s: s}
	core, logs := observer.New(zap.DebugLevel)
	var slogged strings.Builder
	slog.New(slog.NewJSONHandler(&slogged, nil)).Info("x", "b", h.B, "s", h.S)
	zap.New(core).Debug("x", zap.Any("h", h), zap.Stringer("b", h.B), zap.Any("s", h.S), zap.Reflect("p", h.P))

	j, err := json.Marshal(map[string]any{"h": h, "m": []redact.String{s}})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := json.Marshal(logs.All()[0].ContextMap())
	if err != nil {
		t.Fatal(err)
	}
	forms := []string{string(j), string(entries), slogged.String(), errors.Join(fmt.Errorf("x: %v", h)).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		forms = append(forms, fmt.Sprintf(verb, h), fmt.Sprintf(verb, h.B), fmt.Sprintf(verb, h.S), fmt.Sprintf(verb, []any{h.B, h.S}))
	}
	for _, f := range forms {
		if strings.Contains(f, mark) || strings.Contains(f, fmt.Sprintf("%x", mark)) || strings.Contains(f, "115 51 99") || !strings.Contains(f, "redacted") {
			t.Errorf("printed %q", f)
		}
	}
	if string(h.B.Reveal()) != mark || h.S.Reveal() != mark {
		t.Error("Reveal must give the content back")
	}
}
