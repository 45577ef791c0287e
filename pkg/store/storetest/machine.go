package storetest

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// EnvMachineRuns and EnvMachineSteps name the environment variables that make
// the random sequences more or longer than the defaults. The flags of rapid
// (-rapid.checks, -rapid.steps, -rapid.seed) win.
const (
	EnvMachineRuns  = "BERTH_TEST_MACHINE_RUNS"
	EnvMachineSteps = "BERTH_TEST_MACHINE_STEPS"

	defaultMachineRuns  = 15
	defaultMachineSteps = 40
)

// RunMachine runs random sequences of operations on an engine and checks the
// invariants after each step. Each run has a database of its own.
func RunMachine(t *testing.T, h Harness) {
	machineFlags(t)
	rapid.Check(t, func(rt *rapid.T) {
		withScope(t, func(sc *scope) {
			m := newMachine(rt, sc, h)
			rt.Repeat(actionsOf(rt, []*machine{m}, func() { m.checkInvariants() }))
		})
	})
}

// Compare runs the same random sequences on two engines, and compares all
// answers and the whole visible state after each step. The invariants are
// checked on b, and so hold on a as well.
func Compare(t *testing.T, a, b Harness) {
	machineFlags(t)
	rapid.Check(t, func(rt *rapid.T) {
		withScope(t, func(sc *scope) {
			pair := []*machine{newMachine(rt, sc, a), newMachine(rt, sc, b)}
			rt.Repeat(actionsOf(rt, pair, func() {
				if d := diff(pair[0].snapshot(), pair[1].snapshot()); d != "" {
					rt.Fatalf("after %s: %s and %s differ (-%s +%s):\n%s", pair[0].last, a.Name, b.Name, a.Name, b.Name, d)
				}
				pair[1].checkInvariants()
			}))
		})
	})
}

// machineFlags sets rapid's numbers unless the command line did.
func machineFlags(t *testing.T) {
	t.Helper()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["rapid.nofailfile"] {
		// The seed that rapid prints is enough to repeat a failure.
		if err := flag.Set("rapid.nofailfile", "true"); err != nil {
			t.Fatal(err)
		}
	}
	for name, env := range map[string]string{"rapid.checks": EnvMachineRuns, "rapid.steps": EnvMachineSteps} {
		value := map[string]int{"rapid.checks": defaultMachineRuns, "rapid.steps": defaultMachineSteps}[name]
		if s := os.Getenv(env); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 {
				t.Fatalf("%s: %q is no number of at least 1", env, s)
			}
			value = n
		}
		before := flag.Lookup(name).Value.String()
		if given[name] {
			continue
		}
		if err := flag.Set(name, strconv.Itoa(value)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set(name, before) })
	}
}

// scope is a test whose cleanups run at the end of one run of many.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func withScope(t *testing.T, run func(*scope)) {
	s := &scope{TB: t}
	defer func() {
		for _, f := range slices.Backward(s.cleanups) {
			f()
		}
	}()
	run(s)
}

// machine is one engine under a random sequence, with what its agents know.
type machine struct {
	*world
	agents []*simAgent
	tasks  []berth.TaskID
	// looked is what was free when the machine placed last.
	looked []store.FreeDevice
	last   string
}

// simAgent is an agent and the assignments that it ever got, newest last.
type simAgent struct {
	*agent
	known []store.Assignment
	claim string
}

const machineAgents = 2

func newMachine(rt *rapid.T, sc *scope, h Harness) *machine {
	e := h.New(sc)
	m := &machine{world: worldOf(rt, e, "")}
	m.open = func(change func(*store.Options)) store.Store { return e.OpenWith(sc, change) }
	for i := range machineAgents {
		m.agents = append(m.agents, &simAgent{agent: m.host(fmt.Sprintf("h%d", i), 2)})
	}
	return m
}

// step is what one drawn action does to one machine. It returns what the engine
// answered, for the comparison.
type step func(m *machine) any

// actionsOf draws each action once and does it to every machine.
func actionsOf(rt *rapid.T, machines []*machine, check func()) map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){"": func(*rapid.T) { check() }}
	for name, draw := range draws() {
		actions[name] = func(rt *rapid.T) {
			do := draw(rt, machines[0])
			var answers []any
			for _, m := range machines {
				m.t, m.last = rt, name
				answers = append(answers, do(m))
			}
			if len(answers) == 2 {
				if d := diff(answers[0], answers[1]); d != "" {
					rt.Fatalf("%s is answered differently:\n%s", name, d)
				}
			}
		}
	}
	return actions
}

// answer is an operation's answer as two engines can be compared by.
type answer struct {
	Value       any
	Transitions []berth.Transition
	Kind        string
}

