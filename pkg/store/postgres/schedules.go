package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schedule"
	"github.com/berth-dev/berth/pkg/store"
)

const scheduleColumns = `
SELECT s.id, s.name, s.pool_id, p.name, s.cron, s.time_zone, s.template::text, s.catch_up, s.catch_up_window_us, s.catch_up_limit, s.overlap,
       s.owner_kind, s.owner_id, s.owner_roles, s.revision, s.version, s.paused, s.note, s.next_slot_at, s.next_slot_key, s.waiting,
       s.decided_to, s.created_at, s.updated_at
FROM schedules s JOIN pools p ON p.id = s.pool_id`

func scanSchedule(row pgx.CollectableRow) (s berth.Schedule, err error) {
	var (
		pool     berth.PoolID
		template []byte
		windowUS int64
		roles    []string
	)
	if err = row.Scan(&s.ID, &s.Name, &pool, &s.PoolName, &s.Cron, &s.TimeZone, &template, &s.CatchUp, &windowUS, &s.CatchUpLimit, &s.Overlap,
		&s.Owner.Kind, &s.Owner.ID, &roles, &s.Revision, &s.Version, &s.Paused, &s.Note, instant(&s.NextAt), &s.NextKey, &s.Waiting,
		&s.DecidedTo, &s.CreatedAt, &s.UpdatedAt); err != nil {
		return s, err
	}
	s.CatchUpWindow, s.OwnerRoles = microseconds(windowUS), rolesOf(roles)
	s.Template, err = berth.DecodeTemplate(redact.NewBytes(template), pool)
	return s, err
}

// lockSchedule locks a schedule's row and reads it in a later statement.
func (t *tx) lockSchedule(name string) (berth.Schedule, error) {
	id, err := found(t, "schedule", column[string], `SELECT id::text FROM schedules WHERE name = $1 FOR NO KEY UPDATE`, clean(name))
	if err != nil {
		return berth.Schedule{}, err
	}
	return t.schedule(berth.ScheduleID(id))
}

func (t *tx) schedule(id berth.ScheduleID) (berth.Schedule, error) {
	return found(t, "schedule", scanSchedule, scheduleColumns+` WHERE s.id = $1`, uid(id))
}

// checkTemplate judges what a template names as a submit would, and fills in the
// sizes of its inputs and the name of its pool.
func (t *tx) checkTemplate(s *berth.Schedule, actor berth.Actor, scope berth.Scope, roles []berth.Role) error {
	tasks := []berth.NewTask{s.Template}
	pools, err := t.poolsOf(tasks)
	if err != nil {
		return err
	}
	s.PoolName = pools[s.Template.Pool].name
	inputs, err := t.bindInputs(scope, tasks)
	if err == nil {
		err = t.checkSecrets(store.SubmitParams{Actor: actor, Roles: roles, Tasks: tasks})
	}
	if err != nil {
		return berth.UnderTemplate(err)
	}
	s.Template.Inputs = inputs[0]
	s.Template.Secrets = berth.SortedSecrets(s.Template.Secrets)
	return nil
}

// CreateSchedule is documented at store.Schedules.
func (s *Store) CreateSchedule(ctx context.Context, p store.CreateScheduleParams) (made berth.Schedule, err error) {
	plan, err := p.Edit.Apply(berth.Schedule{ID: p.ID, Name: p.Name, Revision: 1, Version: 1}, p.Actor.Principal, p.Roles)
	if err != nil {
		return berth.Schedule{}, err
	}
	spec, err := schedule.Spec(plan)
	if err != nil {
		return berth.Schedule{}, err
	}
	err = s.write(ctx, "CreateSchedule", func(t *tx) error {
		ids, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.ID)})
		if err != nil {
			return err
		}
		if replayed {
			made, err = t.schedule(berth.ScheduleID(ids[0]))
			return err
		}
		made = plan
		if err := t.checkTemplate(&made, p.Actor, p.Scope, p.Roles); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		made = schedule.Resumed(made, spec, now)
		made.CreatedAt, made.UpdatedAt = now, now
		if err := t.insertSchedule(made, now); err != nil {
			return err
		}
		_, after := berth.ScheduleChange(berth.Schedule{}, made)
		return t.auditChange(p.Actor, now, berth.AuditScheduleCreated, "schedule", string(made.ID), "", after)
	})
	return only(made, err)
}

