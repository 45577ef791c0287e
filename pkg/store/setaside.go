package store

import (
	"slices"
	"sync"

	"github.com/berth-dev/berth/pkg/berth"
)

// SetAside remembers, in one process, the attempts that could not be ended, so
// that a keeper tries them after all others and they do not use up its limit. It
// is only an order: what it forgets is tried first again.
type SetAside struct {
	mu  sync.Mutex
	ids map[berth.AttemptID]bool
}

// maxSetAside bounds the memory; beyond it, it starts anew.
const maxSetAside = 1000

// Note what became of an attempt.
func (s *SetAside) Note(id berth.AttemptID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.ids, id)
		return
	}
	if s.ids == nil || len(s.ids) >= maxSetAside {
		s.ids = map[berth.AttemptID]bool{}
	}
	s.ids[id] = true
}

// IDs that are set aside, sorted.
func (s *SetAside) IDs() []berth.AttemptID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]berth.AttemptID, 0, len(s.ids))
	for id := range s.ids {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
