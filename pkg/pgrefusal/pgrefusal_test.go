package pgrefusal_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/pgrefusal"
	"github.com/berth-dev/berth/pkg/pgtest"
)

// TestRealRefusals are those of a server, and of a place where none is.
func TestRealRefusals(t *testing.T) {
	change := func(f func(u *url.URL)) string {
		u, err := url.Parse(pgtest.AdminDSN(t))
		if err != nil {
			t.Fatal(err)
		}
		f(u)
		return u.String()
	}
	for name, c := range map[string]struct{ dsn, says string }{
		"no such database": {change(func(u *url.URL) { u.Path = "/berth_nowhere" }), "no such database"},
		"nothing listens":  {"postgres://berth:hunter2@127.0.0.1:1/berth", "nothing listens"},
		"no socket":        {"postgres:///berth?host=" + url.QueryEscape(filepath.Join(t.TempDir(), "none")), "nothing listens"},
	} {
		_, err := pgx.Connect(context.Background(), c.dsn)
		got := pgrefusal.Of(err)
		if got == nil || !strings.Contains(got.What, c.says) || got.Remedy == "" || strings.Contains(got.Error(), "hunter2") {
			t.Errorf("%s: %v of %v", name, got, err)
		}
		if !errors.Is(got, berth.ErrUnavailable) {
			t.Errorf("%s: does not pass", name)
		}
	}
}

func TestRefusedLogins(t *testing.T) {
	for _, code := range []string{"28P01", "28000"} {
		got := pgrefusal.Of(fmt.Errorf("x: %w", &pgconn.PgError{Code: code, Message: `role "secret" does not exist`}))
		if got == nil || !strings.Contains(got.What, "refused the login") || strings.Contains(got.Error(), "secret") {
			t.Errorf("%s: %v", code, got)
		}
	}
	if got := pgrefusal.Of(&net.DNSError{IsNotFound: true, Name: "secret"}); got == nil || strings.Contains(got.Error(), "secret") {
		t.Errorf("host name: %v", got)
	}
	for _, err := range []error{nil, errors.New("x"), &pgconn.PgError{Code: "57P03"}} {
		if got := pgrefusal.Of(err); got != nil {
			t.Errorf("%v: %v", err, got)
		}
	}
}
