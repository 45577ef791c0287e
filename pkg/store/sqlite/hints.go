package sqlite

import (
	"sync"

	"github.com/berth-dev/berth/pkg/store"
)

type hint struct {
	kind store.HintKind
	key  string
}

// hint notes what to tell after the commit.
func hintOf[T ~string](t *tx, kind store.HintKind, key T) {
	t.hints = append(t.hints, hint{kind, string(key)})
}

// broadcaster hands hints to subscribers of one handle. Another handle on the
// same file, in this process or another, hears nothing: it polls.
type broadcaster struct {
	mu   sync.Mutex
	subs map[hint]map[chan struct{}]struct{}
}

func newBroadcaster() *broadcaster {
	return &broadcaster{subs: map[hint]map[chan struct{}]struct{}{}}
}

// send never blocks: a subscriber with a pending hint needs no second one.
func (b *broadcaster) send(hints []hint) {
	if len(hints) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range hints {
		for _, key := range []hint{h, {kind: h.kind}} {
			for c := range b.subs[key] {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
	}
}

// Subscribe implements store.Hints.
func (s *Store) Subscribe(kind store.HintKind, key string) (<-chan struct{}, func()) {
	b, h, c := s.hints, hint{kind, key}, make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs[h] == nil {
		b.subs[h] = map[chan struct{}]struct{}{}
	}
	b.subs[h][c] = struct{}{}
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs[h], c)
		if len(b.subs[h]) == 0 {
			delete(b.subs, h)
		}
	}
}
