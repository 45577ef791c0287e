package storetest

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func auditChecks() []check {
	return []check{
		in("a search passes what its filter says, newest first, page by page", auditSearch),
		{"a rare filter gives short pages that go on", func(t *testing.T, h Harness) {
			auditShortPages(worldOf(t, h.New(t), "")) // its rows keep no promise
		}},
		in("a read is on record with who, from where, with what and which", auditRead),
		in("an act is on record with who, from where, with what, before and after", auditChange),
	}
}

// passes is what a search's filter says, of one row.
func passes(f store.AuditFilter, r berth.AuditEvent) bool {
	return (f.ActorKind == "" || r.Actor.Kind == f.ActorKind) && (f.ActorID == "" || r.Actor.ID == f.ActorID) &&
		(f.Action == "" || string(r.Action) == f.Action || strings.HasSuffix(f.Action, ".") && strings.HasPrefix(string(r.Action), f.Action)) &&
		(f.TargetKind == "" || r.TargetKind == f.TargetKind) && (f.TargetID == "" || r.TargetID == f.TargetID) &&
		(f.Host == "" || r.Host == f.Host || r.TargetKind == "host" && r.TargetID == string(f.Host)) &&
		(f.Device == "" || r.Device == f.Device || r.TargetKind == "device" && r.TargetID == string(f.Device)) &&
		(f.RequestID == "" || r.Actor.RequestID == f.RequestID) &&
		(f.From.IsZero() || !r.At.Before(f.From)) && (f.To.IsZero() || r.At.Before(f.To))
}

// found reads a whole search by pages, and gives how many it took.
func (w *world) found(f store.AuditFilter, size int) (rows []store.AuditRow, pages int) {
	w.t.Helper()
	for below := int64(0); ; pages++ {
		page, next, err := w.Store.SearchAudit(bg(), f, below, size)
		w.must("search audit", err)
		if len(page) > size || next < 0 || below > 0 && next >= below {
			w.t.Fatalf("%d rows and next %d below %d, at most %d a page", len(page), next, below, size)
		}
		rows = append(rows, page...)
		if below = next; next == 0 {
			return rows, pages + 1
		}
	}
}

func auditSearch(w *world) {
	ada := w.operator
	ada.ID, ada.RequestID, ada.Client, ada.Credential = newID[string](w.Env), "req-ada", "192.0.2.7", "session:s1"
	w.must("create user", w.Store.CreateUser(bg(), w.operator, berth.User{
		ID: berth.UserID(ada.ID), Name: "ada", Roles: []berth.Role{berth.RoleOperator},
	}, redact.NewString("hash")))
	a, b := w.host("one", 2), w.host("two", 1)
	start := w.Clock.Now()
	for range 4 {
		w.submit()
	}
	w.place()
	as := a.claim()
	w.Clock.Advance(time.Hour)
	for _, on := range []bool{true, false} {
		_, _, err := w.Store.DrainHost(bg(), ada, b.id, on)
		w.must("drain", err)
	}
	w.admin(as[0].Device, berth.AdminCordoned, "")
	_, err := w.Store.SetPoolPaused(bg(), ada, w.pool.Name, true)
	w.must("pause", err)

	all := w.audit("", "")
	slices.Reverse(all)
	filters := map[string]store.AuditFilter{
		"everything": {}, "a kind of actor": {ActorKind: berth.ActorHost}, "a person": {ActorID: ada.ID}, "a host as actor": {ActorID: string(a.id)},
		"an action": {Action: string(berth.AuditHostDrain)}, "actions": {Action: "host."}, "transitions": {Action: "task."}, "a transition": {Action: "task.claimed"},
		"a kind of target": {TargetKind: "device"}, "a target": {TargetKind: "task", TargetID: string(as[0].Task)},
		"a target of another kind": {TargetKind: "pool", TargetID: string(as[0].Task)},
		"a host":                   {Host: a.id}, "a host that was acted on": {Host: b.id}, "a device": {Device: as[0].Device}, "a request": {RequestID: ada.RequestID},
		"since": {From: start.Add(30 * time.Minute)}, "until": {To: start.Add(30 * time.Minute)}, "a time without rows": {From: start.Add(20 * time.Minute), To: start.Add(40 * time.Minute)},
		"a person's acts since": {ActorID: ada.ID, Action: "host.", From: start.Add(time.Minute)}, "a person's acts before": {ActorID: ada.ID, To: start},
		"nobody": {ActorID: newID[string](w.Env)}, "no such id": {Host: "no-id"}, "SQL": {Action: "' OR '1'='1"}, "a pattern": {Action: "host%"},
		"the beginning of a word": {Action: "host.dra"},
	}
	for name, f := range filters {
		want := slices.DeleteFunc(slices.Clone(all), func(r berth.AuditEvent) bool { return !passes(f, r) })
		for _, size := range []int{3, 1000} {
			rows, _ := w.found(f, size)
			got := make([]berth.AuditEvent, len(rows))
			for i, r := range rows {
				got[i] = r.AuditEvent
				names := map[string]string{ada.ID: "ada", string(a.id): "one", string(b.id): "two"}
				if r.ActorName != names[r.Actor.ID] {
					w.t.Errorf("%s: the actor %s is called %q", name, r.Actor.ID, r.ActorName)
				}
			}
			if d := diff(want, got); d != "" {
				w.t.Errorf("%s, %d a page:\n%s", name, size, d)
			}
		}
	}
	for name, least := range map[string]int{"a person": 3, "actions": 4, "a target": 2, "a host": 4, "a device": 2, "since": 4, "until": 10, "nobody": 0, "a pattern": 0, "the beginning of a word": 0} {
		if rows, _ := w.found(filters[name], 100); len(rows) < least || least == 0 && len(rows) > 0 {
			w.t.Errorf("%s: %d rows", name, len(rows))
		}
	}
}

