// Package db embeds the migrations of both dialects: the same numbers and
// names in each, always, each with up and down.
package db

import "embed"

// Migrations holds migrations/postgres and migrations/sqlite.
//
//go:embed migrations/postgres/*.sql migrations/sqlite/*.sql
var Migrations embed.FS
