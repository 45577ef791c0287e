package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func secretChecks() []check {
	return []check{
		in("a secret is made, changed and deleted, each with its audit row", secretChanges),
		in("grants are to users that are there and to roles", secretGrants),
		in("a list by name, in pages, and of a grantee", secretList),
		in("a submit names secrets that are granted to the submitter", secretSubmit),
		in("values go to the host that claimed the attempt, with an audit row each time", secretDelivered),
		in("nobody else gets a value", secretForeign),
		in("what was withdrawn, deleted or disabled is not delivered", secretWithdrawn),
		in("a host that speaks an older protocol is handed nothing that names secrets", secretOlderProtocol),
		in("a new value counts for the next attempt, and the submitter's grants for whoever retries", secretReplaced),
		in("two values at once are two versions", secretAtOnce),
	}
}

// somebody makes a user and is its actor.
func (w *world) somebody(name string, roles ...berth.Role) berth.Actor {
	w.t.Helper()
	id := newID[berth.UserID](w.Env)
	w.must("create user", w.Store.CreateUser(bg(), w.operator, berth.User{ID: id, Name: name + w.suffix, Roles: roles}, redact.NewString("hash")))
	return berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: string(id)}, RequestID: "req-" + name}
}

func toUser(a berth.Actor) berth.SecretGrant {
	return berth.SecretGrant{Kind: berth.GrantUser, Grantee: a.ID}
}

func toRole(r berth.Role) berth.SecretGrant {
	return berth.SecretGrant{Kind: berth.GrantRole, Grantee: string(r)}
}

// sealing stands for the master key: the engines never look inside.
func sealing(name, value string) func(int) (redact.Bytes, error) {
	return func(version int) (redact.Bytes, error) {
		return redact.NewBytes(fmt.Appendf(nil, "sealed %s %d %s %s", name, version, value, marker)), nil
	}
}

func sealedValue(name string, version int, value string) store.SealedValue {
	b, _ := sealing(name, value)(version)
	return store.SealedValue{Kind: store.SealedSecret, ID: name, Version: version, Value: b}
}

func setGrants(grants ...berth.SecretGrant) berth.GrantChange { return berth.GrantChange{Set: &grants} }

func (w *world) putSecret(name, value string, grants ...berth.SecretGrant) berth.Secret {
	w.t.Helper()
	s, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: name, Seal: sealing(name, value), Grants: setGrants(grants...)})
	w.must("put secret", err)
	return s
}

func (w *world) grant(name string, grants ...berth.SecretGrant) {
	w.t.Helper()
	_, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: name, Grants: setGrants(grants...)})
	w.must("grant", err)
}

func withSecrets(names ...string) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.Secrets = names }
}

// submitWith submits one task with a credential of these roles.
func (w *world) submitWith(actor berth.Actor, roles []berth.Role, mods ...func(*berth.NewTask)) (berth.Task, error) {
	w.t.Helper()
	p := w.submitParams(w.newTask(mods...))
	p.Actor, p.Scope, p.Roles = actor, w.mine(actor), roles
	res, err := w.Store.SubmitTasks(bg(), p)
	if err != nil {
		return berth.Task{}, err
	}
	return res.Tasks[0], nil
}

var submitter = []berth.Role{berth.RoleSubmitter}

// deliver asks for the values of attempts and says how often each was audited.
func (a *agent) deliver(as ...store.Assignment) map[berth.AttemptID][]store.SealedValue {
	a.w.t.Helper()
	values, err := a.store.SecretValues(bg(), a.call(), attemptsOf(as))
	a.w.must("secret values", err)
	return values
}

func attemptsOf(as []store.Assignment) []berth.AttemptID {
	ids := make([]berth.AttemptID, len(as))
	for i, x := range as {
		ids[i] = x.Attempt
	}
	return ids
}

func sameValues(got, want []store.SealedValue) bool {
	return slices.EqualFunc(got, want, func(a, b store.SealedValue) bool {
		return a.Kind == b.Kind && a.ID == b.ID && a.Version == b.Version && a.Value.Equal(b.Value)
	})
}

