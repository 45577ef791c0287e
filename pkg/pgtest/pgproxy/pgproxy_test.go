package pgproxy_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/pgtest/pgproxy"
)

func TestStopsAtTheStatementAndLetsItGoOn(t *testing.T) {
	dsn := pgtest.NewDB(t, pgtest.Template{})
	p := pgproxy.Start(t, dsn)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN(dsn))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	stop := p.StopAt(func(s pgproxy.Statement) bool { return s.Tx && s.N == 2 })
	result := make(chan error, 1)
	go func() {
		tx, err := conn.Begin(ctx)
		if err == nil {
			_, err = tx.Exec(ctx, "CREATE TABLE t (n int)")
		}
		if err == nil {
			_, err = tx.Exec(ctx, "INSERT INTO t VALUES ($1)", 7)
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		result <- err
	}()
	select {
	case st := <-stop.Hit():
		if st.SQL != "INSERT INTO t VALUES ($1)" {
			t.Errorf("stopped at %q", st.SQL)
		}
	case <-ctx.Done():
		t.Fatal("never stopped")
	}
	select {
	case err := <-result:
		t.Fatalf("the transaction went on while it was held back: %v", err)
	default:
	}
	stop.Resume()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(ctx, "SELECT n FROM t").Scan(&n); err != nil || n != 7 {
		t.Errorf("n = %d, %v", n, err)
	}
}
