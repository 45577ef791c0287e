package berth_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

func TestReapAtTheMicrosecond(t *testing.T) {
	timings := berth.DefaultTimings()
	grace := timings.ReapGrace
	for _, c := range []struct {
		name string
		r    berth.Reaping
		// at is the first moment at which the keeper may act.
		at   time.Time
		want berth.ReapVerdict
	}{
		{"assigned", berth.Reaping{State: berth.AttemptAssigned, ExpiresAt: t0}, t0, berth.ReapVerdict{Outcome: berth.OutcomeReleased, Reason: berth.ReasonUnclaimed, By: berth.EndedByExpiry}},
		{"claimed", berth.Reaping{State: berth.AttemptClaimed, ExpiresAt: t0}, t0, berth.ReapVerdict{Outcome: berth.OutcomeReleased, Reason: berth.ReasonNotStarted, By: berth.EndedByExpiry}},
		{"running", berth.Reaping{State: berth.AttemptRunning, ExpiresAt: t0, KillBy: t0.Add(time.Hour)}, t0.Add(grace), berth.ReapVerdict{Outcome: berth.OutcomeTimedOut, Reason: berth.ReasonLeaseExpired, By: berth.EndedByExpiry, Unclean: true}},
		{"running too long", berth.Reaping{State: berth.AttemptRunning, ExpiresAt: t0.Add(time.Hour), KillBy: t0}, t0.Add(grace), berth.ReapVerdict{Outcome: berth.OutcomeTimedOut, Reason: berth.ReasonRunTimeout, By: berth.EndedByRunTimeout, Unclean: true}},
		{"not stopping", berth.Reaping{State: berth.AttemptRunning, ExpiresAt: t0.Add(time.Hour), KillBy: t0, Cancel: true}, t0.Add(grace), berth.ReapVerdict{Outcome: berth.OutcomeTimedOut, Reason: berth.ReasonCancelTimeout, By: berth.EndedByRunTimeout, Unclean: true}},
		{"expiry before run time", berth.Reaping{State: berth.AttemptRunning, ExpiresAt: t0, KillBy: t0}, t0.Add(grace), berth.ReapVerdict{Outcome: berth.OutcomeTimedOut, Reason: berth.ReasonLeaseExpired, By: berth.EndedByExpiry, Unclean: true}},
	} {
		if _, ok := timings.Reap(c.r, c.at.Add(-time.Microsecond)); ok {
			t.Errorf("%s: ended a microsecond early", c.name)
		}
		for _, now := range []time.Time{c.at, c.at.Add(time.Minute)} {
			if v, ok := timings.Reap(c.r, now); !ok || v != c.want {
				t.Errorf("%s: %+v, %v", c.name, v, ok)
			}
		}
	}
	if _, ok := timings.Reap(berth.Reaping{State: berth.AttemptRunning, ExpiresAt: t0.Add(time.Hour)}, t0.Add(time.Minute)); ok {
		t.Error("an attempt without a bound was ended while its lease lives")
	}
}

// What may be started may not be reaped, and the other way round.
func TestReapNeverMeetsALiveLease(t *testing.T) {
	timings := berth.DefaultTimings()
	rapid.Check(t, func(t *rapid.T) {
		expires := t0.Add(time.Duration(rapid.Int64Range(-100, 100).Draw(t, "seconds")) * time.Second)
		now := t0.Add(time.Duration(rapid.Int64Range(-100e6, 100e6).Draw(t, "microseconds")) * time.Microsecond)
		for _, s := range []berth.AttemptState{berth.AttemptAssigned, berth.AttemptClaimed} {
			if _, ok := timings.Reap(berth.Reaping{State: s, ExpiresAt: expires}, now); ok == berth.LeaseAlive(expires, now) {
				t.Fatalf("%s: lease ends at %v, at %v ended: %v", s, expires, now, ok)
			}
		}
		if _, ok := timings.Reap(berth.Reaping{State: berth.AttemptRunning, ExpiresAt: expires}, now); ok && berth.LeaseAlive(expires, now) {
			t.Fatalf("a running attempt was ended with a live lease")
		}
	})
}

func TestLeaseAliveIsStrict(t *testing.T) {
	for d, want := range map[time.Duration]bool{-time.Microsecond: true, 0: false, time.Microsecond: false} {
		if got := berth.LeaseAlive(t0, t0.Add(d)); got != want {
			t.Errorf("at %v: %v", d, got)
		}
	}
}