func (w *world) wantFacts(what string, row berth.AuditEvent, before, after map[string]string) {
	w.t.Helper()
	if row.Before != berth.NewFacts(before) || row.After != berth.NewFacts(after) {
		w.t.Errorf("%s: before %s, after %s", what, row.Before, row.After)
	}
}

func secretChanges(w *world) {
	_, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db"})
	w.fails("a secret without a value", err, berth.ErrInvalid)
	_, err = w.Store.GetSecret(bg(), "db")
	w.fails("it was not made", err, berth.ErrNotFound)

	text := "the " + marker
	want := berth.Secret{Name: "db", Description: text, Version: 1, CreatedAt: w.Clock.Now(), UpdatedAt: w.Clock.Now(), Grants: []berth.SecretGrant{toRole(berth.RoleSubmitter)}}
	grants := []berth.SecretGrant{toRole(berth.RoleSubmitter), toRole(berth.RoleSubmitter)}
	got, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "a"), Description: &text, Grants: setGrants(grants...)})
	if err != nil || diff(want, got) != "" {
		w.t.Fatalf("made: %v\n%s", err, diff(want, got))
	}
	w.Clock.Advance(time.Minute)
	// What is not given stays, and what changes nothing writes nothing.
	for range 2 {
		got, err = w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Grants: setGrants(grants...), Description: &text})
		if err != nil || diff(want, got) != "" {
			w.t.Errorf("put without a change: %v\n%s", err, diff(want, got))
		}
	}
	want.Version, want.UpdatedAt = 2, w.Clock.Now()
	got, err = w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "a")})
	if err != nil || diff(want, got) != "" {
		w.t.Errorf("the same value again: %v\n%s", err, diff(want, got))
	}
	for _, same := range []bool{true, true, false} { // and what the caller knows to be the old one
		want.UpdatedAt = w.Clock.Now()
		got, err = w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "a"), Same: func(old store.SealedValue) bool {
			if !sameValues([]store.SealedValue{old}, []store.SealedValue{sealedValue("db", 2, "a")}) {
				w.t.Errorf("asked about %+v", old)
			}
			return same
		}})
		if !same {
			want.Version++
		}
		if err != nil || diff(want, got) != "" {
			w.t.Errorf("the same value (%v) again: %v\n%s", same, err, diff(want, got))
		}
	}
	ann := w.somebody("ann", berth.RoleSubmitter)
	none := ""
	want.Description, want.Grants = "", []berth.SecretGrant{toUser(ann)}
	got, err = w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Description: &none, Grants: setGrants(want.Grants...)})
	if err != nil || diff(want, got) != "" {
		w.t.Errorf("other grants: %v\n%s", err, diff(want, got))
	}
	if got, err = w.second().GetSecret(bg(), "db"); err != nil || diff(want, got) != "" {
		w.t.Errorf("read: %v\n%s", err, diff(want, got))
	}
	_, err = w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Seal: func(int) (redact.Bytes, error) {
		return redact.Bytes{}, berth.ErrUnavailable
	}})
	w.fails("a value that cannot be sealed", err, berth.ErrUnavailable)

	w.must("delete", w.Store.DeleteSecret(bg(), w.operator, "db"))
	w.fails("delete again", w.Store.DeleteSecret(bg(), w.operator, "db"), berth.ErrNotFound)
	if got := w.putSecret("db", "b"); got.Version != 1 || got.Grants != nil {
		w.t.Errorf("made anew: %+v", got)
	}
	rows := w.audit("secret", "db")
	if len(rows) != 6 {
		w.t.Fatalf("%d audit rows: %+v", len(rows), rows)
	}
	for i, want := range []berth.AuditAction{berth.AuditSecretCreated, berth.AuditSecretChanged, berth.AuditSecretChanged, berth.AuditSecretChanged, berth.AuditSecretDeleted, berth.AuditSecretCreated} {
		if rows[i].Action != want || rows[i].Actor.ID != w.operator.ID {
			w.t.Errorf("row %d: %+v", i, rows[i])
		}
	}
	w.wantFacts("made", rows[0], nil, map[string]string{"version": "1", "description": "changed", "grant role:submitter": "yes"})
	w.wantFacts("a new value", rows[1], map[string]string{"version": "1"}, map[string]string{"version": "2"})
	w.wantFacts("other grants", rows[3], map[string]string{"grant role:submitter": "yes"}, map[string]string{"description": "changed", "grant user:" + ann.ID: "yes"})
	w.wantFacts("deleted", rows[4], map[string]string{"version": "3", "grant user:" + ann.ID: "yes"}, nil)
}

