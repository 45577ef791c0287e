package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/cron"
	"github.com/berth-dev/berth/pkg/schedule"
	"github.com/berth-dev/berth/pkg/store"
)

// FireDue is documented at store.Schedules.
func (s *Store) FireDue(ctx context.Context, p store.FireDueParams) (result store.FireDueResult, err error) {
	var seen []berth.ScheduleID
	for len(seen) < p.Limit {
		var (
			id    berth.ScheduleID
			fires []berth.Fire
			moves []berth.Transition
		)
		failed := s.write(ctx, "FireDue", func(t *tx) (err error) {
			id, fires, moves, err = t.fireOne(p, seen)
			return err
		})
		if id == "" {
			if err == nil {
				err = failed
			}
			break
		}
		seen = append(seen, id)
		if failed != nil {
			if err == nil {
				err = fmt.Errorf("schedule %s: %w", id, failed)
			}
			if ctx.Err() != nil {
				break
			}
			continue
		}
		result.Fires, result.Transitions = append(result.Fires, fires...), append(result.Transitions, moves...)
	}
	result.Schedules = len(seen)
	return result, err
}

// fireOne takes one due schedule that nobody else has and that is not among seen.
// id stays "" when there is none, and tells of it also beside an error.
func (t *tx) fireOne(p store.FireDueParams, seen []berth.ScheduleID) (id berth.ScheduleID, fires []berth.Fire, moves []berth.Transition, err error) {
	text, ok, err := first(t, column[string], `
SELECT id::text FROM schedules WHERE look_at <= (SELECT berth_now()) AND id <> ALL ($1)
ORDER BY look_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED`, uids(seen))
	if err != nil || !ok {
		return "", nil, nil, err
	}
	id = berth.ScheduleID(text)
	old, err := t.schedule(id)
	if err != nil {
		return id, nil, nil, err
	}
	now, err := t.now()
	if err != nil {
		return id, nil, nil, err
	}
	after, fires, moves, err := t.fire(p.Actor, old, now, "", p.Fresh)
	if err != nil {
		return id, nil, nil, err
	}
	if err := t.updateSchedule(after, false, now); err != nil {
		return id, nil, nil, err
	}
	if after.Paused && !old.Paused {
		before, facts := berth.FlagFacts("paused", true)
		err = t.auditEvents([]berth.AuditEvent{{
			At: now, Actor: p.Actor, Action: berth.AuditSchedulePaused, TargetKind: "schedule", TargetID: string(id), Reason: berth.ReasonSpecUnusable, Before: before, After: facts,
		}})
	}
	return id, fires, moves, err
}

// fire decides the slots of a locked schedule that are due, and returns the
// schedule that is to be stored. settle as in schedule.Question.
func (t *tx) fire(actor berth.Actor, old berth.Schedule, now time.Time, settle string, fresh func() berth.TaskID) (after berth.Schedule, fires []berth.Fire, moves []berth.Transition, err error) {
	if old.Paused || old.NextAt.After(now) {
		return old, nil, nil, nil
	}
	spec, err := schedule.Spec(old)
	if err != nil {
		return schedule.Stopped(old, berth.NoteUnreadable(err)), nil, nil, nil
	}
	next, err := schedule.Next(old, spec)
	if err != nil {
		return schedule.Stopped(old, berth.NoteUnreadable(err)), nil, nil, nil
	}
	busy, err := t.openTasks(old)
	if err != nil {
		return old, nil, nil, err
	}
	answer := schedule.Decide(schedule.Question{Schedule: old, Spec: spec, Next: next, Now: now, Busy: len(busy) > 0, Settle: settle})
	after = schedule.Decided(old, answer, now)
	turn, err := t.undecided(old, answer.Fire)
	if err != nil {
		return old, nil, nil, err
	}
	fires = answer.Skipped
	if len(turn) > 0 {
		made, fired, reason, err := t.submitSlots(actor, old, turn, now, fresh)
		if err != nil {
			return old, nil, nil, err
		}
		if !after.Paused {
			after.Note = berth.NoteOf(reason)
		}
		if moves = made; reason == "" && answer.Cancel {
			cancelled, err := t.cancelAll(old.OwnerActor(actor), busy)
			if err != nil {
				return old, nil, nil, err
			}
			moves = append(moves, cancelled...)
		}
		fires = append(fires, fired...)
	}
	return after, fires, moves, t.insertFires(fires)
}

