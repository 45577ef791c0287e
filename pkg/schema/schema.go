// Package schema applies Berth's migrations and judges whether a database's
// schema is one that this program can work on.
//
// Migrations are embedded (package db), in two dialects with the same numbers.
// They are applied by `berth migrate`, never silently by a daemon (local mode
// excepted). Every function takes a target, which names a database:
//
//	postgres://user:password@host:port/database   (a direct connection, no PgBouncer)
//	sqlite:///absolute/path  sqlite://relative/path  or a plain path
//
// No error of this package holds a password or a target.
package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/golang-migrate/migrate/v4/source"

	"github.com/berth-dev/berth/db"
)

// Code says in a word what is wrong with a schema; "" means nothing. The codes
// are fixed: readiness probes and problem documents print them.
type Code string

// The codes.
const (
	CodeOK Code = ""
	// CodeBehind: the database needs `berth migrate up`.
	CodeBehind Code = "schema_behind"
	// CodeAhead: the database was migrated by a newer Berth than this one.
	CodeAhead Code = "schema_ahead"
	// CodeDirty: a migration was broken off.
	CodeDirty Code = "schema_dirty"
	// CodeUnreachable: the database did not answer.
	CodeUnreachable Code = "database_unreachable"
)

// Check judges the version that a database is at (0: none) against the one
// that is wanted. A dirty schema is dirty whatever its version.
func Check(version uint, dirty bool, want uint) Code {
	switch {
	case dirty:
		return CodeDirty
	case version < want:
		return CodeBehind
	case version > want:
		return CodeAhead
	}
	return CodeOK
}

// The kinds of refusal. Errors that wrap them say what to do.
var (
	// ErrDirty: a migration was broken off before.
	ErrDirty = errors.New("schema is dirty")
	// ErrAhead: the database is newer than this program.
	ErrAhead = errors.New("schema is ahead of this program")
	// ErrTarget: the target names no database that Berth knows.
	ErrTarget = errors.New("unusable database URL")
)

// Status is where a database's schema stands.
type Status struct {
	// Version is the migration that the database is at; 0: none.
	Version uint
	// Dirty: a migration to Version was broken off.
	Dirty bool
	// Latest is the version that this program wants.
	Latest uint
	// Code is Check of the above.
	Code Code
}

// Latest is the highest migration embedded in this program: the schema that it
// works on.
func Latest() uint { return latest() }

// One pass over an embedded folder; a broken one is a fault of the build.
var latest = sync.OnceValue(func() uint {
	versions, err := versions(SQLite)
	if err != nil || len(versions) == 0 {
		panic("schema: no embedded migrations")
	}
	return versions[len(versions)-1]
})

// versions lists the numbers of a dialect's migrations, ascending, each once.
func versions(d Dialect) ([]uint, error) {
	names, err := fs.Glob(db.Migrations, d.folder()+"/*.up.sql")
	if err != nil {
		return nil, err
	}
	out := make([]uint, 0, len(names))
	for _, name := range names { // fs.Glob sorts, and the numbers have leading zeros
		m, err := source.DefaultParse(name[len(d.folder())+1:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, m.Version)
	}
	return out, nil
}

// Digest is the hex SHA-256 over all migrations of a dialect, names and
// contents: equal digests make equal schemas.
func Digest(d Dialect) string {
	names, err := fs.Glob(db.Migrations, d.folder()+"/*.sql")
	if err != nil {
		panic("schema: " + err.Error()) // the pattern is a constant
	}
	h := sha256.New()
	for _, name := range names {
		b, err := db.Migrations.ReadFile(name)
		if err != nil {
			panic("schema: " + err.Error()) // it is embedded
		}
		fmt.Fprintf(h, "%s:%d:", name, len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}