func TestKillBy(t *testing.T) {
	timings := berth.DefaultTimings()
	for _, c := range []struct {
		name   string
		run    time.Duration
		cancel time.Time
		want   time.Time
	}{
		{"run time-out", time.Hour, time.Time{}, t0.Add(time.Hour)},
		{"cancel comes first", time.Hour, t0.Add(time.Minute), t0.Add(time.Minute + timings.CancelWithin)},
		{"run time-out comes first", time.Minute, t0.Add(50 * time.Second), t0.Add(time.Minute)},
		{"both at once", time.Minute, t0.Add(time.Minute - timings.CancelWithin), t0.Add(time.Minute)},
	} {
		if got := timings.KillBy(t0, c.run, c.cancel); !got.Equal(c.want) {
			t.Errorf("%s: %v, should be %v", c.name, got, c.want)
		}
	}
}

func TestMustSync(t *testing.T) {
	timings := berth.DefaultTimings()
	limit := timings.HostOfflineAfter
	for _, c := range []struct {
		state  berth.HostState
		silent time.Duration
		want   bool
	}{
		{berth.HostOnline, 0, false},
		{berth.HostOnline, limit, false},
		{berth.HostOnline, limit + 1, true},
		{berth.HostOnline, -time.Hour, false}, // the clock went back
		{berth.HostOffline, 0, true},
		{berth.HostEnrolled, 0, true},
	} {
		if got := timings.MustSync(c.state, t0, t0.Add(c.silent)); got != c.want {
			t.Errorf("%s, silent for %v: %v", c.state, c.silent, got)
		}
	}
}

func TestHostFresh(t *testing.T) {
	timings := berth.DefaultTimings()
	limit := timings.HostOfflineAfter
	for d, want := range map[time.Duration]bool{0: true, limit: true, limit + time.Microsecond: false, -time.Hour: true} {
		if got := timings.HostFresh(t0, t0.Add(d)); got != want {
			t.Errorf("%v after the last sign: fresh %v", d, got)
		}
	}
	if timings.HostFresh(time.Time{}, time.Time{}) {
		t.Error("a host that was never seen is fresh")
	}
}

func TestNextEpoch(t *testing.T) {
	for _, c := range []struct {
		name                 string
		stored               berth.Epoch
		storedInstance, inst string
		held, journal, want  berth.Epoch
		stale                bool
	}{
		{"first sync ever", 0, "", "a", 0, 0, 1, false},
		{"first sync with an empty instance", 0, "", "", 0, 0, 1, false},
		{"a new process", 3, "a", "b", 0, 3, 4, false},
		{"a new process without a journal", 3, "a", "b", 0, 0, 4, false},
		{"a repeat whose answer was lost", 3, "a", "a", 0, 2, 3, false},
		{"the same process was cut off", 3, "a", "a", 3, 3, 3, false},
		{"an older process", 3, "b", "a", 2, 2, 0, true},
		{"another process with the same epoch", 3, "b", "a", 3, 3, 0, true},
		{"the same process lost the answer that raised its epoch", 3, "a", "a", 2, 2, 3, false},
		{"a restored database, process holds more", 3, "a", "a", 7, 7, 8, false},
		{"a restored database, another instance", 3, "b", "a", 7, 9, 10, false},
		{"a restored database, new process with a journal", 3, "a", "b", 0, 9, 10, false},
		{"a restored database, same process with a journal", 3, "a", "a", 3, 9, 10, false},
		{"an emptied database", 0, "", "a", 5, 5, 6, false},
	} {
		got, err := berth.NextEpoch(c.stored, c.storedInstance, c.inst, c.held, c.journal)
		if got != c.want || errors.Is(err, berth.ErrStaleEpoch) != c.stale || (err != nil) != c.stale {
			t.Errorf("%s: epoch %d, %v; should be %d", c.name, got, err, c.want)
		}
	}
}

