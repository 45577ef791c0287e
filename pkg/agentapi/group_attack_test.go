package agentapi_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

// TestGroupIsNotPoisoned: whatever single hosts send, the calls that wait with
// theirs are written in one transaction, and each host gets its own answer.
func TestGroupIsNotPoisoned(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	results := []string{
		`"\u0000"`, `{"\u0000a":"\\u0000"}`, `"\ud800"`, `1e400000`, `-0.0e-999999999`, deep(9900), `{"a":1,"a":2}`,
		`"` + strings.Repeat("x", store.MaxResultBytes-2) + `"`, "\"\u2028\xff\xfe\"", strings.Repeat("9", 200_000),
	}
	onBoth(t, func(t *testing.T, w *world) {
		agents, work := w.hosts(len(results) + 8)
		foreign, fence := len(results)+3, len(results)+4
		c := w.counting("CompleteMany", 0)
		answers := w.atOnce(c, agents, protocol.PathComplete, func(i int) any {
			item := protocol.CompleteItem{Holder: holder(work[i]), Outcome: berth.OutcomeSucceeded, DeviceClean: true}
			result := `{"n":1}`
			switch i -= 2; {
			case i >= 0 && i < len(results):
				result = results[i]
				item.Message = "a\x00b\xffc"
			case i+2 == foreign:
				item.Holder = holder(work[0])
			case i+2 == fence:
				item.Fence += 1 << 40
			}
			b, _ := json.Marshal(protocol.CompleteRequest{Items: []protocol.CompleteItem{item}})
			return strings.Replace(string(b), `"device_clean"`, `"result":`+result+`,"device_clean"`, 1)
		})
		for i, res := range answers {
			var got protocol.CompleteResponse
			status := "stored"
			if i == foreign || i == fence {
				status = "gone"
			}
			if res.status != 200 || json.Unmarshal(res.body, &got) != nil || len(got.Items) != 1 || got.Items[0].Status != status {
				t.Errorf("host %d: %d %.300s, should be %s", i, res.status, res.body, status)
			}
		}
		if n := c.count(); n != 3 {
			t.Errorf("it took %d transactions, should be 3", n)
		}
		w.before.Store(nil)
	})
}

// TestGroupAndThoseWhoLeave: hosts that hang up while their group is written
// and while it waits; a panic in the group, and one in a call that is tried
// alone. All others are answered with what was committed, and whoever comes
// again learns what became of its call.
func TestGroupAndThoseWhoLeave(t *testing.T) {
	const hosts, left = 12, 5
	onBoth(t, func(t *testing.T, w *world) {
		agents, work := w.hosts(hosts)
		complete := func(i int) any {
			return protocol.CompleteRequest{Items: []protocol.CompleteItem{{Holder: holder(work[i]), Outcome: berth.OutcomeSucceeded, DeviceClean: true}}}
		}
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		var mu sync.Mutex
		n, goOn, inGroup, panicAt := 0, make(chan struct{}), make(chan struct{}), 0
		f := func(op string, statement int) error {
			if op != "CompleteMany" || statement != 1 {
				return nil
			}
			mu.Lock()
			n++
			number := n
			mu.Unlock()
			switch {
			case number <= 2:
				<-goOn
			case number == 3:
				close(inGroup)
				<-ctx.Done()
				panic("in the group")
			case number == panicAt:
				panic("alone")
			}
			return nil
		}
		panicAt = 6
		w.before.Store(&f)
		statuses := make([]int, hosts)
		var wg sync.WaitGroup
		for i, a := range agents {
			wg.Go(func() {
				c := t.Context()
				if i == left {
					c = ctx
				}
				res, err := w.send(c, "POST", protocol.PathComplete, complete(i), a.header(nil))
				if (err != nil) != (i == left) {
					t.Errorf("host %d: %v", i, err)
				}
				statuses[i] = res.status
			})
			if i < 2 {
				w.grouping(0, i+1)
			}
		}
		w.grouping(hosts-2, 2)
		close(goOn)
		wait(t, "the group", inGroup)
		hangUp()
		wg.Wait()
		panicked := 0
		for i, status := range statuses {
			task, err := w.store.GetTask(t.Context(), everything, work[i].Task)
			must(t, err)
			switch {
			case status == 500:
				panicked++
			case i != left && (status != 200 || task.State != berth.StateSucceeded):
				t.Errorf("host %d: %d, its task is %s", i, status, task.State)
			}
		}
		if panicked > 1 {
			t.Errorf("%d calls failed, one panicked", panicked)
		}
		w.before.Store(nil)
		for i, a := range agents { // everybody comes again
			var got protocol.CompleteResponse
			if a.ok(&got, "POST", protocol.PathComplete, complete(i)); got.Items[0].Status != "stored" {
				t.Errorf("host %d again: %+v", i, got.Items)
			}
		}
	})
}

// TestGroupOfOneHostsContradictions: a host that sends one attempt twice at
// once, with different bodies and under a fence that it does not hold: one body
// is stored, and whoever sent another is told so.
func TestGroupOfOneHostsContradictions(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		agents, work := w.hosts(3)
		same := []*agent{agents[0], agents[1], agents[2], agents[2], agents[2], agents[2]}
		works := []int{0, 1, 2, 2, 2, 2}
		c := w.counting("CompleteMany", 0)
		answers := w.atOnce(c, same, protocol.PathComplete, func(i int) any {
			item := protocol.CompleteItem{Holder: holder(work[works[i]]), Outcome: berth.OutcomeSucceeded, DeviceClean: true}
			switch i {
			case 3:
				item.Outcome, item.Reason = berth.OutcomeFailed, "other"
			case 4:
				item.Result = json.RawMessage(`{"n":2}`)
			case 5:
				item.Fence++
			}
			return protocol.CompleteRequest{Items: []protocol.CompleteItem{item}}
		})
		statuses, outcomes := map[string]int{}, map[berth.Outcome]bool{}
		for i, res := range answers {
			var got protocol.CompleteResponse
			if res.status != 200 || json.Unmarshal(res.body, &got) != nil || len(got.Items) != 1 {
				t.Fatalf("call %d: %d %s", i, res.status, res.body)
			}
			if i >= 2 {
				statuses[got.Items[0].Status]++
				outcomes[got.Items[0].Outcome] = true
			}
		}
		delete(outcomes, "") // of what is gone
		if statuses["stored"] != 1 || statuses["mismatch"] != 2 || statuses["gone"] != 1 || len(outcomes) != 1 {
			t.Errorf("answers %v with outcomes %v", statuses, outcomes)
		}
		if n := c.count(); n != 3 {
			t.Errorf("it took %d transactions, should be 3", n)
		}
		w.before.Store(nil)
		task, err := w.store.GetTask(t.Context(), everything, work[2].Task)
		must(t, err)
		if (task.State == berth.StateSucceeded) != outcomes[berth.OutcomeSucceeded] {
			t.Errorf("the task is %s, but its host was told %v", task.State, outcomes)
		}
	})
}
