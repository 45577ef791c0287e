package httpserver

import (
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// mostConns bounds the default of Server.MaxConns: about 40 KiB each.
	mostConns = 16 << 10
	// leftFiles are for the database, the blob store and the rest.
	leftFiles = 256
)

// defaultConns is three quarters of the process's file descriptors. The Go
// runtime has raised their soft limit to the hard one.
func defaultConns() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > mostConns*2 {
		return mostConns
	}
	n := int(limit.Cur) //nolint:gosec // bounded above
	return max(min(n*3/4, n-leftFiles, mostConns), 16)
}

// conns bounds the connections of a server. When there are too many, those that
// wait for a request make room, and of them those of the address that has most:
// so an attacker's idle connections go before anybody else's, whether or not all
// clients come through one proxy. Only where every connection is at work is a
// new one closed.
type conns struct {
	net.Listener
	most int

	mu   sync.Mutex
	open map[net.Conn]*connState
}

type connState struct {
	address string
	idle    bool
	since   time.Time
}

func newConns(ln net.Listener, most int) *conns {
	if most <= 0 {
		most = defaultConns()
	}
	return &conns{Listener: ln, most: most, open: map[net.Conn]*connState{}}
}

// Accept returns the next connection that there is room for.
func (l *conns) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := (&conn{Conn: raw}); l.admit(c) {
			return c, nil
		}
		_ = raw.Close()
	}
}

func (l *conns) admit(c net.Conn) bool {
	address := c.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most && !l.makeRoom() {
		return false
	}
	// New ones count as idle: they have yet to send something.
	l.open[c] = &connState{address: address, idle: true, since: time.Now()}
	return true
}

// makeRoom closes a few idle connections, the longest idle ones of the address
// that has most of them. l.mu is held.
func (l *conns) makeRoom() bool {
	count := map[string]int{}
	worst := ""
	for _, s := range l.open {
		if s.idle {
			if count[s.address]++; count[s.address] > count[worst] {
				worst = s.address
			}
		}
	}
	if count[worst] == 0 {
		return false
	}
	// Several at once, so that a flood does not cost a search each.
	var found []net.Conn
	for c, s := range l.open {
		if s.idle && s.address == worst {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b net.Conn) int { return l.open[a].since.Compare(l.open[b].since) })
	for _, c := range found[:max(1, min(len(found)/2, l.most/64))] {
		delete(l.open, c)
		_ = c.Close()
	}
	return true
}

// watch is http.Server's ConnState.
func (l *conns) watch(c net.Conn, state http.ConnState) {
	c = beneath(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.open[c]
	if s == nil {
		return
	}
	switch state {
	case http.StateActive:
		s.idle = false
	case http.StateIdle:
		s.idle, s.since = true, time.Now()
	case http.StateClosed, http.StateHijacked:
		delete(l.open, c)
	case http.StateNew:
	}
}

// beneath is the accepted connection under TLS.
func beneath(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}
