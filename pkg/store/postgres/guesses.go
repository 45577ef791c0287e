package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// guess is one attempt to log in with what is remembered of such ones.
type guess struct {
	t      *tx
	name   []byte
	client string
	now    time.Time
	counts berth.LoginCounts
	// known: only the pair's count bounds the attempt.
	known bool
}

// ofAll stands for every name, and "" for every client.
func ofAll() []byte { return []byte{} }

// lockGuess locks and reads the counts of an attempt. A client that is known
// under the name has its own alone. Where there is no row one is made: only a
// row can be locked, and a refusal rolls it back. The order is pair, client,
// name.
func (t *tx) lockGuess(nameHash [32]byte, client string) (g guess, err error) {
	g = guess{t: t, name: nameHash[:], client: clean(client)}
	g.counts.Pair, err = g.lock(g.name, g.client)
	g.known = g.counts.Pair.Known(g.now)
	if err != nil || g.known {
		return g, err
	}
	if g.counts.Client, err = g.lock(ofAll(), g.client); err != nil {
		return g, err
	}
	g.counts.Name, err = g.lock(g.name, "")
	return g, err
}

func (g *guess) lock(name []byte, client string) (c berth.LoginCount, err error) {
	if _, err := g.t.exec(`
INSERT INTO login_failures (name_hash, client, failures, last_at) VALUES ($1, $2, 0, berth_now()) ON CONFLICT DO NOTHING`, name, client); err != nil {
		return c, err
	}
	n, err := g.t.exec(`SELECT 1 FROM login_failures WHERE name_hash = $1 AND client = $2 FOR NO KEY UPDATE`, name, client)
	if err == nil && n == 0 {
		err = errStartOver // an old one, which the sweep took in between
	}
	if err != nil {
		return c, err
	}
	return found(g.t, "count", func(row pgx.CollectableRow) (c berth.LoginCount, err error) {
		return c, row.Scan(&c.Failures, &c.LastAt, instant(&c.WaitUntil), instant(&c.KnownAt), &g.now)
	}, `SELECT failures, last_at, wait_until, known_at, berth_now() FROM login_failures WHERE name_hash = $1 AND client = $2`, name, client)
}

// store writes the counts that lockGuess locked.
func (g *guess) store(c berth.LoginCounts) error {
	if err := g.put(g.name, g.client, c.Pair); err != nil || g.known {
		return err
	}
	if err := g.put(ofAll(), g.client, c.Client); err != nil {
		return err
	}
	return g.put(g.name, "", c.Name)
}

func (g *guess) put(name []byte, client string, c berth.LoginCount) error {
	_, err := g.t.exec(`
UPDATE login_failures SET failures = $3, last_at = $4, wait_until = $5, known_at = $6 WHERE name_hash = $1 AND client = $2`,
		name, client, c.Failures, c.LastAt, orNull(c.WaitUntil), orNull(c.KnownAt))
	return err
}

// CountLogin is documented at store.Guesses.
func (s *Store) CountLogin(ctx context.Context, nameHash [32]byte, client string) error {
	return s.write(ctx, "CountLogin", func(t *tx) error {
		g, err := t.lockGuess(nameHash, client)
		if err != nil {
			return err
		}
		if wait := g.counts.Wait(g.now); wait > 0 {
			return &berth.TooManyError{RetryAfter: wait}
		}
		return g.store(g.counts.Failed(g.now))
	})
}

// ForgetLogins is documented at store.Guesses.
func (s *Store) ForgetLogins(ctx context.Context, nameHash [32]byte, client string) error {
	return s.write(ctx, "ForgetLogins", func(t *tx) error {
		g, err := t.lockGuess(nameHash, client)
		if err != nil {
			return err
		}
		return g.store(g.counts.Succeeded(g.now))
	})
}

// UseAssertion is documented at store.Guesses.
func (s *Store) UseAssertion(ctx context.Context, host berth.HostID, jti string, ttl time.Duration) error {
	return s.write(ctx, "UseAssertion", func(t *tx) error {
		n, err := t.exec(`
INSERT INTO used_assertions (host_id, jti, expires_at) VALUES ($1, $2, berth_now() + make_interval(secs => $3)) ON CONFLICT DO NOTHING`,
			uid(host), clean(jti), ttl.Seconds())
		if err == nil && n == 0 {
			err = fmt.Errorf("assertion: %w", berth.ErrUsed)
		}
		return err
	})
}

// SweepGuesses is documented at store.Guesses. Rows that others hold are left to
// the next sweep.
func (s *Store) SweepGuesses(ctx context.Context, limit int) (deleted int, err error) {
	err = s.write(ctx, "SweepGuesses", func(t *tx) error {
		now, err := t.now()
		if err != nil {
			return err
		}
		counts, err := t.exec(`
WITH bound AS (
    SELECT last_at FROM login_failures WHERE known_at IS NULL ORDER BY last_at DESC OFFSET $1 LIMIT 1
), old AS MATERIALIZED (
    SELECT name_hash, client FROM login_failures
    WHERE known_at IS NULL AND last_at <= greatest($2, (SELECT last_at FROM bound)) OR known_at <= $3 AND last_at <= $2
    ORDER BY last_at LIMIT $4 FOR UPDATE SKIP LOCKED)
DELETE FROM login_failures f USING old WHERE f.name_hash = old.name_hash AND f.client = old.client`,
			store.MaxLoginCounts, now.Add(-berth.LoginForget), now.Add(-berth.LoginKnown), limit)
		if err != nil {
			return err
		}
		assertions, err := t.exec(`
WITH old AS MATERIALIZED (
    SELECT host_id, jti FROM used_assertions WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM used_assertions a USING old WHERE a.host_id = old.host_id AND a.jti = old.jti`, now, limit)
		deleted = int(counts + assertions)
		return err
	})
	return only(deleted, err)
}
