package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/client"
)

// hold is one stay of an attempt on a device, by the audit trail.
type hold struct {
	task, attempt string
	from, to      time.Time
}

// judge waits for all tasks and checks that each succeeded once, that its log
// is whole, and that no device was ever held twice.
func (w *work) judge(ctx context.Context) error {
	holds := map[string][]hold{} // by device
	attempts, faults := 0, []error{}
	for i, id := range w.tasks {
		task, err := w.finish(ctx, id)
		if err != nil {
			return err
		}
		all, err := w.api.ListAttempts(ctx, id)
		if err != nil {
			return err
		}
		attempts += len(all)
		faults = append(faults, w.judgeTask(ctx, i, task, all)...)
		if err := w.collect(ctx, id, holds); err != nil {
			return err
		}
	}
	there, err := w.count(ctx)
	if err != nil {
		return err
	}
	if there != len(w.tasks) {
		faults = append(faults, fmt.Errorf("%d tasks were submitted, and there are %d", len(w.tasks), there))
	}
	for device, of := range holds {
		faults = append(faults, overlaps(device, of)...)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	say("all %d tasks succeeded, in %d attempts on %d devices, none of which was ever held twice", len(w.tasks), attempts, len(holds))
	return nil
}

// count counts all tasks that there are.
func (w *work) count(ctx context.Context) (n int, err error) {
	p := client.ListTasksParams{PageSize: 100}
	for {
		list, err := w.api.ListTasks(ctx, p)
		if n += len(list.Tasks); err != nil || list.NextPageToken == "" {
			return n, err
		}
		p.PageToken = list.NextPageToken
	}
}

// judgeTask says what is wrong with a finished task and its attempts.
func (w *work) judgeTask(ctx context.Context, i int, task client.Task, attempts []client.Attempt) []error {
	if task.State != client.TaskStateSucceeded {
		return []error{fmt.Errorf("task %s is %s: %s", task.ID, task.State, task.Reason)}
	}
	var faults []error
	won := 0
	for n, a := range attempts {
		if a.Number != n+1 || a.EndedAt.IsZero() {
			faults = append(faults, fmt.Errorf("task %s: attempt %d has number %d, ended %v", task.ID, n+1, a.Number, a.EndedAt))
		}
		if a.Outcome == "succeeded" {
			won++
		}
	}
	if won != 1 || attempts[len(attempts)-1].Outcome != "succeeded" {
		return append(faults, fmt.Errorf("task %s: %d attempts succeeded, and the last one is %s", task.ID, won, attempts[len(attempts)-1].Outcome))
	}
	if i < mainJobTasks {
		return faults
	}
	log, err := w.log(ctx, task.ID, len(attempts))
	if want := fmt.Sprintf("task %d is done", i); err != nil || strings.Count(log, want) != 1 {
		faults = append(faults, errors.Join(err, fmt.Errorf("task %s: its log does not hold %q once", task.ID, want)))
	}
	return faults
}

// mainJobTasks are at the head of the list and write other things.
const mainJobTasks = 2

// collect adds a task's holds: from assigned to the event that ended the attempt.
func (w *work) collect(ctx context.Context, id string, holds map[string][]hold) error {
	open := map[string]hold{}
	p := client.ListTaskEventsParams{PageSize: 100}
	for {
		list, err := w.api.ListTaskEvents(ctx, id, p)
		if err != nil {
			return err
		}
		for _, e := range list.Events {
			switch {
			case strings.HasSuffix(e.Action, "assigned"):
				open[e.AttemptID] = hold{task: id, attempt: e.AttemptID, from: e.At}
			case e.Outcome != "":
				h, ok := open[e.AttemptID]
				if !ok {
					return fmt.Errorf("task %s: attempt %s ended and was never assigned, by the audit trail", id, e.AttemptID)
				}
				h.to = e.At
				delete(open, e.AttemptID)
				holds[e.DeviceID] = append(holds[e.DeviceID], h)
			}
		}
		if list.NextPageToken == "" {
			break
		}
		p.PageToken = list.NextPageToken
	}
	if len(open) > 0 {
		return fmt.Errorf("task %s: %d attempts never ended, by the audit trail", id, len(open))
	}
	return nil
}

// overlaps says where a device was held by two attempts at once.
func overlaps(device string, of []hold) []error {
	slices.SortFunc(of, func(a, b hold) int { return a.from.Compare(b.from) })
	var faults []error
	for i := 1; i < len(of); i++ {
		if of[i].from.Before(of[i-1].to) {
			faults = append(faults, fmt.Errorf("device %s was held by attempt %s until %v and by %s from %v",
				device, of[i-1].attempt, of[i-1].to, of[i].attempt, of[i].from))
		}
	}
	return faults
}
