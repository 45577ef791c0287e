package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schedule"
	"github.com/berth-dev/berth/pkg/store"
)

const scheduleSelect = `SELECT s.id, s.name, s.pool_id, p.name, s.cron, s.time_zone, s.template, s.catch_up, s.catch_up_window_us, s.catch_up_limit, s.overlap,
	s.owner_kind, s.owner_id, s.owner_roles, s.revision, s.version, s.paused, s.note, s.next_slot_at, s.next_slot_key, s.waiting,
	s.decided_to, s.created_at, s.updated_at
	FROM schedules s JOIN pools p ON p.id = s.pool_id`

func scanSchedule(r row) (s berth.Schedule, err error) {
	var pool berth.PoolID
	var template redact.Bytes
	if err = r.Scan(&s.ID, &s.Name, &pool, &s.PoolName, &s.Cron, &s.TimeZone, hidden(&template), &s.CatchUp, span(&s.CatchUpWindow), &s.CatchUpLimit, &s.Overlap,
		&s.Owner.Kind, &s.Owner.ID, fromJSON(&s.OwnerRoles), &s.Revision, &s.Version, &s.Paused, &s.Note, at(&s.NextAt), &s.NextKey, &s.Waiting,
		at(&s.DecidedTo), at(&s.CreatedAt), at(&s.UpdatedAt)); err != nil {
		return s, err
	}
	s.Template, err = berth.DecodeTemplate(template, pool)
	return s, err
}

func loadSchedule(t *tx, where string, arg any) (berth.Schedule, error) {
	s, ok, err := queryOne(t, scanSchedule, scheduleSelect+" WHERE "+where, arg)
	if err == nil && !ok {
		err = notFound("schedule")
	}
	return s, err
}

func scheduleNamed(t *tx, name string) (berth.Schedule, error) {
	return loadSchedule(t, "s.name = ?1", name)
}

// checkTemplate judges what a template names as a submit would, and fills in the
// sizes of its inputs and the name of its pool.
func checkTemplate(t *tx, s *berth.Schedule, actor berth.Actor, scope berth.Scope, roles []berth.Role) error {
	tasks := []berth.NewTask{s.Template}
	pool, ok, err := queryOne(t, scanText, "SELECT name FROM pools WHERE id = ?1", s.Template.Pool)
	if err != nil || !ok {
		return orNotFound(err, "pool")
	}
	s.PoolName = pool
	inputs, err := bindInputs(t, scope, tasks)
	if err == nil {
		err = checkSecrets(t, store.SubmitParams{Actor: actor, Roles: roles, Tasks: tasks})
	}
	if err != nil {
		return berth.UnderTemplate(err)
	}
	s.Template.Inputs = inputs[0]
	s.Template.Secrets = berth.SortedSecrets(s.Template.Secrets)
	return nil
}

// CreateSchedule implements store.Schedules.
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
		ids, replayed, err := once(t, p.Actor, p.Once, []berth.ScheduleID{p.ID})
		if err != nil {
			return err
		}
		if replayed {
			made, err = loadSchedule(t, "s.id = ?1", ids[0])
			return err
		}
		made = plan
		if err := checkTemplate(t, &made, p.Actor, p.Scope, p.Roles); err != nil {
			return err
		}
		made = schedule.Resumed(made, spec, t.now)
		made.CreatedAt, made.UpdatedAt = t.now, t.now
		if err := insertSchedule(t, made); err != nil {
			return err
		}
		_, after := berth.ScheduleChange(berth.Schedule{}, made)
		return auditChange(t, p.Actor, berth.AuditScheduleCreated, "schedule", string(made.ID), "", after)
	})
	if err != nil {
		return berth.Schedule{}, err
	}
	return made, nil
}