// manyRows adds rows of a busy host's.
const manyRows = `INSERT INTO audit_events (at, actor_kind, actor_id, action, target_kind, target_id)
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
SELECT (SELECT max(at) FROM audit_events), 'host', 'busy', 'task.claimed', 'task', 'none' FROM n`

func auditShortPages(w *world) {
	_, err := w.Store.SetPoolPaused(bg(), w.operator, w.pool.Name, true)
	w.must("pause", err)
	w.must("rows", w.database.Exec(fmt.Sprintf(manyRows, 2*store.AuditScan+10)))
	rare := store.AuditFilter{RequestID: w.operator.RequestID, Action: string(berth.AuditPoolPaused)}
	for name, c := range map[string]struct {
		filter store.AuditFilter
		pages  int
	}{
		"without an index":    {store.AuditFilter{RequestID: w.operator.RequestID}, 3},
		"an act":              {rare, 1},
		"a target":            {store.AuditFilter{TargetKind: "pool", TargetID: string(w.pool.ID)}, 1},
		"of a time before":    {store.AuditFilter{RequestID: w.operator.RequestID, To: w.Clock.Now().Add(-time.Hour)}, 1},
		"of a time to come":   {store.AuditFilter{RequestID: w.operator.RequestID, From: w.Clock.Now().Add(time.Hour)}, 1},
		"what there is a lot": {store.AuditFilter{ActorID: "busy"}, (2*store.AuditScan + 10 + 999) / 1000},
	} {
		first, next, err := w.Store.SearchAudit(bg(), c.filter, 0, 1000)
		w.must("search", err)
		if name == "without an index" && (len(first) != 0 || next == 0) {
			w.t.Errorf("%s: the first page has %d rows and goes on at %d", name, len(first), next)
		}
		rows, pages := w.found(c.filter, 1000)
		if pages > c.pages+1 || pages < c.pages {
			w.t.Errorf("%s: %d pages, should be about %d", name, pages, c.pages)
		}
		if strings.HasPrefix(name, "of a time") != (len(rows) == 0) {
			w.t.Errorf("%s: %d rows", name, len(rows))
		}
	}
}

func auditRead(w *world) {
	reader := w.user
	reader.Client, reader.Credential = "192.0.2.7", "key:k1"
	e := berth.AuditEvent{
		Action: berth.AuditArtifactRead, TargetKind: "artifact", TargetID: newID[string](w.Env), Attempt: newID[berth.AttemptID](w.Env), Number: 2,
		After: berth.Fact("name", "page.png"),
	}
	w.must("record", w.Store.RecordRead(bg(), reader, e))
	rows := w.audit(e.TargetKind, e.TargetID)
	if len(rows) != 1 {
		w.t.Fatalf("%d rows", len(rows))
	}
	e.Actor, e.ID, e.At = reader, rows[0].ID, rows[0].At
	if d := diff(e, rows[0]); d != "" || !rows[0].At.Equal(w.Clock.Now()) {
		w.t.Errorf("at %v:\n%s", rows[0].At, d)
	}
	for _, action := range []berth.AuditAction{berth.AuditLogRead, berth.AuditInputRead} {
		w.must("record", w.Store.RecordRead(bg(), reader, berth.AuditEvent{Action: action, TargetKind: "log", TargetID: e.TargetID}))
	}
}

