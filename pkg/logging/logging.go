// Package logging is how Berth logs: JSON by zap, one line a transition. No
// line holds content: payloads, results, tokens and artifacts are types of
// package redact, and transitions hold identifiers and codes only.
package logging

import (
	"fmt"
	"io"
	"runtime"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/pkg/berth"
)

// New makes a logger that writes JSON lines to w, from level (debug, info,
// warn, error) up; each names its service. Writes are not buffered.
func New(w io.Writer, level, service string) (*zap.Logger, error) {
	at, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, berth.Invalid("log_level", fmt.Sprintf("%q is no level", berth.Clip(level, 20)), "use debug, info, warn or error")
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.TimeKey = "time"
	encoding.MessageKey = "message"
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoding.EncodeDuration = zapcore.MillisDurationEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(encoding), zapcore.Lock(zapcore.AddSync(w)), at)
	return zap.New(core).With(zap.String("service", service)), nil
}

// Transitions writes one line for each transition: the message is the event's
// name, and every line has the same fields, so that one filter finds a task's
// whole life. Renewals are logged at debug, all else at info.
func Transitions(logger *zap.Logger, transitions []berth.Transition) {
	for _, t := range transitions {
		level := zapcore.InfoLevel
		if t.Event == berth.EventRenewed {
			level = zapcore.DebugLevel
		}
		entry := logger.Check(level, string(t.Event))
		if entry == nil {
			continue
		}
		entry.Write(
			zap.String("task_id", string(t.Task)),
			zap.String("host_id", string(t.Host)),
			zap.String("device_id", string(t.Device)),
			zap.String("attempt_id", string(t.Attempt)),
			zap.String("lease_id", string(t.Attempt)),
			zap.String("correlation_id", t.CorrelationID),
			zap.Int64("fence", int64(t.Fence)),
			zap.Int("number", t.Number),
			zap.String("from", string(t.From)),
			zap.String("to", string(t.To)),
			zap.String("outcome", string(t.Outcome)),
			zap.String("reason", t.Reason),
			zap.String("pool_id", string(t.Pool)),
		)
	}
}

// PanicText is what may be logged of a panic's value: the text of the Go
// runtime's own errors, otherwise the type alone, since the value may hold
// content.
func PanicText(v any) string {
	if err, ok := v.(runtime.Error); ok {
		return err.Error()
	}
	return fmt.Sprintf("%T", v)
}