func secretGrants(w *world) {
	ann := w.somebody("ann", berth.RoleSubmitter)
	nobody := berth.Actor{Principal: berth.Principal{ID: newID[string](w.Env)}}
	for _, c := range []struct {
		path   string
		grants []berth.SecretGrant
	}{
		{"grants[1].user", []berth.SecretGrant{toUser(ann), toUser(nobody)}},
		{"grants[0].user", []berth.SecretGrant{{Kind: berth.GrantUser, Grantee: "ann"}}},
		{"grants[0].role", []berth.SecretGrant{toRole(berth.RoleHost)}},
		{"grants[0]", []berth.SecretGrant{{}}},
	} {
		_, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "a"), Grants: setGrants(c.grants...)})
		if at := faultPath(err); at != c.path {
			w.t.Errorf("%v: %v, should name %s", c.grants, err, c.path)
		}
	}
	_, err := w.Store.GetSecret(bg(), "db")
	w.fails("nothing was stored", err, berth.ErrNotFound)

	// Two who add and remove do not undo each other.
	bob := w.somebody("bob", berth.RoleSubmitter)
	w.putSecret("db", "a", toRole(berth.RoleAdmin))
	change := func(c berth.GrantChange, want ...berth.SecretGrant) {
		w.t.Helper()
		slices.SortFunc(want, func(a, b berth.SecretGrant) int { return strings.Compare(a.String(), b.String()) })
		for range 2 {
			s, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Grants: c})
			if err != nil || diff(want, s.Grants) != "" {
				w.t.Errorf("%+v: %v\n%s", c, err, diff(want, s.Grants))
			}
		}
	}
	change(berth.GrantChange{Add: []berth.SecretGrant{toUser(ann)}}, toRole(berth.RoleAdmin), toUser(ann))
	change(berth.GrantChange{Add: []berth.SecretGrant{toUser(bob)}, Remove: []berth.SecretGrant{toRole(berth.RoleAdmin), toUser(bob)}}, toUser(ann), toUser(bob))
	change(berth.GrantChange{Remove: []berth.SecretGrant{toUser(ann), toUser(bob)}})
	for path, c := range map[string]berth.GrantChange{
		"grants":                {Set: &[]berth.SecretGrant{}, Add: []berth.SecretGrant{toUser(ann)}},
		"add_grants[0].user":    {Add: []berth.SecretGrant{toUser(nobody)}},
		"remove_grants[0].role": {Remove: []berth.SecretGrant{toRole(berth.RoleHost)}},
	} {
		_, err := w.Store.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Grants: c})
		if at := faultPath(err); at != path {
			w.t.Errorf("%+v: %v, should name %s", c, err, path)
		}
	}
}

// faultPath is the one path that an *berth.InvalidError names.
func faultPath(err error) string {
	var invalid *berth.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Fields) != 1 {
		return ""
	}
	return invalid.Fields[0].Path
}

func secretList(w *world) {
	ann := w.somebody("ann", berth.RoleSubmitter)
	w.putSecret("c", "x", toUser(ann))
	w.putSecret("a", "x", toRole(berth.RoleOperator))
	w.putSecret("b", "x", toRole(berth.RoleSubmitter), toUser(ann))
	w.putSecret("d", "x")
	list := func(who *store.Grantee) string {
		var names []string
		for after := ""; ; {
			page, next, err := w.Store.ListSecrets(bg(), who, store.Page{Size: 1, After: after})
			w.must("list", err)
			for _, s := range page {
				names = append(names, fmt.Sprintf("%s/%d", s.Name, len(s.Grants)))
			}
			if after = next; next == "" {
				return strings.Join(names, " ")
			}
		}
	}
	for _, c := range []struct {
		who  *store.Grantee
		want string
	}{
		{nil, "a/1 b/2 c/1 d/0"},
		{&store.Grantee{User: berth.UserID(ann.ID), Roles: submitter}, "b/2 c/1"},
		{&store.Grantee{User: berth.UserID(ann.ID)}, "b/2 c/1"},
		{&store.Grantee{User: newID[berth.UserID](w.Env), Roles: []berth.Role{berth.RoleAdmin}}, "a/1 b/2"},
		{&store.Grantee{Roles: []berth.Role{berth.RoleViewer}}, ""},
		{&store.Grantee{}, ""},
	} {
		if got := list(c.who); got != c.want {
			w.t.Errorf("of %+v: %q, want %q", c.who, got, c.want)
		}
	}
}

