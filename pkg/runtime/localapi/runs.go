package localapi

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// runRequest is the body of POST /v1/runs.
type runRequest struct {
	DeviceID  runtime.DeviceID  `json:"device_id"`
	Plugin    string            `json:"plugin"`
	Version   string            `json:"version"`
	Payload   json.RawMessage   `json:"payload"`
	Secrets   map[string]string `json:"secrets"`
	TimeoutMS int64             `json:"timeout_ms"`
}

// storedRun is a run whose files can be fetched.
type storedRun struct {
	dir       string
	mu        sync.Mutex
	artifacts []runtime.Artifact
}

// line is one line of the answer to POST /v1/runs; Type says which fields it has:
// started, progress, log, artifact, result or problem.
type line struct {
	Type     string            `json:"type"`
	RunID    runtime.RunID     `json:"run_id,omitempty"`
	Fraction *float64          `json:"fraction,omitempty"`
	Message  string            `json:"message,omitempty"`
	Offset   *int64            `json:"offset,omitempty"`
	Text     string            `json:"text,omitempty"`
	Bytes    []byte            `json:"bytes,omitempty"` // a piece of log that is no UTF-8, in base64
	Artifact *runtime.Artifact `json:"artifact,omitempty"`
	Result   *resultLine       `json:"result,omitempty"`
	Problem  *problem          `json:"problem,omitempty"`
}

type resultLine struct {
	Outcome    runtime.Outcome    `json:"outcome"`
	Reason     runtime.Code       `json:"reason,omitempty"`
	Message    string             `json:"message,omitempty"`
	Result     json.RawMessage    `json:"result,omitempty"`
	Artifacts  []runtime.Artifact `json:"artifacts"`
	LogSize    int64              `json:"log_size"`
	DurationMS int64              `json:"duration_ms"`
}

// stream writes lines as they come. It is the run's Sink.
type stream struct {
	run  *storedRun
	id   runtime.RunID
	mu   sync.Mutex
	w    *echo.Response
	sent bool
}

func (s *stream) write(l line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.sent {
		s.sent = true
		s.w.Header().Set(echo.HeaderContentType, "application/x-ndjson")
		s.w.Header().Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
		_ = encode(s.w, line{Type: "started", RunID: s.id})
	}
	// A client that went away ends the request's context, and so the run.
	_ = encode(s.w, l)
	s.w.Flush()
}

// Progress implements runtime.Sink.
func (s *stream) Progress(fraction float64, message string) {
	s.write(line{Type: "progress", Fraction: &fraction, Message: message})
}

// Log implements runtime.Sink.
func (s *stream) Log(offset int64, chunk redact.Bytes) {
	l := line{Type: "log", Offset: &offset}
	if b := chunk.Reveal(); utf8.Valid(b) {
		l.Text = string(b)
	} else {
		l.Bytes = b
	}
	s.write(l)
}

// Artifact implements runtime.Sink.
func (s *stream) Artifact(a runtime.Artifact) {
	s.run.mu.Lock()
	s.run.artifacts = append(s.run.artifacts, a)
	s.run.mu.Unlock()
	s.write(line{Type: "artifact", Artifact: &a})
}

// postRun runs a plugin and streams what happens as JSON lines; the last line is
// of type result. Closing the connection kills the run. A refusal is a problem
// document instead.
func (s *Server) postRun(c echo.Context) error {
	var body runRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	if body.DeviceID == "" || body.Plugin == "" {
		return badRequest("device_id and plugin are required", "")
	}
	id := runtime.RunID("local-" + strings.ToLower(rand.Text()))
	run := &storedRun{dir: filepath.Join(s.cfg.RunsDir, string(id))}
	s.mu.Lock()
	s.runs[id] = run
	s.mu.Unlock()
	secrets := redact.Strings{}
	for name, value := range body.Secrets {
		secrets[name] = redact.NewString(value)
	}
	out := &stream{run: run, id: id, w: c.Response()}
	res, err := s.cfg.Runtime.Run(c.Request().Context(), runtime.RunRequest{
		RunID: id, DeviceID: body.DeviceID, Plugin: body.Plugin, Version: body.Version, Payload: redact.NewBytes(body.Payload),
		Secrets: secrets, Timeout: time.Duration(body.TimeoutMS) * time.Millisecond, Dir: run.dir, Sink: out,
	})
	s.finish(id, err)
	if err != nil {
		return err
	}
	artifacts := res.Artifacts
	if artifacts == nil {
		artifacts = []runtime.Artifact{}
	}
	out.write(line{Type: "result", Result: &resultLine{
		Outcome: res.Outcome, Reason: res.Reason, Message: res.Message, Result: res.JSON.Reveal(),
		Artifacts: artifacts, LogSize: res.LogSize, DurationMS: res.Duration.Milliseconds(),
	}})
	return nil
}

// finish keeps the run's files for a while, or forgets a refused run.
func (s *Server) finish(id runtime.RunID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		_ = os.RemoveAll(s.runs[id].dir)
		delete(s.runs, id)
		return
	}
	s.order = append(s.order, id)
	s.evict()
}

func (s *Server) findRun(c echo.Context) (*storedRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run := s.runs[runtime.RunID(c.Param("run"))]
	if run == nil {
		return nil, runtime.ErrUnknownRun
	}
	return run, nil
}

func (s *Server) listArtifacts(c echo.Context) error {
	run, err := s.findRun(c)
	if err != nil {
		return err
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	return c.JSON(http.StatusOK, map[string]any{"artifacts": append([]runtime.Artifact{}, run.artifacts...)})
}

// getArtifact serves a file as a download: what a run left must not act in a
// browser as a page of this server.
func (s *Server) getArtifact(c echo.Context) error {
	run, err := s.findRun(c)
	if err != nil {
		return err
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	for _, a := range run.artifacts {
		if a.Name == c.Param("name") {
			return serveFile(c, a.Path, a.ContentType)
		}
	}
	return runtime.ErrUnknownRun
}

func (s *Server) getLog(c echo.Context) error {
	run, err := s.findRun(c)
	if err != nil {
		return err
	}
	return serveFile(c, filepath.Join(run.dir, "log"), "text/plain; charset=utf-8")
}

func serveFile(c echo.Context, path, contentType string) error {
	f, err := os.Open(path)
	if err != nil {
		return runtime.ErrUnknownRun
	}
	defer func() { _ = f.Close() }()
	h := c.Response().Header()
	h.Set("Content-Disposition", `attachment; filename="`+filepath.Base(path)+`"`)
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cache-Control", "no-store")
	return c.Stream(http.StatusOK, contentType, f)
}
