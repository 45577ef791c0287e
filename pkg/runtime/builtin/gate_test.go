package builtin_test

import (
	"context"
	"crypto/sha1" //nolint:gosec // the handshake of web sockets asks for it
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
)

// forbidden is a machine that no page may reach: what comes there is counted,
// down to a bare TCP connection or a datagram.
type forbidden struct {
	tcp, udp string
	reached  atomic.Int64
}

func newForbidden(t *testing.T, ip string) *forbidden {
	t.Helper()
	f := &forbidden{}
	ln, err := net.Listen("tcp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	f.tcp = ln.Addr().String()
	udp, err := net.ListenPacket("udp", ip+":0")
	if err != nil {
		t.Fatal(err)
	}
	f.udp = udp.LocalAddr().String()
	over := make(chan struct{}, 2)
	go func() {
		defer func() { over <- struct{}{} }()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.reached.Add(1)
			_ = c.Close()
		}
	}()
	go func() {
		defer func() { over <- struct{}{} }()
		for {
			if _, _, err := udp.ReadFrom(make([]byte, 1500)); err != nil {
				return
			}
			f.reached.Add(1)
		}
	}()
	t.Cleanup(func() {
		_, _ = ln.Close(), udp.Close()
		<-over
		<-over
	})
	return f
}

// everyWay is a page that tries to reach a host in every way that pages have,
// and says "tried" when each has ended. A way that was let through says so by
// itself, for the page's own host ("open: ...").
func everyWay(host, udp string) string {
	return fmt.Sprintf(`<!doctype html><p id=p>trying</p><p id=open>open:</p>
<link rel=stylesheet href="http://%[1]s/css"><link rel=preload as=image href="http://%[1]s/preload"><link rel=preconnect href="http://%[1]s/">
<link rel=prefetch href="http://%[1]s/prefetch"><link rel=icon href="http://%[1]s/icon"><link rel=manifest href="http://%[1]s/manifest">
<img src="http://%[1]s/img"><video src="http://%[1]s/video"></video><object data="http://%[1]s/object"></object><embed src="http://%[1]s/embed">
<iframe src="http://%[1]s/frame"></iframe><iframe srcdoc='<img src="http://%[1]s/srcdoc">'></iframe>
<iframe src='data:text/html,<img src="http://%[1]s/data">'></iframe>
<form id=f method=post target=w action="http://%[1]s/form"><input name=a value=b></form><iframe name=w></iframe>
<script src="http://%[1]s/script"></script>
<script>
const ways = {
  fetch: () => fetch("http://%[1]s/fetch").then((r) => r.text()),
  opaque: () => fetch("http://%[1]s/opaque", {mode: "no-cors"}),
  xhr: () => new Promise((ok, no) => { const x = new XMLHttpRequest(); x.onload = ok; x.onerror = no; x.open("GET", "http://%[1]s/xhr"); x.send() }),
  socket: () => new Promise((ok, no) => { const s = new WebSocket("ws://%[1]s/socket"); s.onopen = ok; s.onerror = no }),
  secure: () => new Promise((ok, no) => { const s = new WebSocket("wss://%[1]s/socket"); s.onopen = ok; s.onerror = no }),
  events: () => new Promise((ok, no) => { const s = new EventSource("http://%[1]s/events"); s.onopen = () => { s.close(); ok() }; s.onerror = () => { s.close(); no() } }),
  worker: () => new Promise((ok, no) => { const w = new Worker(URL.createObjectURL(new Blob(['fetch("http://%[1]s/worker", {mode: "no-cors"}).then(() => postMessage("ok"), () => postMessage("no"))'], {type: "text/javascript"}))); w.onmessage = (e) => e.data === "ok" ? ok() : no() }),
  hop: () => fetch("/bounce?http://%[1]s/hop", {mode: "no-cors"}),
  stun: () => new Promise((ok, no) => {
    const c = new RTCPeerConnection({iceServers: [{urls: ["stun:%[2]s"]}, {urls: ["turn:%[2]s?transport=udp", "turn:%[1]s?transport=tcp"], username: "u", credential: "c"}]});
    c.createDataChannel("d"); c.onicegatheringstatechange = () => c.iceGatheringState === "complete" && no(); setTimeout(no, 3000);
    c.createOffer().then((o) => c.setLocalDescription(o)) }),
};
navigator.sendBeacon("http://%[1]s/beacon", "x");
window.open("http://%[1]s/popup"); window.open("http://%[1]s/noopener", "_blank", "noopener"); f.submit();
Promise.all(Object.entries(ways).map(([name, way]) => way().then(() => { document.getElementById("open").textContent += " " + name }, () => {})))
  .then(() => { p.textContent = "tried" });
</script>`, host, udp)
}

