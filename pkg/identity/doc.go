// Package identity says who calls and what they may do: local users and their
// passwords, access and refresh tokens, the assertions of hosts, and the table
// of roles that every route stands in.
//
// Access tokens are compact JWTs (EdDSA, at most ten minutes), signed with keys
// that all API processes share through the database; the private parts are
// sealed there under a master key from the configuration. Refresh tokens are
// random, stored as hashes, replaced at each use, and a reuse ends the family.
//
// Whatever is wrong with a credential, the caller hears berth.ErrUnauthenticated
// and nothing more. No token and no password is in any error or log line.
package identity