func secretSubmit(w *world) {
	ann, bob := w.somebody("ann", berth.RoleSubmitter), w.somebody("bob", berth.RoleSubmitter, berth.RoleOperator)
	w.putSecret("mine", "x", toUser(ann))
	w.putSecret("all", "x", toRole(berth.RoleSubmitter))
	w.putSecret("ops", "x", toRole(berth.RoleOperator))
	task, err := w.submitWith(ann, submitter, withSecrets("mine", "all"))
	w.must("submit", err)
	if want := []string{"all", "mine"}; !slices.Equal(task.Secrets, want) || !slices.Equal(w.task(task.ID).Secrets, want) {
		w.t.Errorf("secrets %v, read %v", task.Secrets, w.task(task.ID).Secrets)
	}
	host := berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: ann.ID}}
	for _, c := range []struct {
		what  string
		actor berth.Actor
		roles []berth.Role
		names []string
		at    string
	}{
		{"unknown", ann, submitter, []string{"mine", "none"}, "tasks[0].secrets[1]"},
		{"another's", bob, submitter, []string{"mine"}, "tasks[0].secrets[0]"},
		{"a role that she has not", ann, submitter, []string{"ops"}, "tasks[0].secrets[0]"},
		{"a role that her user has not, whatever the credential says", ann, []berth.Role{berth.RoleOperator}, []string{"ops"}, "tasks[0].secrets[0]"},
		{"a role that the credential has not", bob, submitter, []string{"all", "ops"}, "tasks[0].secrets[1]"},
		{"no user", host, submitter, []string{"all"}, "tasks[0].secrets[0]"},
		{"a user who is not there", w.user, submitter, []string{"all"}, "tasks[0].secrets[0]"},
	} {
		_, err := w.submitWith(c.actor, c.roles, withSecrets(c.names...))
		if at := faultPath(err); at != c.at || !strings.Contains(err.Error(), "no such secret, or it is not granted to you") {
			w.t.Errorf("%s: %v", c.what, err)
		}
	}
	if _, err := w.submitWith(bob, []berth.Role{berth.RoleAdmin, berth.RoleOperator}, withSecrets("all", "ops")); err != nil {
		w.t.Errorf("an operator: %v", err)
	}
	// A repeat gets its tasks also when the grant is gone.
	p := w.keyed("key", "body", ann, w.newTask(withSecrets("mine")))
	p.Roles = submitter
	first, err := w.Store.SubmitTasks(bg(), p)
	w.must("submit under a key", err)
	w.grant("mine")
	again, err := w.Store.SubmitTasks(bg(), p)
	if err != nil || !again.Replayed || again.Tasks[0].ID != first.Tasks[0].ID {
		w.t.Errorf("repeated: %+v, %v", again, err)
	}
}

// givenSecrets is a host whose agent speaks a protocol that brings secrets.
func (w *world) givenSecrets(name string, n int) *agent {
	w.t.Helper()
	a := w.enrolled(name+w.suffix, w.pool.ID, n)
	a.protocol = berth.InputsProtocol
	a.sync()
	return a
}

// annClaims is a world in which ann's task, that names secrets, is claimed.
func (w *world) annClaims(names ...string) (berth.Actor, *agent, store.Assignment) {
	w.t.Helper()
	ann := w.somebody("ann", berth.RoleSubmitter)
	for _, n := range names {
		w.putSecret(n, "x", toUser(ann))
	}
	a := w.givenSecrets("h1", 1)
	return ann, a, w.claimedBy(ann, a, names...)
}