func serveEveryWay(t *testing.T, host, udp string) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/ways", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		at := host
		if at == "" {
			at = r.Host
		}
		_, _ = fmt.Fprint(w, everyWay(at, udp))
	})
	mux.HandleFunc("/bounce", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.RawQuery, http.StatusFound) })
	mux.HandleFunc("/socket", acceptSocket)
	mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "data: x\n\n")
	})
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// acceptSocket opens a web socket and closes it.
func acceptSocket(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n\x88\x00",
		base64.StdEncoding.EncodeToString(sum[:]))
	_ = buf.Flush()
}

func tryEveryWay(t *testing.T, rt *builtin.Runtime, url string) map[string]string {
	t.Helper()
	res, err := rt.Run(t.Context(), fill(t, runtime.RunRequest{DeviceID: "chromium-0", Plugin: "browser.script", Payload: payload(t, map[string]any{
		"step_timeout_ms": 30000, "steps": steps{
			{"goto": map[string]any{"url": url}},
			{"wait": map[string]any{"text": "tried"}},
			{"wait": map[string]any{"idle_ms": 300}},
			{"read": map[string]any{"name": "open", "selector": "#open"}},
		},
	})}))
	if err != nil {
		t.Fatal(err)
	}
	want(t, res, runtime.OutcomeSucceeded, "")
	return reads(t, res)
}

// TestNothingThatAPageDoesReachesADeniedAddress: not a frame, a window's first
// request, a script's, a worker's, a web socket, WebRTC; the same page reaches
// its own host in each of these ways.
func TestNothingThatAPageDoesReachesADeniedAddress(t *testing.T) {
	f := newForbidden(t, "127.0.0.9") // denied in config
	if got := tryEveryWay(t, shared, serveEveryWay(t, f.tcp, f.udp).URL+"/ways")["open"]; got != "open:" {
		t.Errorf("ways that were let through: %s", got)
	}
	if n := f.reached.Load(); n > 0 {
		t.Errorf("the denied address was reached %d times", n)
	}
	got := tryEveryWay(t, shared, serveEveryWay(t, "", f.udp).URL+"/ways")["open"]
	for _, way := range []string{"fetch", "opaque", "xhr", "socket", "events", "worker", "hop"} {
		if !strings.Contains(got, " "+way) {
			t.Errorf("the page does not reach its own host by %s: %s", way, got)
		}
	}
}

// TestANameThatChangesItsAddressReachesNothing: the name resolves to an allowed
// address when it is judged, and to a denied one afterwards (DNS rebinding).
func TestANameThatChangesItsAddressReachesNothing(t *testing.T) {
	f := newForbidden(t, "127.0.0.9")
	_, port, _ := net.SplitHostPort(f.tcp)
	names := newNameServer(t)
	dir := t.TempDir()
	rt, err := builtin.New(context.Background(), builtin.Config{
		StateDir: dir, BrowserContexts: 1, Logger: zap.NewNop(),
		Chromium: chromium.Config{Policy: chromium.Policy{AllowLoopback: true, Deny: []string{"127.0.0.9"}, ControlPlane: []string{"berth.test:" + port}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	}()
	open := func(host string) runtime.Result {
		res, err := rt.Run(t.Context(), fill(t, runtime.RunRequest{DeviceID: "chromium-0", Plugin: "browser.script", Dir: filepath.Join(t.TempDir(), "run"), Payload: script(t, steps{
			{"goto": map[string]any{"url": "http://" + net.JoinHostPort(host, port) + "/"}},
		})}))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for allowed := range 5 { // asked for by the step's check, the document's, the gate
		names.rebind("rebind.test", allowed, [4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 9})
		if res := open("rebind.test"); res.Outcome != runtime.OutcomeFailed {
			t.Errorf("after %d answers: %s %s", allowed, res.Outcome, res.Reason)
		}
	}
	names.rebind("berth.test", 0, [4]byte{}, [4]byte{127, 0, 0, 8})
	names.rebind("other.test", 0, [4]byte{}, [4]byte{127, 0, 0, 8})
	for _, host := range []string{"berth.test", "other.test", "127.0.0.8", "BERTH.test."} {
		if res := open(host); res.Reason != runtime.CodeURLRefused || !strings.Contains(res.Message, "control plane") {
			t.Errorf("the control plane as %s: %s %s", host, res.Reason, res.Message)
		}
	}
	if n := f.reached.Load(); n > 0 {
		t.Errorf("the denied address was reached %d times", n)
	}
}

// nameServer answers for names whose address changes.
type nameServer struct {
	rules chan map[string]*changing
}

type changing struct {
	left       int // answers of the first address that are left
	first, now [4]byte
}

func (s *nameServer) rebind(name string, answers int, first, then [4]byte) {
	rules := <-s.rules
	rules[name+"."] = &changing{answers, first, then}
	s.rules <- rules
}

// newNameServer takes the place of the machine's resolver until the test ends.
func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{rules: make(chan map[string]*changing, 1)}
	s.rules <- map[string]*changing{}
	over := make(chan struct{})
	go func() {
		defer close(over)
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			s.answer(&m)
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	machine := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = machine
		_ = conn.Close()
		<-over
	})
	return s
}

func (s *nameServer) answer(m *dnsmessage.Message) {
	q := m.Questions[0]
	m.Header.Response, m.Additionals = true, nil
	rules := <-s.rules
	defer func() { s.rules <- rules }()
	rule := rules[strings.ToLower(q.Name.String())]
	switch {
	case rule == nil:
		m.Header.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		ip := rule.now
		if rule.left > 0 {
			rule.left--
			ip = rule.first
		}
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
			Body:   &dnsmessage.AResource{A: ip},
		}}
	}
}

