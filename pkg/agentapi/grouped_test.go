package agentapi_test

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
)

// writes counts the transactions of one operation, and keeps the first two
// waiting until it is told to go on.
type writes struct {
	mu   sync.Mutex
	n    int
	goOn chan struct{}
	// release lets them go on; it may be called twice.
	release func()
}

var errInjected = errors.New("injected")

// counting counts from now on; transaction number fail fails (0: none).
func (w *world) counting(op string, fail int) *writes {
	c := &writes{goOn: make(chan struct{})}
	c.release = sync.OnceFunc(func() { close(c.goOn) })
	w.t.Cleanup(c.release)
	f := func(name string, n int) error {
		if name != op || n != 1 {
			return nil
		}
		c.mu.Lock()
		c.n++
		number := c.n
		c.mu.Unlock()
		if number == fail {
			return errInjected
		}
		if number <= 2 {
			<-c.goOn
		}
		return nil
	}
	w.before.Store(&f)
	return c
}

func (c *writes) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// hosts are n hosts with one running attempt each.
func (w *world) hosts(n int) (agents []*agent, work []protocol.Assignment) {
	w.t.Helper()
	for i := range n {
		a := w.newAgent("lab-" + string(rune('a'+i%26)) + string(rune('a'+i/26)))
		a.sync(1)
		agents = append(agents, a)
	}
	w.submit(n, `{}`)
	if placed := w.place(w.store); placed != n {
		w.t.Fatalf("placed %d of %d", placed, n)
	}
	for _, a := range agents {
		got := a.claim()
		if len(got) != 1 {
			w.t.Fatalf("claimed %d", len(got))
		}
		a.start(got[0])
		work = append(work, got[0])
	}
	return agents, work
}

// atOnce sends one call of each host. The first two keep the writers busy; when
// the others wait, they are let go on.
func (w *world) atOnce(c *writes, agents []*agent, path string, body func(i int) any) []answer {
	w.t.Helper()
	answered := w.held(agents, path, body)
	c.release()
	return answered()
}

// held sends the calls of atOnce and returns when all are where they should be.
func (w *world) held(agents []*agent, path string, body func(i int) any) (answered func() []answer) {
	w.t.Helper()
	w.grouping(0, 0)
	answers := make([]answer, len(agents))
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			res, err := w.send(w.t.Context(), "POST", path, body(i), a.header(nil))
			if err != nil {
				w.t.Errorf("call %d: %v", i, err)
			}
			answers[i] = res
		})
		if i < 2 {
			w.grouping(0, i+1)
		}
	}
	w.grouping(len(agents)-2, 2)
	return func() []answer { wg.Wait(); return answers }
}

// grouping waits until so many calls wait for so many writers.
func (w *world) grouping(waiting, writers int) {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	over := time.After(within)
	for {
		n, m := w.api.Grouping()
		if n == waiting && m == writers {
			return
		}
		select {
		case <-over:
			w.t.Fatalf("%d calls wait for %d writers, should be %d for %d", n, m, waiting, writers)
		case <-tick.C:
		}
	}
}

// TestGroupedOverHTTP: what many hosts complete and renew at once is written in
// three transactions, the third a group; each host gets its own answer; a group
// that fails is done call by call.
func TestGroupedOverHTTP(t *testing.T) {
	const hosts = 50
	onBoth(t, func(t *testing.T, w *world) {
		agents, work := w.hosts(hosts)
		renew := func(i int) any {
			return protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: holder(work[i])}}}
		}
		renewed := func(what string, answers []answer) {
			t.Helper()
			for i, res := range answers {
				var got protocol.LeaseResponse
				if res.status != 200 || json.Unmarshal(res.body, &got) != nil || len(got.Items) != 1 || got.Items[0].Attempt != work[i].Attempt || got.Items[0].Status != "granted" {
					t.Errorf("%s: host %d: %d %s", what, i, res.status, res.body)
				}
			}
		}
		c := w.counting("RenewMany", 0)
		renewed("renewals", w.atOnce(c, agents, protocol.PathRenew, renew))
		if n := c.count(); n != 3 {
			t.Errorf("%d renewals took %d transactions, should be 3", hosts, n)
		}
		c = w.counting("RenewMany", 3)
		renewed("renewals whose group fails", w.atOnce(c, agents, protocol.PathRenew, renew))
		if n := c.count(); n != 3+hosts-2 {
			t.Errorf("%d renewals whose group failed took %d transactions, should be %d", hosts, n, 3+hosts-2)
		}

		const ahead = hosts - 1
		agents[ahead].epoch++
		complete := func(i int) any {
			return protocol.CompleteRequest{Items: []protocol.CompleteItem{{
				Holder: holder(work[i]), Outcome: berth.OutcomeSucceeded, Result: json.RawMessage(`{"n":1}`), DeviceClean: true,
			}}}
		}
		for _, turn := range []string{"completions", "repeated completions"} {
			c = w.counting("CompleteMany", 0)
			for i, res := range w.atOnce(c, agents, protocol.PathComplete, complete) {
				var got protocol.CompleteResponse
				if i == ahead {
					if res.status != 412 {
						t.Errorf("%s: the host whose epoch is ahead got %d %s", turn, res.status, res.body)
					}
					continue
				}
				if res.status != 200 || json.Unmarshal(res.body, &got) != nil || len(got.Items) != 1 || got.Items[0].Attempt != work[i].Attempt || got.Items[0].Status != "stored" {
					t.Errorf("%s: host %d: %d %s", turn, i, res.status, res.body)
				}
			}
			if n := c.count(); n != 3 {
				t.Errorf("%d %s took %d transactions, should be 3", hosts, turn, n)
			}
		}
		w.before.Store(nil)
		w.completedOnce(work, ahead)
	})
}

// completedOnce: each task but one has succeeded, and its log line is there once.
func (w *world) completedOnce(work []protocol.Assignment, but int) {
	w.t.Helper()
	lines := map[string]int{}
	for _, l := range w.lines() {
		if id, ok := l["attempt_id"].(string); ok && l["message"] == "completed" {
			lines[id]++
		}
	}
	for i, as := range work {
		state, n := berth.StateSucceeded, 1
		if i == but {
			state, n = berth.StateRunning, 0
		}
		task, err := w.store.GetTask(w.t.Context(), everything, as.Task)
		must(w.t, err)
		if task.State != state || lines[string(as.Attempt)] != n {
			w.t.Errorf("task %d is %s, with %d lines of its completion", i, task.State, lines[string(as.Attempt)])
		}
	}
}

// TestGroupedCallsOutliveTheServersStop: a server that stops answers the calls
// that wait for their group.
func TestGroupedCallsOutliveTheServersStop(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		agents, work := w.hosts(5)
		c := w.counting("CompleteMany", 0)
		answered := w.held(agents, protocol.PathComplete, func(i int) any {
			return protocol.CompleteRequest{Items: []protocol.CompleteItem{{
				Holder: holder(work[i]), Outcome: berth.OutcomeSucceeded, DeviceClean: true,
			}}}
		})
		stopped := make(chan error, 1)
		go func() { stopped <- w.stop() }()
		wait(t, "the drain", w.drain.C())
		c.release()
		must(t, wait(t, "the server's stop", stopped))
		for i, res := range answered() {
			task, err := w.store.GetTask(t.Context(), everything, work[i].Task)
			must(t, err)
			if res.status != 200 || task.State != berth.StateSucceeded {
				t.Errorf("call %d: %d, task %s", i, res.status, task.State)
			}
		}
	})
}
