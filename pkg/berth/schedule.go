package berth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
)

// CatchUp says what becomes of slots that were due while nobody looked.
type CatchUp string

// The ways to catch up.
const (
	// CatchUpNone: only a slot that is less than OnTime late fires.
	CatchUpNone CatchUp = "none"
	// CatchUpLatest: the newest fires, unless it is older than the window.
	CatchUpLatest CatchUp = "latest"
	// CatchUpAll: the newest fire, as many as the limit says and the window holds.
	CatchUpAll CatchUp = "all"
)

// Overlap says what becomes of a slot while a task of the schedule is unfinished.
type Overlap string

// The ways to take an overlap.
const (
	// OverlapSkip: the slot is skipped.
	OverlapSkip Overlap = "skip"
	// OverlapAllow: it fires.
	OverlapAllow Overlap = "allow"
	// OverlapQueueOne: the newest slot waits until no task is unfinished.
	OverlapQueueOne Overlap = "queue_one"
	// OverlapCancelRunning: it fires, and the unfinished tasks are cancelled.
	OverlapCancelRunning Overlap = "cancel_running"
)

// Limits and defaults of schedules.
const (
	// OnTime is how late a slot may be without being missed. Slots are a minute
	// apart or more, so at most one is on time.
	OnTime = time.Minute
	// MaxCatchUp bounds the tasks that one catching up makes.
	MaxCatchUp           = 100
	DefaultCatchUpLimit  = 10
	DefaultCatchUpWindow = time.Hour // of CatchUpLatest
	MaxCatchUpWindow     = 366 * 24 * time.Hour
	MaxCronLen           = 200
	MaxTimeZoneLen       = 64
	MaxPreview           = 100
)

// Why a slot was skipped.
const (
	SkipMissed        = "missed"         // nobody looked in time
	SkipOverlap       = "overlap"        // a task of the schedule was unfinished, or a newer slot took its turn
	SkipPaused        = "paused"         // it waited for an unfinished task when the schedule was paused
	SkipEdited        = "edited"         // likewise, when the schedule was edited
	SkipOwnerDisabled = "owner_disabled" // its owner is disabled or gone
	SkipOwnerRole     = "owner_role"     // its owner may not submit tasks any more
	SkipInput         = "input_missing"  // an input is gone, or is not the owner's to use
	SkipSecret        = "secret_missing" // a secret is gone, or not granted to the owner
	SkipRefused       = "refused"        // the task was refused for another reason
)

// ReasonSpecUnusable is why a schedule was paused that nobody paused.
const ReasonSpecUnusable = "spec_unusable"

// Schedule makes a task of its template at each slot.
type Schedule struct {
	ID   ScheduleID
	Name string
	// PoolName is that of Template.Pool.
	PoolName string
	// Cron and TimeZone as they were written; pkg/cron reads them.
	Cron, TimeZone string
	// Template of the tasks: normalised, without ID and NotBefore.
	Template NewTask
	CatchUp  CatchUp
	// CatchUpWindow is how late a slot may fire; zero: as late as may be.
	CatchUpWindow time.Duration
	CatchUpLimit  int // of CatchUpAll
	Overlap       Overlap
	// Owner is whose the tasks are: whoever wrote the template. OwnerRoles are
	// those of the credential that wrote it: tasks get no more.
	Owner      Principal
	OwnerRoles []Role
	// Revision counts the specs (cron and time zone) and is part of a slot's name;
	// Version counts every edit.
	Revision, Version int
	Paused            bool
	// Note says why the last slot was refused, or what keeps the schedule from
	// going on; "" is well.
	Note string
	// NextAt and NextKey are the slot that it waits for; zero while paused.
	NextAt  time.Time
	NextKey string
	// Waiting: that slot is due, and waits for an unfinished task.
	Waiting bool
	// DecidedTo: every slot up to here is decided.
	DecidedTo            time.Time
	CreatedAt, UpdatedAt time.Time
}

// Fire is what became of a slot, or of a run of slots that were skipped together.
type Fire struct {
	Schedule ScheduleID
	Revision int
	// Key is the first slot's: cron.Key, or run:TASK for one that somebody asked for.
	Key string
	// From the first slot to the last, which are the same but for a run.
	SlotAt, LastSlotAt time.Time
	DecidedAt          time.Time
	// Task that was made; "" when skipped, for Reason.
	Task   TaskID
	Reason string
	// Slots that it stands for; AtLeast: they were not counted to the end.
	Slots   int
	AtLeast bool
}

// RunKey is the key of a fire that somebody asked for.
func RunKey(task TaskID) string { return "run:" + string(task) }

