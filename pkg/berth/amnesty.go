package berth

import "time"

// Amnesty holds the reaping of running attempts after renewals could not
// commit, so that agents can hand in what really happened. Its zero value is
// none.
type Amnesty struct {
	GrantedAt time.Time
	// Until is when reaping goes on.
	Until  time.Time
	Reason string
}

// The reasons of an amnesty.
const (
	// AmnestyBlind: no keeper swept and no renewal was stored for as long as an
	// agent may go without one: the database was down.
	AmnestyBlind = "renewals_could_not_commit"
	// AmnestyMany: leases of several hosts, most of all, ran out together.
	AmnestyMany = "most_leases_expired_together"
)

// AmnestyHosts is how many hosts' leases must expire together.
const AmnestyHosts = 3

// InForce reports whether reaping is held at now.
func (a Amnesty) InForce(now time.Time) bool { return !a.Until.IsZero() && now.Before(a.Until) }

// Mark remembers when something last happened, and its last long silence.
type Mark struct {
	At time.Time
	// GapFrom and GapTo are the last two happenings that lay at least the
	// threshold of Advance apart; zero: none.
	GapFrom, GapTo time.Time
}

// Advance is the mark after a happening at now.
func (m Mark) Advance(now time.Time, threshold time.Duration) Mark {
	if !m.At.IsZero() && now.Sub(m.At) >= threshold {
		m.GapFrom, m.GapTo = m.At, now
	}
	if now.After(m.At) {
		m.At = now
	}
	return m
}

// MarkEvery is how often the mark of renewals is written at most: three times
// in the time in which every agent renews.
func (t Timings) MarkEvery() time.Duration { return t.RenewEvery / 3 }

// BlindAfter is how long nobody may have swept, and no renewal may have been
// stored, before agents have fenced themselves: LeaseTTL less FenceMargin.
func (t Timings) BlindAfter() time.Duration { return t.LeaseTTL - t.FenceMargin }

// AmnestyFacts are what a keeper reads before it reaps.
type AmnestyFacts struct {
	Now time.Time
	// LastSweep of any keeper; zero: never.
	LastSweep time.Time
	// Renewals of any host, as RenewAttempts marks them (threshold BlindAfter).
	Renewals Mark
	// Running counts the leases held by running attempts. Expired counts those of
	// them that are over and that an agent got or renewed after the last amnesty
	// was granted (they end after its Until); ExpiredHosts are their hosts.
	Running, Expired, ExpiredHosts int
	// Last amnesty that was granted.
	Last Amnesty
}

// JudgeAmnesty decides whether to grant an amnesty (design.md section 6):
//
//   - when there was a time of BlindAfter, not over before the last sweep, in
//     which neither a keeper swept nor a renewal of any host was stored: the
//     database could not be reached; or
//   - when leases of at least AmnestyHosts hosts and over half of all running ones
//     have expired: renewals cannot be stored, though the keeper can work.
//
// Never twice without a renewal between, never a second time for a lease that
// was not renewed since the first (else three dead hosts of five would be held
// for ever by the renewals of the others), and never while one is in force. One
// dead host never triggers it.
func (t Timings) JudgeAmnesty(f AmnestyFacts) (Amnesty, bool) {
	if f.Running == 0 || f.Last.InForce(f.Now) {
		return Amnesty{}, false
	}
	if !f.Last.GrantedAt.IsZero() && !f.Renewals.At.After(f.Last.GrantedAt) {
		return Amnesty{}, false
	}
	grant := func(reason string) (Amnesty, bool) {
		return Amnesty{GrantedAt: f.Now, Until: f.Now.Add(t.LeaseTTL), Reason: reason}, true
	}
	switch {
	case t.blind(f):
		return grant(AmnestyBlind)
	case f.ExpiredHosts >= AmnestyHosts && 2*f.Expired > f.Running:
		return grant(AmnestyMany)
	}
	return Amnesty{}, false
}

// blind reports whether a silence of renewals and the time since the last sweep
// have BlindAfter in common. Agents may reconnect before the first sweep after
// an outage, so the silence may be over already: then the mark's gap tells of it.
func (t Timings) blind(f AmnestyFacts) bool {
	if f.LastSweep.IsZero() {
		return false
	}
	silent := func(from, to time.Time) bool {
		if from.Before(f.LastSweep) {
			from = f.LastSweep
		}
		return to.Sub(from) >= t.BlindAfter()
	}
	return silent(f.Renewals.At, f.Now) || silent(f.Renewals.GapFrom, f.Renewals.GapTo)
}

// MayEnd reports whether a keeper whose sweep was judged may still end a running
// attempt at now: no amnesty came into force, and some keeper's sweep is younger
// than BlindAfter. A keeper that was stopped in mid-sweep leaves the attempt to
// the next sweep, which judges the amnesty first.
func (t Timings) MayEnd(last Amnesty, lastSweep, now time.Time) bool {
	return !last.InForce(now) && (lastSweep.IsZero() || now.Sub(lastSweep) < t.BlindAfter())
}
