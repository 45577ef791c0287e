package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func hostKeyChecks() []check {
	return []check{
		in("the next key counts beside the old one until it is used", keyRotates),
		in("each offer that may not be made is refused and changes nothing", keyRefusals),
		in("an operator asks for a rotation, and heartbeats tell it until it is done", keyRequested),
		in("a revoked host has no key", keyOfRevoked),
		in("two offers and two promotions at once leave one key", keysAtOnce),
	}
}

// keys are a host's, which must be there.
func (a *agent) keys() store.HostKeys {
	a.w.t.Helper()
	k, err := a.w.Store.HostKeys(bg(), a.id)
	a.w.must("host keys", err)
	return k
}

func (a *agent) offer(key, under string) error {
	return a.store.OfferHostKey(bg(), store.OfferHostKeyParams{AgentCall: a.call(), Key: keyOf(key), Under: keyOf(under)})
}

func (a *agent) promote(key string) error {
	return a.store.PromoteHostKey(bg(), a.actor, a.id, keyOf(key))
}

// counts asserts which keys the host has; next "" is none.
func (a *agent) counts(current, next string) {
	a.w.t.Helper()
	var want []byte
	if next != "" {
		want = keyOf(next)
	}
	if k := a.keys(); !bytes.Equal(k.Current, keyOf(current)) || !bytes.Equal(k.Next, want) {
		a.w.t.Fatalf("keys %x, should be those of %q and %q", k, current, next)
	}
}

func keyRotates(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	a.counts("h1", "")
	for range 2 {
		w.must("offer", a.offer("n1", "h1"))
		a.counts("h1", "n1")
	}
	// An agent that lost its memory of the first offers another one.
	w.must("offer another", a.offer("n2", "h1"))
	a.counts("h1", "n2")
	w.fails("promote what is offered no more", a.promote("n1"), berth.ErrNotFound)
	w.Clock.Advance(time.Second)
	for range 2 {
		w.must("promote", a.promote("n2"))
		a.counts("n2", "")
	}
	if h := w.hostOf(a); !h.KeyChangedAt.Equal(w.Clock.Now()) || h.Epoch != a.epoch || h.State != berth.HostOnline {
		w.t.Errorf("host %+v", h)
	}
	w.must("a late repeat of the offer", a.offer("n2", "h1"))
	w.fails("an offer under the old key", a.offer("n3", "h1"), berth.ErrUnauthenticated)
	w.fails("promote the old key", a.promote("h1"), berth.ErrNotFound)
	a.counts("n2", "")
	// What ran goes on.
	a.completed(as, berth.OutcomeSucceeded)
	for action, n := range map[berth.AuditAction]int{berth.AuditHostKeyOffered: 2, berth.AuditHostKeyRotated: 1} {
		if got := w.acted(action, "host", string(a.id)); got != n {
			w.t.Errorf("%d rows of %s, should be %d", got, action, n)
		}
	}
	rows := w.audit("host", string(a.id))
	last := rows[len(rows)-1]
	if last.Actor.ID != string(a.id) || last.Before != berth.HostKeyFacts(keyOf("h1")) || last.After != berth.HostKeyFacts(keyOf("n2")) {
		w.t.Errorf("audit row %+v", last)
	}
}

func keyRefusals(w *world) {
	a, b := w.host("h1", 1), w.host("h2", 1)
	w.must("offer", b.offer("theirs", "h2"))
	old := *a
	a.restart()
	ahead := *a
	ahead.epoch++
	ghost := *a
	ghost.id = newID[berth.HostID](w.Env)
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"an older epoch", old.offer("n", "h1"), berth.ErrStaleEpoch},
		{"an epoch ahead", ahead.offer("n", "h1"), berth.ErrEpochAhead},
		{"an unknown host offers", ghost.offer("n", "h1"), berth.ErrNotFound},
		{"an unknown host promotes", ghost.promote("n"), berth.ErrNotFound},
		{"under another host's key", a.offer("n", "h2"), berth.ErrUnauthenticated},
		{"under the key that it offers", a.offer("n", "n"), berth.ErrUnauthenticated},
		{"promote another host's offer", a.promote("theirs"), berth.ErrNotFound},
		{"promote without an offer", a.promote("n"), berth.ErrNotFound},
	} {
		w.fails(c.what, c.err, c.want)
	}
	a.counts("h1", "")
	b.counts("h2", "theirs")
}

