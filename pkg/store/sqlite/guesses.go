package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// guess is one attempt to log in with what is remembered of such ones.
type guess struct {
	t      *tx
	name   []byte
	client string
	counts berth.LoginCounts
	// known: only the pair's count bounds the attempt.
	known bool
}

// ofAll stands for every name, and "" for every client.
func ofAll() []byte { return []byte{} }

// readGuess reads the counts of an attempt. A client that is known under the
// name has its own alone.
func readGuess(t *tx, nameHash [32]byte, client string) (g guess, err error) {
	g = guess{t: t, name: nameHash[:], client: client}
	g.counts.Pair, err = g.read(g.name, client)
	g.known = g.counts.Pair.Known(t.now)
	if err != nil || g.known {
		return g, err
	}
	if g.counts.Client, err = g.read(ofAll(), client); err != nil {
		return g, err
	}
	g.counts.Name, err = g.read(g.name, "")
	return g, err
}

func (g *guess) read(name []byte, client string) (berth.LoginCount, error) {
	c, _, err := queryOne(g.t, func(r row) (c berth.LoginCount, err error) {
		return c, r.Scan(&c.Failures, at(&c.LastAt), at(&c.WaitUntil), at(&c.KnownAt))
	}, "SELECT failures, last_at, wait_until, known_at FROM login_failures WHERE name_hash = ?1 AND client = ?2", name, client)
	return c, err
}

// store writes the counts that readGuess read.
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
	return g.t.execOne(`INSERT INTO login_failures (name_hash, client, failures, last_at, wait_until, known_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
		ON CONFLICT DO UPDATE SET failures = excluded.failures, last_at = excluded.last_at, wait_until = excluded.wait_until, known_at = excluded.known_at`,
		name, client, c.Failures, micros(c.LastAt), micros(c.WaitUntil), micros(c.KnownAt))
}

// CountLogin implements store.Guesses.
func (s *Store) CountLogin(ctx context.Context, nameHash [32]byte, client string) error {
	return s.write(ctx, "CountLogin", func(t *tx) error {
		g, err := readGuess(t, nameHash, client)
		if err != nil {
			return err
		}
		if wait := g.counts.Wait(t.now); wait > 0 {
			return &berth.TooManyError{RetryAfter: wait}
		}
		return g.store(g.counts.Failed(t.now))
	})
}

// ForgetLogins implements store.Guesses.
func (s *Store) ForgetLogins(ctx context.Context, nameHash [32]byte, client string) error {
	return s.write(ctx, "ForgetLogins", func(t *tx) error {
		g, err := readGuess(t, nameHash, client)
		if err != nil {
			return err
		}
		return g.store(g.counts.Succeeded(t.now))
	})
}

// UseAssertion implements store.Guesses.
func (s *Store) UseAssertion(ctx context.Context, host berth.HostID, jti string, ttl time.Duration) error {
	return s.write(ctx, "UseAssertion", func(t *tx) error {
		n, err := t.exec("INSERT INTO used_assertions (host_id, jti, expires_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
			host, jti, micros(t.now.Add(ttl)))
		if err == nil && n == 0 {
			err = fmt.Errorf("assertion: %w", berth.ErrUsed)
		}
		return err
	})
}

// SweepGuesses implements store.Guesses.
func (s *Store) SweepGuesses(ctx context.Context, limit int) (deleted int, err error) {
	err = s.write(ctx, "SweepGuesses", func(t *tx) error {
		counts, err := t.exec(`DELETE FROM login_failures WHERE (name_hash, client) IN (
			SELECT name_hash, client FROM login_failures
			WHERE known_at IS NULL AND last_at <= max(?2, COALESCE(
				(SELECT last_at FROM login_failures WHERE known_at IS NULL ORDER BY last_at DESC LIMIT 1 OFFSET ?1), 0))
				OR known_at <= ?3 AND last_at <= ?2
			ORDER BY last_at LIMIT ?4)`,
			store.MaxLoginCounts, micros(t.now.Add(-berth.LoginForget)), micros(t.now.Add(-berth.LoginKnown)), limit)
		if err != nil {
			return err
		}
		assertions, err := t.exec(`DELETE FROM used_assertions WHERE (host_id, jti) IN (
			SELECT host_id, jti FROM used_assertions WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)`, micros(t.now), limit)
		deleted = int(counts + assertions)
		return err
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}
