// Package pgproxy stands between a process under test and a real PostgreSQL
// server and stops at a chosen statement, so that tests can do things to the
// process (a signal, kill -9) while a transaction of its is open. It speaks the
// frontend side of the protocol just enough to know where statements begin;
// the bytes pass unchanged. No TLS.
package pgproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Statement is one that a client is about to execute.
type Statement struct {
	// Conn numbers the client's connection, from 1.
	Conn int
	// Tx says that it lies inside an explicit transaction; BEGIN itself does
	// not, COMMIT and ROLLBACK do.
	Tx bool
	// N numbers the statements of the transaction from 1; 0 outside.
	N int
	// SQL as the client sent it.
	SQL string
}

// Proxy is a running proxy.
type Proxy struct {
	ln       net.Listener
	upstream string

	mu    sync.Mutex
	stops []*Stop
	conns map[net.Conn]struct{}
	count int
	wg    sync.WaitGroup
}

// Stop is a wish to stop at a statement.
type Stop struct {
	match func(Statement) bool
	hit   chan Statement
	let   chan struct{}
	once  sync.Once
	used  bool
}

// Hit delivers the statement once the proxy holds it back.
func (s *Stop) Hit() <-chan Statement { return s.hit }

// Resume lets the statement go on. It may be called twice, and before it was
// hit: then nothing is held back.
func (s *Stop) Resume() { s.once.Do(func() { close(s.let) }) }

// Start listens on a free loopback port and ends with the test.
func Start(tb testing.TB, dsn string) *Proxy {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		tb.Fatalf("pgproxy: the DSN is no URL with a host")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{ln: ln, upstream: u.Host, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	tb.Cleanup(p.Close)
	return p
}

// DSN is dsn through the proxy.
func (p *Proxy) DSN(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return dsn
	}
	u.Host = p.ln.Addr().String()
	return u.String()
}

// StopAt holds back the first statement that match accepts.
func (p *Proxy) StopAt(match func(Statement) bool) *Stop {
	s := &Stop{match: match, hit: make(chan Statement, 1), let: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stops = append(p.stops, s)
	return s
}

// Close lets everything go on and cuts all connections.
func (p *Proxy) Close() {
	_ = p.ln.Close()
	p.mu.Lock()
	for _, s := range p.stops {
		s.Resume()
	}
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.count++
		f := &frontend{p: p, conn: p.count, prepared: map[string]string{}, portals: map[string]string{}}
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() {
			defer p.drop(client, server)
			_, _ = io.Copy(client, server)
		})
		p.wg.Go(func() {
			defer p.drop(client, server)
			_ = f.pass(client, server)
		})
	}
}

// drop closes both sides, as the end of either does without a proxy.
func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// hold waits at a statement that somebody wants to stop at.
func (p *Proxy) hold(st Statement) {
	p.mu.Lock()
	var at *Stop
	for _, s := range p.stops {
		if !s.used && s.match(st) {
			s.used, at = true, s
			break
		}
	}
	p.mu.Unlock()
	if at != nil {
		at.hit <- st
		<-at.let
	}
}

// frontend follows what one client sends.
type frontend struct {
	p        *Proxy
	conn     int
	tx       bool
	n        int
	prepared map[string]string // statement -> SQL
	portals  map[string]string // portal -> SQL
}

var errShort = errors.New("pgproxy: a message is too short")

func (f *frontend) pass(client io.Reader, server io.Writer) error {
	if err := startup(client, server); err != nil {
		return err
	}
	var head [5]byte
	for {
		if _, err := io.ReadFull(client, head[:]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(head[1:])) - 4
		if size < 0 {
			return errShort
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(client, body); err != nil {
			return err
		}
		f.see(head[0], body)
		if _, err := server.Write(append(head[:], body...)); err != nil {
			return err
		}
	}
}

// startup passes the one untyped message. A request for TLS would come before it
// and is refused.
func startup(client io.Reader, server io.Writer) error {
	const sslRequest, gssRequest = 80877103, 80877104
	var head [8]byte
	if _, err := io.ReadFull(client, head[:]); err != nil {
		return err
	}
	size, code := int(binary.BigEndian.Uint32(head[:4]))-8, binary.BigEndian.Uint32(head[4:])
	if size < 0 || size > 1<<16 {
		return errShort
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(client, body); err != nil {
		return err
	}
	if _, err := server.Write(append(head[:], body...)); err != nil {
		return err
	}
	if code == sslRequest || code == gssRequest {
		return fmt.Errorf("pgproxy: use sslmode=disable and gssencmode=disable")
	}
	return nil
}

// see notes what a message means and waits where it should.
func (f *frontend) see(kind byte, body []byte) {
	switch kind {
	case 'P': // Parse: name, SQL
		name, rest := cstring(body)
		sql, _ := cstring(rest)
		f.prepared[name] = sql
	case 'B': // Bind: portal, statement
		portal, rest := cstring(body)
		name, _ := cstring(rest)
		f.portals[portal] = f.prepared[name]
	case 'E': // Execute: portal
		portal, _ := cstring(body)
		f.statement(f.portals[portal])
	case 'Q':
		sql, _ := cstring(body)
		f.statement(sql)
	}
}

func (f *frontend) statement(sql string) {
	word := strings.ToLower(strings.TrimSpace(sql))
	if f.tx {
		f.n++
	}
	f.p.hold(Statement{Conn: f.conn, Tx: f.tx, N: f.n, SQL: sql})
	switch {
	case strings.HasPrefix(word, "begin"), strings.HasPrefix(word, "start transaction"):
		f.tx, f.n = true, 0
	case strings.HasPrefix(word, "commit"), strings.HasPrefix(word, "rollback"):
		f.tx, f.n = false, 0
	}
}

func cstring(b []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(b, []byte{0})
	return string(s), rest
}
