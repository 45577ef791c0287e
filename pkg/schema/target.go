package schema

import (
	"fmt"
	"net/url"
	"strings"
)

// Dialect names an SQL engine.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres"
	SQLite   Dialect = "sqlite"
)

func (d Dialect) folder() string { return "migrations/" + string(d) }

// ParseTarget tells which engine a database URL names, and where: for Postgres
// the URL itself, for SQLite the path of the file. The error wraps ErrTarget
// and does not repeat the URL, which may hold a password.
func ParseTarget(target string) (d Dialect, where string, err error) {
	switch scheme, rest, hasScheme := strings.Cut(target, "://"); {
	case target == "":
		return "", "", fmt.Errorf("%w: it is empty; use postgres://user:password@host:5432/database or sqlite:///path/to/berth.db", ErrTarget)
	case !hasScheme && strings.HasPrefix(target, "file:"), target == ":memory:", rest == ":memory:":
		return "", "", fmt.Errorf("%w: SQLite needs a file of its own; use sqlite:///path/to/berth.db", ErrTarget)
	case !hasScheme:
		return SQLite, target, nil
	case scheme == "postgres" || scheme == "postgresql":
		if u, err := url.Parse(target); err != nil || u.Host == "" && u.Query().Get("host") == "" {
			return "", "", fmt.Errorf("%w: it cannot be read; use postgres://user:password@host:5432/database and percent-encode special characters of the password", ErrTarget)
		}
		return Postgres, target, nil
	case scheme == "sqlite" || scheme == "sqlite3":
		if rest == "" || strings.HasSuffix(rest, "/") || strings.ContainsAny(rest, "?#") {
			return "", "", fmt.Errorf("%w: it names no file; use sqlite:///path/to/berth.db, without options", ErrTarget)
		}
		return SQLite, rest, nil
	default:
		return "", "", fmt.Errorf("%w: the scheme is neither postgres nor sqlite; use postgres://user:password@host:5432/database or sqlite:///path/to/berth.db", ErrTarget)
	}
}