// kinds are the error kinds that a random sequence may meet.
func kinds() []error {
	return []error{
		berth.ErrNotFound, berth.ErrWrongState, berth.ErrExists, berth.ErrStaleEpoch, berth.ErrLeaseLost, berth.ErrInvalid, berth.ErrMismatch, berth.ErrGap,
	}
}

// told makes an answer; an error of another kind fails the test.
func (m *machine) told(value any, trs []berth.Transition, err error) answer {
	m.t.Helper()
	if err == nil {
		if len(trs) == 0 {
			trs = nil
		}
		return answer{Value: value, Transitions: trs}
	}
	for _, kind := range kinds() {
		if errors.Is(err, kind) {
			return answer{Kind: kind.Error()}
		}
	}
	m.t.Fatalf("%s: %v", m.last, err)
	return answer{}
}

// draws are the actions: each draws its parameters from the first machine's
// state, by position, so that every machine does the same.
func draws() map[string]func(rt *rapid.T, m *machine) step {
	all := map[string]func(rt *rapid.T, m *machine) step{
		"submit": drawSubmit, "cancel": drawCancel, "retry": drawRetry,
		"place": fixed(stepPlace), "place again": fixed(stepPlace), "promote": fixed(stepPromote), "reap": fixed(stepReap),
		"give up": fixed(stepGiveUp), "silence": fixed(stepSilence),
		"claim": drawClaim, "start": drawStart, "renew": drawRenew, "complete": drawComplete, "complete one": drawComplete, "release": drawRelease,
		"sync": drawSync, "heartbeat": drawBeat, "clean": drawClean, "log": drawLog,
		"prioritise": drawPrioritise, "pause": fixed(stepPause), "enable": fixed(stepEnable), "sweep": fixed(stepSweep),
		"advance": drawAdvance, "beat all": fixed(stepBeatAll),
	}
	maps.Copy(all, fleetDraws())
	return all
}

func fixed(s step) func(*rapid.T, *machine) step { return func(*rapid.T, *machine) step { return s } }

func drawSubmit(rt *rapid.T, _ *machine) step {
	priority := rapid.IntRange(0, 9).Draw(rt, "priority")
	tries := rapid.IntRange(1, 3).Draw(rt, "tries")
	unsafe := rapid.IntRange(0, 3).Draw(rt, "unsafe") == 0
	delay := rapid.SampledFrom([]time.Duration{0, 0, 0, 5 * time.Second}).Draw(rt, "delay")
	queue := rapid.SampledFrom([]time.Duration{0, 0, 40 * time.Second}).Draw(rt, "queue time-out")
	run := rapid.SampledFrom([]time.Duration{time.Hour, 20 * time.Second}).Draw(rt, "run time-out")
	selector := rapid.SampledFrom([]string{"", "", "", "slot=slot-0", "slot!=slot-0", "os=none", "probe"}).Draw(rt, "selector")
	device := drawDevice(rt)
	return func(m *machine) any {
		selector := selector
		if selector == "probe" {
			selector = berth.LabelProbe + "=" + string(m.some(device))
		}
		mods := []func(*berth.NewTask){withPriority(priority), maxAttempts(tries), withSelector(selector), queueTimeout(queue), runTimeout(run)}
		if unsafe {
			mods = append(mods, retryUnsafe)
		}
		if delay > 0 {
			mods = append(mods, notBefore(m.Clock.Now().Add(delay)))
		}
		res, err := m.Store.SubmitTasks(bg(), m.submitParams(m.newTask(mods...)))
		m.must("submit", err)
		m.tasks = append(m.tasks, res.Tasks[0].ID)
		return m.told(nil, res.Transitions, nil)
	}
}

// pick draws a position of one of n, recent ones more often; -1 without any.
func pick(rt *rapid.T, n int, name string) int {
	if n == 0 {
		return -1
	}
	back := min(rapid.IntRange(0, n-1).Draw(rt, name), rapid.IntRange(0, n-1).Draw(rt, name+" again"))
	return n - 1 - back
}

func skipped(*machine) any { return nil }

func drawCancel(rt *rapid.T, m *machine) step {
	i := pick(rt, len(m.tasks), "task")
	if i < 0 {
		return skipped
	}
	return func(m *machine) any {
		task, trs, err := m.Store.CancelTask(bg(), m.params(m.tasks[i]))
		return m.told(task.State, trs, err)
	}
}