// openTasks are the tasks of a schedule that are unfinished; of one whose tasks
// may overlap they do not matter.
func (t *tx) openTasks(s berth.Schedule) ([]berth.TaskID, error) {
	limit := "LIMIT ALL"
	if s.Overlap == berth.OverlapAllow {
		limit = "LIMIT 200"
	}
	if _, err := t.exec(`
UPDATE fires f SET open = false FROM (
    SELECT revision, slot_key, task_id FROM fires WHERE schedule_id = $1 AND open ORDER BY slot_at `+limit+`) o
WHERE f.schedule_id = $1 AND f.revision = o.revision AND f.slot_key = o.slot_key
  AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = o.task_id AND t.final_state IS NULL)`, uid(s.ID)); err != nil {
		return nil, err
	}
	if s.Overlap == berth.OverlapAllow {
		return nil, nil
	}
	return collect(t, column[berth.TaskID], `SELECT task_id::text FROM fires WHERE schedule_id = $1 AND open ORDER BY task_id LIMIT 1000`, uid(s.ID))
}

// undecided is slots less those that were decided before: none, unless somebody
// mended the database by hand.
func (t *tx) undecided(s berth.Schedule, slots []cron.Slot) ([]cron.Slot, error) {
	if len(slots) == 0 {
		return nil, nil
	}
	known, err := collect(t, column[string], `SELECT slot_key FROM fires WHERE schedule_id = $1 AND revision = $2 AND slot_key = ANY ($3)`,
		uid(s.ID), s.Revision, mapped(slots, func(slot cron.Slot) string { return string(slot.Key) }))
	if err != nil || len(known) == 0 {
		return slots, err
	}
	return schedule.Without(slots, known), nil
}

// submitSlots submits the tasks of slots as the owner may now; reason is why they
// are refused, and then the slots are skipped ones.
func (t *tx) submitSlots(actor berth.Actor, s berth.Schedule, slots []cron.Slot, now time.Time, fresh func() berth.TaskID) (moves []berth.Transition, fires []berth.Fire, reason string, err error) {
	roles, reason, err := t.ownerRoles(s)
	if err != nil {
		return nil, nil, "", err
	}
	for _, slot := range slots {
		if reason != "" {
			break
		}
		f := schedule.FireOf(s, slot, now)
		f.Task = fresh()
		made, err := t.submitSlot(actor, s, roles, f)
		if err != nil {
			refused, ok := berth.SkipReason(err)
			if !ok {
				return nil, nil, "", err
			}
			reason = refused
			break
		}
		moves, fires = append(moves, made...), append(fires, f)
	}
	return moves, append(fires, schedule.Refused(s, slots[len(fires):], now, reason)...), reason, nil
}

func (t *tx) submitSlot(actor berth.Actor, s berth.Schedule, roles []berth.Role, f berth.Fire) ([]berth.Transition, error) {
	_, moves, err := t.submit(store.SubmitParams{
		Actor: s.OwnerActor(actor), Scope: s.TaskScope(roles), Roles: roles, Tasks: []berth.NewTask{s.TaskOf(f.Task)},
		CorrelationID: s.CorrelationOf(f.Key),
	})
	return moves, err
}

// ownerRoles are the roles that the tasks of a schedule get now, or why they get
// none.
func (t *tx) ownerRoles(s berth.Schedule) (roles []berth.Role, reason string, err error) {
	user, has, err := t.grantee(s.Owner)
	if err != nil {
		return nil, "", err
	}
	roles, reason = s.RolesNow(user, has)
	return roles, reason, nil
}

// cancelAll cancels unfinished tasks, in the order of locks: tokens, attempts with
// their leases, tasks.
func (t *tx) cancelAll(actor berth.Actor, ids []berth.TaskID) (moves []berth.Transition, err error) {
	var waiting, alive []berth.Task
	for _, id := range unique(ids) {
		k, err := t.task(berth.Scope{All: true}, id)
		if err != nil {
			return nil, err
		}
		switch {
		case k.State.Finished(), k.CancelRequested:
		case k.State.Live():
			alive = append(alive, k)
		default:
			if _, err := t.takeToken(k); err != nil {
				return nil, err
			}
			waiting = append(waiting, k)
		}
	}
	if len(alive) > 0 {
		if _, err := t.lockForEnd(mapped(alive, func(k berth.Task) berth.AttemptID { return k.Attempt })); err != nil {
			return nil, err
		}
	}
	p := store.TaskParams{Actor: actor}
	for _, k := range alive {
		ended, err := t.cancelLive(p, k)
		if err != nil {
			return nil, err
		}
		moves = append(moves, ended...)
	}
	for _, k := range waiting {
		ended, err := t.cancelTaken(p, k)
		if err != nil {
			return nil, err
		}
		moves = append(moves, ended...)
	}
	return moves, nil
}

