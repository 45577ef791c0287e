package schema

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/redact"
)

// role is a role's name of this test alone, gone with its database.
func role(t *testing.T) string {
	t.Helper()
	name := "berth_test_" + strings.ToLower(rand.Text()[:12])
	t.Cleanup(func() {
		admin := testDB{dialect: Postgres, target: pgtest.AdminDSN(t)}
		admin.exec(t, "DROP ROLE IF EXISTS "+name)
	})
	return name
}

func as(t *testing.T, target, name, password string) testDB {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, password)
	return testDB{dialect: Postgres, target: u.String()}
}

// refused runs statements that must each fail with what.
func (d testDB) refused(t *testing.T, what string, statements ...string) {
	t.Helper()
	pool := d.open(t)
	defer pool.Close()
	for _, s := range statements {
		if _, err := pool.ExecContext(t.Context(), s); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, should say %q", s, err, what)
		}
	}
}

const actRow = `INSERT INTO audit_events (at, actor_kind, actor_id, action, target_kind, target_id) VALUES `

// TestDaemonsMayNotTouchTheTrail: the role that Grant makes reads and writes rows,
// adds to the audit trail, and does nothing else to it nor to any table; what a
// later migration adds is its to use too, and old rows go by the one way there is.
func TestDaemonsMayNotTouchTheTrail(t *testing.T) {
	ctx, name := t.Context(), role(t)
	owner := testDB{dialect: Postgres, target: pgtest.NewDB(t, pgtest.Template{})}
	if err := Grant(ctx, owner.target, name, redact.NewString("one")); !errors.Is(err, ErrGrant) || !strings.Contains(err.Error(), "berth migrate up") {
		t.Errorf("a grant before the first migration: %v", err)
	}
	if err := Up(ctx, owner.target); err != nil {
		t.Fatal(err)
	}
	if err := Grant(ctx, owner.target, name, redact.String{}); !errors.Is(err, ErrGrant) || !strings.Contains(err.Error(), "CREATE ROLE "+name) {
		t.Errorf("a grant to a role that is not there: %v", err)
	}
	for _, password := range []string{"one", "two", ""} {
		if err := Grant(ctx, owner.target, name, redact.NewString(password)); err != nil {
			t.Fatal(err)
		}
	}
	d := as(t, owner.target, name, "two")
	d.exec(t, actRow+`(clock_timestamp(), 'system', 'x', 'pool.created', 'pool', 'young')`)
	d.exec(t, `UPDATE pools SET paused = true`)
	const denied = "42501"
	d.refused(
		t, denied, `UPDATE audit_events SET actor_id = 'y'`, `DELETE FROM audit_events`, `TRUNCATE audit_events`,
		`ALTER TABLE audit_events DISABLE TRIGGER ALL`, `ALTER TABLE audit_events ADD COLUMN x text`, `DROP TABLE audit_events`,
		`SELECT 1 FROM audit_events FOR UPDATE`, `CREATE TABLE mine (x text)`, `TRUNCATE tasks CASCADE`, `DROP TABLE pools CASCADE`,
		`UPDATE schema_migrations SET version = 1`, `CREATE INDEX ON audit_events (at)`, `DROP FUNCTION berth_expire_audit`,
		`CREATE OR REPLACE FUNCTION berth_audit_kept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'`,
		`SET session_replication_role = replica`, `CREATE ROLE other`, `SET ROLE postgres`,
		// The highest id there is would stand before all rows to come, and hide them.
		`INSERT INTO audit_events (id, at, actor_kind, actor_id, action, target_kind, target_id)
			OVERRIDING SYSTEM VALUE VALUES (9223372036854775807, clock_timestamp(), 'system', 'x', 'pool.created', 'pool', 'forged')`,
	)
	owner.exec(t, `CREATE TABLE later (x text)`)
	d.exec(t, `INSERT INTO later VALUES ('a')`)
	d.exec(t, `DELETE FROM later`)

	for _, age := range []string{"29 days", "31 days", "60 days"} {
		owner.exec(t, actRow+`(clock_timestamp() - interval '`+age+`', 'system', 'x', 'pool.created', 'pool', 'old')`)
	}
	expire := func(before string, limit string) string {
		return d.rows(t, `SELECT CAST(berth_expire_audit(clock_timestamp() - interval '`+before+`', `+limit+`) AS text)`)[0][0]
	}
	if n := expire("50 days", "1"); n != "0" { // the oldest row is the young one
		t.Errorf("looked at more than it was told: removed %s", n)
	}
	if a, b := expire("50 days", "100"), expire("-1 days", "100"); a != "1" || b != "1" {
		t.Errorf("removed %s rows of 60 days and %s of 31 days, should be 1 and 1", a, b)
	}
	if rows := d.rows(t, `SELECT target_id FROM audit_events ORDER BY id`); len(rows) != 2 {
		t.Errorf("left: %v", rows)
	}
}