func drawRetry(rt *rapid.T, m *machine) step {
	i, tries := pick(rt, len(m.tasks), "task"), rapid.IntRange(0, 2).Draw(rt, "tries")
	if i < 0 {
		return skipped
	}
	return func(m *machine) any {
		task, trs, err := m.Store.RetryTask(bg(), store.RetryParams{TaskParams: m.params(m.tasks[i]), AddTries: tries})
		return m.told([]any{task.State, task.Budget}, trs, err)
	}
}

func stepPromote(m *machine) any {
	trs, err := m.Store.PromoteDue(bg(), m.scheduler, 2)
	return m.told(nil, trs, err)
}

// byAttempt puts transitions in one order where the contract names none.
func byAttempt(trs []berth.Transition) []berth.Transition {
	out := slices.Clone(trs)
	slices.SortFunc(out, func(a, b berth.Transition) int {
		if a.Task < b.Task {
			return -1
		}
		return 1
	})
	return out
}

func stepReap(m *machine) any {
	trs, err := m.Store.ReapLeases(bg(), m.keeper, 100)
	return m.told(nil, byAttempt(trs), err)
}

func stepGiveUp(m *machine) any {
	trs, err := m.Store.GiveUp(bg(), m.scheduler, 100)
	return m.told(nil, byAttempt(trs), err)
}

func stepSilence(m *machine) any {
	hosts, err := m.Store.MarkSilentHosts(bg(), m.keeper, 100)
	slices.Sort(hosts)
	if len(hosts) == 0 {
		hosts = nil
	}
	return m.told(hosts, nil, err)
}

func drawClaim(rt *rapid.T, _ *machine) step {
	i, limit := rapid.IntRange(0, machineAgents-1).Draw(rt, "agent"), rapid.IntRange(1, 3).Draw(rt, "max")
	again := rapid.IntRange(0, 3).Draw(rt, "repeat") == 0
	return func(m *machine) any {
		a := m.agents[i]
		if a.claim == "" || !again {
			a.claim = newID[string](m.Env)
		}
		as, trs, err := m.Store.ClaimAttempts(bg(), store.ClaimParams{AgentCall: a.call(), ClaimID: a.claim, Max: limit})
		for _, x := range as {
			if !slices.ContainsFunc(a.known, func(k store.Assignment) bool { return k.Attempt == x.Attempt }) {
				a.known = append(a.known, x)
			}
		}
		if len(as) == 0 {
			as = nil
		}
		return m.told(as, byAttempt(trs), err)
	}
}

// drawHeld draws an agent and one of the assignments that it knows, or -1.
func drawHeld(rt *rapid.T, m *machine) (agent, held int) {
	agent = rapid.IntRange(0, machineAgents-1).Draw(rt, "agent")
	return agent, pick(rt, len(m.agents[agent].known), "held")
}

func drawStart(rt *rapid.T, m *machine) step {
	i, k := drawHeld(rt, m)
	if k < 0 {
		return skipped
	}
	return func(m *machine) any {
		a := m.agents[i]
		answers, trs, err := m.Store.StartAttempts(bg(), store.StartParams{AgentCall: a.call(), Items: []store.Holder{holder(a.known[k])}})
		return m.told(answers, trs, err)
	}
}

func drawRenew(rt *rapid.T, m *machine) step {
	i, progress := rapid.IntRange(0, machineAgents-1).Draw(rt, "agent"), rapid.SampledFrom([]float64{-1, 0, 0.5, 1}).Draw(rt, "progress")
	if len(m.agents[i].known) == 0 {
		return skipped
	}
	return func(m *machine) any {
		a := m.agents[i]
		var items []store.RenewItem
		for _, x := range a.known {
			items = append(items, store.RenewItem{Holder: holder(x), Progress: progress})
		}
		answers, trs, err := m.Store.RenewAttempts(bg(), store.RenewParams{AgentCall: a.call(), Items: items})
		return m.told(answers, byAttempt(trs), err)
	}
}

func drawComplete(rt *rapid.T, m *machine) step {
	i, k := drawHeld(rt, m)
	outcome := rapid.SampledFrom([]berth.Outcome{berth.OutcomeSucceeded, berth.OutcomeFailed, berth.OutcomeInfraFailed, berth.OutcomeTimedOut, berth.OutcomeCancelled}).Draw(rt, "outcome")
	clean := rapid.IntRange(0, 4).Draw(rt, "unclean") != 0
	if k < 0 {
		return skipped
	}
	return func(m *machine) any {
		a := m.agents[i]
		it := item(a.known[k], outcome, func(it *store.CompleteItem) { it.DeviceClean = clean })
		answers, trs, err := m.Store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: a.call(), Items: []store.CompleteItem{it}})
		for j := range answers {
			answers[j] = clearLog(answers[j])
		}
		return m.told(answers, trs, err)
	}
}

