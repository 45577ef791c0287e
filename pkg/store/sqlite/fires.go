package sqlite

import (
	"context"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/cron"
	"github.com/berth-dev/berth/pkg/schedule"
	"github.com/berth-dev/berth/pkg/store"
)

// FireDue implements store.Schedules.
func (s *Store) FireDue(ctx context.Context, p store.FireDueParams) (result store.FireDueResult, err error) {
	var seen []berth.ScheduleID
	for len(seen) < p.Limit {
		var (
			id    berth.ScheduleID
			fires []berth.Fire
			trs   []berth.Transition
		)
		failed := s.write(ctx, "FireDue", func(t *tx) (err error) {
			id, fires, trs, err = fireOne(t, p, seen)
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
		result.Fires, result.Transitions = append(result.Fires, fires...), append(result.Transitions, trs...)
	}
	result.Schedules = len(seen)
	return result, err
}

// fireOne takes one due schedule that is not among seen. id stays "" when there is
// none, and tells of it also beside an error.
func fireOne(t *tx, p store.FireDueParams, seen []berth.ScheduleID) (id berth.ScheduleID, fires []berth.Fire, trs []berth.Transition, err error) {
	text, ok, err := queryOne(t, scanText, `SELECT id FROM schedules WHERE look_at IS NOT NULL AND look_at <= ?1
		AND id NOT IN (SELECT value FROM json_each(?2)) ORDER BY look_at LIMIT 1`, micros(t.now), list(seen))
	if err != nil || !ok {
		return "", nil, nil, err
	}
	id = berth.ScheduleID(text)
	old, err := loadSchedule(t, "s.id = ?1", id)
	if err != nil {
		return id, nil, nil, err
	}
	after, fires, trs, err := fire(t, p.Actor, old, "", p.Fresh)
	if err != nil {
		return id, nil, nil, err
	}
	if err := updateSchedule(t, after, false); err != nil {
		return id, nil, nil, err
	}
	if after.Paused && !old.Paused {
		before, facts := berth.FlagFacts("paused", true)
		err = auditEvent(t, berth.AuditEvent{
			Actor: p.Actor, Action: berth.AuditSchedulePaused, TargetKind: "schedule", TargetID: string(id), Reason: berth.ReasonSpecUnusable, Before: before, After: facts,
		})
	}
	return id, fires, trs, err
}

// fire decides the slots of a schedule that are due, and returns the schedule that
// is to be stored. settle as in schedule.Question.
func fire(t *tx, actor berth.Actor, old berth.Schedule, settle string, fresh func() berth.TaskID) (after berth.Schedule, fires []berth.Fire, trs []berth.Transition, err error) {
	if old.Paused || old.NextAt.After(t.now) {
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
	busy, err := openTasks(t, old)
	if err != nil {
		return old, nil, nil, err
	}
	answer := schedule.Decide(schedule.Question{Schedule: old, Spec: spec, Next: next, Now: t.now, Busy: len(busy) > 0, Settle: settle})
	after = schedule.Decided(old, answer, t.now)
	turn, err := undecided(t, old, answer.Fire)
	if err != nil {
		return old, nil, nil, err
	}
	fires = answer.Skipped
	if len(turn) > 0 {
		made, fired, reason, err := submitSlots(t, actor, old, turn, fresh)
		if err != nil {
			return old, nil, nil, err
		}
		if !after.Paused {
			after.Note = berth.NoteOf(reason)
		}
		if trs = made; reason == "" && answer.Cancel {
			cancelled, err := cancelAll(t, old.OwnerActor(actor), busy)
			if err != nil {
				return old, nil, nil, err
			}
			trs = append(trs, cancelled...)
		}
		fires = append(fires, fired...)
	}
	return after, fires, trs, insertFires(t, fires)
}

// openTasks are the tasks of a schedule that are unfinished; of one whose tasks
// may overlap they do not matter.
func openTasks(t *tx, s berth.Schedule) ([]berth.TaskID, error) {
	limit := -1
	if s.Overlap == berth.OverlapAllow {
		limit = 200
	}
	if _, err := t.exec(`UPDATE fires SET open = 0 WHERE schedule_id = ?1 AND open AND (revision, slot_key) IN (
			SELECT f.revision, f.slot_key FROM (
				SELECT revision, slot_key, task_id FROM fires WHERE schedule_id = ?1 AND open ORDER BY slot_at LIMIT ?2) f
			WHERE NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = f.task_id AND t.final_state IS NULL))`, s.ID, limit); err != nil {
		return nil, err
	}
	if s.Overlap == berth.OverlapAllow {
		return nil, nil
	}
	return queryAll(t, func(r row) (id berth.TaskID, err error) { return id, r.Scan(&id) },
		"SELECT task_id FROM fires WHERE schedule_id = ?1 AND open ORDER BY task_id LIMIT 1000", s.ID)
}

// undecided is slots less those that were decided before: none, unless somebody
// mended the database by hand.
func undecided(t *tx, s berth.Schedule, slots []cron.Slot) ([]cron.Slot, error) {
	if len(slots) == 0 {
		return nil, nil
	}
	keys := make([]string, len(slots))
	for i, slot := range slots {
		keys[i] = string(slot.Key)
	}
	known, err := queryAll(t, scanText, `SELECT slot_key FROM fires WHERE schedule_id = ?1 AND revision = ?2
		AND slot_key IN (SELECT value FROM json_each(?3))`, s.ID, s.Revision, list(keys))
	return schedule.Without(slots, known), err
}

// submitSlots submits the tasks of slots as the owner may now; reason is why they
// are refused, and then the slots are skipped ones.
func submitSlots(t *tx, actor berth.Actor, s berth.Schedule, slots []cron.Slot, fresh func() berth.TaskID) (trs []berth.Transition, fires []berth.Fire, reason string, err error) {
	roles, reason, err := ownerRoles(t, s)
	if err != nil {
		return nil, nil, "", err
	}
	for _, slot := range slots {
		if reason != "" {
			break
		}
		f := schedule.FireOf(s, slot, t.now)
		f.Task = fresh()
		made, err := submitSlot(t, actor, s, roles, f)
		if err != nil {
			refused, ok := berth.SkipReason(err)
			if !ok {
				return nil, nil, "", err
			}
			reason = refused
			break
		}
		trs, fires = append(trs, made...), append(fires, f)
	}
	return trs, append(fires, schedule.Refused(s, slots[len(fires):], t.now, reason)...), reason, nil
}

func submitSlot(t *tx, actor berth.Actor, s berth.Schedule, roles []berth.Role, f berth.Fire) ([]berth.Transition, error) {
	return submit(t, store.SubmitParams{
		Actor: s.OwnerActor(actor), Scope: s.TaskScope(roles), Roles: roles, Tasks: []berth.NewTask{s.TaskOf(f.Task)},
		CorrelationID: s.CorrelationOf(f.Key),
	})
}

// ownerRoles are the roles that the tasks of a schedule get now, or why they get
// none.
func ownerRoles(t *tx, s berth.Schedule) (roles []berth.Role, reason string, err error) {
	user, has, err := granteeOf(t, s.Owner)
	if err != nil {
		return nil, "", err
	}
	roles, reason = s.RolesNow(user, has)
	return roles, reason, nil
}

// cancelAll cancels unfinished tasks.
func cancelAll(t *tx, actor berth.Actor, ids []berth.TaskID) (trs []berth.Transition, err error) {
	for _, id := range ids {
		task, err := loadTask(t, berth.Scope{All: true}, id)
		if err != nil {
			return nil, err
		}
		if task.State.Finished() {
			continue
		}
		tr, changed, err := cancel(t, actor, task)
		if err != nil {
			return nil, err
		}
		if changed {
			trs = append(trs, tr)
		}
	}
	return trs, nil
}

func insertFires(t *tx, fires []berth.Fire) error {
	for _, f := range fires {
		if _, err := t.exec(`INSERT INTO fires (schedule_id, revision, slot_key, slot_at, last_slot_at, decided_at, task_id, reason, slots, at_least, open)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?7 IS NOT NULL) ON CONFLICT DO NOTHING`,
			f.Schedule, f.Revision, f.Key, micros(f.SlotAt), micros(f.LastSlotAt), micros(f.DecidedAt), null(f.Task), f.Reason, f.Slots, f.AtLeast); err != nil {
			return err
		}
	}
	return nil
}

// RunSchedule implements store.Schedules.
func (s *Store) RunSchedule(ctx context.Context, p store.RunScheduleParams) (result store.RunScheduleResult, err error) {
	err = s.write(ctx, "RunSchedule", func(t *tx) error {
		sc, err := scheduleNamed(t, p.Name)
		if err != nil {
			return err
		}
		ids, replayed, err := once(t, p.Actor, p.Once, []berth.TaskID{p.Task})
		if err != nil {
			return err
		}
		if replayed {
			result.Replayed = true
			result.Task, err = loadTask(t, berth.Scope{All: true}, ids[0])
			return err
		}
		roles, reason, err := ownerRoles(t, sc)
		if err != nil {
			return err
		}
		if reason != "" {
			return &berth.WrongStateError{Thing: "schedule", State: reason, Message: berth.NoteOf(reason)}
		}
		f := berth.Fire{
			Schedule: sc.ID, Revision: sc.Revision, Key: berth.RunKey(p.Task), SlotAt: t.now, LastSlotAt: t.now, DecidedAt: t.now, Task: p.Task, Slots: 1,
		}
		if result.Transitions, err = submitSlot(t, p.Actor, sc, roles, f); err != nil {
			return berth.UnderTemplate(err)
		}
		if err := insertFires(t, []berth.Fire{f}); err != nil {
			return err
		}
		if result.Task, err = loadTask(t, berth.Scope{All: true}, p.Task); err != nil {
			return err
		}
		return auditChange(t, p.Actor, berth.AuditScheduleRun, "schedule", string(sc.ID), "", berth.Fact("task", string(p.Task)))
	})
	if err != nil {
		return store.RunScheduleResult{}, err
	}
	return result, nil
}

func scanFire(r row) (f berth.Fire, err error) {
	return f, r.Scan(&f.Schedule, &f.Revision, &f.Key, at(&f.SlotAt), at(&f.LastSlotAt), at(&f.DecidedAt), opt(&f.Task), &f.Reason, &f.Slots, &f.AtLeast)
}

// ListFires implements store.Schedules.
func (s *Store) ListFires(ctx context.Context, name string, p store.Page) (fires []berth.Fire, next string, err error) {
	after, err := berth.ParseFireCursor(p.After)
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, "ListFires", func(t *tx) error {
		sc, err := scheduleNamed(t, name)
		if err != nil {
			return err
		}
		fires, err = queryAll(t, scanFire, `SELECT schedule_id, revision, slot_key, slot_at, last_slot_at, decided_at, task_id, reason, slots, at_least FROM fires
			WHERE schedule_id = ?1 AND (?2 IS NULL OR (decided_at, slot_key, revision) < (?2, ?3, ?4))
			ORDER BY decided_at DESC, slot_key DESC, revision DESC LIMIT ?5`, sc.ID, micros(after.DecidedAt), after.Key, after.Revision, p.Limit()+1)
		return err
	})
	fires, next = page(fires, p.Limit(), berth.Fire.Cursor)
	return fires, next, err
}
