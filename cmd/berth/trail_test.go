package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/schema"
)

// What differs from run to run beside ids and instants.
var (
	aDay     = regexp.MustCompile(`\b20\d\d-\d\d-\d\d`)
	aKeyName = regexp.MustCompile(`SHA256:[A-Za-z0-9+/]{43}`)
)

// trail is what `berth audit` prints, without days.
func (sh *shell) trail(args ...string) string {
	sh.t.Helper()
	return aDay.ReplaceAllString(sh.wants(exitOK, sh.run(append([]string{"audit"}, args...)...)).out, "DAY")
}

// events is the same in the API's own shape.
func (sh *shell) events(args ...string) client.AuditList {
	sh.t.Helper()
	var l client.AuditList
	if err := json.Unmarshal([]byte(sh.wants(exitOK, sh.run(append([]string{"audit", "-o", "json"}, args...)...)).out), &l); err != nil {
		sh.t.Fatal(err)
	}
	return l
}

// An operator asks who did what: by name, kind, time and request, page by page.
func TestTheTrailIsSearchedFromTheCommandLine(t *testing.T) {
	root := newShell(t).as("root", berth.RoleAdmin)
	sh := &shell{t: t, s: root.s, env: []string{"BERTH_CONFIG_DIR=" + t.TempDir(), "BERTH_URL=" + root.s.URL}}
	sh.as("ops", berth.RoleOperator)
	sh.s.Agent("lab-1", map[string]string{"os": "linux"})
	for _, args := range [][]string{
		{"pool", "pause", "default"}, {"pool", "resume", "default"}, {"host", "drain", "lab-1"}, {"device", "label", "slot a", "rack=b7"},
	} {
		sh.wants(exitOK, sh.run(args...))
	}
	drained := sh.events("--action", "host.drain").Events
	if len(drained) != 1 || drained[0].ActorName != "ops" || drained[0].Client != "127.0.0.1" || !strings.HasPrefix(drained[0].Credential, "session:") {
		t.Fatalf("the drain: %+v", drained)
	}
	drain := drained[0]
	shown := func(what string, args []string, want string) {
		t.Helper()
		out := sh.trail(args...)
		for _, e := range sh.events(args...).Events {
			out = strings.ReplaceAll(out, e.RequestID, "REQUEST")
		}
		sh.reads(what, out, want)
	}
	const header = "AT ACTOR ACTION TARGET CHANGE CLIENT REQUEST\n"
	const drainRow = "DAY 12:00:00 ops host.drain host/ID drain_requested=false -> true 127.0.0.1 REQUEST"
	const pools = "DAY 12:00:00 ops pool.resumed pool/ID paused=true -> false 127.0.0.1 REQUEST\n" +
		"DAY 12:00:00 ops pool.paused pool/ID paused=false -> true 127.0.0.1 REQUEST"
	shown("a kind of action", []string{"--action", "pool."}, header+pools)
	shown("a pool by name", []string{"--target", "pool/default"}, header+pools)
	shown("a kind of target", []string{"--target", "pool"}, header+pools)
	shown("a target by name", []string{"--target", "host/lab-1", "--action", "host.drain"}, header+drainRow)
	shown("a target by id", []string{"--target", "host/" + drain.Target, "--action", "host.drain"}, header+drainRow)
	shown("a host by name", []string{"--host", "lab-1", "--action", "host.drain"}, header+drainRow)
	shown("a device by name", []string{"--device", "lab-1/slot a", "--actor", drain.Actor}, header+"DAY 12:00:00 ops device.labels device/ID rack=b7 127.0.0.1 REQUEST")
	shown("a request", []string{"--request", drain.RequestID}, header+drainRow)
	shown("a time", []string{"--from", "1h", "--to", drain.At.Add(time.Second).Format(time.RFC3339Nano), "--action", "host.drain"}, header+drainRow)
	if got := root.events("--actor", "ops", "--action", "pool.").Events; len(got) != 2 {
		t.Errorf("an administrator finds by the user's name: %+v", got)
	}

	got := sh.wants(exitOK, sh.run("audit", "--action", "pool.", "--limit", "1"))
	if strings.Count(got.out, "pool.") != 1 || got.err != "The first 1 are shown; --limit 0 shows all.\n" {
		t.Errorf("one row:\n%s%s", got.out, got.err)
	}
	if l := sh.events("--limit", "1"); len(l.Events) != 1 || l.NextPageToken == "" {
		t.Errorf("one row as JSON: %+v", l)
	}
	if l := sh.events("--limit", "0"); len(l.Events) < 8 || l.NextPageToken != "" {
		t.Errorf("all: %d rows", len(l.Events))
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"nothing": {[]string{"--action", "user.changed"}, exitOK, "No audit rows pass these filters."},
		"a name to an operator": {
			[]string{"--actor", "root"},
			exitOK,
			"No audit rows pass these filters. Where --actor is a user's name, only administrators find it; the id always does (-o json shows it).",
		},
		"no such host":    {[]string{"--host", "lab-2"}, exitNotFound, "error: there is no host \"lab-2\"\ntry: berth host list shows them\n(code not_found)"},
		"no such pool":    {[]string{"--target", "pool/x"}, exitNotFound, "error: there is no pool \"x\"\ntry: berth pool list shows them\n(code not_found)"},
		"no time":         {[]string{"--from", "yesterday"}, exitUsage, "error: --from \"yesterday\" is no time\ntry: --from 2026-07-01T08:00:00Z, or --from 2h for two hours ago"},
		"the wrong order": {[]string{"--from", "1h", "--to", "2h"}, exitError, "error: to: is not after `from`\ntry: use a later time, or leave one of them out\n(code invalid, request ID)"},
		"an argument":     {[]string{"pool"}, exitUsage, "error: it takes no argument \"pool\"\ntry: berth audit --help"},
	} {
		sh.reads(name, sh.wants(c.code, sh.run(append([]string{"audit"}, c.args...)...)).err, c.want)
	}
	// A host that is shut out is found by its name, too.
	sh.wants(exitOK, root.run("host", "revoke", "lab-1", "--yes"))
	if l := sh.events("--host", "lab-1", "--action", "host.revoked"); len(l.Events) != 1 {
		t.Errorf("a revoked host: %+v", l)
	}
	sub := &shell{t: t, s: root.s, env: []string{"BERTH_CONFIG_DIR=" + t.TempDir(), "BERTH_URL=" + root.s.URL}}
	sub.as("sub", berth.RoleSubmitter)
	if got := sub.wants(exitForbidden, sub.run("audit")); !strings.HasPrefix(got.err, "error: your role does not allow this\n  try: ask an administrator for the role operator\n") {
		t.Errorf("a submitter: %s", got.err)
	}
}

