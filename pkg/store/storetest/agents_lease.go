package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func heartbeatChecks() []check {
	return []check{
		in("a heartbeat is a sign of life and no renewal", beatSeen),
		in("draining stops placement and ends again", beatDraining),
		in("changed healths decide who may be placed", beatHealth),
		in("a host that was given up is told to sync", beatResync),
		in("whoever was silent for too long must sync, though no keeper saw it", beatUnseen),
	}
}

func claimChecks() []check {
	return []check{
		in("all that the agent needs, with a fresh lease", claimAll),
		in("the same claim id gives the same set until started", claimSame),
		in("another claim id gets what is assigned only", claimOther),
		in("a new epoch claims what an older one had", claimOldEpoch),
		in("oldest first and at most max", claimMax),
		in("what is expired is left to the keeper", claimExpired),
		in("each host gets its own", claimOwn),
		in("the host is seen", claimSeen),
	}
}

func startChecks() []check {
	return []check{
		in("granted with a fresh lease", startGranted),
		in("a repeat answers the time left now", startRepeat),
		in("strict at the microsecond of expiry", startExpired),
		in("gone for another fence, host or attempt, in the order asked", startGone),
		in("an unclaimed attempt is not started", startUnclaimed),
	}
}

func renewChecks() []check {
	return []check{
		in("extends running and claimed", renewExtends),
		in("strict at the microsecond of expiry", renewExpired),
		in("gone for another fence, host or attempt", renewGone),
		in("progress is kept, a negative one changes nothing", renewProgress),
		in("transitions carry every id and are no audit rows", renewTransitions),
		in("no renewal outlives the run time-out", renewRunTimeout),
	}
}

func beatSeen(w *world) {
	a := w.host("h1", 1)
	as := a.claimed()
	now := w.Clock.Advance(40 * time.Second)
	res, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	if err != nil || res.Resync {
		w.t.Fatalf("heartbeat: %+v, %v", res, err)
	}
	if h := w.hostOf(a); !h.LastSeenAt.Equal(now) {
		w.t.Errorf("seen at %v", h.LastSeenAt)
	}
	w.Clock.Advance(20 * time.Second) // the lease of 60 s is over
	if answers, _ := a.startAnswers(as); answers[0].Status != store.LeaseGone {
		w.t.Errorf("the heartbeat renewed the lease: %+v", answers[0])
	}
}

func beatDraining(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	for _, draining := range []bool{true, true, false} {
		_, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Draining: draining})
		w.must("heartbeat", err)
		if got := len(w.free()); (got == 0) != draining || w.hostOf(a).Draining != draining {
			w.t.Errorf("draining %v: %d free devices", draining, got)
		}
		w.state(as.Task, berth.StateRunning)
	}
	_, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Draining: true})
	w.must("heartbeat", err)
	a.completed(as, berth.OutcomeSucceeded)
	if got := len(w.free()); got != 0 {
		w.t.Errorf("a device became free for placement on a draining host")
	}
}

func beatHealth(w *world) {
	a, b := w.host("h1", 2), w.host("h2", 1)
	beat := func(of *agent, health map[berth.DeviceID]berth.Health) {
		w.t.Helper()
		_, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: of.call(), Health: health})
		w.must("heartbeat", err)
	}
	beat(a, map[berth.DeviceID]berth.Health{a.ids[0]: berth.HealthQuarantined, newID[berth.DeviceID](w.Env): berth.HealthGood})
	if w.device(a.ids[0]).Health != berth.HealthQuarantined || slices.Contains(w.freeIDs(), a.ids[0]) || !slices.Contains(w.freeIDs(), a.ids[1]) {
		w.t.Errorf("device %+v, free %v", w.device(a.ids[0]), w.freeIDs())
	}
	beat(a, nil)
	if slices.Contains(w.freeIDs(), a.ids[0]) {
		w.t.Errorf("a heartbeat without healths healed a device")
	}
	beat(b, map[berth.DeviceID]berth.Health{a.ids[0]: berth.HealthGood, a.ids[1]: berth.HealthQuarantined})
	if w.device(a.ids[0]).Health != berth.HealthQuarantined || w.device(a.ids[1]).Health != berth.HealthGood {
		w.t.Errorf("another host changed a device's health")
	}
	beat(a, map[berth.DeviceID]berth.Health{a.ids[0]: berth.HealthSuspect})
	if len(w.freeIDs()) != 2 {
		w.t.Errorf("a doubt ended a quarantine: free %v", w.freeIDs())
	}
	w.Clock.Advance(berth.QuarantineFor)
	a.beat()
	b.beat()
	for range berth.GoodProbesToTrust {
		beat(a, map[berth.DeviceID]berth.Health{a.ids[0]: berth.HealthGood})
	}
	if len(w.freeIDs()) != 3 {
		w.t.Errorf("free %v", w.freeIDs())
	}
}