func keyRequested(w *world) {
	a := w.host("h1", 1)
	told := func(want bool) {
		w.t.Helper()
		// With news and without: the two take different ways in an engine.
		for _, health := range []berth.Health{berth.HealthSuspect, berth.HealthGood, berth.HealthGood} {
			res, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Health: map[berth.DeviceID]berth.Health{a.ids[0]: health}})
			if err != nil || res.RotateKey != want {
				w.t.Fatalf("heartbeat: %+v, %v, should tell %v", res, err, want)
			}
		}
	}
	told(false)
	asked := w.Clock.Advance(time.Second)
	for range 2 {
		h, err := w.Store.RequestKeyRotation(bg(), w.operator, a.id)
		if err != nil || !h.KeyRotationRequestedAt.Equal(asked) || diff(h, w.hostOf(a)) != "" {
			w.t.Fatalf("request: %+v, %v", h, err)
		}
		w.Clock.Advance(time.Second)
	}
	told(true)
	w.must("offer", a.offer("n", "h1"))
	told(true)
	w.must("promote", a.promote("n"))
	told(false)
	if h := w.hostOf(a); !h.KeyRotationRequestedAt.IsZero() || h.KeyChangedAt.IsZero() {
		w.t.Errorf("host %+v", h)
	}
	if n := w.acted(berth.AuditKeyRotationAsked, "host", string(a.id)); n != 1 {
		w.t.Errorf("%d rows of the request", n)
	}
	if row := w.lastOf(berth.AuditKeyRotationAsked, "host", string(a.id)); row.Before != berth.KeyRotationFacts(false) || row.After != berth.KeyRotationFacts(true) {
		w.t.Errorf("audit row %+v", row)
	}
	_, err := w.Store.RequestKeyRotation(bg(), w.operator, newID[berth.HostID](w.Env))
	w.fails("an unknown host", err, berth.ErrNotFound)
}

func keyOfRevoked(w *world) {
	a := w.host("h1", 1)
	w.must("offer", a.offer("n", "h1"))
	w.revoke(a)
	_, err := w.Store.HostKeys(bg(), a.id)
	w.fails("its keys", err, berth.ErrNotFound)
	w.fails("it offers", a.offer("m", "h1"), berth.ErrNotFound)
	w.fails("it promotes", a.promote("n"), berth.ErrNotFound)
	_, err = w.Store.RequestKeyRotation(bg(), w.operator, a.id)
	w.fails("a rotation is asked for", err, berth.ErrWrongState)
}

func keysAtOnce(w *world) {
	a := w.host("h1", 1)
	other := *a
	other.store = w.second()
	offers := both(
		func() (int, error) { return 0, a.offer("n1", "h1") },
		func() (int, error) { return 0, other.offer("n2", "h1") },
	)
	for _, o := range offers {
		w.must("offer", o.err)
	}
	promotions := both(
		func() (int, error) { return 0, a.promote("n1") },
		func() (int, error) { return 0, other.promote("n2") },
	)
	winner := "n1"
	if promotions[0].err != nil {
		winner = "n2"
	}
	if (promotions[0].err == nil) == (promotions[1].err == nil) {
		w.t.Fatalf("promotions: %v and %v", promotions[0].err, promotions[1].err)
	}
	a.counts(winner, "")
}

// enrolHostileChecks try the ways around an enrolment token.
func enrolHostileChecks() []check {
	return []check{
		in("fifty hosts race for one token: one gets in", enrolFifty),
		in("a token is over to the microsecond", enrolMicrosecond),
		in("a repeat is the same host under the same name, and not a revoked one", enrolRepeatsExactly),
		in("a host joins its token's pool", enrolPool),
		in("what is no name and no key is refused", enrolForm),
		in("a revocation and an enrolment at once: one of them", enrolRevokedMeanwhile),
		in("the name of a revoked host is free, its history stays its own", enrolTakesOver),
		in("two take the name of a revoked host at once: one gets it", enrolTakesOverAtOnce),
	}
}

func enrolFifty(w *world) {
	const n = 50
	stores := []store.Store{w.Store, w.second()}
	w.token("secret", "*", w.pool.ID)
	var (
		wg   sync.WaitGroup
		errs [n]error
		ps   [n]store.EnrolParams
	)
	for i := range n {
		ps[i] = w.enrolParams("secret", fmt.Sprintf("lab-%d", i), fmt.Sprintf("k%d", i))
	}
	for i := range n {
		wg.Go(func() { _, errs[i] = stores[i%2].Enrol(context.Background(), ps[i]) })
	}
	wg.Wait()
	in := 0
	for _, err := range errs {
		switch {
		case err == nil:
			in++
		case !errors.Is(err, berth.ErrUsed):
			w.t.Errorf("a loser: %v", err)
		}
	}
	hosts, _, err := w.Store.ListHosts(bg(), "", store.Page{})
	if err != nil || in != 1 || len(hosts) != 1 {
		w.t.Fatalf("%d got in, %d hosts, %v", in, len(hosts), err)
	}
}

func enrolMicrosecond(w *world) {
	tok := w.token("late", "*", w.pool.ID)
	w.token("early", "*", w.pool.ID)
	w.Clock.Set(tok.ExpiresAt.Add(-time.Microsecond))
	_, err := w.Store.Enrol(bg(), w.enrolParams("early", "lab-1", "k1"))
	w.must("a microsecond before the end", err)
	w.Clock.Set(tok.ExpiresAt)
	_, err = w.Store.Enrol(bg(), w.enrolParams("late", "lab-2", "k2"))
	w.fails("at the end", err, berth.ErrExpired)
	// An answer that was lost is given again also after the token's end.
	_, err = w.Store.Enrol(bg(), w.enrolParams("early", "lab-1", "k1"))
	w.must("the repeat", err)
}

