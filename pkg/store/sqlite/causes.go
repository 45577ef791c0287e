package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// deadLetter finishes a task as dead-lettered, with its cause: ended and message
// are what is said of it. It is the one place where that happens.
func deadLetter(t *tx, id berth.TaskID, class berth.ClassID, reason, ended, message string) error {
	plugin, ok, err := queryOne(t, scanText, "SELECT plugin FROM task_classes WHERE id = ?1", class)
	if err != nil || !ok {
		return orElse(err, "class %d is not there", class)
	}
	c := berth.CauseOf(plugin, ended, message)
	if err := finishTask(t, id, berth.StateDeadLetter, reason, nil); err != nil {
		return err
	}
	if err := t.execOne("UPDATE tasks SET cause_key = ?2 WHERE id = ?1", id, c.Key); err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO causes (cause_key, plugin, reason, message, created_at)
		VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (cause_key) DO NOTHING`, c.Key, c.Plugin, c.Reason, c.Message.Reveal(), micros(t.now))
	return err
}

// ListDeadLetters implements store.Tasks. It skips from cause to cause in the
// index, and counts at most DeadLettersCounted of each there.
func (s *Store) ListDeadLetters(ctx context.Context, p store.Page) (causes []berth.DeadLetters, next string, err error) {
	err = s.read(ctx, "ListDeadLetters", func(t *tx) error {
		causes, err = queryAll(t, func(r row) (d berth.DeadLetters, err error) {
			err = r.Scan(&d.Key, opt(&d.Plugin), opt(&d.Reason), hiddenText(&d.Message), at(&d.Since), &d.Count, &d.Newest, at(&d.NewestAt))
			if d.Count > store.DeadLettersCounted {
				d.Count, d.More = store.DeadLettersCounted, true
			}
			return d, err
		}, `WITH RECURSIVE k (cause_key, n) AS (
			SELECT * FROM (SELECT cause_key, 1 FROM tasks INDEXED BY tasks_cause WHERE cause_key > ?1 ORDER BY cause_key LIMIT 1)
			UNION ALL
			SELECT (SELECT t.cause_key FROM tasks t INDEXED BY tasks_cause WHERE t.cause_key > k.cause_key ORDER BY t.cause_key LIMIT 1), k.n + 1
			FROM k WHERE k.cause_key IS NOT NULL AND k.n < ?2),
		l AS (
			SELECT k.cause_key, k.n,
				(SELECT t.id FROM tasks t INDEXED BY tasks_cause WHERE t.cause_key = k.cause_key ORDER BY t.id DESC LIMIT 1) AS newest,
				(SELECT count(*) FROM (SELECT 1 FROM tasks t INDEXED BY tasks_cause WHERE t.cause_key = k.cause_key LIMIT ?3)) AS count
			FROM k WHERE k.cause_key IS NOT NULL)
		SELECT l.cause_key, c.plugin, c.reason, c.message, c.created_at, l.count, l.newest, t.finished_at
		FROM l JOIN tasks t ON t.id = l.newest LEFT JOIN causes c ON c.cause_key = l.cause_key ORDER BY l.n`,
			p.After, p.Limit()+1, store.DeadLettersCounted+1)
		return err
	})
	causes, next = page(causes, p.Limit(), func(d berth.DeadLetters) string { return string(d.Key) })
	return causes, next, err
}
