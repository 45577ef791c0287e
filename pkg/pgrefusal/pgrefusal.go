// Package pgrefusal says in words for an operator why a PostgreSQL lets nobody
// in. The engine and the migrations share it.
package pgrefusal

import (
	"errors"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-dev/berth/pkg/berth"
)

// Of explains a failed connection. It is nil where the driver's error is none
// of those that have one certain cause. The words hold no part of the URL and
// none of the server's own.
func Of(err error) *berth.DatabaseAccessError {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return ofState(pg.Code)
	}
	var name *net.DNSError
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return &berth.DatabaseAccessError{What: "the database's host name is not known", Remedy: "check the host in BERTH_DATABASE_URL"}
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT): // the latter: a socket
		return &berth.DatabaseAccessError{What: "nothing listens at the database's address", Remedy: "start the database, or check host and port in BERTH_DATABASE_URL"}
	}
	return nil
}

func ofState(code string) *berth.DatabaseAccessError {
	switch code {
	case "28P01": // invalid_password; also said of a role that does not exist
		return &berth.DatabaseAccessError{What: "the database refused the login", Remedy: "check user and password in BERTH_DATABASE_URL"}
	case "28000": // invalid_authorization_specification
		return &berth.DatabaseAccessError{What: "the database refused the login", Remedy: "check the user in BERTH_DATABASE_URL, and that the server's pg_hba.conf lets it in from here"}
	case "3D000": // invalid_catalog_name
		return &berth.DatabaseAccessError{What: "there is no such database", Remedy: "create it, or check its name in BERTH_DATABASE_URL"}
	}
	return nil
}
