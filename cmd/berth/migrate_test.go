package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/schema"
)

// migrateCommand runs a berth command line and returns its exit code and all it
// printed.
func migrateCommand(t *testing.T, env []string, args ...string) (code int, said string) {
	t.Helper()
	var out bytes.Buffer
	code = run(t.Context(), append([]string{"migrate"}, args...), env, strings.NewReader(""), &out, &out)
	return code, out.String()
}

func TestMigrate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth.db")
	env := []string{"BERTH_DATABASE_URL=sqlite://" + file, "HOME=" + t.TempDir()}
	latest := schema.Latest()
	steps := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"status"}, 1, "try: berth migrate up"},
		{[]string{"up"}, 0, fmt.Sprintf("schema version %d, this program wants %d: ready", latest, latest)},
		{[]string{"status"}, 0, "ready"},
		{[]string{"status", "-o", "json"}, 0, fmt.Sprintf(`"version":%d`, latest)},
		{[]string{"down"}, 0, "schema_behind"},
		{[]string{"force", "99"}, 1, "this program knows versions"},
		{[]string{"force", "many"}, 2, "is no version"},
		{[]string{"force", fmt.Sprint(latest - 1)}, 0, "schema_behind"},
		{[]string{"down", "--steps", fmt.Sprint(latest)}, 0, "schema version 0"},
		{[]string{"down", "--steps", "0"}, 1, "at least 1"},
		{[]string{"up", "--database-url", file + "-other"}, 0, "ready"},
		{[]string{"up", "--database-url", "mysql://u:hunter2@h/d"}, 1, "unusable database URL"},
		{[]string{"sideways"}, 2, "no command"},
	}
	for _, s := range steps {
		code, said := migrateCommand(t, env, s.args...)
		if code != s.code || !strings.Contains(said, s.says) || strings.Contains(said, "hunter2") {
			t.Errorf("migrate %v: code %d, said %q; want %d, %q", s.args, code, said, s.code, s.says)
		}
	}
	nobody := []string{"BERTH_DATABASE_URL=postgres://berth:hunter2@127.0.0.1:1/berth"}
	code, said := migrateCommand(t, nobody, "up")
	if want := "error: nothing listens at the database's address\n  try: start the database"; code != 1 || !strings.HasPrefix(said, want) || strings.Contains(said, "hunter2") {
		t.Errorf("where no database is: %d %q", code, said)
	}
	code, said = migrateCommand(t, []string{"BERTH_DATABASE_URL=sqlite:///does/not/exist/berth.db"}, "up")
	if want := "error: the directory of the SQLite file does not exist\n  try: make it"; code != 1 || !strings.HasPrefix(said, want) {
		t.Errorf("without the directory: %d %q", code, said)
	}
	var out bytes.Buffer
	code = run(t.Context(), []string{"up", "--data-dir", filepath.Join(file, "below-a-file")}, env, strings.NewReader(""), &out, &out)
	if code != 1 || !strings.Contains(out.String(), "(not a directory)\n  try: choose another with --data-dir") {
		t.Errorf("berth up below a file: %d %q", code, out.String())
	}
	if code, said := migrateCommand(t, nil, "status"); code != 2 || !strings.Contains(said, "BERTH_DATABASE_URL") {
		t.Errorf("without a database: %d %q", code, said)
	}
}

// TestMigrateGrants: the daemons' role comes to be with its rights and password,
// however often it is asked for, and what cannot be is said with the remedy.
func TestMigrateGrants(t *testing.T) {
	role := "berth_test_" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() { // after the database is gone
		conn, err := pgx.Connect(context.Background(), pgtest.AdminDSN(t))
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(context.Background(), "DROP ROLE IF EXISTS "+role); err != nil {
			t.Error(err)
		}
	})
	owner := pgtest.NewDB(t, pgtest.Template{})
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"BERTH_DATABASE_URL=" + owner, "HOME=" + t.TempDir()}
	for _, s := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"grants", "--role", role}, 1, "`berth migrate up` first"},
		{[]string{"up", "--role-password-file", password}, 2, "whose password?"},
		{[]string{"up", "--grant-to", role}, 1, "CREATE ROLE " + role},
		{[]string{"up", "--grant-to", role, "--role-password-file", password + "-not"}, 1, "--role-password-file names cannot be read"},
		{[]string{"up", "--grant-to", role, "--role-password-file", password}, 0, "ready"},
		{[]string{"up", "--grant-to", role, "--role-password-file", password}, 0, "ready"},
		{[]string{"grants", "--role", role}, 0, "ready"},
		{[]string{"grants", "--role", "Berth"}, 1, "lower-case letters"},
		{[]string{"grants", "--database-url", "sqlite:///x.db"}, 1, "SQLite knows no roles"},
	} {
		code, said := migrateCommand(t, env, s.args...)
		if code != s.code || !strings.Contains(said, s.says) || strings.Contains(said, "hunter2") {
			t.Errorf("migrate %v: code %d, said %q; want %d, %q", s.args, code, said, s.code, s.says)
		}
	}
	u, err := url.Parse(owner)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "hunter2")
	if code, said := migrateCommand(t, []string{"BERTH_DATABASE_URL=" + u.String()}, "status"); code != 0 || !strings.Contains(said, "ready") {
		t.Errorf("the role sees: %d %q", code, said)
	}
	if code, said := migrateCommand(t, []string{"BERTH_DATABASE_URL=" + u.String()}, "down"); code == 0 {
		t.Errorf("the role migrates: %q", said)
	}
}
