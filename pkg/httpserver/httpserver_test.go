package httpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type server struct {
	url  string
	logs *observer.ObservedLogs
}

func serve(t *testing.T, o httpserver.Options, register func(e *echo.Echo)) server {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	o.Logger = zap.New(core)
	e := httpserver.New(o)
	register(e)
	s := httptest.NewServer(e)
	t.Cleanup(func() {
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return server{url: s.URL, logs: logs}
}

func send(t *testing.T, method, url string, body io.Reader, header ...string) (*http.Response, protocol.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p protocol.Problem
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		if err := json.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
	}
	return res, p
}

func ok(c echo.Context) error { return c.String(200, "ok") }

func TestRequestIDIsSanitised(t *testing.T) {
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) { e.GET("/x", ok) })
	for id, kept := range map[string]bool{
		"abc-DEF_1.2": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "": false,
		"a b": false, "<script>": false, "\"},{\"level\":\"error": false, "ä": false,
	} {
		res, _ := send(t, "GET", s.url+"/x", nil, "X-Request-Id", id)
		got := res.Header.Get("X-Request-Id")
		if (got == id) != kept || got == "" {
			t.Errorf("%q became %q", id, got)
		}
	}
}

func TestTheLogHasThePatternAndNothingOfTheClients(t *testing.T) {
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) { e.POST("/tasks/:id", ok) })
	const mark = "MARKOFCONTENT"
	send(t, "POST", s.url+"/tasks/"+mark+"?q="+mark, strings.NewReader(mark), "Authorization", "Bearer "+mark, "User-Agent", mark, "X-Request-Id", "r-1")
	send(t, "GET", s.url+"/nowhere/"+mark, nil)
	entries := s.logs.All()
	if len(entries) != 2 {
		t.Fatalf("%d lines", len(entries))
	}
	first := entries[0].ContextMap()
	if first["route"] != "/tasks/:id" || first["status"] != int64(200) || first["request_id"] != "r-1" || first["method"] != "POST" {
		t.Errorf("got %v", first)
	}
	if all := fmt.Sprint(entries[0], entries[1], first, entries[1].ContextMap()); strings.Contains(all, mark) {
		t.Errorf("the mark is in the log: %s", all)
	}
	if entries[1].ContextMap()["status"] != int64(404) {
		t.Errorf("got %v", entries[1].ContextMap())
	}
}

func TestAPanicIsA500AndItsValueIsNotLogged(t *testing.T) {
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) {
		e.GET("/text", func(echo.Context) error { panic("typed text: MARKOFCONTENT") })
		e.GET("/index", func(echo.Context) error { var a []int; _ = a[len(a)+3]; return nil })
	})
	for _, path := range []string{"/text", "/index"} {
		res, p := send(t, "GET", s.url+path, nil)
		if res.StatusCode != 500 || p.Code != "internal" || p.RequestID == "" {
			t.Errorf("%s: %d %+v", path, res.StatusCode, p)
		}
	}
	var panics []observer.LoggedEntry
	for _, e := range s.logs.All() {
		if strings.Contains(fmt.Sprint(e.ContextMap()), "MARKOFCONTENT") {
			t.Errorf("logged: %v", e.ContextMap())
		}
		if e.Message == "a request panicked" {
			panics = append(panics, e)
		}
	}
	if len(panics) != 2 || !strings.Contains(fmt.Sprint(panics[1].ContextMap()["panic"]), "index out of range") {
		t.Errorf("panics: %v", panics)
	}
}

func TestTheGateClosesAllButHealth(t *testing.T) {
	var code atomic.Value
	code.Store("")
	s := serve(t, httpserver.Options{
		Gate:    func() string { return code.Load().(string) },
		Ungated: map[httpserver.Route]bool{{Method: "GET", Path: "/livez"}: true},
	}, func(e *echo.Echo) { e.GET("/x", ok); e.GET("/livez", ok) })
	for _, c := range []string{"", "schema_behind", "schema_ahead", "schema_dirty", "database_unreachable", ""} {
		code.Store(c)
		res, p := send(t, "GET", s.url+"/x", nil)
		want := 200
		if c != "" {
			want = 503
		}
		if res.StatusCode != want || p.Code != c {
			t.Errorf("%s: %d %s", c, res.StatusCode, p.Code)
		}
		if res, _ := send(t, "GET", s.url+"/livez", nil); res.StatusCode != 200 {
			t.Errorf("%s: livez %d", c, res.StatusCode)
		}
	}
}

