package storetest

import (
	"errors"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func enrolChecks() []check {
	return []check{
		in("a token lets one host in", enrolOnce),
		in("each refusal has its kind and spends nothing", enrolRefusals),
		in("the same key repeats the answer within ten minutes", enrolRepeat),
		in("two keys at once: one host", func(w *world) { enrolAtOnce(w, false) }),
		in("one key twice at once: one host", func(w *world) { enrolAtOnce(w, true) }),
		in("tokens are listed and revoked", enrolments),
		in("an unknown host has no key and makes no call", unknownHost),
	}
}

func (w *world) enrolParams(secret, name, key string) store.EnrolParams {
	return store.EnrolParams{
		Actor:     berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "enrol"}},
		TokenHash: hashOf(secret), Host: newID[berth.HostID](w.Env), Name: name, PublicKey: keyOf(key),
	}
}

func enrolOnce(w *world) {
	tok := w.token("secret", "lab-*", w.pool.ID)
	if tok.Pool != w.pool.ID || tok.PoolName != w.pool.Name || tok.Pattern != "lab-*" || !tok.CreatedAt.Equal(w.Clock.Now()) || !tok.ExpiresAt.Equal(w.Clock.Now().Add(time.Hour)) {
		w.t.Errorf("token %+v", tok)
	}
	p := w.enrolParams("secret", "lab-1", "k")
	h, err := w.Store.Enrol(bg(), p)
	w.must("enrol", err)
	if h.ID != p.Host || h.Name != "lab-1" || h.Pool != w.pool.ID || h.PoolName != w.pool.Name || h.State != berth.HostEnrolled || h.Epoch != 0 || !h.EnrolledAt.Equal(w.Clock.Now()) || !h.LastSeenAt.IsZero() {
		w.t.Errorf("host %+v", h)
	}
	got, err := w.Store.GetHost(bg(), h.ID)
	if err != nil || diff(h, got) != "" {
		w.t.Errorf("get host: %v\n%s", err, diff(h, got))
	}
	keys, err := w.Store.HostKeys(bg(), h.ID)
	if err != nil || string(keys.Current) != string(keyOf("k")) || keys.Next != nil {
		w.t.Errorf("host keys: %v, %v", keys, err)
	}
	if w.acted(berth.AuditHostEnrolled, "host", string(h.ID)) != 1 || w.acted(berth.AuditEnrolmentCreated, "enrolment", string(tok.ID)) != 1 {
		w.t.Errorf("audit rows are missing: %+v", w.audit("", ""))
	}
	list, _, err := w.Store.ListEnrolments(bg(), store.Page{})
	if err != nil || len(list) != 1 || list[0].UsedBy != h.ID || !list[0].UsedAt.Equal(w.Clock.Now()) {
		w.t.Errorf("tokens %+v, %v", list, err)
	}
}

func enrolRefusals(w *world) {
	w.host("taken", 0)
	for _, s := range []string{"used", "old", "revoked", "good", "wide"} {
		tok := w.token(s, map[bool]string{true: "*", false: "lab-*"}[s == "wide"], w.pool.ID)
		if s == "revoked" {
			w.must("revoke", w.Store.RevokeEnrolment(bg(), w.operator, tok.ID))
		}
	}
	_, err := w.Store.Enrol(bg(), w.enrolParams("used", "lab-0", "k0"))
	w.must("enrol", err)
	short, err := w.Store.CreateEnrolment(bg(), store.CreateEnrolmentParams{Actor: w.operator, ID: newID[berth.EnrolmentID](w.Env), Pool: w.pool.ID, Pattern: "*", TokenHash: hashOf("short"), TTL: time.Minute})
	w.must("create enrolment", err)
	w.Clock.Set(short.ExpiresAt.Add(time.Microsecond))
	for _, c := range []struct {
		token, name, key string
		want             error
	}{
		{"nobody's", "lab-1", "k", berth.ErrNotFound},
		{"used", "lab-1", "k", berth.ErrUsed},
		{"used", "lab-0", "k", berth.ErrUsed},
		{"revoked", "lab-1", "k", berth.ErrExpired},
		{"short", "lab-1", "k", berth.ErrExpired},
		{"good", "shed-1", "k", berth.ErrInvalid},
		{"good", "lab-0", "k", berth.ErrExists},
		{"wide", "taken", "k", berth.ErrExists},
		{"wide", "taken", "taken", berth.ErrExists},
	} {
		_, err := w.Store.Enrol(bg(), w.enrolParams(c.token, c.name, c.key))
		w.fails(c.token+" "+c.name, err, c.want)
	}
	_, err = w.Store.Enrol(bg(), w.enrolParams("good", "lab-1", "k"))
	w.must("the refusals spent the token", err)
	hosts, _, err := w.Store.ListHosts(bg(), "", store.Page{})
	if err != nil || len(hosts) != 3 {
		w.t.Errorf("%d hosts, %v", len(hosts), err)
	}
	w.Clock.Advance(time.Hour)
	_, err = w.Store.Enrol(bg(), w.enrolParams("wide", "lab-9", "k9"))
	w.fails("after its time", err, berth.ErrExpired)
}

func enrolRepeat(w *world) {
	w.token("secret", "*", w.pool.ID)
	first, err := w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "k"))
	w.must("enrol", err)
	w.Clock.Advance(berth.EnrolmentRepeatWithin - time.Second)
	again, err := w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "k"))
	if err != nil || again.ID != first.ID {
		w.t.Fatalf("repeat: host %s, should be %s; %v", again.ID, first.ID, err)
	}
	if n := w.acted(berth.AuditHostEnrolled, "host", string(first.ID)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	_, err = w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "other"))
	w.fails("another key", err, berth.ErrUsed)
	w.Clock.Advance(2 * time.Second)
	_, err = w.Store.Enrol(bg(), w.enrolParams("secret", "lab-1", "k"))
	w.fails("after ten minutes", err, berth.ErrUsed)
}

