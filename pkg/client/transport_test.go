package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// The pause that a server asks for is kept to, and not by everybody alike; the
// call comes back when it is over.
func TestRetryAfterIsKept(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 50 {
		d := spread(10)
		seen[d] = true
		if d < 10*time.Second || d > 12*time.Second {
			t.Errorf("waits %v", d)
		}
	}
	if len(seen) < 10 || spread(0) != 0 {
		t.Errorf("%d different pauses, %v for none", len(seen), spread(0))
	}
	var calls atomic.Int32
	var first time.Time
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if gap := time.Since(first); gap < time.Second {
			t.Errorf("it came back after %v", gap)
		}
	}))
	defer s.Close()
	tr := &transport{http: s.Client(), server: s.URL, retries: time.Minute}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := tr.Do(r)
	if err != nil || res.StatusCode != http.StatusOK || calls.Load() != 2 {
		t.Fatalf("%d calls, %v", calls.Load(), err)
	}
	_ = res.Body.Close()
}

func TestWhatMayNotBeRepeatedIsSentOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		ctx    context.Context
		method string
		key    string
		want   bool
	}{
		"a post":                {t.Context(), http.MethodPost, "", false},
		"a patch":               {t.Context(), http.MethodPatch, "", false},
		"a post with a key":     {t.Context(), http.MethodPost, "k", true},
		"a post marked as safe": {mayRepeat(t.Context()), http.MethodPost, "", true},
		"a get":                 {t.Context(), http.MethodGet, "", true},
		"a put":                 {t.Context(), http.MethodPut, "", true},
		"a delete":              {t.Context(), http.MethodDelete, "", true},
	} {
		r, err := http.NewRequestWithContext(tc.ctx, tc.method, "http://127.0.0.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.key != "" {
			r.Header.Set("Idempotency-Key", tc.key)
		}
		if got := repeatable(r); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
