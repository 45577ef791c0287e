package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"))
}

// between stands before the real API and lets a test spoil answers.
func between(t *testing.T, s *apitest.Server, spoil func(w http.ResponseWriter, r *http.Request, pass func())) *httptest.Server {
	t.Helper()
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		spoil(w, r, func() { s.Echo.ServeHTTP(w, r) })
	}))
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, url string, auth client.TokenSource, o ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(url, auth, o...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func spec() client.TaskSpec {
	return client.TaskSpec{Plugin: apitest.Plugin, Payload: json.RawMessage(`{"do":"x"}`)}
}

// The server stores the task and its answer is lost: the repeat gives the same
// task, and there is one.
func TestASubmitWhoseAnswerIsLostMakesOneTask(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	var calls atomic.Int32
	p := between(t, s, func(w http.ResponseWriter, r *http.Request, pass func()) {
		if calls.Add(1) > 1 {
			pass()
			return
		}
		s.Echo.ServeHTTP(httptest.NewRecorder(), r) // stored, and nobody hears of it
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	c := dial(t, p.URL, client.StaticToken(s.Token("sub")))
	task, err := c.SubmitTask(t.Context(), spec(), client.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.ListTasks(t.Context(), client.ListTasksParams{})
	if err != nil || len(list.Tasks) != 1 || list.Tasks[0].ID != task.ID || calls.Load() < 2 {
		t.Errorf("%d tasks after %d calls, %v", len(list.Tasks), calls.Load(), err)
	}
}

// TestCreatesAreRepeatedUnderOneKey: the answer is lost, the second one is of
// the same pool.
func TestCreatesAreRepeatedUnderOneKey(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("root", berth.RoleAdmin)
	var calls atomic.Int32
	p := between(t, s, func(w http.ResponseWriter, r *http.Request, pass func()) {
		if calls.Add(1) > 1 {
			pass()
			return
		}
		s.Echo.ServeHTTP(httptest.NewRecorder(), r) // made, and nobody hears of it
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	})
	c := dial(t, p.URL, client.StaticToken(s.Token("root")))
	if made, err := c.CreatePool(t.Context(), client.PoolSpec{Name: "phones"}); err != nil || made.Name != "phones" || calls.Load() != 2 {
		t.Errorf("%d calls, %+v, %v", calls.Load(), made, err)
	}
}

func TestABusyServerIsAskedAgain(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	var calls atomic.Int32
	p := between(t, s, func(w http.ResponseWriter, _ *http.Request, pass func()) {
		if calls.Add(1) == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		pass()
	})
	if _, err := dial(t, p.URL, client.StaticToken(s.Token("sub"))).Me(t.Context()); err != nil || calls.Load() != 2 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
	// One that stays busy is given up with what it said.
	busy := between(t, s, func(w http.ResponseWriter, _ *http.Request, _ func()) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"title":"Database unavailable","status":503,"code":"database_unavailable","remedy":"Send it again","request_id":"r-1"}`)
	})
	_, err := dial(t, busy.URL, nil, client.WithRetryFor(300*time.Millisecond)).Health(t.Context())
	if want := "Database unavailable. Send it again. (database_unavailable, request r-1)"; err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestASessionRenewsItsTokenOnceForAll(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	tokens, err := s.Client("").Login(t.Context(), "sub", apitest.Password)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var saved []client.Grant
	grant := client.GrantOf(tokens, time.Now())
	grant.AccessToken = "no longer good"
	session, err := client.NewSession(s.URL, grant, func(g client.Grant) error {
		mu.Lock()
		defer mu.Unlock()
		saved = append(saved, g)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, s.URL, session)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := c.Me(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(saved) != 1 || saved[0].RefreshToken == tokens.RefreshToken {
		t.Errorf("%d grants were saved", len(saved))
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	_, err := c.SubmitTask(t.Context(), client.TaskSpec{Plugin: "nope"}, client.SubmitOptions{})
	if err == nil || !strings.HasPrefix(err.Error(), "plugin: unknown plugin (known is work). Mend what `errors` lists. (invalid, request ") {
		t.Errorf("error is %v", err)
	}
	// Nothing listens on a port that was just closed.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + ln.Addr().String()
	ln.Close()
	_, err = dial(t, url, nil, client.WithRetryFor(0)).Health(t.Context())
	if want := "cannot reach Berth at " + url + ": nothing listens there"; err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>secret") }))
	defer page.Close()
	_, err = dial(t, page.URL, nil).Health(t.Context())
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "check the address") {
		t.Errorf("error is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Health(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	for _, address := range []string{"", "localhost:1", "ftp://x", "http://u:p@host", "http://host?x=1"} {
		if _, err := client.New(address, nil); err == nil || strings.Contains(err.Error(), "u:p") {
			t.Errorf("address %q: %v", address, err)
		}
	}
}