// ScheduleEdit is what may be changed of a schedule; nil stays. It makes a new one
// as well, as an edit of the zero Schedule.
type ScheduleEdit struct {
	Cron, TimeZone *string
	CatchUp        *CatchUp
	CatchUpWindow  *time.Duration
	CatchUpLimit   *int
	Overlap        *Overlap
	// Template replaces the whole; whoever writes it becomes the owner.
	Template *NewTask
}

// Apply is old with the edit by author, with defaults for what was never said.
// Whether cron and time zone can be read pkg/cron judges.
func (e ScheduleEdit) Apply(old Schedule, author Principal, roles []Role) (Schedule, error) {
	s := old
	assign(&s.Cron, e.Cron)
	assign(&s.TimeZone, e.TimeZone)
	assign(&s.Overlap, e.Overlap)
	if e.CatchUp != nil && *e.CatchUp != old.CatchUp {
		// The window and limit of another way are none of this one's.
		s.CatchUp, s.CatchUpWindow, s.CatchUpLimit = *e.CatchUp, 0, 0
	}
	if s.TimeZone == "" {
		s.TimeZone = "UTC"
	}
	if s.CatchUp == "" {
		s.CatchUp = CatchUpLatest
	}
	if s.Overlap == "" {
		s.Overlap = OverlapSkip
	}
	if s.CatchUp != old.CatchUp {
		s.CatchUpLimit = 1
		switch s.CatchUp {
		case CatchUpLatest:
			s.CatchUpWindow = DefaultCatchUpWindow
		case CatchUpAll:
			s.CatchUpLimit = DefaultCatchUpLimit
		}
	}
	assign(&s.CatchUpWindow, e.CatchUpWindow)
	assign(&s.CatchUpLimit, e.CatchUpLimit)
	s.CatchUpWindow = s.CatchUpWindow.Truncate(time.Microsecond)
	if e.Template != nil {
		s.Template, s.Owner, s.OwnerRoles = *e.Template, author, slices.Clone(roles)
		s.Template.ID, s.Template.NotBefore, s.Template.Schedule = "", time.Time{}, ""
	}
	return s, s.check()
}

func assign[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func (s Schedule) check() error {
	var f Faults
	if s.Name == "preview" {
		f.Add("name", "the name is taken by a route of the API", "use another")
	}
	if !ValidName(s.Name) {
		f.Add("name", "it is no name of a schedule", "use lower-case letters, digits and . _ -, at most 63")
	}
	switch s.CatchUp {
	case CatchUpNone, CatchUpLatest, CatchUpAll:
	default:
		f.Add("catch_up", "it is no way to catch up", "use none, latest or all")
	}
	switch s.Overlap {
	case OverlapSkip, OverlapAllow, OverlapQueueOne, OverlapCancelRunning:
	default:
		f.Add("overlap", "it is no way to take an overlap", "use skip, allow, queue_one or cancel_running")
	}
	if s.CatchUpWindow < 0 || s.CatchUpWindow > MaxCatchUpWindow {
		f.Add("catch_up_window_seconds", "out of range", "use at most a year, or 0 for as late as may be")
	}
	if s.CatchUpLimit < 1 || s.CatchUpLimit > MaxCatchUp {
		f.Add("catch_up_limit", "out of range", fmt.Sprintf("use 1 to %d", MaxCatchUp))
	}
	if s.CatchUp == CatchUpNone && s.CatchUpWindow != 0 {
		f.Add("catch_up_window_seconds", "nothing is caught up", "leave it out, or let catch_up be latest or all")
	}
	if s.CatchUp != CatchUpAll && s.CatchUpLimit > 1 {
		f.Add("catch_up_limit", "at most one slot is caught up", "leave it out, or let catch_up be all")
	}
	return f.Err()
}

// Submits reports whether somebody with these roles may submit tasks.
func Submits(roles []Role) bool {
	return slices.ContainsFunc(roles, func(r Role) bool { return r.Includes(RoleSubmitter) })
}

// TaskScope is what the tasks of a schedule may use of inputs, given the roles
// that its owner has now.
func (s Schedule) TaskScope(roles []Role) Scope {
	return Scope{All: slices.ContainsFunc(roles, func(r Role) bool { return r.Includes(RoleOperator) }), Owner: s.Owner}
}

// OwnerActor submits the tasks of a schedule, in the course of what by does: a
// round, or a call of somebody's.
func (s Schedule) OwnerActor(by Actor) Actor {
	return Actor{Principal: s.Owner, RequestID: by.RequestID, Client: by.Client, Credential: Credential("schedule:" + string(s.ID))}
}

// CorrelationOf the tasks of a slot.
func (s Schedule) CorrelationOf(key string) string { return s.Name + ":" + key }

// TaskOf is the task of a slot.
func (s Schedule) TaskOf(id TaskID) NewTask {
	n := s.Template
	n.ID, n.Schedule = id, s.ID
	n.Inputs, n.Tags, n.Secrets = slices.Clone(n.Inputs), slices.Clone(n.Tags), slices.Clone(n.Secrets)
	return n
}

// SkipReason is the code of a refused submit, and ok is false when err is no
// refusal.
func SkipReason(err error) (reason string, ok bool) {
	var invalid *InvalidError
	switch {
	case errors.As(err, &invalid):
		for _, f := range invalid.Fields {
			switch {
			case strings.Contains(f.Path, ".inputs["):
				return SkipInput, true
			case strings.Contains(f.Path, ".secrets["):
				return SkipSecret, true
			}
		}
		return SkipRefused, true
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrNotFound):
		return SkipRefused, true
	}
	return "", false
}