func enrolRepeatsExactly(w *world) {
	w.token("secret", "*", w.pool.ID)
	h, err := w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "k"))
	w.must("enrol", err)
	_, err = w.Store.Enrol(bg(), w.enrolParams("secret", "lab-2", "k"))
	w.fails("the same key under another name", err, berth.ErrUsed)
	_, _, err = w.Store.RevokeHost(bg(), w.operator, h.ID)
	w.must("revoke", err)
	_, err = w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "k"))
	w.fails("a revoked host", err, berth.ErrUsed)
}

func enrolPool(w *world) {
	other := w.makePool("other")
	w.token("mine", "*", w.pool.ID)
	w.token("theirs", "*", other.ID)
	for token, pool := range map[string]berth.PoolID{"mine": w.pool.ID, "theirs": other.ID} {
		h, err := w.Store.Enrol(bg(), w.enrolParams(token, "lab-"+token, token))
		if err != nil || h.Pool != pool {
			w.t.Errorf("%s: pool %s, %v", token, h.Pool, err)
		}
	}
}

func enrolForm(w *world) {
	w.token("secret", "*", w.pool.ID)
	for _, name := range []string{
		"", "Lab-1", "lab 1", "lab-1\n", "lab\x00", "láb", "lab-１", "l\u0430b", "../lab", "lab/1", "-lab", strings.Repeat("a", 64), "\u202elab",
	} {
		_, err := w.Store.Enrol(bg(), w.enrolParams("secret", name, "k"))
		w.fails(fmt.Sprintf("name %q", name), err, berth.ErrInvalid)
	}
	for _, n := range []int{0, 31, 33} {
		p := w.enrolParams("secret", "lab-1", "k")
		p.PublicKey = make([]byte, n)
		_, err := w.Store.Enrol(bg(), p)
		w.fails(fmt.Sprintf("a key of %d bytes", n), err, berth.ErrInvalid)
	}
	_, err := w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "k"))
	w.must("the refusals spent the token", err)
}

func enrolRevokedMeanwhile(w *world) {
	second := w.second()
	tok := w.token("secret", "*", w.pool.ID)
	p := w.enrolParams("secret", "lab-1", "k")
	got := both(
		func() (int, error) { return 0, err2(w.Store.Enrol(bg(), p)) },
		func() (int, error) { return 0, second.RevokeEnrolment(bg(), w.operator, tok.ID) },
	)
	enrolled, revoked := got[0].err, got[1].err
	switch {
	case enrolled == nil && errors.Is(revoked, berth.ErrWrongState):
	case revoked == nil && errors.Is(enrolled, berth.ErrExpired):
	default:
		w.t.Errorf("enrolment: %v, revocation: %v", enrolled, revoked)
	}
}

func enrolTakesOver(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	name := a.name
	w.token("early", "*", w.pool.ID)
	_, err := w.Store.Enrol(bg(), w.enrolParams("early", name, "new"))
	w.fails("the name of a living host", err, berth.ErrExists)
	w.revoke(a)
	anew, err := w.Store.Enrol(bg(), w.enrolParams("early", name, "new"))
	if err != nil || anew.ID == a.id || anew.Name != name || anew.State != berth.HostEnrolled {
		w.t.Fatalf("enrolled %+v, %v", anew, err)
	}
	old := w.hostOf(a)
	if old.Name != berth.FormerHostName(name, a.id) || old.State != berth.HostRevoked || old.Devices != 1 {
		w.t.Errorf("the old host is %+v", old)
	}
	at, err := w.Store.GetTask(bg(), all, as.Task)
	if err != nil || at.ID != as.Task {
		w.t.Errorf("its task: %v", err)
	}
	w.fails("the old host's call", err2(w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})), berth.ErrNotFound)
	if w.acted(berth.AuditHostRenamed, "host", string(a.id)) != 1 {
		w.t.Errorf("the trail does not tell the old host's new name: %+v", w.audit("host", string(a.id)))
	}
	// And once more: the former ones do not meet.
	_, _, err = w.Store.RevokeHost(bg(), w.operator, anew.ID)
	w.must("revoke", err)
	w.token("again", "*", w.pool.ID)
	_, err = w.Store.Enrol(bg(), w.enrolParams("again", name, "newer"))
	w.must("enrol again", err)
}

func enrolTakesOverAtOnce(w *world) {
	second := w.second()
	a := w.host("h1", 1)
	w.revoke(a)
	w.token("a", "*", w.pool.ID)
	w.token("b", "*", w.pool.ID)
	pa, pb := w.enrolParams("a", a.name, "ka"), w.enrolParams("b", a.name, "kb")
	got := both(
		func() (berth.Host, error) { return w.Store.Enrol(bg(), pa) },
		func() (berth.Host, error) { return second.Enrol(bg(), pb) },
	)
	loser := got[0].err
	if loser == nil {
		loser = got[1].err
	}
	if (got[0].err == nil) == (got[1].err == nil) || !errors.Is(loser, berth.ErrExists) {
		w.t.Fatalf("errors %v and %v", got[0].err, got[1].err)
	}
}