func beatResync(w *world) {
	a := w.host("h1", 1)
	w.Clock.Advance(w.Timings.HostOfflineAfter + time.Microsecond)
	hosts, err := w.Store.MarkSilentHosts(bg(), w.keeper, 10)
	if err != nil || !slices.Equal(hosts, []berth.HostID{a.id}) {
		w.t.Fatalf("silent hosts %v, %v", hosts, err)
	}
	res, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	if err != nil || !res.Resync {
		w.t.Fatalf("heartbeat: %+v, %v", res, err)
	}
	if a.sync(); w.hostOf(a).State != berth.HostOnline || a.epoch != 1 || len(w.free()) != 1 {
		w.t.Errorf("after the sync: %+v, free %v", w.hostOf(a), w.freeIDs())
	}
	res, err = w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	if err != nil || res.Resync {
		w.t.Errorf("heartbeat after the sync: %+v, %v", res, err)
	}
}

func beatUnseen(w *world) {
	a := w.host("h1", 1)
	beat := func(want bool, when string) {
		w.t.Helper()
		res, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
		if err != nil || res.Resync != want || (len(w.free()) == 1) == want {
			w.t.Errorf("%s: %+v, %v, free %v", when, res, err, w.freeIDs())
		}
	}
	w.Clock.Advance(w.Timings.HostOfflineAfter)
	beat(false, "at the limit")
	w.Clock.Advance(w.Timings.HostOfflineAfter + time.Microsecond)
	a.claim() // a poll that is faster does not hide the silence
	beat(true, "after a silence")
	beat(true, "when that answer was lost")
	if w.hostOf(a).State != berth.HostOnline {
		w.t.Errorf("the heartbeat gave the host up: %+v", w.hostOf(a))
	}
	a.sync()
	beat(false, "after the sync")
}

