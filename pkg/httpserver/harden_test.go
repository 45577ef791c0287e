package httpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/protocol"
)

// TestEveryAnswerIsHard: successes, refusals of every layer, panics.
func TestEveryAnswerIsHard(t *testing.T) {
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) {
		e.GET("/x", ok)
		e.GET("/panic", func(echo.Context) error { panic("x") })
		e.GET("/error", func(echo.Context) error { return errors.New("x") })
	})
	for path, status := range map[string]int{
		"/x": 200, "/panic": 500, "/error": 500, "/none": 404, "/x?" + strings.Repeat("a", 9<<10): 414, "/x?" + strings.Repeat("a=b&", 101): 422,
		"/x?a=" + strings.Repeat("b", 5000): 422,
	} {
		res, p := send(t, "GET", s.url+path, nil)
		if res.StatusCode != status || status != 200 && p.Code == "" {
			t.Errorf("%.20s: %d %+v", path, res.StatusCode, p)
		}
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
			"Permissions-Policy": "camera=(), geolocation=(), microphone=()", "Server": "", "X-Powered-By": "", "Access-Control-Allow-Origin": "", "Strict-Transport-Security": "",
		} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%.20s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestHostsOriginsAndEncodingsThatAreRefused(t *testing.T) {
	s := serve(t, httpserver.Options{ServerNames: []string{"berth.example"}, Origins: []string{"https://console.example"}}, func(e *echo.Echo) {
		e.GET("/x", ok)
		e.POST("/x", ok)
	})
	host := strings.TrimPrefix(s.url, "http://")
	for _, c := range []struct {
		method, host  string
		header        []string
		status        int
		code, allowed string
	}{
		{"GET", host, nil, 200, "", ""},
		{"GET", "localhost", nil, 200, "", ""},
		{"GET", "LOCALHOST:80", nil, 200, "", ""},
		{"GET", "[::1]:7700", nil, 200, "", ""},
		{"GET", "berth.example", nil, 200, "", ""},
		{"GET", "evil.example", nil, 421, "foreign_host", ""},
		{"GET", "127.0.0.1.evil.example", nil, 421, "foreign_host", ""},
		{"GET", "localhost.evil.example:80", nil, 421, "foreign_host", ""},
		{"GET", "192.0.2.1", nil, 421, "foreign_host", ""},
		{"POST", host, []string{"Origin", "http://" + host}, 200, "", ""},
		{"POST", host, []string{"Origin", "https://evil.example"}, 403, "foreign_origin", ""},
		{"POST", host, []string{"Origin", "null"}, 403, "foreign_origin", ""},
		{"POST", host, []string{"Origin", "https://console.example.evil.example"}, 403, "foreign_origin", ""},
		{"POST", host, []string{"Origin", "https://console.example"}, 200, "", "https://console.example"},
		{"GET", host, []string{"Origin", "https://evil.example"}, 200, "", ""},
		{"OPTIONS", host, []string{"Origin", "https://console.example", "Access-Control-Request-Method", "POST"}, 204, "", "https://console.example"},
		{"OPTIONS", host, []string{"Origin", "https://evil.example", "Access-Control-Request-Method", "POST"}, 204, "", ""},
		{"POST", host, []string{"Content-Encoding", "gzip"}, 415, "unsupported_media_type", ""},
		{"POST", host, []string{"Content-Encoding", "identity"}, 200, "", ""},
		{"POST", host, []string{"Content-Encoding", "identity, br"}, 415, "unsupported_media_type", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.url+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		for i := 0; i+1 < len(c.header); i += 2 {
			req.Header.Set(c.header[i], c.header[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p protocol.Problem
		_ = json.NewDecoder(res.Body).Decode(&p)
		_ = res.Body.Close()
		if res.StatusCode != c.status || p.Code != c.code || res.Header.Get("Access-Control-Allow-Origin") != c.allowed || res.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s at %s with %v: %d %q, allowed %q", c.method, c.host, c.header, res.StatusCode, p.Code, res.Header.Get("Access-Control-Allow-Origin"))
		}
	}
}

// listening is a server of this package on real sockets.
func listening(t *testing.T, s *httpserver.Server) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	s.Grace = 10 * time.Second
	go func() { served <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends raw bytes and reads one answer.
func ask(t *testing.T, c net.Conn, raw string) (*http.Response, protocol.Problem) {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.40q: %v", raw, err)
	}
	defer func() { _ = res.Body.Close() }()
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

// TestWhatCannotBeReadIsAProblemToo: net/http answers these before any handler.
func TestWhatCannotBeReadIsAProblemToo(t *testing.T) {
	e := httpserver.New(httpserver.Options{})
	e.GET("/x", ok)
	address := listening(t, &httpserver.Server{Handler: e})
	for raw, want := range map[string]struct {
		status int
		code   string
	}{
		"GET / HTTP/1.1\r\n\r\n": {400, "bad_request"}, // no host
		"nonsense\r\n\r\n":       {400, "bad_request"},
		"GET /x HTTP/1.1\r\nHost: localhost\r\nA B: c\r\n\r\n":                                    {400, "bad_request"},
		"GET /x HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n":                                   {400, "bad_request"},
		"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n":                                            {400, "bad_request"},
		"GET /x HTTP/1.1\r\nHost: localhost\r\nA: " + strings.Repeat("x", 40<<10) + "\r\n\r\n":    {431, "headers_too_large"},
		"GET /x HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("A: b\r\n", 101) + "\r\n":       {431, "headers_too_large"},
		"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab": {400, "bad_request"},
		"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":                         {200, ""},
	} {
		res, p := ask(t, dial(t, address), raw)
		if res.StatusCode != want.status || p.Code != want.code || p.Code != "" && p.RequestID == "" {
			t.Errorf("%.40q: %d %+v", raw, res.StatusCode, p)
		}
	}
}

// TestContentThatLooksLikeAnAnswerPasses: an artifact may hold any bytes.
func TestContentThatLooksLikeAnAnswerPasses(t *testing.T) {
	content := "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request" + strings.Repeat("x", 40<<10)
	e := httpserver.New(httpserver.Options{})
	e.GET("/x", func(c echo.Context) error {
		c.Response().WriteHeader(200)
		c.Response().Flush()
		_, err := io.WriteString(c.Response(), content)
		return err
	})
	c := dial(t, listening(t, &httpserver.Server{Handler: e}))
	if _, err := io.WriteString(c, "GET /x HTTP/1.0\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(b), content) {
		t.Errorf("%v, %d bytes", err, len(b))
	}
}

// TestIdleConnectionsMakeRoom: those of the address that has most, the oldest
// first; what is at work stays.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	e := httpserver.New(httpserver.Options{Kinds: map[httpserver.Route]httpserver.Kind{{Method: "GET", Path: "/wait"}: httpserver.Stream}})
	e.GET("/x", ok)
	release, began := make(chan struct{}), make(chan struct{}, 1)
	e.GET("/wait", func(c echo.Context) error {
		began <- struct{}{}
		<-release
		return ok(c)
	})
	address := listening(t, &httpserver.Server{Handler: e, MaxConns: 32})
	const get = "GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
	neighbour, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 7)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = neighbour.Close() }()
	if res, _ := ask(t, neighbour, fmt.Sprintf(get, "x")); res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	busy := dial(t, address)
	if _, err := fmt.Fprintf(busy, get, "wait"); err != nil {
		t.Fatal(err)
	}
	<-began
	flood := make([]net.Conn, 100)
	for i := range flood {
		flood[i] = dial(t, address)
	}
	if res, _ := ask(t, dial(t, address), fmt.Sprintf(get, "x")); res.StatusCode != 200 {
		t.Errorf("a new client in the flood: %s", res.Status)
	}
	if res, _ := ask(t, neighbour, fmt.Sprintf(get, "x")); res.StatusCode != 200 {
		t.Errorf("the neighbour: %s", res.Status)
	}
	if _, err := flood[0].Read(make([]byte, 1)); err == nil {
		t.Error("the oldest idle connection is still there")
	}
	close(release)
	if res, err := http.ReadResponse(bufio.NewReader(busy), nil); err != nil || res.StatusCode != 200 {
		t.Errorf("the one at work: %v", err)
	} else {
		_ = res.Body.Close()
	}
}

func TestRatesAndSlots(t *testing.T) {
	r, now := httpserver.NewRate(10), time.Now()
	for range 40 {
		if err := r.Take("a", now); err != nil {
			t.Fatal(err)
		}
	}
	var many *berth.TooManyError
	if err := r.Take("a", now); !errors.As(err, &many) || many.RetryAfter < 100*time.Millisecond || many.RetryAfter > time.Second {
		t.Errorf("the 41st: %v", err)
	}
	if err := r.Take("b", now); err != nil {
		t.Errorf("another: %v", err)
	}
	if err := r.Take("a", now.Add(100*time.Millisecond)); err != nil {
		t.Errorf("a tenth of a second later: %v", err)
	}
	for range 100 {
		if err := httpserver.NewRate(0).Take("a", now); err != nil {
			t.Fatal(err)
		}
	}
	release, began := make(chan struct{}), make(chan struct{}, 2)
	key := func(c echo.Context) string { return c.QueryParam("who") }
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) {
		e.GET("/wait", func(c echo.Context) error {
			began <- struct{}{}
			<-release
			return ok(c)
		}, httpserver.AtOnce(1, key))
		e.GET("/x", ok, httpserver.ByCaller(1, key))
		e.GET("/y", ok, httpserver.ByAddress(1))
	})
	first := make(chan int, 1)
	go func() {
		res, err := http.Get(s.url + "/wait?who=a") //nolint:noctx // ends with release
		if err != nil {
			first <- 0
			return
		}
		_ = res.Body.Close()
		first <- res.StatusCode
	}()
	<-began
	if res, p := send(t, "GET", s.url+"/wait?who=a", nil); res.StatusCode != 429 || p.Code != "too_many_requests" || res.Header.Get("Retry-After") == "" {
		t.Errorf("the second: %d %+v", res.StatusCode, p)
	}
	close(release)
	if got := <-first; got != 200 {
		t.Errorf("the first: %d", got)
	}
	for range 2 {
		if res, _ := send(t, "GET", s.url+"/wait?who=a", nil); res.StatusCode != 200 {
			t.Errorf("later: %d", res.StatusCode)
		}
		<-began
	}
	// On a slow machine a second passes between them, and brings one more.
	passed := func(url string) (n int) {
		for n < 100 {
			if res, _ := send(t, "GET", s.url+url, nil); res.StatusCode == 429 {
				break
			}
			n++
		}
		return n
	}
	for _, url := range []string{"/x?who=a", "/x?who=b", "/y?who=a"} {
		if n := passed(url); n < 4 || n == 100 {
			t.Errorf("%d of 100 passed at %s", n, url)
		}
	}
	if n := passed("/y?who=b"); n > 3 {
		t.Errorf("%d of another caller's passed from an address that is over its rate", n)
	}
}

