package security

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

const (
	// idleConns are held open at once, or as many as the open files of this
	// process and of the API's allow.
	idleConns = 10_000
	// memoryGrowth is what all attacks together may cost the API.
	memoryGrowth = 600 << 20
	// servedWithin bounds any answer to others meanwhile. It is far above what an
	// idle machine needs.
	servedWithin = 15 * time.Second
)

// TestOthersAreServedDuringAttacks: 10,000 idle connections, slow heads, slow
// bodies, bombs and nests all at once; the real process's memory stays bounded,
// each attack is refused or ended, and others are answered.
func TestOthersAreServedDuringAttacks(t *testing.T) {
	c := harness.NewCluster(t, harness.Options{Engine: harness.SQLite, Env: map[string]string{"BERTH_PRINCIPAL_RATE": "0", "BERTH_ADDRESS_RATE": "0"}})
	task := c.Submit(t, harness.Shell(t, "true"))
	pid := c.APIs[0].Pid()
	before := memory(t, pid)
	address := strings.TrimPrefix(c.APIs[0].URL(), "http://")
	over, stop := context.WithCancel(t.Context())
	served := make(chan honest, 1)
	go func() { served <- beHonest(over, c.Client, task.ID) }()

	n := min(idleConns, openFiles(t)/2)
	idle := hold(t, address, n)
	t.Logf("%d idle connections; %d MiB before, %d MiB with them", n, before>>20, memory(t, pid)>>20)
	var attacks sync.WaitGroup
	for name, attack := range map[string]func(t *testing.T, c *harness.Cluster, address string){
		"slow head": slowHead, "slow body": slowBody, "bomb": bomb, "nest": nest,
	} {
		attacks.Add(1)
		go func() {
			defer attacks.Done()
			attack(t, c, address)
			t.Logf("%s is over", name)
		}()
	}
	attacks.Wait()
	peak := memory(t, pid)
	stop()
	h := <-served
	t.Logf("%d MiB at the peak; others: %d answers, the slowest in %v", peak>>20, h.answers, h.slowest)
	if peak > before+memoryGrowth {
		t.Errorf("the API grew from %d to %d MiB", before>>20, peak>>20)
	}
	if h.err != nil || h.answers < 5 || h.slowest > servedWithin {
		t.Errorf("others were not served: %d answers, the slowest in %v, %v", h.answers, h.slowest, h.err)
	}
	for _, c := range idle {
		_ = c.Close()
	}
}

// memory is the most that a process has had in RAM so far.
func memory(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func openFiles(t *testing.T) int {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return int(min(limit.Cur, 1<<20)) //nolint:gosec // bounded
}

// honest is what became of an honest client.
type honest struct {
	answers int
	slowest time.Duration
	err     error
}

// beHonest reads a task again and again until ctx ends.
func beHonest(ctx context.Context, cl *client.Client, task string) honest {
	var h honest
	for ctx.Err() == nil {
		began := time.Now()
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*servedWithin)
		_, err := cl.GetTask(bound, task, 0)
		cancel()
		h.slowest = max(h.slowest, time.Since(began))
		if err != nil {
			h.err = errors.Join(h.err, err)
			return h
		}
		h.answers++
	}
	return h
}

// hold opens connections, has each answered once, and leaves them idle.
func hold(t *testing.T, address string, n int) []net.Conn {
	t.Helper()
	var mu sync.Mutex
	var all []net.Conn
	var workers sync.WaitGroup
	next := make(chan int)
	for w := range 32 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			// Several addresses, so that the ports suffice.
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(w+1))}}
			for range next {
				c, err := dialer.DialContext(t.Context(), "tcp", address)
				if err != nil {
					t.Errorf("dial: %v", err)
					continue
				}
				mu.Lock()
				all = append(all, c)
				mu.Unlock()
				_ = c.SetDeadline(time.Now().Add(harness.Patience))
				if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
					t.Errorf("write: %v", err)
					continue
				}
				if _, err := c.Read(make([]byte, 4096)); err != nil {
					t.Errorf("answer: %v", err)
				}
			}
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	t.Cleanup(func() {
		for _, c := range all {
			_ = c.Close()
		}
	})
	return all
}

