// Package runtimedb gives tests a migrated Postgres database as daemons see it:
// through the role that `berth migrate grants` makes, which may change rows and
// no tables. Whatever passes on it needs no more rights than those.
package runtimedb

import (
	"context"
	"net/url"
	"testing"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
)

// password of the role, on servers that tests start for themselves.
const password = "berth-runtime-in-tests"

// Template is a migrated database with the daemons' rights on it.
func Template() pgtest.Template {
	return pgtest.Template{
		Fingerprint: "runtime-" + schema.Digest(schema.Postgres),
		Migrate: func(ctx context.Context, dsn string) error {
			if err := schema.Up(ctx, dsn); err != nil {
				return err
			}
			return schema.Grant(ctx, dsn, schema.RuntimeRole, redact.NewString(password))
		},
	}
}

// New makes a database for this test alone, and returns its URL for daemons and
// that of the owner.
func New(tb testing.TB) (runtime, owner string) {
	tb.Helper()
	owner = pgtest.NewDB(tb, Template())
	return As(tb, owner), owner
}

// As is a URL of a database made of Template with the daemons' role in it.
func As(tb testing.TB, owner string) string {
	tb.Helper()
	u, err := url.Parse(owner)
	if err != nil {
		tb.Fatal("the database's URL cannot be read")
	}
	u.User = url.UserPassword(schema.RuntimeRole, password)
	return u.String()
}
