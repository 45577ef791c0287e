package agentapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// book is where the groups of a test are written: numbers, answered by their
// doubles. hold, if set, keeps each write waiting.
type book struct {
	mu     sync.Mutex
	groups [][]int
	hold   chan struct{}
	fault  func(ctx context.Context, calls []int) error
}

func (b *book) write(ctx context.Context, calls []int) ([]int, error) {
	b.mu.Lock()
	b.groups = append(b.groups, slices.Clone(calls))
	b.mu.Unlock()
	if b.hold != nil {
		select {
		case <-b.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if b.fault != nil {
		if err := b.fault(ctx, calls); err != nil {
			return nil, err
		}
	}
	out := make([]int, len(calls))
	for i, c := range calls {
		out[i] = 2 * c
	}
	return out, nil
}

func (b *book) sizes() (out []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		out = append(out, len(g))
	}
	return out
}

func (b *book) group() *group[int, int] {
	return &group[int, int]{write: b.write, weigh: func(int) (int, int) { return 1, 0 }}
}

// answered is what a caller got.
type answered struct {
	result int
	err    error
}

// ask asks in the order of calls, one after the other has come to rest.
func ask(ctx context.Context, g *group[int, int], calls ...int) []chan answered {
	var out []chan answered
	for _, c := range calls {
		ch := make(chan answered, 1)
		go func() {
			r, err := g.do(ctx, c)
			ch <- answered{r, err}
		}()
		synctest.Wait()
		out = append(out, ch)
	}
	return out
}

func numbers(from, n int) (out []int) {
	for i := range n {
		out = append(out, from+i)
	}
	return out
}

func want(t *testing.T, from int, answers []chan answered) {
	t.Helper()
	for i, ch := range answers {
		if a := <-ch; a.err != nil || a.result != 2*(from+i) {
			t.Errorf("call %d: %d, %v", from+i, a.result, a.err)
		}
	}
}

func TestGroupTakesWhatArrivesWhileOthersAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{hold: make(chan struct{})}
		answers := ask(t.Context(), b.group(), numbers(1, 22)...)
		if got := b.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("groups of %v begun, should be two writers with a call each", got)
		}
		close(b.hold)
		want(t, 1, answers)
		if got := b.sizes(); !slices.Equal(got, []int{1, 1, 20}) {
			t.Errorf("groups of %v", got)
		}
		if got := b.groups[2]; !slices.IsSorted(got) {
			t.Errorf("written in the order %v, not of arrival", got)
		}
	})
}

func TestGroupIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		calls        int
		items, bytes int
		want         []int
	}{
		"calls":          {2*maxGroupCalls + 1, 1, 1, []int{1, 1, maxGroupCalls, maxGroupCalls - 1}},
		"items":          {14, 100, 1, []int{1, 1, 10, 2}},
		"bytes":          {6, 1, maxGroupBytes / 3, []int{1, 1, 3, 1}},
		"one of its own": {4, maxGroupItems + 1, 1, []int{1, 1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &book{hold: make(chan struct{})}
				g := b.group()
				g.weigh = func(int) (int, int) { return c.items, c.bytes }
				answers := ask(t.Context(), g, numbers(1, c.calls)...)
				b.hold <- struct{}{}
				synctest.Wait()
				close(b.hold)
				want(t, 1, answers)
				if got := b.sizes(); !slices.Equal(got, c.want) {
					t.Errorf("groups of %v, should be %v", got, c.want)
				}
			})
		})
	}
}

func TestGroupThatErrsIsTriedCallByCall(t *testing.T) {
	poison := errors.New("poisoned")
	synctest.Test(t, func(t *testing.T) {
		b := &book{hold: make(chan struct{})}
		b.fault = func(_ context.Context, calls []int) error {
			if slices.Contains(calls, 7) {
				return poison
			}
			return nil
		}
		answers := ask(t.Context(), b.group(), numbers(1, 10)...)
		close(b.hold)
		if a := <-answers[6]; !errors.Is(a.err, poison) {
			t.Errorf("the poisoned call: %v", a.err)
		}
		want(t, 1, answers[:6])
		want(t, 8, answers[7:])
		if got := b.sizes(); !slices.Equal(got, []int{1, 1, 8, 1, 1, 1, 1, 1, 1, 1, 1}) {
			t.Errorf("groups of %v, should be each call alone once", got)
		}
	})
}

func TestGroupOfOneIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := errors.New("fault")
		b := &book{fault: func(context.Context, []int) error { return fault }}
		if a := <-ask(t.Context(), b.group(), 1)[0]; !errors.Is(a.err, fault) {
			t.Errorf("answer: %v", a.err)
		}
		if got := b.sizes(); !slices.Equal(got, []int{1}) {
			t.Errorf("groups of %v", got)
		}
	})
}

// TestGroupPanicIsTheCallers: only whoever sent such a call meets the panic, in
// its own goroutine, where the server's middleware is.
func TestGroupPanicIsTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{hold: make(chan struct{})}
		b.fault = func(_ context.Context, calls []int) error {
			if slices.Contains(calls, 4) {
				panic("as seen")
			}
			return nil
		}
		g := b.group()
		answers := ask(t.Context(), g, 1, 2, 3)
		met := make(chan any, 1)
		go func() {
			defer func() { met <- recover() }()
			_, _ = g.do(t.Context(), 4)
		}()
		synctest.Wait()
		close(b.hold)
		if p := <-met; p != "as seen" {
			t.Errorf("the caller met %v", p)
		}
		want(t, 1, answers)
		want(t, 5, ask(t.Context(), g, 5)) // the writers go on
	})
}

func TestGroupLosesOnlyThoseWhoLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{hold: make(chan struct{})}
		g := b.group()
		ctx, leave := context.WithCancel(t.Context())
		first := ask(t.Context(), g, 1, 2)
		gone := ask(ctx, g, 3)
		stays := ask(t.Context(), g, 4, 5)
		leave()
		if a := <-gone[0]; !errors.Is(a.err, context.Canceled) {
			t.Errorf("who left while it waited: %v", a.err)
		}
		close(b.hold)
		want(t, 1, first)
		want(t, 4, stays)
		if last := b.groups[len(b.groups)-1]; !slices.Equal(last, []int{4, 5}) {
			t.Errorf("written: %v", last)
		}
	})
}

func TestGroupIsBrokenOffWhenAllHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{hold: make(chan struct{})}
		g := b.group()
		one, leaveOne := context.WithCancel(t.Context())
		other, leaveOther := context.WithCancel(t.Context())
		ask(t.Context(), g, 1, 2)
		group := append(ask(one, g, 3), ask(other, g, 4)...)
		b.hold <- struct{}{} // the writer of one of the first two takes both
		synctest.Wait()
		leaveOne()
		synctest.Wait()
		select {
		case a := <-group[0]:
			t.Errorf("the first to leave did not wait for its group: %v", a.err)
		default:
		}
		leaveOther()
		for i, ch := range group {
			if a := <-ch; !errors.Is(a.err, context.Canceled) {
				t.Errorf("caller %d: %v", i, a.err)
			}
		}
		close(b.hold)
	})
}

// BenchmarkGroupLone is what grouping costs a call that is alone.
func BenchmarkGroupLone(b *testing.B) {
	g := &group[int, int]{
		write: func(_ context.Context, calls []int) ([]int, error) { return calls, nil },
		weigh: func(int) (int, int) { return 1, 0 },
	}
	for b.Loop() {
		if _, err := g.do(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}