// An administrator changes the keys that sign, and asks hosts for new ones.
func TestKeysAreChangedFromTheCommandLine(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	list := func(args ...string) string {
		return aDay.ReplaceAllString(sh.wants(exitOK, sh.run(append([]string{"signing-key"}, args...)...)).out, "DAY")
	}
	const header = "ID ALGORITHM CREATED STATE\n"
	sh.reads("list", list("list"), header+"ID EdDSA DAY 12:00:00 UTC signs")
	sh.reads("rotate", list("rotate"), header+"ID EdDSA DAY 12:00:00 UTC signs soon\nID EdDSA DAY 12:00:00 UTC signs")
	var keys client.SigningKeyList
	if err := json.Unmarshal([]byte(sh.wants(exitOK, sh.run("signing-key", "list", "-o", "json")).out), &keys); err != nil || len(keys.SigningKeys) != 2 || !keys.SigningKeys[1].Signs {
		t.Errorf("json: %+v, %v", keys, err)
	}
	if made := sh.events("--action", "signing_key.", "--limit", "1").Events[0]; made.ActorName != "root" || made.Target != keys.SigningKeys[0].ID ||
		made.After["algorithm"] != "EdDSA" || !aKeyName.MatchString(made.After["key"]) {
		t.Errorf("in the trail: %+v", made)
	}
	for range 29 {
		sh.wants(exitOK, sh.run("signing-key", "rotate"))
	}
	sh.wants(exitOK, sh.run("signing-key", "rotate"))
	sh.reads("too many", sh.wants(exitError, sh.run("signing-key", "rotate")).err,
		"error: the set of signing keys is full: wait until old keys are removed, about an hour and a quarter after their successor was made\ntry: berth signing-key list shows how old they are")

	sh.s.Agent("lab-1", map[string]string{"os": "linux"})
	for range 2 { // again moves nothing
		sh.reads("ask", sh.wants(exitOK, sh.run("host", "rotate-key", "lab-1")).out, "lab-1 online, new key asked for 1s ago")
	}
	sh.reads("in the trail", strings.TrimSpace(regexp.MustCompile(`(?m)^.*(host\.key_rotation\S*).*(key_rotation_requested=\S+ -> \S+).*$|^AT.*$`).
		ReplaceAllString(sh.trail("--action", "host.key_rotation_requested"), "$1 $2")), "host.key_rotation_requested key_rotation_requested=false -> true")
	sh.reads("nobody", sh.wants(exitNotFound, sh.run("host", "rotate-key", "lab-2")).err, "error: there is no host \"lab-2\"\ntry: berth host list shows them\n(code not_found)")
	sh.wants(exitOK, sh.run("host", "revoke", "lab-1", "--yes"))
	sh.reads("a revoked one", sh.wants(exitNotFound, sh.run("host", "rotate-key", "lab-1")).err, "error: host \"lab-1\" is revoked\ntry: let it in anew: berth host enrol\n(code not_found)")

	ops := &shell{t: t, s: sh.s, env: []string{"BERTH_CONFIG_DIR=" + t.TempDir(), "BERTH_URL=" + sh.s.URL}}
	ops.as("ops", berth.RoleOperator)
	for _, args := range [][]string{{"signing-key", "list"}, {"signing-key", "rotate"}, {"host", "rotate-key", "lab-1"}} {
		if got := ops.run(args...); got.code != exitForbidden && got.code != exitNotFound || !strings.HasPrefix(got.err, "error: ") {
			t.Errorf("%v of an operator: %d %s", args, got.code, got.err)
		}
	}
}