// A chain of syncs never gives one epoch to two processes and never goes down.
func TestEpochsOnlyRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stored berth.Epoch
		var instance string
		owner := map[berth.Epoch]string{}
		held := map[string]berth.Epoch{}
		for range rapid.IntRange(1, 30).Draw(t, "syncs") {
			who := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "who")
			got, err := berth.NextEpoch(stored, instance, who, held[who], held[who])
			if err != nil {
				if held[who] == stored && instance == who {
					t.Fatalf("the current process %s was refused", who)
				}
				continue
			}
			if got < stored || owner[got] != "" && owner[got] != who {
				t.Fatalf("epoch %d after %d, of %q and %q", got, stored, owner[got], who)
			}
			stored, instance = got, who
			owner[got], held[who] = who, got
			if err := berth.CheckEpoch(stored, got); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestCheckEpoch(t *testing.T) {
	if err := berth.CheckEpoch(3, 3); err != nil {
		t.Error(err)
	}
	for _, carried := range []berth.Epoch{0, 2, 4} {
		if err := berth.CheckEpoch(3, carried); !errors.Is(err, berth.ErrStaleEpoch) {
			t.Errorf("epoch %d: %v", carried, err)
		}
	}
}

func TestTimingsAreJudgedTogether(t *testing.T) {
	if err := berth.DefaultTimings().Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for _, c := range []struct {
		name   string
		change func(*berth.Timings)
		paths  []string
	}{
		{"kill after fence", func(x *berth.Timings) { x.KillMargin = x.FenceMargin }, []string{"kill_margin"}},
		{"one lost renewal", func(x *berth.Timings) { x.RenewEvery = 21 * time.Second }, []string{"renew_every"}},
		{"two lost heartbeats", func(x *berth.Timings) { x.HostOfflineAfter = 29 * time.Second }, []string{"host_offline_after"}},
		{"nothing", func(x *berth.Timings) { *x = berth.Timings{} }, []string{
			"lease_ttl", "renew_every", "request_timeout", "fence_margin", "kill_margin", "reap_grace", "claim_within", "host_offline_after", "heartbeat_every", "cancel_within",
		}},
		{"negative", func(x *berth.Timings) { x.ReapGrace = -time.Second }, []string{"reap_grace"}},
	} {
		timings := berth.DefaultTimings()
		c.change(&timings)
		checkFaults(t, c.name, timings.Validate(), c.paths...)
	}
}

// Timings that pass keep the order of design section 6: two renewals fit
// before the fence, and fence, kill, expiry and reap follow each other.
func TestValidTimingsKeepTwoHoldersApart(t *testing.T) {
	seconds := rapid.Int64Range(1, 90)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) time.Duration { return time.Duration(seconds.Draw(t, name)) * time.Second }
		x := berth.Timings{
			LeaseTTL: draw("ttl"), RenewEvery: draw("renew"), RequestTimeout: draw("request"), FenceMargin: draw("fence"), KillMargin: draw("kill"),
			ReapGrace: draw("grace"), ClaimWithin: draw("claim"), HostOfflineAfter: draw("offline"), HeartbeatEvery: draw("beat"), CancelWithin: draw("cancel"),
		}
		if x.Validate() != nil {
			return
		}
		fence, kill := x.LeaseTTL-x.FenceMargin, x.LeaseTTL-x.KillMargin
		if !(2*x.RenewEvery+x.RequestTimeout <= fence && fence < kill && kill < x.LeaseTTL && x.LeaseTTL < x.LeaseTTL+x.ReapGrace) {
			t.Fatalf("%+v passes", x)
		}
	})
}

// checkFaults asserts that err names exactly paths, each with a message and a
// remedy.
func checkFaults(t *testing.T, name string, err error, paths ...string) {
	t.Helper()
	var inv *berth.InvalidError
	if !errors.Is(err, berth.ErrInvalid) || !errors.As(err, &inv) {
		t.Errorf("%s: %v is no InvalidError", name, err)
		return
	}
	var got []string
	for _, f := range inv.Fields {
		if !slices.Contains(got, f.Path) {
			got = append(got, f.Path)
		}
		if f.Message == "" || f.Remedy == "" || !strings.Contains(err.Error(), f.Path) {
			t.Errorf("%s: fault %+v lacks a message or a remedy", name, f)
		}
	}
	for _, p := range paths {
		if !slices.Contains(got, p) {
			t.Errorf("%s: %v does not name %s", name, err, p)
		}
	}
	if len(got) != len(paths) {
		t.Errorf("%s: faults at %v, should be at %v", name, got, paths)
	}
}
