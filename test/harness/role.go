package harness

import (
	"database/sql"
	"net/url"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/pgtest"
)

// role is what the daemons of a cluster connect as to Postgres: one that owns
// nothing, so that whatever they do needs no more than `berth migrate up
// --grant-to` gives. Each cluster has its own: roles are the server's, and tests
// share one.
type role struct{ name, password string }

// makeRole makes it on the server of owner.
func makeRole(tb testing.TB, owner string) role {
	tb.Helper()
	r := role{"berth_runtime_" + strings.ToLower(random()[:12]), "Pw-role-" + random()}
	execute(tb, owner, "CREATE ROLE "+r.name+" LOGIN PASSWORD '"+r.password+"'")
	return r
}

// newDatabase makes a database on the tests' server, and the role that goes after
// it.
func newDatabase(tb testing.TB) (owner string, r role) {
	tb.Helper()
	admin := pgtest.AdminDSN(tb)
	r = makeRole(tb, admin)
	tb.Cleanup(func() { execute(tb, admin, "DROP ROLE "+r.name) })
	return pgtest.NewDB(tb, pgtest.Template{}), r
}

// in is a database's URL with the role in it.
func (r role) in(tb testing.TB, owner string) string {
	tb.Helper()
	u, err := url.Parse(owner)
	if err != nil {
		tb.Fatal("the database's URL cannot be read")
	}
	u.User = url.UserPassword(r.name, r.password)
	return u.String()
}

func execute(tb testing.TB, dsn, statement string) {
	tb.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Exec(statement); err != nil {
		verb, _, _ := strings.Cut(statement, " ")
		tb.Errorf("%s ROLE: %v", verb, err)
	}
}
