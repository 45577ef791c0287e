package schema

import "context"

// Versioned tells which schema a database has; store.Health does.
type Versioned interface {
	SchemaVersion(ctx context.Context) (version uint, dirty bool, err error)
}

// Gate returns a function that says whether this program may work on the
// database now: "" or a Code. It asks the database at each call.
func Gate(v Versioned) func(ctx context.Context) string {
	return func(ctx context.Context) string {
		version, dirty, err := v.SchemaVersion(ctx)
		if err != nil {
			return string(CodeUnreachable)
		}
		return string(Check(version, dirty, Latest()))
	}
}
