package harness

import (
	"context"
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/mattn/go-sqlite3"    // the driver sqlite3
)

// Query reads the cluster's database beside the daemons, every column as text,
// NULL as "".
func (c *Cluster) Query(tb testing.TB, query string) [][]string {
	tb.Helper()
	driver, dsn := "pgx", c.DatabaseURL
	if c.Engine == SQLite {
		driver, dsn = "sqlite3", "file:"+c.File()+"?mode=ro&_busy_timeout=10000"
	}
	rows, err := Query(tb.Context(), driver, dsn, query)
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return rows
}

// Query reads a database, every column as text, NULL as "".
func Query(ctx context.Context, driver, dsn, query string) ([][]string, error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var out [][]string
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		row := make([]string, len(columns))
		for i, v := range values {
			row[i] = v.String
		}
		out = append(out, row)
	}
	return out, rows.Err()
}