func TestBodiesAndTimesAreBoundedByKind(t *testing.T) {
	readAll := func(c echo.Context) error {
		_, err := io.Copy(io.Discard, c.Request().Body)
		if err != nil {
			return err
		}
		return ok(c)
	}
	waitFor := func(c echo.Context) error {
		if _, limited := c.Request().Context().Deadline(); !limited {
			return ok(c)
		}
		<-c.Request().Context().Done()
		return c.Request().Context().Err()
	}
	s := serve(t, httpserver.Options{
		BodyLimit: 10, Timeout: 20 * time.Millisecond,
		Kinds: map[httpserver.Route]httpserver.Kind{
			{Method: "PUT", Path: "/upload"}: httpserver.Upload, {Method: "GET", Path: "/stream"}: httpserver.Stream,
		},
	}, func(e *echo.Echo) {
		e.POST("/plain", readAll)
		e.PUT("/upload", readAll)
		e.GET("/plain", waitFor)
		e.GET("/stream", waitFor)
	})
	big := strings.Repeat("x", 11)
	for _, body := range []io.Reader{strings.NewReader(big), io.MultiReader(strings.NewReader(big))} { // with and without a length
		if res, p := send(t, "POST", s.url+"/plain", body); res.StatusCode != 413 || p.Code != "too_large" {
			t.Errorf("plain: %d %s", res.StatusCode, p.Code)
		}
	}
	if res, _ := send(t, "PUT", s.url+"/upload", strings.NewReader(big)); res.StatusCode != 200 {
		t.Errorf("upload: %d", res.StatusCode)
	}
	if res, p := send(t, "GET", s.url+"/plain", nil); res.StatusCode != 503 || p.Code != "timeout" {
		t.Errorf("plain: %d %s", res.StatusCode, p.Code)
	}
	if res, _ := send(t, "GET", s.url+"/stream", nil); res.StatusCode != 200 {
		t.Errorf("stream: %d", res.StatusCode)
	}
	res, _ := send(t, "POST", s.url+"/stream", bytes.NewReader(nil))
	if res.StatusCode != 405 || res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
}

func TestXForwardedForCountsFromTrustedProxiesAlone(t *testing.T) {
	_, loopback, err := net.ParseCIDR("127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	ip := func(c echo.Context) error { c.Response().Header().Set("Ip", c.RealIP()); return ok(c) }
	open := serve(t, httpserver.Options{}, func(e *echo.Echo) { e.GET("/x", ip) })
	behind := serve(t, httpserver.Options{TrustedProxies: []*net.IPNet{loopback}}, func(e *echo.Echo) { e.GET("/x", ip) })
	res, _ := send(t, "GET", open.url+"/x", nil, "X-Forwarded-For", "203.0.113.9")
	if got := res.Header.Get("Ip"); got != "127.0.0.1" {
		t.Errorf("untrusted: %s", got)
	}
	res, _ = send(t, "GET", behind.url+"/x", nil, "X-Forwarded-For", "1.2.3.4, 203.0.113.9")
	if got := res.Header.Get("Ip"); got != "203.0.113.9" {
		t.Errorf("trusted: %s", got)
	}
}

// start runs a Server and returns its URL, a stop and its result.
func start(t *testing.T, s *httpserver.Server) (url string, stop context.CancelFunc, done <-chan error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Serve(ctx, ln) }()
	t.Cleanup(cancel)
	return "http://" + ln.Addr().String(), cancel, result
}