// NoteOf says in a sentence why tasks are refused; "" for reasons that pass.
func NoteOf(reason string) string {
	switch reason {
	case SkipOwnerDisabled:
		return "its owner is disabled: enable the user, or write the template anew as somebody else"
	case SkipOwnerRole:
		return "its owner may not submit tasks any more: give the user the role, or write the template anew as somebody else"
	case SkipInput:
		return "an input is gone, or not the owner's to use: upload it again, or change the template"
	case SkipSecret:
		return "a secret is gone, or not granted to the owner: grant it, or change the template"
	case SkipRefused:
		return "its tasks are refused: run it by hand to see why"
	}
	return ""
}

// UnderTemplate gives the faults of a submit of one task the paths that they have
// in a schedule.
func UnderTemplate(err error) error {
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		return err
	}
	var f Faults
	for _, field := range invalid.Fields {
		f.Add("template."+strings.TrimPrefix(field.Path, "tasks[0]."), field.Message, field.Remedy)
	}
	return f.Err()
}

// template is how a template is stored.
type template struct {
	Name         string     `json:"name,omitempty"`
	Tags         []string   `json:"tags,omitempty"`
	Selector     string     `json:"selector,omitempty"`
	Plugin       string     `json:"plugin"`
	VersionRange string     `json:"version_range,omitempty"`
	Payload      string     `json:"payload"` // a text, so that it stays as it was written
	Priority     int        `json:"priority,omitempty"`
	RunTimeout   int64      `json:"run_timeout_us"`
	QueueTimeout int64      `json:"queue_timeout_us,omitempty"`
	MaxAttempts  int        `json:"max_attempts"`
	RetryOn      []Outcome  `json:"retry_on"`
	Initial      int64      `json:"backoff_initial_us"`
	Factor       float64    `json:"backoff_factor"`
	Max          int64      `json:"backoff_max_us"`
	Jitter       float64    `json:"backoff_jitter"`
	RetryUnsafe  bool       `json:"retry_unsafe,omitempty"`
	Inputs       []InputRef `json:"inputs,omitempty"`
	Secrets      []string   `json:"secrets,omitempty"`
}

// EncodeTemplate is a template as it is stored, without its pool. The payload is
// in it.
func EncodeTemplate(n NewTask) (redact.Bytes, error) {
	payload := n.Payload.Reveal()
	if len(payload) == 0 {
		payload = []byte("{}")
	}
	b, err := json.Marshal(template{
		Name: n.Name, Tags: n.Tags, Selector: n.Requirement.Selector, Plugin: n.Requirement.Plugin, VersionRange: n.Requirement.VersionRange,
		Payload: string(payload), Priority: n.Priority, RunTimeout: n.RunTimeout.Microseconds(), QueueTimeout: n.QueueTimeout.Microseconds(),
		MaxAttempts: n.Retry.MaxAttempts, RetryOn: n.Retry.On, Initial: n.Retry.Initial.Microseconds(), Factor: n.Retry.Factor,
		Max: n.Retry.Max.Microseconds(), Jitter: n.Retry.Jitter, RetryUnsafe: n.Retry.RetryUnsafe, Inputs: n.Inputs, Secrets: n.Secrets,
	})
	if err != nil {
		return redact.Bytes{}, Invalid("template.payload", "it is no JSON", "send an object") // err quotes it
	}
	return redact.NewBytes(b), nil
}