func (t *tx) insertFires(fires []berth.Fire) error {
	if len(fires) == 0 {
		return nil
	}
	type row = berth.Fire
	_, err := t.exec(`
INSERT INTO fires (schedule_id, revision, slot_key, slot_at, last_slot_at, decided_at, task_id, reason, slots, at_least, open)
SELECT e.*, e.task IS NOT NULL
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::uuid[], $8::text[], $9::integer[], $10::boolean[])
    AS e (schedule, revision, key, at, last, decided, task, reason, slots, at_least)
ON CONFLICT DO NOTHING`,
		mapped(fires, func(f row) pgtype.UUID { return uid(f.Schedule) }),
		mapped(fires, func(f row) int32 { return int32(f.Revision) }),
		mapped(fires, func(f row) string { return f.Key }),
		mapped(fires, func(f row) time.Time { return f.SlotAt }),
		mapped(fires, func(f row) time.Time { return f.LastSlotAt }),
		mapped(fires, func(f row) time.Time { return f.DecidedAt }),
		mapped(fires, func(f row) pgtype.UUID { return uid(f.Task) }),
		mapped(fires, func(f row) string { return f.Reason }),
		mapped(fires, func(f row) int32 { return int32(f.Slots) }),
		mapped(fires, func(f row) bool { return f.AtLeast }))
	return err
}

// RunSchedule is documented at store.Schedules.
func (s *Store) RunSchedule(ctx context.Context, p store.RunScheduleParams) (result store.RunScheduleResult, err error) {
	err = s.write(ctx, "RunSchedule", func(t *tx) error {
		result = store.RunScheduleResult{}
		sc, err := t.lockSchedule(p.Name)
		if err != nil {
			return err
		}
		ids, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.Task)})
		if err != nil {
			return err
		}
		if replayed {
			result.Replayed = true
			result.Task, err = t.task(berth.Scope{All: true}, berth.TaskID(ids[0]))
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		roles, reason, err := t.ownerRoles(sc)
		if err != nil {
			return err
		}
		if reason != "" {
			return &berth.WrongStateError{Thing: "schedule", State: reason, Message: berth.NoteOf(reason)}
		}
		f := berth.Fire{
			Schedule: sc.ID, Revision: sc.Revision, Key: berth.RunKey(p.Task), SlotAt: now, LastSlotAt: now, DecidedAt: now, Task: p.Task, Slots: 1,
		}
		if result.Transitions, err = t.submitSlot(p.Actor, sc, roles, f); err != nil {
			return berth.UnderTemplate(err)
		}
		if err := t.insertFires([]berth.Fire{f}); err != nil {
			return err
		}
		if result.Task, err = t.task(berth.Scope{All: true}, p.Task); err != nil {
			return err
		}
		return t.auditChange(p.Actor, now, berth.AuditScheduleRun, "schedule", string(sc.ID), "", berth.Fact("task", string(p.Task)))
	})
	return only(result, err)
}

func scanFire(row pgx.CollectableRow) (f berth.Fire, err error) {
	return f, row.Scan(&f.Schedule, &f.Revision, &f.Key, &f.SlotAt, &f.LastSlotAt, &f.DecidedAt, nullable(&f.Task), &f.Reason, &f.Slots, &f.AtLeast)
}

// ListFires is documented at store.Schedules.
func (s *Store) ListFires(ctx context.Context, name string, page store.Page) (fires []berth.Fire, next string, err error) {
	after, err := berth.ParseFireCursor(page.After)
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, "ListFires", func(t *tx) error {
		id, err := found(t, "schedule", column[string], `SELECT id::text FROM schedules WHERE name = $1`, clean(name))
		if err != nil {
			return err
		}
		fires, err = collect(t, scanFire, `
SELECT schedule_id, revision, slot_key, slot_at, last_slot_at, decided_at, task_id, reason, slots, at_least FROM fires
WHERE schedule_id = $1 AND ($2::timestamptz IS NULL OR (decided_at, slot_key, revision) < ($2, $3, $4))
ORDER BY decided_at DESC, slot_key DESC, revision DESC LIMIT $5`, uid(berth.ScheduleID(id)), orNull(after.DecidedAt), after.Key, after.Revision, page.Limit()+1)
		return err
	})
	fires, next = cut(fires, page, berth.Fire.Cursor)
	return fires, next, err
}
