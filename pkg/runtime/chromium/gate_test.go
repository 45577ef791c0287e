package chromium

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestAServerThatNeverClosesKeepsNoPlace: when the browser has closed its end, the
// server's is closed too, whatever the server does.
func TestAServerThatNeverClosesKeepsNoPlace(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	g, err := openGate(t.Context(), Policy{AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	g.half = 10 * time.Millisecond
	browser, err := net.Dial("tcp4", g.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = browser.Close() }()
	at := ln.Addr().(*net.TCPAddr)
	if _, err := browser.Write([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, byte(at.Port >> 8), byte(at.Port)}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(browser, make([]byte, 2+10)); err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	_ = browser.Close()
	// It hears that the browser is through, and neither closes nor sends.
	if _, err := io.ReadAll(server); err != nil {
		t.Fatal(err)
	}
	kept := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.conns)
	}
	tick, bound := time.NewTicker(5*time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for kept() > 0 {
		select {
		case <-tick.C:
		case <-bound:
			t.Fatalf("%d connections are kept", kept())
		}
	}
}
