package chromium

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// gate is the browser's only way to the network: a SOCKS5 server on loopback
// that resolves the name it is asked for, judges every address of it by the
// Policy, and dials an address that it judged. So the name cannot resolve to
// something else in between (DNS rebinding), and everything that a page asks for
// is judged: documents, frames, the first request of a window, scripts, images,
// fetch, web sockets, workers. The browser resolves no name by itself and sends
// no UDP (see flags), and without the gate it reaches nothing.
//
// SOCKS and not an HTTP proxy: the bytes pass unread, whatever protocol they are.
type gate struct {
	policy Policy
	ln     net.Listener
	dialer net.Dialer
	half   time.Duration   // halfOpen, for tests
	life   context.Context // ends with close
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	// failed says why hosts could not be reached lately, by host:port, so that a
	// step can say more than the browser, which sees a proxy that refused.
	failed map[string]error
}

const (
	// gateConns bounds the connections of a browser; it opens at most 32 a context
	// for pages, and more for web sockets.
	gateConns = 1024
	// rememberedFailures bounds what failed keeps.
	rememberedFailures = 256

	handshakeWithin = 10 * time.Second
	dialWithin      = 20 * time.Second
	// halfOpen is how long one end may go on when the other has said all: browsers
	// close connections whole, and a server that never does would keep its place here.
	halfOpen = 30 * time.Second
)

// errUnreachable is why a host cannot be reached, in the browser's own words.
type errUnreachable string

func (e errUnreachable) Error() string { return string(e) }

// The reasons, as Chromium names them.
const (
	unresolved  errUnreachable = "net::ERR_NAME_NOT_RESOLVED"
	connRefused errUnreachable = "net::ERR_CONNECTION_REFUSED"
	timedOut    errUnreachable = "net::ERR_CONNECTION_TIMED_OUT"
	unreachable errUnreachable = "net::ERR_ADDRESS_UNREACHABLE"
)

func openGate(ctx context.Context, p Policy) (*gate, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gate{policy: p, ln: ln, half: halfOpen, conns: map[net.Conn]bool{}, failed: map[string]error{}}
	g.life, g.stop = context.WithCancel(context.Background())
	g.work.Add(1)
	go g.accept()
	return g, nil
}

// flags send everything through the gate.
func (g *gate) flags() []string {
	return []string{
		"--proxy-server=socks5://" + g.ln.Addr().String(),
		"--proxy-bypass-list=<-loopback>", // loopback and link-local ones too
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
		"--webrtc-ip-handling-policy=disable_non_proxied_udp",
		"--force-webrtc-ip-handling-policy=disable_non_proxied_udp", // its name in older ones
	}
}

// close breaks off every connection and returns when none is left.
func (g *gate) close() {
	g.stop()
	_ = g.ln.Close()
	g.mu.Lock()
	for c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.work.Wait()
}

func (g *gate) accept() {
	defer g.work.Done()
	for {
		c, err := g.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !g.pause() {
				return
			}
			continue // out of file descriptors, for a while
		}
		if !g.keep(c) {
			_ = c.Close()
			continue
		}
		g.work.Add(1)
		go func() {
			defer g.work.Done()
			defer g.drop(c)
			g.serve(c)
		}()
	}
}

// pause waits a little; false when the gate is closed meanwhile.
func (g *gate) pause() bool {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-g.life.Done():
		return false
	}
}

// keep has close end c as well; false when there are too many or it is closed.
func (g *gate) keep(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.Err() != nil || len(g.conns) >= 2*gateConns { // each has two ends
		return false
	}
	g.conns[c] = true
	return true
}

func (g *gate) drop(c net.Conn) {
	_ = c.Close()
	g.mu.Lock()
	delete(g.conns, c)
	g.mu.Unlock()
}

// serve answers one connection of the browser.
func (g *gate) serve(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(handshakeWithin))
	host, port, err := readSOCKS(c)
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	target, err := g.reach(host, port)
	g.remember(host, port, err)
	if err != nil {
		_, _ = c.Write([]byte{5, 4, 0, 1, 0, 0, 0, 0, 0, 0}) // host unreachable
		return
	}
	defer g.drop(target)
	if _, err := c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
		return
	}
	join(c, target, g.half)
}

// join copies both ways until both are over or one breaks; the second way has
// half from the end of the first on.
func join(a, b net.Conn, half time.Duration) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		defer both.Done()
		_, err := io.Copy(to, from)
		if tcp, ok := to.(*net.TCPConn); ok && err == nil {
			_ = tcp.CloseWrite()
			_ = tcp.SetReadDeadline(time.Now().Add(half))
			return
		}
		_, _ = a.Close(), b.Close()
	}
	both.Add(2)
	go pass(a, b)
	go pass(b, a)
	both.Wait()
}

// reach dials the first address of a host that answers, once all of them are
// judged. The error is an errUnreachable, or the Policy's refusal.
func (g *gate) reach(host string, port uint16) (net.Conn, error) {
	ctx, stop := context.WithTimeout(g.life, dialWithin)
	defer stop()
	ips, err := g.policy.judge(ctx, host, strconv.Itoa(int(port)))
	if err != nil {
		if ctx.Err() != nil {
			return nil, timedOut
		}
		return nil, err
	}
	var last error = unreachable
	for _, ip := range ips {
		at := netip.AddrPortFrom(ip, port)
		if at.String() == g.ln.Addr().String() {
			return nil, refusedURL("the browser's own way out is no page")
		}
		c, err := g.dialer.DialContext(ctx, "tcp", at.String())
		if err == nil {
			if !g.keep(c) {
				_ = c.Close()
				return nil, unreachable
			}
			return c, nil
		}
		last = whyUnreachable(err)
	}
	return nil, last
}

func whyUnreachable(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return connRefused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return timedOut
	}
	return unreachable
}

func (g *gate) remember(host string, port uint16, err error) {
	at := net.JoinHostPort(host, strconv.Itoa(int(port)))
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		delete(g.failed, at)
		return
	}
	if len(g.failed) >= rememberedFailures {
		clear(g.failed)
	}
	g.failed[at] = err
}

// why is the reason for which a host could not be reached when it was last
// asked for, or nil.
func (g *gate) why(host, port string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed[net.JoinHostPort(host, port)]
}

var errNotSOCKS = errors.New("no SOCKS5 request")

// readSOCKS reads the greeting and the request to connect (RFC 1928), and answers
// the first: no authentication, which browsers do not offer.
func readSOCKS(c io.ReadWriter) (host string, port uint16, err error) {
	b := make([]byte, 256)
	read := func(n int) []byte {
		if err == nil {
			_, err = io.ReadFull(c, b[:n])
		}
		return b[:n]
	}
	if hello := read(2); err != nil || hello[0] != 5 {
		return "", 0, errNotSOCKS
	}
	read(int(b[1]))
	if err == nil {
		_, err = c.Write([]byte{5, 0})
	}
	request := read(4)
	if err != nil || request[0] != 5 || request[1] != 1 { // 1: connect
		return "", 0, errNotSOCKS
	}
	switch request[3] {
	case 1:
		ip, _ := netip.AddrFromSlice(read(4))
		host = ip.String()
	case 4:
		ip, _ := netip.AddrFromSlice(read(16))
		host = ip.String()
	case 3:
		host = string(read(int(read(1)[0])))
	default:
		return "", 0, fmt.Errorf("%w: address of type %d", errNotSOCKS, request[3])
	}
	port = binary.BigEndian.Uint16(read(2))
	return host, port, err
}
