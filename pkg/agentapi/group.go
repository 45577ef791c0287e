package agentapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berth-dev/berth/pkg/store"
)

// Bounds of what is written in one transaction.
const (
	maxGroupWriters = 2
	maxGroupCalls   = 200
	maxGroupItems   = 1000
	maxGroupBytes   = 4 << 20
)

// group writes calls of one kind, of any hosts, together: a call that arrives
// while two groups are being written goes into the next one, and each is
// answered after the commit of its group. There is no timer, so a lone call
// waits for nobody.
//
// A group that errs as a whole has done nothing; then each of its callers tries
// its own call alone, once, so that one call that cannot be written fails alone.
//
// A caller waits until its group is written even if its context ends meanwhile,
// and a group is broken off only when the contexts of all its callers have
// ended. So no write outlasts the requests that asked for it, and a server that
// waits for its requests waits for the groups.
type group[P, R any] struct {
	write func(ctx context.Context, calls []P) ([]R, error)
	// weigh tells how much of a group a call takes.
	weigh func(call P) (items, bytes int)

	mu      sync.Mutex
	waiting []*grouped[P, R]
	writers int
}

// grouped is one call on its way.
type grouped[P, R any] struct {
	ctx  context.Context // the caller's
	call P
	// done is closed when the rest is set.
	done   chan struct{}
	result R
	err    error
	// alone: its group did nothing, and the call has not been tried by itself.
	alone bool
}

var errGroupPanicked = errors.New("writing a group of calls panicked")

func newCompletions(s store.Agents) *group[store.CompleteParams, store.CompleteManyAnswer] {
	return &group[store.CompleteParams, store.CompleteManyAnswer]{
		write: s.CompleteMany,
		weigh: func(p store.CompleteParams) (items, bytes int) {
			for _, i := range p.Items {
				bytes += i.Result.Len() + i.Message.Len()
			}
			return len(p.Items), bytes
		},
	}
}

func newRenewals(s store.Agents) *group[store.RenewParams, store.RenewManyAnswer] {
	return &group[store.RenewParams, store.RenewManyAnswer]{
		write: s.RenewMany,
		weigh: func(p store.RenewParams) (items, bytes int) { return len(p.Items), 0 },
	}
}

// do has a call written and returns its answer.
func (g *group[P, R]) do(ctx context.Context, call P) (R, error) {
	c := &grouped[P, R]{ctx: ctx, call: call, done: make(chan struct{})}
	g.add(c)
	select {
	case <-c.done:
	case <-ctx.Done():
		if g.withdraw(c) {
			return c.result, ctx.Err()
		}
		<-c.done
	}
	if !c.alone {
		return c.result, c.err
	}
	results, err := g.writeAll(ctx, []P{call})
	if err != nil {
		return c.result, err
	}
	return results[0], nil
}

func (g *group[P, R]) add(c *grouped[P, R]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, c)
	if g.writers < maxGroupWriters {
		g.writers++
		go g.run()
	}
}

// withdraw takes back a call that no writer has taken.
func (g *group[P, R]) withdraw(c *grouped[P, R]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, c)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}

// run is a writer: it writes what waits until nothing does.
func (g *group[P, R]) run() {
	for {
		calls := g.take()
		if calls == nil {
			return
		}
		g.settle(calls)
	}
}

// take takes the next group, in the order of arrival; nil ends the writer.
func (g *group[P, R]) take() []*grouped[P, R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.writers--
		return nil
	}
	n, items, bytes := 0, 0, 0
	for n < min(len(g.waiting), maxGroupCalls) {
		i, b := g.weigh(g.waiting[n].call)
		if items, bytes = items+i, bytes+b; n > 0 && (items > maxGroupItems || bytes > maxGroupBytes) {
			break
		}
		n++
	}
	calls := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	return calls
}

// settle writes one group and answers its callers.
func (g *group[P, R]) settle(calls []*grouped[P, R]) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(calls)))
	for _, c := range calls {
		stop := context.AfterFunc(c.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	params := make([]P, len(calls))
	for i, c := range calls {
		params[i] = c.call
	}
	results, panicked, err := g.guarded(ctx, params)
	for i, c := range calls {
		switch {
		case err == nil:
			c.result = results[i]
		case len(calls) > 1 || panicked || ctx.Err() != nil:
			c.alone = true
		default:
			c.err = err
		}
		close(c.done)
	}
}

// guarded lets a panic be the caller's, who meets it again alone.
func (g *group[P, R]) guarded(ctx context.Context, calls []P) (results []R, panicked bool, err error) {
	defer func() {
		if recover() != nil {
			results, panicked, err = nil, true, errGroupPanicked
		}
	}()
	results, err = g.writeAll(ctx, calls)
	return results, false, err
}

// writeAll asks for one answer a call.
func (g *group[P, R]) writeAll(ctx context.Context, calls []P) ([]R, error) {
	results, err := g.write(ctx, calls)
	if err == nil && len(results) != len(calls) {
		err = errors.New("a group of calls was answered with another number of answers")
	}
	return results, err
}
