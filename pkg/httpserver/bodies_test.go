package httpserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/httpserver"
)

// chunked hides a body's length.
func chunked(body string) io.Reader { return io.MultiReader(strings.NewReader(body)) }

// TestLargeBodiesWaitForRoom: one caller's large bodies hold up neither small ones
// nor another's, and what finds no room is told when to come back.
func TestLargeBodiesWaitForRoom(t *testing.T) {
	bodies := httpserver.NewBodies(4 << 20).Within(100 * time.Millisecond) // 1 MiB of it for reading
	began, finish := make(chan struct{}), make(chan struct{})
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) {
		e.POST("/x", func(c echo.Context) error {
			body, err := bodies.Read(c, c.QueryParam("who"), 800<<10)
			if err != nil {
				return err
			}
			defer body.Release()
			if c.QueryParam("holds") != "" {
				began <- struct{}{}
				<-finish
			}
			return c.String(200, fmt.Sprint(len(body.Bytes())))
		})
	})
	of := func(kib int) string { return strings.Repeat("x", kib<<10) }
	small, large, largest := of(64), of(190), of(760)
	held := make(chan int, 1)
	go func() {
		res, err := http.Post(s.url+"/x?who=a&holds=1", "text/plain", strings.NewReader(of(300))) //nolint:noctx // ends with finish
		if err != nil {
			held <- 0
			return
		}
		_ = res.Body.Close()
		held <- res.StatusCode
	}()
	<-began
	for name, tc := range map[string]struct {
		who, code string
		body      io.Reader
		status    int
	}{
		"the caller's next":             {"a", "busy", strings.NewReader(of(250)), 503},
		"the caller's next, by chunks":  {"a", "busy", chunked(large), 503},
		"a small one":                   {"a", "", strings.NewReader(small), 200},
		"a small one by chunks":         {"a", "", chunked(small), 200},
		"none":                          {"a", "", nil, 200},
		"another's":                     {"b", "", strings.NewReader(large), 200},
		"another's too large":           {"b", "too_large", strings.NewReader(of(801)), 413},
		"another's more than is left":   {"b", "busy", strings.NewReader(largest), 503},
		"another's small by chunks":     {"b", "", chunked(small), 200},
		"another's too large by chunks": {"b", "busy", chunked(of(801)), 503}, // it may be as long as the limit
	} {
		res, p := send(t, "POST", s.url+"/x?who="+tc.who, tc.body)
		if res.StatusCode != tc.status || p.Code != tc.code || tc.status == 503 && res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %+v", name, res.StatusCode, p)
		}
	}
	close(finish)
	if status := <-held; status != 200 {
		t.Errorf("the first: %d", status)
	}
	// All the room is there again.
	for range 20 {
		for body, want := range map[io.Reader]int{strings.NewReader(largest): 200, chunked(largest): 200, chunked(of(801)): 413} {
			if res, p := send(t, "POST", s.url+"/x?who=a", body); res.StatusCode != want {
				t.Fatalf("afterwards: %d %+v, want %d", res.StatusCode, p, want)
			}
		}
	}
}

// TestASlowSenderTakesNoTurn: a body that does not come to its end holds its own
// bytes, and keeps nobody from being decoded.
func TestASlowSenderTakesNoTurn(t *testing.T) {
	bodies := httpserver.NewBodies(4 << 20).Within(10 * time.Second)
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) {
		e.POST("/x", func(c echo.Context) error {
			body, err := bodies.Read(c, c.QueryParam("who"), 600<<10)
			if err != nil {
				return err
			}
			defer body.Release()
			return ok(c)
		})
	})
	r, w := io.Pipe()
	stalled := make(chan error, 1)
	go func() {
		res, err := http.Post(s.url+"/x?who=a", "text/plain", r) //nolint:noctx // ends with the pipe
		if err == nil {
			_ = res.Body.Close()
		}
		stalled <- err
	}()
	if _, err := io.WriteString(w, strings.Repeat("[", 100<<10)); err != nil {
		t.Fatal(err)
	}
	if res, p := send(t, "POST", s.url+"/x?who=b", strings.NewReader(strings.Repeat("[", 400<<10))); res.StatusCode != 200 {
		t.Errorf("another: %d %+v", res.StatusCode, p)
	}
	_ = w.CloseWithError(errors.New("gone"))
	if err := <-stalled; err == nil {
		t.Error("the broken body was answered")
	}
	if res, p := send(t, "POST", s.url+"/x?who=a", strings.NewReader(strings.Repeat("[", 600<<10))); res.StatusCode != 200 {
		t.Errorf("the caller afterwards: %d %+v", res.StatusCode, p)
	}
}

// TestNoDecodedBodyCostsMoreThanItsTurn: whatever a body is made of.
func TestNoDecodedBodyCostsMoreThanItsTurn(t *testing.T) {
	repeated := func(piece string) string {
		return "[" + strings.Repeat(piece+",", (1<<20)/(len(piece)+1)) + piece + "]"
	}
	for _, body := range []string{
		repeated(`0`), repeated(`[]`), repeated(`{}`), repeated(`{"a":1}`), repeated(`[[[0]]]`), repeated(`{"":{"":{}}}`), repeated(`"x"`), `"` + strings.Repeat("x", 1<<20) + `"`,
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		runtime.KeepAlive(v)
		runtime.KeepAlive(body)
		t.Logf("%.12s: %d KiB, its turn is for %d KiB", body, grown>>10, httpserver.DecodingCost([]byte(body))>>10)
		if grown > httpserver.DecodingCost([]byte(body)) {
			t.Errorf("%.12s: %d KiB, its turn is for %d KiB", body, grown>>10, httpserver.DecodingCost([]byte(body))>>10)
		}
	}
}

// TestOneRangeAtATime: many cost the server more than they spare anybody.
func TestOneRangeAtATime(t *testing.T) {
	content := strings.Repeat("0123456789", 100)
	s := serve(t, httpserver.Options{}, func(e *echo.Echo) {
		e.GET("/x", func(c echo.Context) error {
			http.ServeContent(c.Response(), c.Request(), "", time.Time{}, strings.NewReader(content))
			return nil
		})
	})
	for asked, status := range map[string]int{
		"bytes=10-19": 206, "bytes=-5": 206, "bytes=995-": 206, "bytes=2000-": 416,
		"bytes=0-1,5-6": 416, "bytes=0-1, 5-6": 416, "bytes=0-" + strings.Repeat("0", 100) + "5": 416, "bytes=" + strings.Repeat("0-,", 2000) + "0-": 416,
	} {
		res, p := send(t, "GET", s.url+"/x", nil, "Range", asked)
		mine := strings.Contains(asked, ",") || len(asked) > 64
		if res.StatusCode != status || mine != (p.Code == "range_not_satisfiable") {
			t.Errorf("%.20s: %d %+v", asked, res.StatusCode, p)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Range"] = []string{"bytes=0-1", "bytes=5-6"}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != 416 {
		t.Errorf("two headers: %d", res.StatusCode)
	}
}