func (t *tx) insertSchedule(s berth.Schedule, now time.Time) error {
	template, err := berth.EncodeTemplate(s.Template)
	if err != nil {
		return err
	}
	n, err := t.exec(`
INSERT INTO schedules (id, name, pool_id, cron, time_zone, template, catch_up, catch_up_window_us, catch_up_limit, overlap,
                       owner_kind, owner_id, owner_roles, paused, note, next_slot_at, next_slot_key, look_at, decided_to, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $20) ON CONFLICT DO NOTHING`,
		uid(s.ID), s.Name, uid(s.Template.Pool), s.Cron, s.TimeZone, cleanJSON(template.Reveal()), string(s.CatchUp), s.CatchUpWindow.Microseconds(),
		s.CatchUpLimit, string(s.Overlap), string(s.Owner.Kind), s.Owner.ID, roleTexts(s.OwnerRoles), s.Paused, s.Note,
		orNull(s.NextAt), s.NextKey, orNull(schedule.LookAt(s, now)), s.DecidedTo, s.CreatedAt)
	if err == nil && n == 0 {
		err = &berth.ExistsError{What: "a schedule named " + s.Name}
	}
	if err != nil {
		return err
	}
	return t.insertScheduleInputs(s)
}

func (t *tx) insertScheduleInputs(s berth.Schedule) error {
	if len(s.Template.Inputs) == 0 {
		return nil
	}
	_, err := t.exec(`INSERT INTO schedule_inputs (digest, schedule_id) SELECT DISTINCT d, $2::uuid FROM unnest($1::bytea[]) d`,
		mapped(s.Template.Inputs, func(in berth.InputRef) []byte { return digestOf(in.Digest) }), uid(s.ID))
	return err
}

// updateSchedule writes what may change of a schedule, its template only if anew.
func (t *tx) updateSchedule(s berth.Schedule, anew bool, now time.Time) error {
	if anew {
		template, err := berth.EncodeTemplate(s.Template)
		if err != nil {
			return err
		}
		if _, err := t.exec(`
UPDATE schedules SET pool_id = $2, template = $3, owner_kind = $4, owner_id = $5, owner_roles = $6 WHERE id = $1`,
			uid(s.ID), uid(s.Template.Pool), cleanJSON(template.Reveal()), string(s.Owner.Kind), s.Owner.ID, roleTexts(s.OwnerRoles)); err != nil {
			return err
		}
		if _, err := t.exec(`DELETE FROM schedule_inputs WHERE schedule_id = $1`, uid(s.ID)); err != nil {
			return err
		}
		if err := t.insertScheduleInputs(s); err != nil {
			return err
		}
	}
	_, err := t.exec(`
UPDATE schedules SET cron = $2, time_zone = $3, catch_up = $4, catch_up_window_us = $5, catch_up_limit = $6, overlap = $7, revision = $8, version = $9,
       paused = $10, note = $11, next_slot_at = $12, next_slot_key = $13, waiting = $14, look_at = $15, decided_to = $16, updated_at = $17
WHERE id = $1`,
		uid(s.ID), s.Cron, s.TimeZone, string(s.CatchUp), s.CatchUpWindow.Microseconds(), s.CatchUpLimit, string(s.Overlap), s.Revision, s.Version,
		s.Paused, s.Note, orNull(s.NextAt), s.NextKey, s.Waiting, orNull(schedule.LookAt(s, now)), s.DecidedTo, s.UpdatedAt)
	return err
}

// GetSchedule is documented at store.Schedules.
func (s *Store) GetSchedule(ctx context.Context, name string) (got berth.Schedule, err error) {
	err = s.read(ctx, "GetSchedule", func(t *tx) error {
		got, err = found(t, "schedule", scanSchedule, scheduleColumns+` WHERE s.name = $1`, clean(name))
		return err
	})
	return got, err
}

// ListSchedules is documented at store.Schedules.
func (s *Store) ListSchedules(ctx context.Context, page store.Page) (all []berth.Schedule, next string, err error) {
	err = s.read(ctx, "ListSchedules", func(t *tx) error {
		all, err = collect(t, scanSchedule, scheduleColumns+` WHERE s.name COLLATE "C" > $1 ORDER BY s.name COLLATE "C" LIMIT $2`, clean(page.After), page.Limit()+1)
		return err
	})
	all, next = cut(all, page, func(s berth.Schedule) string { return s.Name })
	for i := range all {
		all[i].Template.Payload = redact.Bytes{}
	}
	return all, next, err
}

