package hostagent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/redact"
)

func TestAnEnrolmentWithoutAnswerSaysSo(t *testing.T) {
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	core, logs := observer.New(zap.DebugLevel)
	// The first line ends the wait.
	log := zap.New(core, zap.Hooks(func(zapcore.Entry) error { cancel(); return nil }))
	_, err := enrol(ctx, &api{base: nobody.URL, http: http.DefaultClient}, t.TempDir(), "host-1", redact.NewString("berth-enrol-secret"), log)
	if err == nil || logs.Len() == 0 {
		t.Fatalf("enrolled with nobody (%v), or in silence", err)
	}
	e := logs.All()[0]
	if reason, _ := e.ContextMap()["error"].(string); e.Level != zap.WarnLevel || reason == "" || strings.Contains(reason, "berth-enrol-secret") {
		t.Errorf("logged %v %v", e.Level, e.ContextMap())
	}
}
