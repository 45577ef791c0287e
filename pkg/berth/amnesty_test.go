package berth

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// after is an instant some seconds after an arbitrary one; negative: before.
func after(seconds float64) time.Time {
	return time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func TestJudgeAmnesty(t *testing.T) {
	timings := DefaultTimings()
	var never time.Time
	mark := func(at float64) Mark { return Mark{At: after(at)} }
	gap := func(at, from, to float64) Mark { return Mark{after(at), after(from), after(to)} }
	past := func(granted float64) Amnesty {
		return Amnesty{GrantedAt: after(granted), Until: after(granted).Add(timings.LeaseTTL), Reason: AmnestyBlind}
	}
	// All is judged at 0.
	for name, c := range map[string]struct {
		f    AmnestyFacts
		want string
	}{
		"nothing was ever swept":                   {AmnestyFacts{LastSweep: never, Running: 3}, ""},
		"nothing runs":                             {AmnestyFacts{LastSweep: after(-600), Renewals: mark(-600)}, ""},
		"down for 45 s":                            {AmnestyFacts{LastSweep: after(-45), Renewals: mark(-46), Running: 3}, AmnestyBlind},
		"down for 44 s":                            {AmnestyFacts{LastSweep: after(-44), Renewals: mark(-60), Running: 3}, ""},
		"a renewal after the last sweep":           {AmnestyFacts{LastSweep: after(-126), Renewals: mark(-120.5), Running: 3}, AmnestyBlind},
		"no renewal was ever stored":               {AmnestyFacts{LastSweep: after(-60), Running: 1}, AmnestyBlind},
		"agents came back before the first sweep":  {AmnestyFacts{LastSweep: after(-50), Renewals: gap(-1, -52, -3), Running: 3}, AmnestyBlind},
		"the keeper alone was down":                {AmnestyFacts{LastSweep: after(-60), Renewals: mark(-4), Running: 3}, ""},
		"the keeper was down, an old gap":          {AmnestyFacts{LastSweep: after(-60), Renewals: gap(-4, -900, -70), Running: 3}, ""},
		"the keeper was down, idle before":         {AmnestyFacts{LastSweep: after(-60), Renewals: gap(-4, -900, -35), Running: 3}, ""},
		"one dead host, all it had":                {AmnestyFacts{LastSweep: after(-5), Renewals: mark(-90), Running: 8, Expired: 8, ExpiredHosts: 1}, ""},
		"two dead hosts of two":                    {AmnestyFacts{LastSweep: after(-5), Renewals: mark(-90), Running: 8, Expired: 8, ExpiredHosts: 2}, ""},
		"three dead hosts of five":                 {AmnestyFacts{LastSweep: after(-5), Renewals: mark(-4), Running: 5, Expired: 3, ExpiredHosts: 3}, AmnestyMany},
		"three dead hosts of six":                  {AmnestyFacts{LastSweep: after(-5), Renewals: mark(-4), Running: 6, Expired: 3, ExpiredHosts: 3}, ""},
		"one is in force":                          {AmnestyFacts{LastSweep: after(-50), Renewals: mark(-50), Running: 3, Last: past(-59)}, ""},
		"no renewal since the last one":            {AmnestyFacts{LastSweep: after(-60), Renewals: mark(-70), Running: 3, Last: past(-70)}, ""},
		"a renewal since the last one":             {AmnestyFacts{LastSweep: after(-60), Renewals: mark(-69), Running: 3, Last: past(-70)}, AmnestyBlind},
		"many, and no renewal since the last one":  {AmnestyFacts{LastSweep: after(-5), Renewals: mark(-80), Running: 5, Expired: 5, ExpiredHosts: 5, Last: past(-70)}, ""},
		"many again, renewed by the hosts between": {AmnestyFacts{LastSweep: after(-5), Renewals: mark(-62), Running: 5, Expired: 5, ExpiredHosts: 5, Last: past(-130)}, AmnestyMany},
	} {
		c.f.Now = after(0)
		got, granted := timings.JudgeAmnesty(c.f)
		if granted != (c.want != "") || got.Reason != c.want {
			t.Errorf("%s: granted %v %q, should be %q", name, granted, got.Reason, c.want)
		}
		if granted && (!got.GrantedAt.Equal(after(0)) || got.Until.Sub(got.GrantedAt) != timings.LeaseTTL || !got.InForce(after(0)) || got.InForce(got.Until)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if (Amnesty{}).InForce(never) {
		t.Error("none is in force")
	}
}

func TestMarkAdvance(t *testing.T) {
	m := Mark{}.Advance(after(0), time.Minute)
	if m != (Mark{At: after(0)}) {
		t.Errorf("first: %+v", m)
	}
	if m = m.Advance(after(59), time.Minute); m != (Mark{At: after(59)}) {
		t.Errorf("below the threshold: %+v", m)
	}
	want := Mark{At: after(119), GapFrom: after(59), GapTo: after(119)}
	if m = m.Advance(after(119), time.Minute); m != want {
		t.Errorf("at the threshold: %+v", m)
	}
	if m = m.Advance(after(100), time.Minute); m != want {
		t.Errorf("a clock that went back: %+v", m)
	}
	if m = m.Advance(after(120), time.Minute); m.GapTo != after(119) {
		t.Errorf("the gap is forgotten: %+v", m)
	}
}

func TestMayEnd(t *testing.T) {
	timings := DefaultTimings()
	for name, c := range map[string]struct {
		last  Amnesty
		sweep time.Time
		want  bool
	}{
		"a fresh sweep":             {Amnesty{}, after(-5), true},
		"no mark yet":               {Amnesty{}, time.Time{}, true},
		"granted meanwhile":         {Amnesty{GrantedAt: after(-1), Until: after(59)}, after(-1), false},
		"over":                      {Amnesty{GrantedAt: after(-61), Until: after(-1)}, after(-1), true},
		"stopped in mid-sweep":      {Amnesty{}, after(-45), false},
		"stopped for less than one": {Amnesty{}, after(-44), true},
	} {
		if got := timings.MayEnd(c.last, c.sweep, after(0)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// simulation is an installation by the second: hosts that renew one lease each,
// a keeper, and a database that may be away.
type simulation struct {
	t        Timings
	renewals Mark
	sweep    time.Time
	last     Amnesty
	granted  []Amnesty
	sent     []float64 // when each host's last stored renewal was
	ended    []bool
}

// run lets the hosts renew every period seconds and the keeper sweep every 5 or
// 6, both only while up says so, and returns when each host's attempt was ended.
func (s *simulation) run(until float64, hosts int, period, phase []float64, renews, sweeps func(host int, at float64) bool) {
	s.sent, s.ended = make([]float64, hosts), make([]bool, hosts)
	nextSweep := phase[hosts]
	for i := range hosts {
		s.sent[i] = phase[i] - period[i]
	}
	for at := 0.0; at < until; at += 0.5 {
		for i := range hosts {
			if s.ended[i] || at < s.sent[i]+period[i] || at-s.sent[i] >= s.t.LeaseTTL.Seconds() || !renews(i, at) {
				continue
			}
			s.sent[i] = at
			if after(at).Sub(s.renewals.At) >= s.t.MarkEvery() {
				s.renewals = s.renewals.Advance(after(at), s.t.BlindAfter())
			}
		}
		if at >= nextSweep && sweeps(-1, at) {
			s.sweepAt(at)
			nextSweep = at + period[hosts]
		}
	}
}

func (s *simulation) sweepAt(at float64) {
	f := AmnestyFacts{Now: after(at), LastSweep: s.sweep, Renewals: s.renewals, Last: s.last}
	for i, sent := range s.sent {
		expires := after(sent).Add(s.t.LeaseTTL)
		if s.ended[i] {
			continue
		}
		f.Running++
		if !expires.After(f.Now) && expires.After(s.last.Until) {
			f.Expired++
			f.ExpiredHosts++
		}
	}
	if a, ok := s.t.JudgeAmnesty(f); ok {
		s.last = a
		s.granted = append(s.granted, a)
	}
	if s.sweep = f.Now; s.last.InForce(f.Now) {
		return
	}
	for i, sent := range s.sent {
		if at >= sent+(s.t.LeaseTTL+s.t.ReapGrace).Seconds() {
			s.ended[i] = true
		}
	}
}

func TestAmnestyProperties(t *testing.T) {
	draw := func(rt *rapid.T) (s *simulation, hosts int, period, phase []float64) {
		s, hosts = &simulation{t: DefaultTimings()}, rapid.IntRange(1, 6).Draw(rt, "hosts")
		for range hosts {
			period = append(period, rapid.Float64Range(13.5, 16.5).Draw(rt, "renews every"))
			phase = append(phase, rapid.Float64Range(0, 16).Draw(rt, "phase"))
		}
		period = append(period, rapid.Float64Range(4, 6).Draw(rt, "sweeps every"))
		return s, hosts, period, append(phase, rapid.Float64Range(0, 6).Draw(rt, "sweep phase"))
	}
	always := func(int, float64) bool { return true }
	t.Run("a database that is away", rapid.MakeCheck(func(rt *rapid.T) {
		s, hosts, period, phase := draw(rt)
		length := rapid.Float64Range(1, 300).Draw(rt, "away for")
		lag := rapid.Float64Range(0, 6).Draw(rt, "first sweep after")
		s.run(120+length+60, hosts, period, phase,
			func(_ int, at float64) bool { return at < 120 || at >= 120+length },
			func(_ int, at float64) bool { return at < 120 || at >= 120+length+lag })
		switch ended := count(s.ended); {
		case length >= s.t.BlindAfter().Seconds() && len(s.granted) != 1:
			rt.Fatalf("%d amnesties", len(s.granted))
		case length < s.t.BlindAfter().Seconds()-12 && len(s.granted) != 0:
			rt.Fatalf("%d amnesties after a short while", len(s.granted))
		case len(s.granted) == 1 && ended > 0:
			rt.Fatalf("%d attempts ended while agents could not hand in", ended)
		}
	}))
	t.Run("one dead host", rapid.MakeCheck(func(rt *rapid.T) {
		s, hosts, period, phase := draw(rt)
		s.run(300, hosts, period, phase, func(host int, at float64) bool { return host != 0 || at < 100 }, always)
		if len(s.granted) != 0 || count(s.ended) != 1 {
			rt.Fatalf("%d amnesties, %d ended", len(s.granted), count(s.ended))
		}
	}))
	t.Run("a keeper that was down", rapid.MakeCheck(func(rt *rapid.T) {
		s, hosts, period, phase := draw(rt)
		length := rapid.Float64Range(1, 600).Draw(rt, "down for")
		s.run(800, hosts, period, phase, always, func(_ int, at float64) bool { return at < 60 || at > 60+length })
		if len(s.granted) != 0 || count(s.ended) != 0 {
			rt.Fatalf("%d amnesties, %d ended", len(s.granted), count(s.ended))
		}
	}))
	t.Run("hosts that die for good are held once", rapid.MakeCheck(func(rt *rapid.T) {
		s, hosts, period, phase := draw(rt)
		dead := rapid.IntRange(1, hosts).Draw(rt, "dead")
		s.run(400, hosts, period, phase, func(host int, at float64) bool { return host >= dead || at < 100 }, always)
		want := 0
		if dead >= AmnestyHosts && 2*dead > hosts {
			want = 1
		}
		if len(s.granted) > want || count(s.ended) != dead {
			rt.Fatalf("%d of %d dead: %d amnesties, %d ended", dead, hosts, len(s.granted), count(s.ended))
		}
	}))
}

func count(all []bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}