// EditSchedule is documented at store.Schedules.
func (s *Store) EditSchedule(ctx context.Context, p store.EditScheduleParams) (edited berth.Schedule, moves []berth.Transition, err error) {
	err = s.write(ctx, "EditSchedule", func(t *tx) error {
		moves = nil
		old, err := t.lockSchedule(p.Name)
		if err != nil {
			return err
		}
		plan, err := p.Edit.Apply(old, p.Actor.Principal, p.Roles)
		if err != nil {
			return err
		}
		anew := p.Edit.Template != nil
		if anew {
			if err := t.checkTemplate(&plan, p.Actor, p.Scope, p.Roles); err != nil {
				return err
			}
		}
		before, after := berth.ScheduleChange(old, plan)
		if before == "" && after == "" {
			edited = old
			return nil
		}
		if err := old.CheckVersion(p.Version); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		var settled berth.Schedule
		if settled, _, moves, err = t.fire(p.Actor, old, now, schedule.Settle(old, plan), p.Fresh); err != nil {
			return err
		}
		if edited, err = schedule.Edited(settled, plan, now); err != nil {
			return err
		}
		if err := t.updateSchedule(edited, anew, now); err != nil {
			return err
		}
		return t.auditChange(p.Actor, now, berth.AuditScheduleChanged, "schedule", string(old.ID), before, after)
	})
	return committed(edited, moves, err)
}

// DeleteSchedule is documented at store.Schedules.
func (s *Store) DeleteSchedule(ctx context.Context, actor berth.Actor, name string, version int) error {
	return s.write(ctx, "DeleteSchedule", func(t *tx) error {
		old, err := t.lockSchedule(name)
		if err != nil {
			return err
		}
		if err := old.CheckVersion(version); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`DELETE FROM schedules WHERE id = $1`, uid(old.ID)); err != nil {
			return err
		}
		before, _ := berth.ScheduleChange(old, berth.Schedule{})
		return t.auditChange(actor, now, berth.AuditScheduleDeleted, "schedule", string(old.ID), before, "")
	})
}

// PauseSchedule is documented at store.Schedules.
func (s *Store) PauseSchedule(ctx context.Context, actor berth.Actor, name string, fresh func() berth.TaskID) (paused berth.Schedule, moves []berth.Transition, err error) {
	err = s.write(ctx, "PauseSchedule", func(t *tx) error {
		moves = nil
		old, err := t.lockSchedule(name)
		if err != nil {
			return err
		}
		if paused = old; old.Paused {
			return nil
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if paused, _, moves, err = t.fire(actor, old, now, berth.SkipPaused, fresh); err != nil {
			return err
		}
		paused = schedule.Stopped(paused, paused.Note)
		paused.UpdatedAt, paused.Version = now, old.Version+1
		if err := t.updateSchedule(paused, false, now); err != nil {
			return err
		}
		before, after := berth.FlagFacts("paused", true)
		return t.auditChange(actor, now, berth.AuditSchedulePaused, "schedule", string(old.ID), before, after)
	})
	return committed(paused, moves, err)
}

// ResumeSchedule is documented at store.Schedules.
func (s *Store) ResumeSchedule(ctx context.Context, actor berth.Actor, name string) (resumed berth.Schedule, err error) {
	err = s.write(ctx, "ResumeSchedule", func(t *tx) error {
		old, err := t.lockSchedule(name)
		if err != nil {
			return err
		}
		if resumed = old; !old.Paused {
			return nil
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		spec, err := schedule.Spec(old)
		if err != nil {
			return fmt.Errorf("edit the schedule before: %w", err)
		}
		resumed = schedule.Resumed(old, spec, now)
		if resumed.Paused {
			return &berth.WrongStateError{Thing: "schedule", State: "at its end", Message: resumed.Note}
		}
		resumed.UpdatedAt, resumed.Version = now, old.Version+1
		if err := t.updateSchedule(resumed, false, now); err != nil {
			return err
		}
		before, after := berth.FlagFacts("paused", false)
		return t.auditChange(actor, now, berth.AuditScheduleResumed, "schedule", string(old.ID), before, after)
	})
	return only(resumed, err)
}