// TestABodyThatTricklesEnds: it need not stop altogether.
func TestABodyThatTricklesEnds(t *testing.T) {
	e := httpserver.New(httpserver.Options{Kinds: map[httpserver.Route]httpserver.Kind{{Method: "POST", Path: "/up"}: httpserver.Upload}})
	ended := make(chan error, 1)
	e.POST("/up", func(c echo.Context) error {
		span, err := time.ParseDuration(c.QueryParam("span"))
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, httpserver.Steady(c, c.Request().Body, span, time.Minute))
		ended <- err
		return c.String(200, fmt.Sprint(n))
	})
	address := listening(t, &httpserver.Server{Handler: e})
	send := func(span string, piece int, every time.Duration, most int) error {
		c := dial(t, address)
		if _, err := fmt.Fprintf(c, "POST /up?span=%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", span, piece*most); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for range most {
			if _, err := c.Write(make([]byte, piece)); err != nil {
				break
			}
			select {
			case err := <-ended:
				return err
			case <-tick.C:
			}
		}
		select {
		case err := <-ended:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("it never ended")
		}
	}
	var timeout net.Error
	began := time.Now()
	if err := send("500ms", 1, 20*time.Millisecond, 10_000); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a byte each 20 ms: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second { // 0.5 s, but for the machine
		t.Errorf("a byte each 20 ms lasted %v", took)
	}
	if err := send("2s", 16<<10, 300*time.Millisecond, 16); err != nil { // 4.8 s, more than twice the span
		t.Errorf("a steady one: %v", err)
	}
}
