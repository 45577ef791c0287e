package schema

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-dev/berth/pkg/redact"
)

// RuntimeRole is the name that the documents give to the daemons' role.
const RuntimeRole = "berth_runtime"

// ErrGrant says that a role cannot be the daemons'. Errors that wrap it say what to do.
var ErrGrant = errors.New("unusable role")

var roleName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Grant gives the daemons' role exactly what daemons need of a Postgres: to read
// and write rows, of the audit trail to read and add, of the schema's version to
// read, and none of what makes or empties tables. It takes every other right on
// Berth's tables from the role, and gives it the same on tables that later
// migrations add. It may be repeated, and should be after each migration. target
// is the owner's; a role that is missing is made where there is a password, which
// an existing one gets too. What wraps ErrGrant names a role that will not do.
func Grant(ctx context.Context, target, role string, password redact.String) error {
	dialect, where, err := ParseTarget(target)
	switch {
	case err != nil:
		return err
	case dialect != Postgres:
		return fmt.Errorf("%w: SQLite knows no roles; only Postgres does", ErrGrant)
	case !roleName.MatchString(role) || strings.HasPrefix(role, "pg_") || role == "public":
		return fmt.Errorf("%w: a role's name is made of lower-case letters, digits and underscores, such as %s", ErrGrant, RuntimeRole)
	}
	e, err := newPostgres(where)
	if err != nil {
		return err
	}
	unlock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	conn, err := e.(postgresEngine).connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	g := granting{ctx: ctx, conn: conn, role: role, quoted: pgx.Identifier{role}.Sanitize()}
	for _, step := range []func() error{g.find, func() error { return g.make(password) }, g.judge, g.grant, g.verify} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// granting is one Grant.
type granting struct {
	ctx                     context.Context
	conn                    *pgx.Conn
	role, quoted            string
	schema, owner           string // of Berth's tables
	quotedSchema, quotedOwn string
}

// find learns whose the tables are, and whether the connection may speak for them.
func (g *granting) find() error {
	var mine bool
	err := g.conn.QueryRow(g.ctx, `
SELECT n.nspname, r.rolname, pg_has_role(current_user, c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
WHERE c.oid = to_regclass('audit_events')`).Scan(&g.schema, &g.owner, &mine)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: there are no tables yet to give it rights on; run `berth migrate up` first", ErrGrant)
	case err != nil:
		return sqlError(err)
	case !mine:
		return fmt.Errorf("%w: only %s, who owns the tables, gives rights on them; connect as that role", ErrGrant, g.owner)
	}
	g.quotedSchema, g.quotedOwn = pgx.Identifier{g.schema}.Sanitize(), pgx.Identifier{g.owner}.Sanitize()
	return nil
}