func TestDrainWakesLongPollsAndLetsRequestsEnd(t *testing.T) {
	drain := httpserver.NewDrain()
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/poll", func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-drain.C():
			fmt.Fprint(w, "drained")
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/work", func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-finish
		fmt.Fprintf(w, "done, %v", r.Context().Err())
	})
	url, stop, done := start(t, &httpserver.Server{Handler: mux, Drain: drain})
	type answer struct {
		body string
		err  error
	}
	get := func(path string) <-chan answer {
		c := make(chan answer, 1)
		go func() {
			res, err := http.Get(url + path)
			if err != nil {
				c <- answer{err: err}
				return
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			c <- answer{string(b), err}
		}()
		return c
	}
	poll, work := get("/poll"), get("/work")
	<-begun
	<-begun
	stop()
	if a := <-poll; a.err != nil || a.body != "drained" {
		t.Errorf("poll: %+v", a)
	}
	select {
	case err := <-done:
		t.Fatalf("stopped before the request ended: %v", err)
	default:
	}
	close(finish)
	if a := <-work; a.err != nil || a.body != "done, <nil>" {
		t.Errorf("work: %+v", a)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestARequestThatDoesNotEndIsBrokenOff(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	url, stop, done := start(t, &httpserver.Server{Handler: handler, Grace: 500 * time.Millisecond})
	client := make(chan error, 1)
	go func() {
		res, err := http.Get(url)
		if err == nil {
			res.Body.Close()
		}
		client <- err
	}()
	<-begun
	stop()
	if err := <-done; !errors.Is(err, httpserver.ErrBrokenOff) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Serve: %v", err)
	}
	select {
	case <-ended:
	default:
		t.Error("Serve returned while a handler ran")
	}
	<-client
	http.DefaultClient.CloseIdleConnections()
}

// deadlines keeps the last write deadline of each connection.
type deadlines struct {
	net.Listener
	write *atomic.Pointer[time.Time]
}

func (l deadlines) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return heardConn{c, l.write}, err
}

type heardConn struct {
	net.Conn
	write *atomic.Pointer[time.Time]
}

func (c heardConn) SetWriteDeadline(t time.Time) error {
	c.write.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// A client may be silent for as long as idle; once its bytes are there, the answer
// may be written until within has passed.
func TestABodyIsWaitedForAndItsAnswerMayComeLate(t *testing.T) {
	const idle, within = time.Minute, time.Hour
	left := func(w *atomic.Pointer[time.Time]) time.Duration { return time.Until(*w.Load()) }
	write := &atomic.Pointer[time.Time]{}
	during := make(chan time.Duration, 10)
	e := httpserver.New(httpserver.Options{Kinds: map[httpserver.Route]httpserver.Kind{{Method: "PUT", Path: "/x"}: httpserver.Upload}})
	e.PUT("/x", func(c echo.Context) error {
		body := readerFunc(func(p []byte) (int, error) {
			n, err := c.Request().Body.Read(p)
			during <- left(write)
			return n, err
		})
		if _, err := io.Copy(io.Discard, httpserver.Steady(c, body, idle, within)); err != nil {
			return err
		}
		return c.String(200, left(write).String())
	})
	s := httptest.NewUnstartedServer(e)
	s.Listener = deadlines{s.Listener, write}
	s.Config.ReadTimeout, s.Config.WriteTimeout = 30*time.Second, 30*time.Second
	s.Start()
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), "PUT", s.URL+"/x", strings.NewReader("the body"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	after, err := time.ParseDuration(string(b))
	if err != nil || after < within/2 || after > within {
		t.Errorf("after the body %q are left, %v", b, err)
	}
	if d := <-during; d > idle || d < 0 {
		t.Errorf("while it is waited for, %v are left", d)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestExtendOutlastsTheServersTimeouts(t *testing.T) {
	for _, extend := range []bool{true, false} {
		t.Run(fmt.Sprint(extend), func(t *testing.T) {
			begun := make(chan struct{})
			e := httpserver.New(httpserver.Options{Kinds: map[httpserver.Route]httpserver.Kind{{Method: "PUT", Path: "/x"}: httpserver.Upload}})
			e.PUT("/x", func(c echo.Context) error {
				if extend {
					httpserver.Extend(c, time.Minute)
				}
				close(begun)
				b, err := io.ReadAll(c.Request().Body)
				if err != nil {
					return err
				}
				return c.String(200, string(b))
			})
			s := httptest.NewUnstartedServer(e)
			// Over before the body comes.
			s.Config.ReadHeaderTimeout, s.Config.ReadTimeout, s.Config.WriteTimeout = time.Minute, time.Nanosecond, time.Nanosecond
			s.Start()
			defer s.Close()
			defer http.DefaultClient.CloseIdleConnections()
			r, w := io.Pipe()
			go func() {
				<-begun
				_, _ = io.WriteString(w, "the body")
				_ = w.Close()
			}()
			req, err := http.NewRequestWithContext(t.Context(), "PUT", s.URL+"/x", r)
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(req)
			_ = r.Close()
			got := ""
			if err == nil {
				b, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				got = string(b)
			}
			if (got == "the body") != extend {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