func enrolAtOnce(w *world, sameKey bool) {
	second := w.second()
	w.token("secret", "*", w.pool.ID)
	a, b := w.enrolParams("secret", "lab-1", "k1"), w.enrolParams("secret", "lab-2", "k2")
	if sameKey {
		b.Name, b.PublicKey = a.Name, a.PublicKey
	}
	got := both(
		func() (berth.Host, error) { return w.Store.Enrol(bg(), a) },
		func() (berth.Host, error) { return second.Enrol(bg(), b) },
	)
	hosts, _, err := w.Store.ListHosts(bg(), "", store.Page{})
	if err != nil || len(hosts) != 1 {
		w.t.Fatalf("%d hosts, %v", len(hosts), err)
	}
	if sameKey {
		if got[0].err != nil || got[1].err != nil || got[0].value.ID != got[1].value.ID {
			w.t.Fatalf("%s, %v and %s, %v", got[0].value.ID, got[0].err, got[1].value.ID, got[1].err)
		}
		return
	}
	loser := got[0].err
	if loser == nil {
		loser = got[1].err
	}
	if (got[0].err == nil) == (got[1].err == nil) || !errors.Is(loser, berth.ErrUsed) {
		w.t.Fatalf("errors %v and %v", got[0].err, got[1].err)
	}
}

func enrolments(w *world) {
	used, open := w.token("a", "*", w.pool.ID), w.token("b", "*", w.pool.ID)
	_, err := w.Store.Enrol(bg(), w.enrolParams("a", "lab-1", "k"))
	w.must("enrol", err)
	w.fails("revoke a used one", w.Store.RevokeEnrolment(bg(), w.operator, used.ID), berth.ErrWrongState)
	w.fails("revoke an unknown one", w.Store.RevokeEnrolment(bg(), w.operator, newID[berth.EnrolmentID](w.Env)), berth.ErrNotFound)
	w.must("revoke", w.Store.RevokeEnrolment(bg(), w.operator, open.ID))
	at := w.Clock.Now()
	w.Clock.Advance(time.Second)
	w.must("revoke again", w.Store.RevokeEnrolment(bg(), w.operator, open.ID))
	list, next, err := w.Store.ListEnrolments(bg(), store.Page{Size: 1})
	if err != nil || len(list) != 1 || list[0].ID != used.ID || next != string(used.ID) {
		w.t.Fatalf("first page %+v, next %q, %v", list, next, err)
	}
	list, next, err = w.Store.ListEnrolments(bg(), store.Page{Size: 1, After: next})
	if err != nil || len(list) != 1 || list[0].ID != open.ID || next != "" || !list[0].RevokedAt.Equal(at) {
		w.t.Fatalf("second page %+v, next %q, %v", list, next, err)
	}
	if n := w.acted(berth.AuditEnrolmentRevoked, "enrolment", string(open.ID)); n != 1 {
		w.t.Errorf("%d audit rows of the revocation", n)
	}
	_, err = w.Store.CreateEnrolment(bg(), store.CreateEnrolmentParams{Actor: w.operator, ID: newID[berth.EnrolmentID](w.Env), Pool: newID[berth.PoolID](w.Env), Pattern: "*", TokenHash: hashOf("x"), TTL: time.Hour})
	w.fails("a token of an unknown pool", err, berth.ErrNotFound)
}

// calls are all calls of an agent, after its sync, under (attempt, fence).
func (a *agent) calls(h store.Holder) map[string]error {
	as := store.Assignment{Attempt: h.Attempt, Fence: h.Fence, Number: 1}
	c := a.call()
	return map[string]error{
		"Heartbeat":        err2(a.store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: c})),
		"ClaimAttempts":    err3(a.store.ClaimAttempts(bg(), store.ClaimParams{AgentCall: c, ClaimID: newID[string](a.w.Env), Max: 10})),
		"StartAttempts":    err3(a.store.StartAttempts(bg(), store.StartParams{AgentCall: c, Items: []store.Holder{h}})),
		"RenewAttempts":    err3(a.store.RenewAttempts(bg(), store.RenewParams{AgentCall: c, Items: []store.RenewItem{{Holder: h}}})),
		"CompleteAttempts": err3(a.store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: c, Items: []store.CompleteItem{item(as, berth.OutcomeFailed)}})),
		"ReleaseAttempts":  err3(a.store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: c, Items: []store.Holder{h}})),
		"CleanDevice":      a.store.CleanDevice(bg(), store.CleanParams{AgentCall: c, Device: a.ids[0], Fence: h.Fence}),
		"CheckUpload":      a.store.CheckUpload(bg(), store.HolderParams{AgentCall: c, Holder: h}),
		"AppendLog":        err3(a.store.AppendLog(bg(), a.chunk(as, 0, "x"))),
		"AddArtifact":      err2(a.store.AddArtifact(bg(), a.artifact(as, "x.png", "x"))),
	}
}

func unknownHost(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	ghost := *a
	ghost.id = newID[berth.HostID](w.Env)
	_, err := w.Store.HostKeys(bg(), ghost.id)
	w.fails("key", err, berth.ErrNotFound)
	_, err = w.Store.GetHost(bg(), ghost.id)
	w.fails("get", err, berth.ErrNotFound)
	_, err = w.Store.SyncHost(bg(), ghost.syncParams())
	w.fails("sync", err, berth.ErrNotFound)
	for name, err := range ghost.calls(holder(as)) {
		w.fails(name, err, berth.ErrNotFound)
	}
}
