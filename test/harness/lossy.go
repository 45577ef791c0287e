package harness

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Lossy stands between a client and an API and loses answers: the request
// reaches the server, the whole answer is read, so whatever it says has been
// committed, and then the client's connection is closed without a byte.
type Lossy struct {
	// URL to use instead of the API's.
	URL string

	target func() string
	http   *http.Client

	mu   sync.Mutex
	lose func(*http.Request) bool
	lost []LostAnswer
	seen map[string]int
}

// LostAnswer is what the client did not get.
type LostAnswer struct {
	Method, Path string
	Status       int
	Header       http.Header
	Body         []byte
}

// Lossy starts a proxy before the API at target, which is asked at each request.
// It loses nothing until it is told.
func (c *Cluster) Lossy(tb testing.TB, target func() string) *Lossy {
	tb.Helper()
	l := &Lossy{
		target: target, seen: map[string]int{},
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l.URL = "http://" + listener.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(l.serve), ReadHeaderTimeout: Patience}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	tb.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			tb.Errorf("lossy proxy: %v", err)
		}
		l.http.CloseIdleConnections()
	})
	return l
}

// LoseNext loses the answer of the next request.
func (l *Lossy) LoseNext() {
	done := false
	l.Lose(func(*http.Request) bool {
		was := done
		done = true
		return !was
	})
}

// LoseEverySecond loses the first, third, fifth ... answer of each route, so that
// each kind of call meets it and a repeat goes through.
func (l *Lossy) LoseEverySecond() {
	seen := map[string]int{}
	l.Lose(func(r *http.Request) bool {
		route := RouteOf(r)
		seen[route]++
		return seen[route]%2 == 1
	})
}

// Lose sets whose answers are lost from now on; nil is nobody's. It is asked
// once a request, one at a time.
func (l *Lossy) Lose(lose func(*http.Request) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = lose
}

// Lost lists the answers that were lost, in their order.
func (l *Lossy) Lost() []LostAnswer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]LostAnswer(nil), l.lost...)
}

// LostBy counts the lost answers of each route, for example
// "PUT /agent/v1/attempts/{}/log/{}"; Seen all requests.
func (l *Lossy) LostBy() map[string]int {
	out := map[string]int{}
	for _, a := range l.Lost() {
		out[a.Method+" "+routePath(a.Path)]++
	}
	return out
}

// Seen counts the requests of each route.
func (l *Lossy) Seen() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.seen)
}

var (
	variable = regexp.MustCompile(`/([0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+|[0-9a-f]{64})(/|$)`)
	named    = regexp.MustCompile(`/artifacts/[^/]+$`)
)

func routePath(path string) string {
	for variable.MatchString(path) { // matches share slashes
		path = variable.ReplaceAllString(path, "/{}$2")
	}
	return named.ReplaceAllString(path, "/artifacts/{}")
}

// RouteOf is a request's method and path with {} for ids, numbers and names.
func RouteOf(r *http.Request) string { return r.Method + " " + routePath(r.URL.Path) }

func (l *Lossy) serve(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.seen[RouteOf(r)]++
	lose := l.lose != nil && l.lose(r)
	l.mu.Unlock()
	answer, err := l.forward(r, lose)
	if err != nil {
		// Nobody answered: to the client it is the same as a lost answer, but
		// nothing is known to have been done, so it does not count.
		hangUp(w)
		return
	}
	if lose {
		l.mu.Lock()
		l.lost = append(l.lost, answer)
		l.mu.Unlock()
		hangUp(w)
		return
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // a client that went away loses it by itself
}

// forward does not break off what is to be lost, whatever the client does.
func (l *Lossy) forward(r *http.Request, lose bool) (LostAnswer, error) {
	a := LostAnswer{Method: r.Method, Path: r.URL.Path}
	ctx := r.Context()
	if lose {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer stop()
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return a, err
	}
	out, err := http.NewRequestWithContext(ctx, r.Method, l.target()+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	out.Header = r.Header.Clone()
	for _, name := range []string{"Connection", "Te", "Transfer-Encoding", "Keep-Alive"} {
		out.Header.Del(name)
	}
	res, err := l.http.Do(out)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	a.Status, a.Header = res.StatusCode, res.Header.Clone()
	a.Header.Del("Connection")
	if a.Body, err = io.ReadAll(res.Body); err != nil {
		return a, err
	}
	if strings.EqualFold(r.Method, http.MethodHead) {
		a.Body = nil
	}
	return a, nil
}

func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}