// DecodeTemplate reads what EncodeTemplate wrote.
func DecodeTemplate(stored redact.Bytes, pool PoolID) (NewTask, error) {
	var t template
	if err := json.Unmarshal(stored.Reveal(), &t); err != nil {
		return NewTask{}, errors.New("a stored template cannot be read") // err quotes it
	}
	us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	return NewTask{
		Pool: pool, Name: t.Name, Tags: t.Tags, Requirement: Requirement{Selector: t.Selector, Plugin: t.Plugin, VersionRange: t.VersionRange},
		Payload: redact.NewBytes([]byte(t.Payload)), Priority: t.Priority, RunTimeout: us(t.RunTimeout), QueueTimeout: us(t.QueueTimeout),
		Retry: RetryPolicy{
			MaxAttempts: t.MaxAttempts, On: t.RetryOn, Initial: us(t.Initial), Factor: t.Factor, Max: us(t.Max), Jitter: t.Jitter, RetryUnsafe: t.RetryUnsafe,
		},
		Inputs: t.Inputs, Secrets: t.Secrets,
	}, nil
}

// SameTemplate reports whether two templates make the same tasks.
func SameTemplate(a, b NewTask) bool {
	x, errX := EncodeTemplate(a)
	y, errY := EncodeTemplate(b)
	return errX == nil && errY == nil && a.Pool == b.Pool && x.Equal(y)
}

// ScheduleChange is what an audit row says of a change from old to anew; the zero
// Schedule stands for none. Both are "" when nothing changed. Of a template it
// says that it changed.
func ScheduleChange(old, anew Schedule) (before, after Facts) {
	was, is := old.facts(), anew.facts()
	for name, value := range was {
		if is[name] == value {
			delete(was, name)
			delete(is, name)
		}
	}
	if old.ID != "" && anew.ID != "" && !SameTemplate(old.Template, anew.Template) {
		is["template"] = "changed"
	}
	return NewFacts(was), NewFacts(is)
}

func (s Schedule) facts() map[string]string {
	if s.ID == "" {
		return map[string]string{}
	}
	return map[string]string{
		"name": s.Name, "cron": s.Cron, "time_zone": s.TimeZone, "pool": s.PoolName, "plugin": s.Template.Requirement.Plugin,
		"catch_up": string(s.CatchUp), "catch_up_window": s.CatchUpWindow.String(), "catch_up_limit": strconv.Itoa(s.CatchUpLimit),
		"overlap": string(s.Overlap), "owner": s.Owner.ID, "paused": strconv.FormatBool(s.Paused),
	}
}

// CheckVersion is nil when an edit is based on the schedule as it is: asked is the
// version it was read at, 0 for any.
func (s Schedule) CheckVersion(asked int) error {
	if asked == 0 || asked == s.Version {
		return nil
	}
	return &WrongStateError{
		Thing: "schedule", State: fmt.Sprintf("at version %d", s.Version), Message: "it was changed meanwhile: read it again, and change what you find",
	}
}

// NoteUnreadable says what keeps a schedule from going on whose spec was accepted
// once.
func NoteUnreadable(err error) string {
	return "it is paused, for its slots cannot be told any more: " + Clip(err.Error(), 300) + "; edit it, and resume it"
}

// RolesNow are the roles that its tasks get, given its owner as it is now (""
// disabled or gone), or the reason why there can be none.
func (s Schedule) RolesNow(owner UserID, has []Role) (roles []Role, reason string) {
	if owner == "" {
		return nil, SkipOwnerDisabled
	}
	if roles = Within(ImpliedRoles(s.OwnerRoles), has); !Submits(roles) {
		return nil, SkipOwnerRole
	}
	return roles, ""
}

// Cursor of a list of fires.
func (f Fire) Cursor() string {
	return strconv.FormatInt(f.DecidedAt.UnixMicro(), 10) + " " + strconv.Itoa(f.Revision) + " " + f.Key
}

// ParseFireCursor reads what Cursor wrote; "" is the zero Fire.
func ParseFireCursor(s string) (f Fire, err error) {
	if s == "" {
		return f, nil
	}
	at, rest, _ := strings.Cut(s, " ")
	revision, key, ok := strings.Cut(rest, " ")
	us, errAt := strconv.ParseInt(at, 10, 54)
	n, errRev := strconv.ParseInt(revision, 10, 32)
	f = Fire{DecidedAt: time.UnixMicro(us).UTC(), Revision: int(n), Key: key}
	if !ok || errAt != nil || errRev != nil || f.Cursor() != s || len(key) > 64 {
		return Fire{}, Invalid("page_token", "is no page token", "use next_page_token of the page before")
	}
	return f, nil
}
