package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// The codes of readiness beside those that the gate gives.
const (
	// CodeReady is printed when everything may be used.
	CodeReady = "ready"
	// CodeStopping: the process was asked to end.
	CodeStopping = "stopping"
)

const (
	readinessFor   = time.Second
	readinessLimit = 2 * time.Second
)

// Readiness answers probes from an answer of its gate that is at most a second
// old, so that probes cannot hammer the database. It is safe for concurrent use.
type Readiness struct {
	gate     Gate
	timedOut string
	now      func() time.Time

	mu       sync.Mutex
	code     string
	at       time.Time
	asking   chan struct{} // closed when the question that is under way is answered
	stopping bool
}

// NewReadiness asks gate. timedOut is the code for a gate that has not answered
// within two seconds.
func NewReadiness(gate Gate, timedOut string) *Readiness {
	return &Readiness{gate: gate, timedOut: timedOut, now: time.Now}
}

// Stopping makes every later answer CodeStopping.
func (r *Readiness) Stopping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
}

// Code returns "" when ready, otherwise a fixed code. Callers at the same time
// share one question to the gate. It answers within two seconds, also when the
// gate does not.
func (r *Readiness) Code(ctx context.Context) string {
	r.mu.Lock()
	if r.stopping {
		r.mu.Unlock()
		return CodeStopping
	}
	if !r.at.IsZero() && r.now().Sub(r.at) < readinessFor {
		defer r.mu.Unlock()
		return r.code
	}
	asking := r.asking
	if asking == nil {
		asking = make(chan struct{})
		r.asking = asking
		go r.ask(asking)
	}
	r.mu.Unlock()

	timer := time.NewTimer(readinessLimit)
	defer timer.Stop()
	select {
	case <-asking:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.code
	case <-timer.C:
	case <-ctx.Done():
	}
	return r.timedOut
}

// Known is the gate's last answer, without waiting and however old; Watch keeps
// it fresh. Before the first it is the code for a gate that does not answer. It
// does not change when the process stops: what runs is let end.
func (r *Readiness) Known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() {
		return r.timedOut
	}
	return r.code
}

// Refresh makes the next Code ask the gate, however fresh the last answer is.
func (r *Readiness) Refresh() {
	r.mu.Lock()
	r.at = r.at.Add(-readinessFor)
	r.mu.Unlock()
}

// Watch asks the gate every second, for Known, and makes the answer
// CodeStopping as soon as the daemon stops: start it last.
func (r *Readiness) Watch() Component {
	loop := NewLoop(LoopConfig{Name: "readiness", Interval: readinessFor, RunOnce: func(ctx context.Context) error {
		r.Code(ctx)
		return nil
	}})
	c := loop.Component()
	c.Stop = func(ctx context.Context) error {
		r.Stopping()
		return loop.Stop(ctx)
	}
	return c
}

func (r *Readiness) ask(answered chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), readinessLimit)
	defer cancel()
	code := r.gate(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.code, r.at, r.asking = code, r.now(), nil
	close(answered)
}

// HealthBody is what /livez and /readyz answer: a fixed code and nothing else.
type HealthBody struct {
	Code string `json:"code"`
}

// Livez answers 200 as long as the process can answer at all. It touches
// nothing else.
func Livez(w http.ResponseWriter, _ *http.Request) { writeHealth(w, http.StatusOK, "alive") }

// ServeHTTP is /readyz: 200 with CodeReady, or 503 with the code of what is
// missing. No driver's error and no URL is ever in the answer.
func (r *Readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if code := r.Code(req.Context()); code != "" {
		writeHealth(w, http.StatusServiceUnavailable, code)
		return
	}
	writeHealth(w, http.StatusOK, CodeReady)
}

func writeHealth(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(HealthBody{Code: code})
}