// TestUnfitRolesAreRefused: each with what to do.
func TestUnfitRolesAreRefused(t *testing.T) {
	ctx, name := t.Context(), role(t)
	owner := testDB{dialect: Postgres, target: pgtest.NewDB(t, pgtest.Template{})}
	if err := Up(ctx, owner.target); err != nil {
		t.Fatal(err)
	}
	say := func(target, role, password, want string) {
		t.Helper()
		if err := Grant(ctx, target, role, redact.NewString(password)); !errors.Is(err, ErrGrant) || !strings.Contains(err.Error(), want) {
			t.Errorf("role %q: %v, should say %q", role, err, want)
		}
	}
	say("sqlite:///tmp/x.db", name, "", "SQLite knows no roles")
	say(owner.target, "public", "", "lower-case letters")
	say(owner.target, `x"; DROP TABLE tasks; --`, "", "lower-case letters")
	say(owner.target, name, "pässword", "printable ASCII")
	me := owner.rows(t, `SELECT current_user`)[0][0]
	say(owner.target, me, "", "a role of their own")
	say(owner.target, me, "taken over", "a role of their own")
	if err := Grant(ctx, owner.target, name, redact.NewString("pw")); err != nil {
		t.Fatal(err)
	}
	d := as(t, owner.target, name, "pw")
	say(d.target, "another_role", "", "only "+me)
	owner.exec(t, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	say(owner.target, name, "", "REVOKE CREATE ON SCHEMA")
	owner.exec(t, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	owner.exec(t, `GRANT DELETE ON audit_events TO PUBLIC`)
	say(owner.target, name, "", "may still change audit rows")
	for target, want := range map[string]string{owner.target: me, d.target: "", "sqlite:///tmp/x.db": ""} {
		if got, err := Overpowered(ctx, target); err != nil || got != want {
			t.Errorf("overpowered: %q, %v, should be %q", got, err, want)
		}
	}
}

// TestTheTrailIsKeptFromItsOwnerToo: both engines refuse to change a row, and to
// remove one younger than 30 days, whoever asks.
func TestTheTrailIsKeptFromItsOwnerToo(t *testing.T) {
	onBoth(t, func(t *testing.T, d testDB) {
		if err := Up(t.Context(), d.target); err != nil {
			t.Fatal(err)
		}
		pool := d.open(t)
		defer func() { _ = pool.Close() }()
		addRow(t, d, pool, "young", 29*24*time.Hour)
		addRow(t, d, pool, "old", 31*24*time.Hour)
		d.refused(t, "audit rows are kept as they are",
			`UPDATE audit_events SET reason = 'x' WHERE target_id = 'old'`, `DELETE FROM audit_events`, `DELETE FROM audit_events WHERE target_id = 'young'`)
		if d.dialect == Postgres {
			d.refused(t, "audit rows are kept as they are", `TRUNCATE audit_events`)
		}
		d.exec(t, `DELETE FROM audit_events WHERE target_id = 'old'`)
		if rows := d.rows(t, `SELECT target_id FROM audit_events`); len(rows) != 1 || rows[0][0] != "young" {
			t.Errorf("left: %v", rows)
		}
	})
}

func addRow(t *testing.T, d testDB, pool *sql.DB, target string, age time.Duration) {
	t.Helper()
	d.insert(t, pool, "audit_events", object{
		"at": time.Now().Add(-age), "actor_kind": "user", "actor_id": "x", "action": "pool.created", "target_kind": "pool", "target_id": target,
	})
}
