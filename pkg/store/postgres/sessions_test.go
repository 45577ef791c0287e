package postgres_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
)

// rotatedTokens makes sessions of many rotated tokens: the first, which is
// looked at, and others of the same user.
const rotatedTokens = `
INSERT INTO refresh_tokens (token_hash, family, user_id, generation, created_at, expires_at, rotated_at)
SELECT sha256((f || '/' || i)::bytea), ('00000000-0000-7000-8000-4' || lpad(f::text, 11, '0'))::uuid, $1, i, now(), now() + interval '30 days', now() - interval '1 hour'
FROM generate_series(1, 5) f, generate_series(1, 20000) i`

// TestSessionsOfManyTokensStayCheap: what a request, a refresh, a logout and a
// disabling read does not grow with the tokens that were rotated, whatever the
// planner believes.
func TestSessionsOfManyTokensStayCheap(t *testing.T) {
	const session, user = "00000000-0000-7000-8000-400000000001", "00000000-0000-7000-8000-00000000000b"
	dsn := newDB(t)
	ctx := t.Context()
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	open := func() *postgres.Store {
		s, err := postgres.Open(ctx, dsn+"&pool_max_conns=1", store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	token := func(name string) [32]byte { return sha256.Sum256([]byte(name)) }
	s := open()
	must(s.CreateUser(ctx, berth.Actor{}, berth.User{ID: user, Name: "ann", Roles: []berth.Role{berth.RoleViewer}}, redact.NewString("hash")))
	must(s.AddRefreshToken(ctx, store.RefreshToken{Hash: token("a0"), Family: session, User: user, TTL: time.Hour}))
	must(s.Close())
	_, err = admin.Exec(ctx, rotatedTokens, user)
	must(err)
	for round, name := range []string{"without statistics", "with statistics"} {
		if round == 1 {
			_, err := admin.Exec(ctx, "ANALYZE")
			must(err)
		}
		must(waitAndFlush(t, admin))
		before := scanned(t, admin)
		s := open()
		for i := range 10 {
			_, err := s.SessionUser(ctx, session, user)
			must(err)
			old, next := fmt.Sprintf("a%d", 10*round+i), fmt.Sprintf("a%d", 10*round+i+1)
			_, _, err = s.RotateRefreshToken(ctx, store.RotateParams{Old: token(old), Next: token(next), TTL: time.Hour})
			must(err)
		}
		other := fmt.Sprintf("00000000-0000-7000-8000-50000000000%d", round)
		must(s.AddRefreshToken(ctx, store.RefreshToken{Hash: token(other), Family: other, User: user, TTL: time.Hour}))
		must(s.RevokeRefreshFamily(ctx, berth.Actor{}, token(other)))
		_, err = s.SetPassword(ctx, store.SetPasswordParams{User: user, Hash: redact.NewString("hash"), KeepSession: session})
		must(err)
		must(s.Close())
		waitSessions(t, admin)
		read := scanned(t, admin)["refresh_tokens"] - before["refresh_tokens"]
		t.Logf("%s: %d rows read", name, read)
		if read > 300 {
			t.Errorf("%s: %d rows of refresh_tokens were read by 23 operations", name, read)
		}
	}
}

// waitAndFlush makes the counters of this session visible.
func waitAndFlush(t *testing.T, admin *pgx.Conn) error {
	t.Helper()
	waitSessions(t, admin)
	_, err := admin.Exec(t.Context(), "SELECT pg_stat_force_next_flush()")
	return err
}