// TestAPageCannotShowFilesOfTheHost: no step and no page opens what is not the
// web.
func TestAPageCannotShowFilesOfTheHost(t *testing.T) {
	for _, url := range []string{
		"file:///etc/passwd", "FILE:///etc/passwd", "view-source:file:///etc/passwd", "view-source:http://127.0.0.1/", "chrome://version/", "chrome-untrusted://x/",
		"devtools://devtools/", "javascript:alert(1)", "data:text/html,x", "blob:http://127.0.0.1/x", "about:blank", "filesystem:http://127.0.0.1/t/x", "ftp://127.0.0.1/", "/etc/passwd",
	} {
		if res := browse(t, "chromium-0", steps{{"goto": map[string]any{"url": url}}}); res.Outcome == runtime.OutcomeSucceeded {
			t.Errorf("%q was opened", url)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<p>here</p><iframe src="file:///etc/passwd"></iframe><object data="file:///etc/passwd"></object><a id=a href="file:///etc/passwd" download>a</a>
<script>a.click(); open("file:///etc/passwd"); open("chrome://settings"); location = %q; setTimeout(() => document.body.append(" tried"), 300)</script>`, r.URL.Query().Get("to"))
	}))
	defer s.Close()
	for _, to := range []string{"file:///etc/passwd", "view-source:file:///etc/passwd", "chrome://version/", "data:text/html,gone", "javascript:void(0)"} {
		res := browse(t, "chromium-0", steps{
			{"goto": map[string]any{"url": s.URL + "/?to=" + to}},
			{"wait": map[string]any{"text": "tried"}},
			{"read": map[string]any{"name": "url", "what": "url"}},
			{"ui_tree": map[string]any{"name": "tree.json"}},
		})
		want(t, res, runtime.OutcomeSucceeded, "")
		if at := reads(t, res)["url"]; !strings.HasPrefix(at, s.URL) {
			t.Errorf("the page went to %s", at)
		}
		if _, tree := artifact(t, res, "tree.json"); strings.Contains(string(tree), "root:") {
			t.Errorf("%s: a file of the host is in the page: %s", to, tree)
		}
	}
}

// BenchmarkGate loads a page with 40 small pictures and 16 MiB, through the gate
// and (GATE=off in its name) without.
func BenchmarkGate(b *testing.B) {
	big := make([]byte, 16<<20)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/big":
			_, _ = w.Write(big)
		case "/page":
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, `<script>
Promise.all([fetch("/big?%[1]d").then((r) => r.arrayBuffer()), ...Array.from({length: 40}, (_, i) => fetch("/small?%[1]d-" + i, {cache: "no-store"}).then((r) => r.text()))])
  .then(() => document.body.append("loaded"))</script><body>`, time.Now().UnixNano())
		default:
			_, _ = w.Write(big[:2000])
		}
	}))
	defer s.Close()
	for name, flags := range map[string][]string{"gate": nil, "direct": {"--no-proxy-server", "--host-resolver-rules="}} {
		b.Run(name, func(b *testing.B) {
			rt, err := builtin.New(context.Background(), builtin.Config{
				StateDir: b.TempDir(), BrowserContexts: 1, Logger: zap.NewNop(),
				Chromium: chromium.Config{Policy: chromium.Policy{AllowLoopback: true}, Flags: flags},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = rt.Close() }()
			load := func() {
				res, err := rt.Run(b.Context(), runtime.RunRequest{
					RunID: runtime.RunID(fmt.Sprintf("bench-%d", runCount.Add(1))), Dir: filepath.Join(b.TempDir(), "run"), DeviceID: "chromium-0", Plugin: "browser.script",
					Payload: redact.NewBytes([]byte(`{"step_timeout_ms": 30000, "steps": [{"goto": {"url": "` + s.URL + `/page"}}, {"wait": {"text": "loaded"}}]}`)),
				})
				if err != nil || res.Outcome != runtime.OutcomeSucceeded {
					b.Fatal(err, res.Outcome, res.Message)
				}
			}
			load()
			for b.Loop() {
				load()
			}
		})
	}
}
