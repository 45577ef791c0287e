package pgtest

import (
	"context"
	"path/filepath"
	"strconv"
)

// Dump backs a database up as pg_dump does, while others use it, and returns
// the path of the file, which goes with the server.
func (s *Server) Dump(database string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), migrateLimit)
	defer cancel()
	path := filepath.Join(s.folder, database+".dump")
	return path, s.command(ctx, "pg_dump", s.connected("--format", "custom", "--file", path, "--dbname", database)...)
}

// Restore puts a database back to what Dump wrote: whoever is connected is cut
// off, the database is dropped and made anew.
func (s *Server) Restore(database, path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), migrateLimit)
	defer cancel()
	for _, sql := range []string{
		"DROP DATABASE IF EXISTS " + quote(database) + " WITH (FORCE)",
		"CREATE DATABASE " + quote(database) + " TEMPLATE template0",
	} {
		if err := execute(ctx, s.DSN("postgres"), sql); err != nil {
			return err
		}
	}
	return s.command(ctx, "pg_restore", s.connected("--exit-on-error", "--dbname", database, path)...)
}

// connected puts the way to the server before a client program's arguments.
func (s *Server) connected(args ...string) []string {
	return append([]string{"--host", s.folder, "--port", strconv.Itoa(s.port), "--username", superuser, "--no-password"}, args...)
}
