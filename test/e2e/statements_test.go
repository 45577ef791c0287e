package e2e

import (
	"strings"
	"sync"

	"github.com/berth-dev/berth/pkg/pgtest/pgproxy"
)

// statements follows what a daemon sends through its proxy.
type statements struct {
	mu   sync.Mutex
	seen []pgproxy.Statement
}

// watch records every statement of the proxy; it is to be the first wish.
func watch(p *pgproxy.Proxy) *statements {
	s := &statements{}
	p.StopAt(func(st pgproxy.Statement) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, st)
		return false
	})
	return s
}

// inside counts the statements inside transactions since a mark, COMMIT and
// ROLLBACK included.
func (s *statements) inside(since int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, st := range s.seen[since:] {
		if st.Tx {
			n++
		}
	}
	return n
}

func (s *statements) mark() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// open lists the connections that left a transaction open: neither COMMIT nor
// ROLLBACK came after BEGIN.
func (s *statements) open() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := map[int]bool{}
	for _, st := range s.seen {
		word := strings.ToLower(strings.TrimSpace(st.SQL))
		switch {
		case strings.HasPrefix(word, "begin"):
			in[st.Conn] = true
		case strings.HasPrefix(word, "commit"), strings.HasPrefix(word, "rollback"):
			in[st.Conn] = false
		}
	}
	var out []int
	for conn, left := range in {
		if left {
			out = append(out, conn)
		}
	}
	return out
}

// stopAtNth holds back the n-th statement inside a transaction from now on.
func stopAtNth(p *pgproxy.Proxy, n int) *pgproxy.Stop {
	seen := 0
	return p.StopAt(func(st pgproxy.Statement) bool {
		if st.Tx {
			seen++
		}
		return st.Tx && seen == n
	})
}
