package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/schema"
)

func TestAdministratorsManageUsersFromTheCommandLine(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	const next = "m4rk-of-the-next-passw0rd"
	sh.reads("create", sh.wants(exitOK, sh.with(apitest.Password+"\n", "user", "create", "mia", "--role", "submitter,viewer", "--password-stdin")).out,
		"mia enabled viewer,submitter password ID")
	got := sh.wants(exitOK, sh.run("user", "create", "ci", "-r", "submitter", "--service"))
	sh.reads("a service", got.out, "ci enabled submitter service ID")
	sh.reads("its hint", got.err, "next: berth key create NAME --user ci --role submitter")
	sh.reads("change", sh.wants(exitOK, sh.run("user", "change", "mia", "--role", "operator")).out, "mia enabled operator password ID")
	sh.reads("disable", sh.wants(exitOK, sh.run("user", "disable", "mia", "ci")).out, "mia disabled operator password ID\nci disabled submitter service ID")
	sh.reads("enable", sh.wants(exitOK, sh.run("user", "enable", "mia")).out, "mia enabled operator password ID")
	sh.reads("get", sh.wants(exitOK, sh.run("user", "get", "mia")).out, "mia enabled operator password ID")
	sh.reads("list", sh.wants(exitOK, sh.run("user", "list")).out, `
		NAME STATE ROLES KIND AGE ID
		ci disabled submitter service 1s ID
		mia enabled operator password 1s ID
		root enabled admin password 1s ID`)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(next+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh.wants(exitOK, sh.run("user", "reset-password", "mia", "--password-file", file))
	sh.wants(exitForbidden, sh.with(apitest.Password, "login", "--name", "mia", "--password-stdin"))
	sh.wants(exitOK, sh.with(next, "login", "--name", "mia", "--password-stdin"))
	sh.wants(exitForbidden, sh.run("user", "list"))
	sh.reads("a wrong current password", sh.wants(exitError, sh.with("wrong\nyet another one\n", "password", "--password-stdin")).err,
		"error: current_password: it is not your password\ntry: type the password that you log in with\n(code invalid, request ID)")
	sh.wants(exitOK, sh.with(next+"\n"+apitest.Password+"\n", "password", "--password-stdin"))
	sh.wants(exitOK, sh.run("task", "list"))
	sh.wants(exitOK, sh.with(apitest.Password, "login", "--name", "root", "--password-stdin"))
	sh.reads("the last administrator", sh.wants(exitError, sh.run("user", "disable", "root")).err,
		"error: user is the last administrator who can log in: make another user with a password an administrator first\ntry: read it again and decide anew\n(code wrong_state, request ID)")
	sh.wants(exitNotFound, sh.run("user", "get", "nobody"))
	sh.wants(exitNotFound, sh.run("user", "get", "No Name"))
	for _, args := range [][]string{
		{"user", "create", "x"},
		{"user", "create", "x", "--role", "viewer"}, // nobody is there to ask
		{"user", "create", "x", "--role", "viewer", "--service", "--password-stdin"},
		{"user", "create", "x", "--role", "viewer", "--password", "secret"},
		{"user", "change", "mia"},
		{"user", "reset-password", "mia"},
		{"user", "reset-password", "mia", "--password-stdin", "--password-file", "x"},
		{"password"},
		{"key", "create", "x"},
		{"key", "list", "--all", "--user", "mia"},
	} {
		got := sh.run(args...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "error: ") || !strings.Contains(got.err, "\n  try: ") {
			t.Errorf("%v: exit code %d\nstdout: %s\nstderr: %s", args, got.code, got.out, got.err)
		}
	}
}

// A CI job has a key in its environment, and no home.
func TestAnAPIKeyNeedsNoLogin(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	sh.wants(exitOK, sh.run("user", "create", "ci", "-r", "submitter", "--service"))
	made := sh.wants(exitOK, sh.run("key", "create", "nightly", "--user", "ci", "--role", "submitter", "--days", "90"))
	key := strings.TrimSpace(made.out)
	if !strings.HasPrefix(key, "berth_") || strings.Contains(made.err, key) || !strings.Contains(made.err, "The key of ci, good until ") {
		t.Fatalf("key create: %s", made.err)
	}
	if list := sh.wants(exitOK, sh.run("key", "list", "--user", "ci")).out; !strings.Contains(list, "nightly") || !strings.Contains(list, key[:14]) ||
		!strings.Contains(list, "never") || strings.Contains(list, key) {
		t.Errorf("key list: %s", list)
	}
	job := &shell{t: t, s: sh.s, env: []string{"BERTH_URL=" + sh.s.URL, "BERTH_API_KEY=" + key + "\n"}}
	job.wants(exitOK, job.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`))
	if list := job.wants(exitOK, job.run("task", "list")).out; !strings.Contains(list, "queued") {
		t.Errorf("its tasks: %s", list)
	}
	job.wants(exitForbidden, job.run("key", "create", "another", "--role", "submitter"))

	// Kept in place of a login.
	kept := &shell{t: t, s: sh.s, env: []string{"BERTH_CONFIG_DIR=" + t.TempDir()}}
	got := kept.wants(exitOK, kept.with(key+"\n", "login", sh.s.URL, "--api-key"))
	sh.reads("login", got.err, "The API key of ci (submitter) is kept for "+sh.s.URL+".")
	kept.wants(exitOK, kept.run("task", "list"))
	wrong := kept.wants(exitError, kept.with(key+"x\n", "login", sh.s.URL, "--api-key"))
	sh.reads("a wrong key", wrong.err, "error: the server does not take this API key\ntry: check that it is whole, and with berth key list that it is good")

	id := anID.FindString(sh.wants(exitOK, sh.run("key", "list", "--all")).out)
	sh.wants(exitOK, sh.run("key", "revoke", id))
	got = job.wants(exitForbidden, job.run("task", "list"))
	if !strings.HasPrefix(got.err, "error: the API key in BERTH_API_KEY is not good") || strings.Contains(got.err, key) {
		t.Errorf("after its end: %s", got.err)
	}
	kept.wants(exitForbidden, kept.run("task", "list"))
	sh.reads("logout", kept.wants(exitOK, kept.run("logout")).err, "This machine has forgotten the API key of ci, which is still good. To end it: berth key revoke")

	sh.wants(exitOK, sh.run("key", "create", "mine", "--role", "viewer"))
	sh.wants(exitOK, sh.run("key", "revoke", "mine"))
	sh.wants(exitNotFound, sh.run("key", "revoke", "mine"))
	if got := sh.wants(exitNotFound, sh.run("key", "revoke", key)); strings.Contains(got.err, key) {
		t.Errorf("the error has the key: %s", got.err)
	}
}

// The machine that has the database can let an administrator in again.
func TestAnAdministratorIsLetInAgain(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	sh.wants(exitOK, sh.with(apitest.Password, "user", "create", "boss", "-r", "admin", "--password-stdin"))
	sh.wants(exitOK, sh.with(apitest.Password, "user", "create", "mia", "-r", "viewer", "--password-stdin"))
	sh.wants(exitOK, sh.run("user", "disable", "boss"))
	const next = "m4rk-of-the-next-passw0rd"
	db := []string{"--database-url", sh.s.Database, "--password-stdin"}
	reset := func(args ...string) said {
		return sh.with(next+"\n", append(append([]string{"admin", "reset-password"}, args...), db...)...)
	}
	sh.reads("reset", sh.wants(exitOK, reset("boss")).err, "boss has a new password, is enabled and an administrator. Its logins have ended; its API keys stay.")
	sh.reads("no administrator", sh.wants(exitError, reset("mia")).err, "error: mia is no administrator\ntry: name one, or add --make-admin")
	sh.wants(exitOK, reset("mia", "--make-admin"))
	sh.wants(exitError, reset("nobody"))
	sh.wants(exitError, reset()) // nobody is called admin
	for _, name := range []string{"boss", "mia"} {
		sh.wants(exitOK, sh.with(next, "login", "--name", name, "--password-stdin"))
		sh.wants(exitOK, sh.run("user", "list"))
	}
	rows, err := sh.s.Store.ListAudit(t.Context(), "", "", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, row := range rows {
		if row.Actor.Kind == berth.ActorSystem && row.Actor.ID == "berth admin" {
			n++
		}
	}
	if n != 4 { // two passwords, one enabled, one promoted
		t.Errorf("%d rows of the system's", n)
	}
	empty := "sqlite://" + filepath.Join(t.TempDir(), "empty.db")
	if err := schema.Up(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	if err := schema.Down(t.Context(), empty, 1); err != nil {
		t.Fatal(err)
	}
	got := sh.wants(exitError, sh.with(next, "admin", "reset-password", "--database-url", empty, "--password-stdin"))
	if !strings.Contains(got.err, "try: berth migrate status") {
		t.Errorf("an old schema: %s", got.err)
	}
}