func claimAll(w *world) {
	a := w.host("h1", 1)
	task := w.submit(withName("named"), runTimeout(77*time.Second))
	w.placed(task.ID)
	now := w.Clock.Advance(time.Second)
	as, trs, err := w.Store.ClaimAttempts(bg(), store.ClaimParams{AgentCall: a.call(), ClaimID: newID[string](w.Env), Max: 10})
	w.must("claim", err)
	full, at := w.task(task.ID), w.attempt(task.ID)
	want := []store.Assignment{{
		Attempt: at.ID, Task: task.ID, Number: 1, Device: a.ids[0], Fence: at.Fence, Left: w.Timings.LeaseTTL,
		Plugin: berth.PluginVersion{Name: pluginName, Version: pluginVersion}, Payload: full.Payload, RunTimeout: 77 * time.Second,
		CorrelationID: "corr-1", TraceParent: full.TraceParent, TaskName: "named",
	}}
	if d := diff(want, as); d != "" {
		w.t.Errorf("assignment (-want +got):\n%s", d)
	}
	wantTr := berth.Transition{
		Event: berth.EventClaimed, Task: task.ID, From: berth.StateAssigned, To: berth.StateClaimed, Attempt: at.ID, Number: 1, Device: a.ids[0],
		Host: a.id, Fence: at.Fence, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(wantTr, w.oneTransition(clearReason(trs))); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if at.State != berth.AttemptClaimed || !at.ClaimedAt.Equal(now) || full.State != berth.StateClaimed {
		w.t.Errorf("attempt %+v", at)
	}
	if n := len(a.claim()); n != 0 {
		w.t.Errorf("an empty answer has %d attempts", n)
	}
}

func claimSame(w *world) {
	a := w.host("h1", 3)
	for range 2 {
		w.submit()
	}
	w.place()
	claim := newID[string](w.Env)
	first := a.claimWith(claim, 10)
	w.Clock.Advance(10 * time.Second)
	again := a.claimWith(claim, 10)
	if len(first) != 2 || len(again) != 2 {
		w.t.Fatalf("claimed %d, then %d", len(first), len(again))
	}
	for i := range first {
		if again[i].Left != w.Timings.LeaseTTL-10*time.Second {
			w.t.Errorf("the repeat has %v left, it keeps the lease it has", again[i].Left)
		}
		again[i].Left = first[i].Left
	}
	if d := diff(first, again); d != "" {
		w.t.Errorf("the repeat differs:\n%s", d)
	}
	a.start(first[0])
	if rest := a.claimWith(claim, 10); len(rest) != 1 || rest[0].Attempt != first[1].Attempt {
		w.t.Errorf("after a start the claim has %d attempts", len(rest))
	}
}

func claimOther(w *world) {
	a := w.host("h1", 2)
	first := a.claimed()
	w.submit()
	w.place()
	if got := a.claim(); len(got) != 1 || got[0].Attempt == first.Attempt {
		w.t.Errorf("another claim got %d attempts", len(got))
	}
}

func claimOldEpoch(w *world) {
	a := w.host("h1", 2)
	first := a.claimed()
	w.Clock.Advance(5 * time.Second)
	a.restart()
	again := a.one(first.Task)
	if again.Attempt != first.Attempt || again.Fence != first.Fence || again.Left <= 0 || again.Left > w.Timings.LeaseTTL {
		w.t.Errorf("delivered again: %+v", again)
	}
	if n := len(a.claim()); n != 0 {
		w.t.Errorf("a third claim got %d", n)
	}
	a.start(again)
}

func claimMax(w *world) {
	a := w.host("h1", 4)
	var want []berth.TaskID
	for range 4 {
		task := w.submit()
		w.placed(task.ID)
		want = append(want, task.ID)
		w.Clock.Advance(time.Second)
	}
	if got := a.claimWith(newID[string](w.Env), 1); len(got) != 1 || got[0].Task != want[0] {
		w.t.Fatalf("claimed %d, first is not the oldest", len(got))
	}
	got := a.claimWith(newID[string](w.Env), 2)
	if len(got) != 2 || got[0].Task != want[1] || got[1].Task != want[2] {
		w.t.Fatalf("claimed %d, not the next two in order", len(got))
	}
}

func claimExpired(w *world) {
	a := w.host("h1", 2)
	early := w.submit()
	w.placed(early.ID)
	w.Clock.Advance(w.Timings.ClaimWithin - time.Microsecond)
	late := w.submit()
	w.placed(late.ID)
	claim := newID[string](w.Env)
	if got := a.claimWith(claim, 1); len(got) != 1 || got[0].Task != early.ID {
		w.t.Fatalf("a microsecond before its end the lease was not claimed")
	}
	w.Clock.Advance(w.Timings.ClaimWithin)
	if got := a.claimWith(newID[string](w.Env), 10); len(got) != 0 {
		w.t.Errorf("an expired assignment was claimed")
	}
	w.state(late.ID, berth.StateAssigned)
	w.Clock.Advance(w.Timings.LeaseTTL)
	if got := a.claimWith(claim, 10); len(got) != 0 {
		w.t.Errorf("an expired claim was repeated")
	}
	w.state(early.ID, berth.StateClaimed)
}

func claimOwn(w *world) {
	a, b := w.host("h1", 1), w.host("h2", 1)
	pinned := w.submit(withSelector("berth.dev/device=" + string(b.ids[0])))
	w.placed(pinned.ID)
	if n := len(a.claim()); n != 0 {
		w.t.Errorf("a host claimed another's attempt")
	}
	b.one(pinned.ID)
}

func claimSeen(w *world) {
	a := w.host("h1", 1)
	now := w.Clock.Advance(30 * time.Second)
	a.claim()
	if h := w.hostOf(a); !h.LastSeenAt.Equal(now) {
		w.t.Errorf("seen at %v, not %v", h.LastSeenAt, now)
	}
}

func startGranted(w *world) {
	a := w.host("h1", 1)
	as := a.claimed()
	now := w.Clock.Advance(20 * time.Second)
	answers, trs := a.startAnswers(as)
	if ans := answers[0]; ans.Status != store.LeaseGranted || ans.Left != w.Timings.LeaseTTL || ans.Cancel {
		w.t.Errorf("answer %+v", ans)
	}
	want := berth.Transition{
		Event: berth.EventStarted, Task: as.Task, From: berth.StateClaimed, To: berth.StateRunning, Attempt: as.Attempt, Number: 1, Device: as.Device,
		Host: a.id, Fence: as.Fence, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(want, w.oneTransition(clearReason(trs))); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if at := w.attempt(as.Task); at.State != berth.AttemptRunning || !at.StartedAt.Equal(now) {
		w.t.Errorf("attempt %+v", at)
	}
}

func startRepeat(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.Clock.Advance(10 * time.Second)
	answers, trs := a.startAnswers(as)
	if answers[0].Status != store.LeaseGranted || answers[0].Left != w.Timings.LeaseTTL-10*time.Second || len(trs) != 0 {
		w.t.Errorf("answer %+v, transitions %+v", answers[0], trs)
	}
	w.Clock.Advance(w.Timings.LeaseTTL - 10*time.Second)
	if answers, _ := a.startAnswers(as); answers[0].Status != store.LeaseGone {
		w.t.Errorf("a repeat after the lease: %+v", answers[0])
	}
}

func startExpired(w *world) {
	a := w.host("h1", 2)
	one, two := a.claimed(), a.claimed()
	w.Clock.Advance(w.Timings.LeaseTTL - time.Microsecond)
	if answers, _ := a.startAnswers(one); answers[0].Status != store.LeaseGranted {
		w.t.Errorf("a microsecond before the end: %+v", answers[0])
	}
	w.Clock.Advance(time.Microsecond)
	if answers, _ := a.startAnswers(two); answers[0].Status != store.LeaseGone {
		w.t.Errorf("at the end: %+v", answers[0])
	}
	w.state(two.Task, berth.StateClaimed)
}

func startGone(w *world) {
	a, b := w.host("h1", 3), w.host("h2", 1)
	good, other := a.claimed(), a.claimed()
	foreign := b.claimed(withSelector("berth.dev/device=" + string(b.ids[0])))
	above, below := other, other
	above.Fence++
	below.Fence--
	unknown := store.Assignment{Attempt: newID[berth.AttemptID](w.Env), Fence: 1}
	answers, trs := a.startAnswers(above, unknown, good, foreign, below)
	for i, want := range []store.LeaseStatus{store.LeaseGone, store.LeaseGone, store.LeaseGranted, store.LeaseGone, store.LeaseGone} {
		if answers[i].Status != want {
			w.t.Errorf("answer %d: %s, should be %s", i, answers[i].Status, want)
		}
	}
	w.oneTransition(trs)
	w.state(other.Task, berth.StateClaimed)
	w.state(foreign.Task, berth.StateClaimed)
	a.completed(good, berth.OutcomeSucceeded)
	if answers, _ := a.startAnswers(good); answers[0].Status != store.LeaseGone {
		w.t.Errorf("start of an ended attempt: %s", answers[0].Status)
	}
}

func startUnclaimed(w *world) {
	a := w.host("h1", 1)
	task := w.submit()
	at := w.placed(task.ID)
	answers, _ := a.startAnswers(store.Assignment{Attempt: at.ID, Fence: at.Fence})
	if answers[0].Status == store.LeaseGranted {
		w.t.Errorf("granted")
	}
	w.state(task.ID, berth.StateAssigned)
}

func renewExtends(w *world) {
	a := w.host("h1", 2)
	running, claimed := a.running(), a.claimed()
	for range 3 {
		w.Clock.Advance(w.Timings.LeaseTTL - time.Second)
		for i, ans := range a.renew(running, claimed) {
			if ans.Status != store.LeaseGranted || ans.Left != w.Timings.LeaseTTL || ans.Cancel {
				w.t.Fatalf("answer %d: %+v", i, ans)
			}
		}
	}
	if trs := w.reap(); len(trs) != 0 {
		w.t.Errorf("renewed leases were reaped: %+v", trs)
	}
	a.start(claimed)
	w.state(running.Task, berth.StateRunning)
}

func renewExpired(w *world) {
	a := w.host("h1", 2)
	one, two := a.running(), a.running()
	w.Clock.Advance(w.Timings.LeaseTTL - time.Microsecond)
	if ans := a.renew(one)[0]; ans.Status != store.LeaseGranted || ans.Left != w.Timings.LeaseTTL {
		w.t.Errorf("a microsecond before the end: %+v", ans)
	}
	w.Clock.Advance(time.Microsecond)
	answers, trs := a.renewWith(two, one)
	if answers[0].Status != store.LeaseGone || answers[1].Status != store.LeaseGranted {
		w.t.Errorf("at the end: %+v", answers)
	}
	if tr := w.oneTransition(trs); tr.Attempt != one.Attempt {
		w.t.Errorf("a refused renewal is in the transitions: %+v", tr)
	}
	w.Clock.Advance(w.Timings.ReapGrace)
	if tr := w.oneTransition(w.reap()); tr.Attempt != two.Attempt {
		w.t.Errorf("a refused renewal moved the lease: %+v", tr)
	}
}

func renewGone(w *world) {
	a, b := w.host("h1", 2), w.host("h2", 1)
	good, ended := a.running(), a.running()
	a.completed(ended, berth.OutcomeSucceeded)
	foreign := b.running(withSelector("berth.dev/device=" + string(b.ids[0])))
	above := good
	above.Fence++
	unknown := store.Assignment{Attempt: newID[berth.AttemptID](w.Env), Fence: 1}
	w.Clock.Advance(30 * time.Second)
	for i, ans := range a.renew(foreign, above, unknown, ended) {
		if ans.Status != store.LeaseGone {
			w.t.Errorf("answer %d: %+v", i, ans)
		}
	}
	w.Clock.Advance(30 * time.Second)
	if s := b.renew(foreign)[0].Status; s != store.LeaseGone {
		w.t.Errorf("another host renewed the lease: %s", s)
	}
	if s := a.renew(good)[0].Status; s != store.LeaseGone {
		w.t.Errorf("another fence renewed the lease: %s", s)
	}
}

func renewProgress(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	renew := func(progress float64, note string) {
		w.t.Helper()
		_, _, err := w.Store.RenewAttempts(bg(), store.RenewParams{AgentCall: a.call(), Items: []store.RenewItem{{Holder: holder(as), Progress: progress, Note: redact.NewString(note)}}})
		w.must("renew", err)
	}
	renew(0.25, "step "+marker)
	if at := w.attempt(as.Task); at.Progress != 0.25 || at.ProgressNote.Reveal() != "step "+marker {
		w.t.Errorf("progress %v, note kept: %v", at.Progress, at.ProgressNote.Len())
	}
	renew(-1, "")
	if at := w.attempt(as.Task); at.Progress != 0.25 {
		w.t.Errorf("a negative progress changed it to %v", at.Progress)
	}
	renew(1, "done")
	if at := w.attempt(as.Task); at.Progress != 1 || at.ProgressNote.Reveal() != "done" {
		w.t.Errorf("progress %v", at.Progress)
	}
}

func renewTransitions(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	rows := len(w.audit("", ""))
	now := w.Clock.Advance(time.Second)
	_, trs := a.renewWith(as)
	want := berth.Transition{
		Event: berth.EventRenewed, Task: as.Task, From: berth.StateRunning, To: berth.StateRunning, Attempt: as.Attempt, Number: 1, Device: as.Device,
		Host: a.id, Fence: as.Fence, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(want, w.oneTransition(clearReason(trs))); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if n := len(w.audit("", "")); n != rows {
		w.t.Errorf("the renewal wrote %d audit rows", n-rows)
	}
}

func renewRunTimeout(w *world) {
	a := w.host("h1", 1)
	as := a.running(runTimeout(100 * time.Second))
	w.Clock.Advance(50 * time.Second)
	a.renew(as)
	w.Clock.Advance(50 * time.Second)
	a.renew(as)
	w.Clock.Advance(w.Timings.ReapGrace - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Fatalf("reaped early: %+v", trs)
	}
	w.Clock.Advance(time.Microsecond)
	tr := w.oneTransition(w.reap())
	if tr.Outcome != berth.OutcomeTimedOut || tr.To != berth.StateFailed || tr.Event != berth.EventRetried {
		w.t.Errorf("transition %+v", tr)
	}
	if at := w.attempt(as.Task); at.Reason != berth.ReasonRunTimeout {
		w.t.Errorf("reason %q", at.Reason)
	}
}