func (w *world) claimedBy(ann berth.Actor, a *agent, names ...string) store.Assignment {
	w.t.Helper()
	task, err := w.submitWith(ann, submitter, withSecrets(names...))
	w.must("submit", err)
	w.placed(task.ID)
	as := a.one(task.ID)
	slices.Sort(names)
	if !slices.Equal(as.Secrets, names) {
		w.t.Fatalf("the assignment names %v", as.Secrets)
	}
	return as
}

func secretDelivered(w *world) {
	_, a, as := w.annClaims("two", "one")
	want := []store.SealedValue{sealedValue("one", 1, "x"), sealedValue("two", 1, "x")}
	for n := 1; n <= 2; n++ { // its answer was lost
		if got := a.deliver(as); !sameValues(got[as.Attempt], want) || len(got) != 1 {
			w.t.Fatalf("values %+v", got)
		}
		for _, name := range []string{"one", "two"} {
			if got := w.acted(berth.AuditSecretDelivered, "secret", name); got != n {
				w.t.Errorf("%d audit rows of %s after %d deliveries", got, name, n)
			}
		}
	}
	rows := w.audit("secret", "one")
	row := rows[len(rows)-1]
	if row.Attempt != as.Attempt || row.Number != 1 || row.Device != as.Device || row.Host != a.id || row.Actor.ID != string(a.id) || row.At != w.Clock.Now() {
		w.t.Errorf("the row %+v", row)
	}
	w.wantFacts("delivered", row, nil, map[string]string{"version": "1"})
	// A new process claims what has not started again, and gets it again.
	a.restart()
	as = a.claim()[0]
	if got := a.deliver(as); !sameValues(got[as.Attempt], want) {
		w.t.Errorf("after a restart: %+v", got)
	}
}

func secretForeign(w *world) {
	ann, a, as := w.annClaims("one")
	other := w.givenSecrets("h2", 1)
	if got := other.deliver(as); len(got) != 0 {
		w.t.Errorf("another host got %+v", got)
	}
	old := a.call()
	a.restart()
	_, err := w.Store.SecretValues(bg(), old, attemptsOf([]store.Assignment{as}))
	w.fails("an older epoch", err, berth.ErrStaleEpoch)
	_, err = w.Store.SecretValues(bg(), store.AgentCall{Actor: a.actor, Host: newID[berth.HostID](w.Env)}, attemptsOf([]store.Assignment{as}))
	w.fails("an unknown host", err, berth.ErrNotFound)
	as = a.claim()[0]
	a.start(as)
	if got := a.deliver(as); len(got) != 0 {
		w.t.Errorf("after the start: %+v", got)
	}
	a.completed(as, berth.OutcomeSucceeded)
	if got := a.deliver(as); len(got) != 0 {
		w.t.Errorf("after the end: %+v", got)
	}
	task, err := w.submitWith(ann, submitter, withSecrets("one"))
	w.must("submit", err)
	assigned := w.placed(task.ID)
	if got := a.deliver(store.Assignment{Attempt: assigned.ID}); len(got) != 0 {
		w.t.Errorf("before the claim: %+v", got)
	}
	if n := w.acted(berth.AuditSecretDelivered, "secret", "one"); n != 0 {
		w.t.Errorf("%d audit rows of no delivery", n)
	}
}

func secretWithdrawn(w *world) {
	_, a, as := w.annClaims("deleted", "kept", "withdrawn")
	w.grant("withdrawn", toRole(berth.RoleOperator))
	w.must("delete", w.Store.DeleteSecret(bg(), w.operator, "deleted"))
	if got := a.deliver(as); !sameValues(got[as.Attempt], []store.SealedValue{sealedValue("kept", 1, "x")}) {
		w.t.Errorf("values %+v", got)
	}
	// The roles count that the user has now.
	w.putSecret("ops", "x", toRole(berth.RoleOperator))
	bob := w.somebody("bob", berth.RoleOperator)
	gone := w.somebody("gone", berth.RoleOperator)
	b := w.givenSecrets("h2", 2)
	for _, who := range []berth.Actor{bob, gone} {
		task, err := w.submitWith(who, []berth.Role{berth.RoleOperator}, withSecrets("ops"))
		w.must("submit", err)
		w.placed(task.ID)
		as := b.one(task.ID)
		if got := b.deliver(as); !sameValues(got[as.Attempt], []store.SealedValue{sealedValue("ops", 1, "x")}) {
			w.t.Errorf("granted by role: %+v", got)
		}
		w.demote(who)
		if got := b.deliver(as); len(got) != 0 {
			w.t.Errorf("after the role was taken: %+v", got)
		}
	}
}