func insertSchedule(t *tx, s berth.Schedule) error {
	template, err := berth.EncodeTemplate(s.Template)
	if err != nil {
		return err
	}
	err = t.execOne(`INSERT INTO schedules (id, name, pool_id, cron, time_zone, template, catch_up, catch_up_window_us, catch_up_limit, overlap,
		owner_kind, owner_id, owner_roles, paused, note, next_slot_at, next_slot_key, look_at, decided_to, created_at, updated_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?20)`,
		s.ID, s.Name, s.Template.Pool, s.Cron, s.TimeZone, string(template.Reveal()), s.CatchUp, s.CatchUpWindow.Microseconds(), s.CatchUpLimit, s.Overlap,
		s.Owner.Kind, s.Owner.ID, list(s.OwnerRoles), s.Paused, s.Note, micros(s.NextAt), s.NextKey, micros(schedule.LookAt(s, t.now)), micros(s.DecidedTo), micros(s.CreatedAt))
	if errors.Is(err, berth.ErrExists) {
		return &berth.ExistsError{What: "a schedule named " + s.Name}
	}
	if err != nil {
		return err
	}
	return insertScheduleInputs(t, s)
}

func insertScheduleInputs(t *tx, s berth.Schedule) error {
	for _, in := range s.Template.Inputs {
		if _, err := t.exec("INSERT INTO schedule_inputs (digest, schedule_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING", in.Digest, s.ID); err != nil {
			return err
		}
	}
	return nil
}

// updateSchedule writes what may change of a schedule, its template only if anew.
func updateSchedule(t *tx, s berth.Schedule, anew bool) error {
	if anew {
		template, err := berth.EncodeTemplate(s.Template)
		if err != nil {
			return err
		}
		if err := t.execOne("UPDATE schedules SET pool_id = ?2, template = ?3, owner_kind = ?4, owner_id = ?5, owner_roles = ?6 WHERE id = ?1",
			s.ID, s.Template.Pool, string(template.Reveal()), s.Owner.Kind, s.Owner.ID, list(s.OwnerRoles)); err != nil {
			return err
		}
		if _, err := t.exec("DELETE FROM schedule_inputs WHERE schedule_id = ?1", s.ID); err != nil {
			return err
		}
		if err := insertScheduleInputs(t, s); err != nil {
			return err
		}
	}
	return t.execOne(`UPDATE schedules SET cron = ?2, time_zone = ?3, catch_up = ?4, catch_up_window_us = ?5, catch_up_limit = ?6, overlap = ?7, revision = ?8, version = ?9,
		paused = ?10, note = ?11, next_slot_at = ?12, next_slot_key = ?13, waiting = ?14, look_at = ?15, decided_to = ?16, updated_at = ?17
		WHERE id = ?1`,
		s.ID, s.Cron, s.TimeZone, s.CatchUp, s.CatchUpWindow.Microseconds(), s.CatchUpLimit, s.Overlap, s.Revision, s.Version,
		s.Paused, s.Note, micros(s.NextAt), s.NextKey, s.Waiting, micros(schedule.LookAt(s, t.now)), micros(s.DecidedTo), micros(s.UpdatedAt))
}

// GetSchedule implements store.Schedules.
func (s *Store) GetSchedule(ctx context.Context, name string) (got berth.Schedule, err error) {
	err = s.read(ctx, "GetSchedule", func(t *tx) error {
		got, err = scheduleNamed(t, name)
		return err
	})
	return got, err
}

// ListSchedules implements store.Schedules.
func (s *Store) ListSchedules(ctx context.Context, p store.Page) (all []berth.Schedule, next string, err error) {
	err = s.read(ctx, "ListSchedules", func(t *tx) error {
		all, err = queryAll(t, scanSchedule, scheduleSelect+" WHERE s.name > ?1 ORDER BY s.name LIMIT ?2", p.After, p.Limit()+1)
		return err
	})
	all, next = page(all, p.Limit(), func(s berth.Schedule) string { return s.Name })
	for i := range all {
		all[i].Template.Payload = redact.Bytes{}
	}
	return all, next, err
}