func auditChange(w *world) {
	by := w.operator
	by.Client, by.Credential = "2001:db8::7", "issuer:https://id.example"
	a := w.host("one", 1)
	id := a.devices[0].ID
	for _, labels := range []map[string]string{{"rack": "7"}, {"rack": "8", "shelf": "a"}, {}} {
		_, err := w.Store.SetDeviceLabels(bg(), by, id, labels)
		w.must("labels", err)
	}
	_, err := w.Store.SetDeviceAdmin(bg(), store.DeviceAdminParams{Actor: by, Device: id, Admin: berth.AdminMaintenance, Note: "new glass"})
	w.must("maintenance", err)
	var got []string
	for _, r := range w.audit("device", string(id)) {
		if r.Actor.Kind != berth.ActorUser {
			continue
		}
		if r.Actor != by {
			w.t.Errorf("%s by %+v, should be %+v", r.Action, r.Actor, by)
		}
		got = append(got, fmt.Sprintf("%s %s %s", r.Action, r.Before, r.After))
	}
	if d := diff([]string{
		`device.labels  {"rack":"7"}`, `device.labels {"rack":"7"} {"rack":"8","shelf":"a"}`, `device.labels {"rack":"8","shelf":"a"} `,
		`device.admin {"admin_state":"active"} {"admin_state":"maintenance","note":"new glass"}`,
	}, got); d != "" {
		w.t.Errorf("acts:\n%s", d)
	}
}

// written is what audit rows the tests of this process have seen.
var written = struct {
	sync.Mutex
	actions, factless map[berth.AuditAction]bool
}{actions: map[berth.AuditAction]bool{}, factless: map[berth.AuditAction]bool{}}

// withoutFacts are the acts that have nothing to compare, and why.
var withoutFacts = map[berth.AuditAction]string{
	berth.AuditLogin:           "nothing of the user changes",
	berth.AuditLoginFailed:     "nothing of the user changes",
	berth.AuditLogout:          "the credential names the session that ended",
	berth.AuditSessionRevoked:  "the credential names the session that ended",
	berth.AuditPasswordChanged: "neither password may be told",
	berth.AuditLogRead:         "the target says all",
	berth.AuditInputRead:       "the target says all",
	berth.AuditSecretDelivered: "the coordinates say all",
	berth.AuditPluginDiffers:   "what is registered stands where it was decided, and what a host reports is not on record",
}

// note remembers a row for everyActionIsWritten, and judges its form.
func note(w *world, r berth.AuditEvent) {
	written.Lock()
	defer written.Unlock()
	written.actions[r.Action] = true
	transition := strings.HasPrefix(string(r.Action), "task.")
	if transition != (r.TargetKind == "task") {
		w.t.Errorf("row %d: %s has a target of kind %s: searches take transitions for tasks' and the rest for others'", r.ID, r.Action, r.TargetKind)
	}
	if !transition && r.Before == "" && r.After == "" {
		written.factless[r.Action] = true
	}
	for _, f := range []berth.Facts{r.Before, r.After} {
		var facts map[string]string
		if f != "" && json.Unmarshal([]byte(f), &facts) != nil || len(facts) > berth.MaxFacts+1 {
			w.t.Errorf("row %d (%s): facts %q", r.ID, r.Action, f)
		}
	}
}

// everyActionIsWritten: no action of the domain without an operation here that
// writes it, and none without facts but those that are listed. It asks only when
// the whole suite has run.
func everyActionIsWritten(t *testing.T) {
	if run := flag.Lookup("test.run"); run != nil && strings.Contains(run.Value.String(), "/") {
		return
	}
	written.Lock()
	defer written.Unlock()
	for _, action := range berth.AuditActions() {
		if !written.actions[action] {
			t.Errorf("no operation that the suite does writes an audit row %s", action)
		}
	}
	for _, action := range slices.Sorted(maps.Keys(written.factless)) {
		if withoutFacts[action] == "" {
			t.Errorf("an audit row %s says neither what was nor what is", action)
		}
	}
}