func drawRelease(rt *rapid.T, m *machine) step {
	i, k := drawHeld(rt, m)
	draining := rapid.Bool().Draw(rt, "draining")
	if k < 0 {
		return skipped
	}
	return func(m *machine) any {
		a := m.agents[i]
		answers, trs, err := m.Store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: a.call(), Items: []store.Holder{holder(a.known[k])}, Draining: draining})
		return m.told(answers, trs, err)
	}
}

func drawSync(rt *rapid.T, _ *machine) step {
	i := rapid.IntRange(0, machineAgents-1).Draw(rt, "agent")
	restart, clean := rapid.Bool().Draw(rt, "restart"), rapid.Bool().Draw(rt, "clean")
	holds, devices := rapid.Bool().Draw(rt, "holds"), rapid.IntRange(1, 2).Draw(rt, "devices")
	phone := rapid.SampledFrom([]string{"", "unique", "unique", "slot"}).Draw(rt, "phone")
	protocol := rapid.IntRange(1, 2).Draw(rt, "protocol")
	return func(m *machine) any {
		a := m.agents[i]
		p := a.syncParams()
		if holds {
			holding(a.known...)(&p)
		}
		if !clean {
			notClean(&p)
		}
		if p.Devices, p.Protocol = p.Devices[:devices], protocol; phone != "" {
			p.Devices = append(p.Devices, a.phoneOf(phone == "unique"))
		}
		if restart {
			a.instance += "+"
			p.Instance, p.Epoch = a.instance, 0
		}
		return m.sync(a, p)
	}
}

func (m *machine) sync(a *simAgent, p store.SyncParams) any {
	res, err := m.Store.SyncHost(bg(), p)
	if err == nil {
		a.epoch = res.Epoch
		slices.Sort(res.Undelivered)
	}
	trs := byAttempt(res.Transitions)
	res.Transitions = nil
	return m.told(fmt.Sprintf("%+v", res), trs, err)
}

func drawBeat(rt *rapid.T, m *machine) step {
	i := rapid.IntRange(0, machineAgents-1).Draw(rt, "agent")
	draining := rapid.IntRange(0, 3).Draw(rt, "draining") == 0
	health := rapid.SampledFrom([]berth.Health{"", berth.HealthGood, berth.HealthGood, berth.HealthSuspect, berth.HealthQuarantined}).Draw(rt, "health")
	d := rapid.IntRange(0, 1).Draw(rt, "device")
	return func(m *machine) any {
		a := m.agents[i]
		p := store.HeartbeatParams{AgentCall: a.call(), Draining: draining}
		if health != "" {
			p.Health = map[berth.DeviceID]berth.Health{a.devices[d].ID: health}
		}
		res, err := m.Store.Heartbeat(bg(), p)
		return m.told(res, nil, err)
	}
}

func stepBeatAll(m *machine) any {
	var out []any
	for _, a := range m.agents {
		res, err := m.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
		out = append(out, m.told(res, nil, err))
		if err == nil && res.Resync {
			out = append(out, m.sync(a, a.syncParams(a.still)))
		}
	}
	return out
}

func drawClean(rt *rapid.T, _ *machine) step {
	i, d := rapid.IntRange(0, machineAgents-1).Draw(rt, "agent"), rapid.IntRange(0, 1).Draw(rt, "device")
	older := rapid.IntRange(0, 3).Draw(rt, "older") == 0
	return func(m *machine) any {
		a := m.agents[i]
		fence := m.device(a.devices[d].ID).Fence
		if older {
			fence--
		}
		return m.told(nil, nil, m.Store.CleanDevice(bg(), store.CleanParams{AgentCall: a.call(), Device: a.devices[d].ID, Fence: fence}))
	}
}

func drawLog(rt *rapid.T, m *machine) step {
	i, k := drawHeld(rt, m)
	offset := rapid.Int64Range(0, 6).Draw(rt, "offset")
	text := rapid.SampledFrom([]string{"abc", "xyz"}).Draw(rt, "text")
	if k < 0 {
		return skipped
	}
	return func(m *machine) any {
		a := m.agents[i]
		next, stored, err := m.Store.AppendLog(bg(), a.chunk(a.known[k], offset, text))
		return m.told([]any{next, stored}, nil, err)
	}
}

func drawAdvance(rt *rapid.T, _ *machine) step {
	// Whole seconds: an engine may count a host's signs of life once a second.
	d := rapid.SampledFrom([]time.Duration{time.Second, time.Second, 10 * time.Second, 29 * time.Second, 61 * time.Second, 3 * time.Minute}).Draw(rt, "by")
	return func(m *machine) any { return m.Clock.Advance(d) }
}