// EditSchedule implements store.Schedules.
func (s *Store) EditSchedule(ctx context.Context, p store.EditScheduleParams) (edited berth.Schedule, trs []berth.Transition, err error) {
	err = s.write(ctx, "EditSchedule", func(t *tx) error {
		old, err := scheduleNamed(t, p.Name)
		if err != nil {
			return err
		}
		plan, err := p.Edit.Apply(old, p.Actor.Principal, p.Roles)
		if err != nil {
			return err
		}
		anew := p.Edit.Template != nil
		if anew {
			if err := checkTemplate(t, &plan, p.Actor, p.Scope, p.Roles); err != nil {
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
		var settled berth.Schedule
		if settled, _, trs, err = fire(t, p.Actor, old, schedule.Settle(old, plan), p.Fresh); err != nil {
			return err
		}
		if edited, err = schedule.Edited(settled, plan, t.now); err != nil {
			return err
		}
		if err := updateSchedule(t, edited, anew); err != nil {
			return err
		}
		return auditChange(t, p.Actor, berth.AuditScheduleChanged, "schedule", string(old.ID), before, after)
	})
	if err != nil {
		return berth.Schedule{}, nil, err
	}
	return edited, trs, nil
}

// DeleteSchedule implements store.Schedules.
func (s *Store) DeleteSchedule(ctx context.Context, actor berth.Actor, name string, version int) error {
	return s.write(ctx, "DeleteSchedule", func(t *tx) error {
		old, err := scheduleNamed(t, name)
		if err != nil {
			return err
		}
		if err := old.CheckVersion(version); err != nil {
			return err
		}
		for _, table := range []string{"fires", "schedule_inputs"} {
			if _, err := t.exec("DELETE FROM "+table+" WHERE schedule_id = ?1", old.ID); err != nil {
				return err
			}
		}
		if err := t.execOne("DELETE FROM schedules WHERE id = ?1", old.ID); err != nil {
			return err
		}
		before, _ := berth.ScheduleChange(old, berth.Schedule{})
		return auditChange(t, actor, berth.AuditScheduleDeleted, "schedule", string(old.ID), before, "")
	})
}

// PauseSchedule implements store.Schedules.
func (s *Store) PauseSchedule(ctx context.Context, actor berth.Actor, name string, fresh func() berth.TaskID) (paused berth.Schedule, trs []berth.Transition, err error) {
	err = s.write(ctx, "PauseSchedule", func(t *tx) error {
		old, err := scheduleNamed(t, name)
		if err != nil {
			return err
		}
		if paused = old; old.Paused {
			return nil
		}
		if paused, _, trs, err = fire(t, actor, old, berth.SkipPaused, fresh); err != nil {
			return err
		}
		paused = schedule.Stopped(paused, paused.Note)
		paused.UpdatedAt, paused.Version = t.now, old.Version+1
		if err := updateSchedule(t, paused, false); err != nil {
			return err
		}
		before, after := berth.FlagFacts("paused", true)
		return auditChange(t, actor, berth.AuditSchedulePaused, "schedule", string(old.ID), before, after)
	})
	if err != nil {
		return berth.Schedule{}, nil, err
	}
	return paused, trs, nil
}

// ResumeSchedule implements store.Schedules.
func (s *Store) ResumeSchedule(ctx context.Context, actor berth.Actor, name string) (resumed berth.Schedule, err error) {
	err = s.write(ctx, "ResumeSchedule", func(t *tx) error {
		old, err := scheduleNamed(t, name)
		if err != nil {
			return err
		}
		if resumed = old; !old.Paused {
			return nil
		}
		spec, err := schedule.Spec(old)
		if err != nil {
			return fmt.Errorf("edit the schedule before: %w", err)
		}
		resumed = schedule.Resumed(old, spec, t.now)
		if resumed.Paused {
			return &berth.WrongStateError{Thing: "schedule", State: "at its end", Message: resumed.Note}
		}
		resumed.UpdatedAt, resumed.Version = t.now, old.Version+1
		if err := updateSchedule(t, resumed, false); err != nil {
			return err
		}
		before, after := berth.FlagFacts("paused", false)
		return auditChange(t, actor, berth.AuditScheduleResumed, "schedule", string(old.ID), before, after)
	})
	if err != nil {
		return berth.Schedule{}, err
	}
	return resumed, nil
}
