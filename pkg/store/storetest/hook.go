package storetest

import (
	"context"
	"sync"

	"github.com/berth-dev/berth/pkg/store"
)

// hook acts once before a chosen statement of the operation that runs while it
// is armed. Statements are counted from arming, over all transactions.
type hook struct {
	mu        sync.Mutex
	at, count int
	act       func(ctx context.Context) error
	// ops are the names of operations that were seen.
	ops map[string]bool
}

// hooked opens another handle with a hook.
func (w *world) hooked() (store.Store, *hook) {
	h := &hook{}
	return w.open(func(o *store.Options) { o.BeforeStatement = h.before }), h
}

func (h *hook) before(ctx context.Context, op string, _ int) error {
	h.mu.Lock()
	if h.act == nil {
		h.mu.Unlock()
		return nil
	}
	h.count++
	h.ops[op] = true
	act := h.act
	if h.count != h.at {
		act = nil
	}
	h.mu.Unlock()
	if act == nil {
		return nil
	}
	return act(ctx)
}

// arm makes the hook act before statement number at.
func (h *hook) arm(at int, act func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.count, h.act, h.ops = at, 0, act, map[string]bool{}
}

// disarm reports whether the hook has acted, and which operations it saw.
func (h *hook) disarm() (acted bool, ops map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.act = nil
	return h.count >= h.at, h.ops
}