// make makes the role where it is missing, and sets its password.
func (g *granting) make(password redact.String) error {
	exists, err := g.ask(`SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, g.role)
	if err != nil {
		return err
	}
	secret := password.Reveal()
	if secret == "" {
		if !exists {
			return fmt.Errorf("%w: there is no role %s; make it first (CREATE ROLE %s LOGIN PASSWORD '...'), or give --role-password-file", ErrGrant, g.role, g.role)
		}
		return nil
	}
	verifier, err := scram(secret)
	if err != nil {
		return err
	}
	if !exists {
		err := g.exec(`CREATE ROLE ` + g.quoted + ` LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '` + verifier + `'`)
		if code := codeOf(err); code != "42710" && code != "23505" { // another one made it just now
			return sqlError(err)
		}
	}
	if err := g.judge(); err != nil {
		return err
	}
	return sqlError(g.exec(`ALTER ROLE ` + g.quoted + ` LOGIN PASSWORD '` + verifier + `'`))
}

// judge refuses a role that no grant could bind.
func (g *granting) judge() error {
	over, err := g.ask(`SELECT rolsuper OR pg_has_role(rolname, $2, 'MEMBER') FROM pg_roles WHERE rolname = $1`, g.role, g.owner)
	if err == nil && over {
		err = fmt.Errorf("%w: %s is a superuser, or owns the tables or belongs to who does; give the daemons a role of their own", ErrGrant, g.role)
	}
	return err
}

// grant takes everything and gives what is needed, in one transaction: daemons
// that work meanwhile see no gap.
func (g *granting) grant() error {
	tables, err := g.tables()
	if err != nil {
		return err
	}
	expires, err := g.ask(`SELECT to_regprocedure('berth_expire_audit(timestamptz, integer)') IS NOT NULL`)
	if err != nil {
		return err
	}
	columns, err := g.auditColumns()
	if err != nil {
		return err
	}
	list := []string{`REVOKE ALL ON SCHEMA ` + g.quotedSchema + ` FROM ` + g.quoted, `GRANT USAGE ON SCHEMA ` + g.quotedSchema + ` TO ` + g.quoted}
	for _, table := range tables {
		rights := "SELECT, INSERT, UPDATE, DELETE"
		switch table {
		case "audit_events":
			// Without the id, which the database gives: a row with the highest there is
			// would stand before all that come, and hide them.
			rights = "SELECT, INSERT (" + columns + ")"
		case "schema_migrations":
			rights = "SELECT"
		}
		name := pgx.Identifier{g.schema, table}.Sanitize()
		list = append(list, `REVOKE ALL ON `+name+` FROM `+g.quoted, `GRANT `+rights+` ON `+name+` TO `+g.quoted)
	}
	if expires {
		list = append(list, `GRANT EXECUTE ON FUNCTION `+g.quotedSchema+`.berth_expire_audit TO `+g.quoted)
	}
	list = append(list, `ALTER DEFAULT PRIVILEGES FOR ROLE `+g.quotedOwn+` IN SCHEMA `+g.quotedSchema+
		` GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO `+g.quoted)
	return sqlError(pgx.BeginFunc(g.ctx, g.conn, func(tx pgx.Tx) error {
		for _, sql := range list {
			if _, err := tx.Exec(g.ctx, sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	}))
}

// tables are Berth's: those of the owner beside the audit trail.
func (g *granting) tables() ([]string, error) {
	rows, err := g.conn.Query(g.ctx, `SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tableowner = $2 ORDER BY tablename`, g.schema, g.owner)
	if err != nil {
		return nil, sqlError(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return names, sqlError(err)
}

// auditColumns are those of the audit trail but its id, for a statement.
func (g *granting) auditColumns() (list string, err error) {
	err = g.conn.QueryRow(g.ctx, `
SELECT COALESCE(string_agg(quote_ident(attname), ', ' ORDER BY attnum), '') FROM pg_attribute
WHERE attrelid = to_regclass('audit_events') AND attnum > 0 AND NOT attisdropped AND attname <> 'id'`).Scan(&list)
	return list, sqlError(err)
}

// verify finds what the role has by other ways than these grants.
func (g *granting) verify() error {
	makes, err := g.ask(`SELECT has_schema_privilege($1, $2, 'CREATE')`, g.role, g.schema)
	if err != nil {
		return err
	}
	if makes {
		return fmt.Errorf("%w: %s may still make tables in schema %s, as everybody may; run REVOKE CREATE ON SCHEMA %s FROM PUBLIC", ErrGrant, g.role, g.schema, g.quotedSchema)
	}
	edits, err := g.ask(`SELECT has_table_privilege($1, to_regclass('audit_events'), 'UPDATE, DELETE, TRUNCATE')`, g.role)
	if err == nil && edits {
		err = fmt.Errorf("%w: %s may still change audit rows, by a role that it belongs to or as everybody may; take it out of that role", ErrGrant, g.role)
	}
	return err
}

func (g *granting) ask(sql string, args ...any) (yes bool, err error) {
	return yes, sqlError(g.conn.QueryRow(g.ctx, sql, args...).Scan(&yes))
}

func (g *granting) exec(sql string) error {
	_, err := g.conn.Exec(g.ctx, sql)
	return err
}

func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// scram is what Postgres stores of a password (RFC 5803), so that the password
// itself reaches no log of the server.
func scram(password string) (string, error) {
	for _, c := range password {
		if c < ' ' || c > '~' {
			return "", fmt.Errorf("%w: its password may hold printable ASCII alone", ErrGrant)
		}
	}
	const rounds = 4096
	salt := make([]byte, 16)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", err
	}
	mac := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(mac("Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, b64(salt), b64(stored[:]), b64(mac("Server Key"))), nil
}

// Overpowered names the role of a Postgres URL where it may do more than daemons
// need: a superuser's, or that of whoever owns the tables. "" is as it should be,
// and SQLite's.
func Overpowered(ctx context.Context, target string) (role string, err error) {
	dialect, where, err := ParseTarget(target)
	if err != nil || dialect != Postgres {
		return "", err
	}
	e, err := newPostgres(where)
	if err != nil {
		return "", err
	}
	conn, err := e.(postgresEngine).connect(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = conn.QueryRow(ctx, `
SELECT COALESCE((SELECT rolname FROM pg_roles r WHERE rolname = current_user AND (rolsuper OR pg_has_role(r.oid,
    (SELECT relowner FROM pg_class WHERE oid = to_regclass('audit_events')), 'USAGE'))), '')`).Scan(&role)
	return role, sqlError(err)
}