// The machine that has the database follows a new master key through it, by the
// steps of docs/operations.md, and is told at each what is left to do.
func TestAMasterKeyIsFollowedFromTheCommandLine(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	old, next, other := strings.Repeat("0f", 32), strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	if _, err := identity.ParseMasterKey(old); err != nil {
		t.Fatal(err)
	}
	value := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(value, []byte("m4rk-of-a-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh.wants(exitOK, sh.run("secret", "set", "mail", "--from-file", value))
	with := func(verb string, env ...string) said {
		there := &shell{t: t, s: sh.s, env: append([]string{"BERTH_DATABASE_URL=" + sh.s.Database}, env...)}
		return there.run("master-key", verb)
	}
	current, oldToo := "BERTH_MASTER_KEY="+next, "BERTH_MASTER_KEY_OLD="+old
	const counts = "Under the current master key: %\nSealed anew just now: %\nUnder an old one: %\nUnder an unknown one: %"
	say := func(n ...string) string {
		s := counts
		for _, x := range n {
			s = strings.Replace(s, "%", x, 1)
		}
		return s
	}
	for _, step := range []struct {
		name string
		code int
		got  said
		out  string
		err  string
	}{
		{"before", exitOK, with("status", "BERTH_MASTER_KEY="+old), say("2", "0", "0", "0"), ""},
		{
			"the old one is needed", exitError, with("status", current, oldToo), say("0", "0", "2", "0"),
			"error: an old master key is still needed, by 2 values\ntry: berth master-key reseal",
		},
		{
			"without the old one", exitError, with("reseal", current), say("0", "0", "0", "2"),
			"error: 2 values cannot be opened: sealed under a master key that is not configured here\ntry: add that key to BERTH_MASTER_KEY_OLD(_FILE)",
		},
		{"reseal", exitOK, with("reseal", current, oldToo), say("0", "2", "0", "0"), ""},
		{"again", exitOK, with("reseal", current, oldToo), say("2", "0", "0", "0"), ""},
		{"after", exitOK, with("status", current), say("2", "0", "0", "0"), ""},
		{"no key", exitUsage, with("status"), "", "error: which master key?\ntry: set BERTH_MASTER_KEY_FILE as for the API"},
		{"a key that is none", exitError, with("status", "BERTH_MASTER_KEY=hunter2"), "", ""},
		{
			"a file that is missing", exitError, with("status", "BERTH_MASTER_KEY_FILE=/no/such"), "",
			"error: the file that BERTH_MASTER_KEY_FILE names cannot be read\ntry: check its path and rights",
		},
		{
			"another key", exitError, with("status", "BERTH_MASTER_KEY="+other), say("0", "0", "0", "2"),
			"error: 2 values cannot be opened: sealed under a master key that is not configured here\ntry: add that key to BERTH_MASTER_KEY_OLD(_FILE)",
		},
	} {
		if step.got.code != step.code {
			t.Errorf("%s: exit code %d, want %d", step.name, step.got.code, step.code)
		}
		sh.reads(step.name, step.got.out, step.out)
		if step.err != "" || step.code == exitOK {
			sh.reads(step.name+", stderr", step.got.err, step.err)
		}
		for _, mark := range []string{"hunter2", old, next, other, "m4rk"} {
			if strings.Contains(step.got.err+step.got.out, mark) {
				t.Errorf("%s: a key is printed: %s%s", step.name, step.got.out, step.got.err)
			}
		}
	}
	if out := with("status", current, "BERTH_MASTER_KEY_OLD=nothing").err; !strings.HasPrefix(out, "error: BERTH_MASTER_KEY_OLD: ") {
		t.Errorf("an old key that is none: %s", out)
	}
	if out := sh.trail("--action", "master_key."); strings.Count(out, "master_key.resealed") != 2 || !strings.Contains(out, "berth master-key") || !strings.Contains(out, "secret/mail") ||
		!regexp.MustCompile(`master_key=[0-9a-f]{16} -> [0-9a-f]{16}`).MatchString(out) {
		t.Errorf("in the trail: %s", out)
	}
	empty := "sqlite://" + filepath.Join(t.TempDir(), "empty.db")
	if err := schema.Up(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	if err := schema.Down(t.Context(), empty, 1); err != nil {
		t.Fatal(err)
	}
	if got := with("status", current, "BERTH_DATABASE_URL="+empty); got.code != exitError || !strings.Contains(got.err, "try: berth migrate status") {
		t.Errorf("an old schema: %d %s", got.code, got.err)
	}
}