// trickle sends a byte each 200 ms until the server ends it, which must be within
// the bound.
func trickle(t *testing.T, address, head, what string, within time.Duration) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, head); err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, c)
	}()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	bound := time.NewTimer(within)
	defer bound.Stop()
	for {
		select {
		case <-ended:
			return
		case <-bound.C:
			t.Errorf("%s: still open after %v", what, within)
			_ = c.Close()
			<-ended
			return
		case <-tick.C:
			_, _ = io.WriteString(c, "x")
		}
	}
}

func together(n int, do func()) {
	var all sync.WaitGroup
	for range n {
		all.Add(1)
		go func() {
			defer all.Done()
			do()
		}()
	}
	all.Wait()
}

func slowHead(t *testing.T, _ *harness.Cluster, address string) {
	together(200, func() {
		trickle(t, address, "GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nX-A: ", "a slow head", 30*time.Second)
	})
}

func slowBody(t *testing.T, c *harness.Cluster, address string) {
	head := "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer " + c.Tokens.AccessToken + "\r\n"
	together(50, func() { trickle(t, address, head+"Content-Length: 200000\r\n\r\n{", "a slow body", 60*time.Second) })
}

// post sends a body and returns the status; 0 where the connection ended first.
func post(t *testing.T, c *harness.Cluster, path string, body []byte, encoding string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.APIs[0].URL()+path, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.Tokens.AccessToken)
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	res, err := plain.Do(req)
	if err != nil {
		return 0 // closed while it was sent
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode
}

// bomb is a gigabyte in a megabyte.
func bomb(t *testing.T, c *harness.Cluster, _ string) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	zeros := make([]byte, 1<<20)
	for range 1024 {
		if _, err := z.Write(zeros); err != nil {
			t.Error(err)
			return
		}
	}
	_ = z.Close()
	for _, encoding := range []string{"gzip", "x-gzip", "deflate", "identity, gzip"} {
		if status := post(t, c, "/api/v1/tasks/batch", b.Bytes(), encoding); status != http.StatusUnsupportedMediaType && status != 0 {
			t.Errorf("a bomb of %s: %d", encoding, status)
		}
	}
}

// nest is JSON that is small to send and large to read.
func nest(t *testing.T, c *harness.Cluster, _ string) {
	together(8, func() {
		for what, body := range map[string]string{
			"1 MiB of arrays":   strings.Repeat("[", 1<<20),
			"1 MiB of objects":  strings.Repeat(`{"a":`, 200<<10),
			"many values":       `{"tasks":[` + strings.Repeat("0,", 3<<20) + `0]}`,
			"many empty arrays": `{"tasks":[` + strings.Repeat("[],", 2<<20) + `[]]}`,
			"many keys":         `{"` + strings.Repeat(`a":1,"`, 1<<20) + `b":1}`,
			"too large":         `"` + strings.Repeat("a", 9<<20) + `"`,
		} {
			if status := post(t, c, "/api/v1/tasks/batch", []byte(body), ""); status != 422 && status != 413 && status != 503 && status != 0 {
				t.Errorf("%s: %d", what, status)
			}
		}
	})
}

// TestRatesOfOneCallerLeaveOthersAlone: over its rate a principal gets 429 with
// Retry-After, and another is served.
func TestRatesOfOneCallerLeaveOthersAlone(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, harness.Options{Engine: harness.SQLite, Env: map[string]string{
		"BERTH_PRINCIPAL_RATE": "5", "BERTH_MAX_STREAMS": "2", "BERTH_CORS_ORIGINS": "https://console.example",
	}})
	get := func(path, token string, header ...string) *http.Response {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.APIs[0].URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := plain.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res
	}
	refused := 0
	for range 100 {
		if res := get("/api/v1/pools", c.Tokens.AccessToken); res.StatusCode == http.StatusTooManyRequests {
			refused++
			if res.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		}
	}
	if refused == 0 || refused == 100 {
		t.Errorf("%d of 100 at once were refused", refused)
	}
	if res := get("/api/v1/health", ""); res.StatusCode != http.StatusOK {
		t.Errorf("another is answered %d", res.StatusCode)
	}
	w := c.Enrol(t, "lab") // waits as the client is told to
	w.Sync(t, map[string]string{"lab": "yes"})
	for range 40 {
		w.Heartbeat(t) // agents have no rate: a lease must not end by one
	}
	for origin, want := range map[string]string{"https://console.example": "https://console.example", "https://evil.example": "", "null": ""} {
		if res := get("/api/v1/health", "", "Origin", origin); res.Header.Get("Access-Control-Allow-Origin") != want || res.Header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: headers %v", origin, res.Header)
		}
	}
}