// demote takes every role but viewer from a user.
func (w *world) demote(a berth.Actor) {
	w.t.Helper()
	_, err := w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: berth.UserID(a.ID), Roles: []berth.Role{berth.RoleViewer}})
	w.must("demote", err)
}

func secretReplaced(w *world) {
	ann, a, as := w.annClaims("one")
	a.deliver(as)
	a.start(as)
	w.putSecret("one", "y", toUser(ann))
	if s := a.completed(as, berth.OutcomeFailed); s != berth.StateFailed {
		w.t.Fatalf("the task is %s", s)
	}
	// An operator, who may not name the secret, retries it.
	_, _, err := w.Store.RetryTask(bg(), store.RetryParams{TaskParams: store.TaskParams{Actor: w.operator, Scope: all, Task: as.Task}})
	w.must("retry", err)
	w.placed(as.Task)
	as = a.one(as.Task)
	if got := a.deliver(as); !sameValues(got[as.Attempt], []store.SealedValue{sealedValue("one", 2, "y")}) {
		w.t.Errorf("the second attempt gets %+v", got)
	}
}

func secretOlderProtocol(w *world) {
	ann := w.somebody("ann", berth.RoleSubmitter)
	w.putSecret("one", "x", toUser(ann))
	a := w.host("h1", 1)
	task, err := w.submitWith(ann, submitter, withSecrets("one"))
	w.must("submit", err)
	w.placed(task.ID)
	if got := a.claim(); len(got) != 0 {
		w.t.Errorf("claimed %+v", got)
	}
}

func secretAtOnce(w *world) {
	other := w.second()
	put := func(s store.Store) func() (berth.Secret, error) {
		return func() (berth.Secret, error) {
			return s.PutSecret(bg(), store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "a")})
		}
	}
	for round := range 3 {
		got := both(put(w.Store), put(other))
		w.must("put", got[0].err)
		w.must("put", got[1].err)
		versions := []int{got[0].value.Version, got[1].value.Version}
		slices.Sort(versions)
		if !slices.Equal(versions, []int{2*round + 1, 2*round + 2}) {
			w.t.Errorf("versions %v", versions)
		}
	}
}

// secretOperations are operations on secrets, to be broken off.
func secretOperations() []operation {
	return []operation{
		{name: "PutSecret", about: "new", prepare: func(w *world) callFunc {
			grants := []berth.SecretGrant{toUser(w.somebody("ann"))}
			return func(ctx context.Context, s store.Store) error {
				return err2(s.PutSecret(ctx, store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "a"), Grants: setGrants(grants...)}))
			}
		}},
		{name: "PutSecret", about: "changed", prepare: func(w *world) callFunc {
			w.putSecret("db", "a", toRole(berth.RoleAdmin))
			return func(ctx context.Context, s store.Store) error {
				return err2(s.PutSecret(ctx, store.PutSecretParams{Actor: w.operator, Name: "db", Seal: sealing("db", "b"), Grants: setGrants()}))
			}
		}},
		{name: "DeleteSecret", prepare: func(w *world) callFunc {
			w.putSecret("db", "a", toRole(berth.RoleAdmin))
			return func(ctx context.Context, s store.Store) error { return s.DeleteSecret(ctx, w.operator, "db") }
		}},
		{name: "SecretValues", prepare: func(w *world) callFunc {
			_, a, as := w.annClaims("one", "two")
			return func(ctx context.Context, s store.Store) error {
				return err2(s.SecretValues(ctx, a.call(), attemptsOf([]store.Assignment{as})))
			}
		}},
	}
}
