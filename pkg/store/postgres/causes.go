package postgres

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// findCauses sets the causes of the dead letters among rows and keeps those that
// are new, ascending by key: they come after the tasks in the order of locks.
func (t *tx) findCauses(now time.Time, rows []finished) error {
	classes := map[berth.ClassID]string{}
	for _, r := range rows {
		if r.state == berth.StateDeadLetter {
			classes[r.class] = ""
		}
	}
	if len(classes) == 0 {
		return nil
	}
	type class struct {
		id     berth.ClassID
		plugin string
	}
	found, err := collect(t, func(row pgx.CollectableRow) (c class, err error) {
		return c, row.Scan(&c.id, &c.plugin)
	}, `SELECT id, plugin FROM task_classes WHERE id = ANY ($1)`, slices.Collect(maps.Keys(classes)))
	if err != nil {
		return err
	}
	for _, c := range found {
		classes[c.id] = c.plugin
	}
	causes := map[berth.CauseKey]berth.Cause{}
	for i, r := range rows {
		if r.state == berth.StateDeadLetter {
			c := berth.CauseOf(classes[r.class], r.ended, r.message)
			causes[c.Key], rows[i].cause = c, c.Key
		}
	}
	all := slices.SortedFunc(maps.Values(causes), func(a, b berth.Cause) int { return cmp.Compare(a.Key, b.Key) })
	_, err = t.exec(`
INSERT INTO causes (cause_key, plugin, reason, message, created_at)
SELECT e.*, $1 FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS e ON CONFLICT (cause_key) DO NOTHING`,
		now,
		mapped(all, func(c berth.Cause) string { return string(c.Key) }),
		mapped(all, func(c berth.Cause) string { return c.Plugin }),
		mapped(all, func(c berth.Cause) string { return c.Reason }),
		mapped(all, func(c berth.Cause) string { return c.Message.Reveal() }))
	return err
}

// ListDeadLetters is documented at store.Tasks. It skips from cause to cause in
// the index, and counts at most DeadLettersCounted of each there.
func (s *Store) ListDeadLetters(ctx context.Context, page store.Page) (causes []berth.DeadLetters, next string, err error) {
	err = s.read(ctx, "ListDeadLetters", func(t *tx) error {
		causes, err = collect(t, func(row pgx.CollectableRow) (d berth.DeadLetters, err error) {
			var message string
			err = row.Scan(&d.Key, &d.Plugin, &d.Reason, &message, instant(&d.Since), &d.Count, &d.Newest, instant(&d.NewestAt))
			d.Message = redact.NewString(message)
			if d.Count > store.DeadLettersCounted {
				d.Count, d.More = store.DeadLettersCounted, true
			}
			return d, err
		}, `
WITH RECURSIVE k (cause_key, n) AS (
    (SELECT cause_key, 1 FROM tasks WHERE cause_key > $1 ORDER BY cause_key LIMIT 1)
    UNION ALL
    SELECT (SELECT t.cause_key FROM tasks t WHERE t.cause_key > k.cause_key ORDER BY t.cause_key LIMIT 1), k.n + 1
    FROM k WHERE k.cause_key IS NOT NULL AND k.n < $2)
SELECT k.cause_key, COALESCE(c.plugin, ''), COALESCE(c.reason, ''), COALESCE(c.message, ''), c.created_at, n.n, l.id, l.finished_at
FROM k
LEFT JOIN causes c ON c.cause_key = k.cause_key
CROSS JOIN LATERAL (
    SELECT t.id, t.finished_at FROM tasks t WHERE t.cause_key >= k.cause_key AND t.cause_key <= k.cause_key
    ORDER BY t.cause_key DESC, t.id DESC LIMIT 1) l
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT FROM tasks t WHERE t.cause_key = k.cause_key LIMIT $3) x) n
ORDER BY k.n`, page.After, page.Limit()+1, store.DeadLettersCounted+1)
		return err
	})
	causes, next = cut(causes, page, func(d berth.DeadLetters) string { return string(d.Key) })
	return causes, next, err
}
