package berth_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

func valid() berth.NewTask {
	return berth.NewTask{Name: "a task", Payload: redact.NewBytes([]byte(`{}`)), Retry: berth.DefaultRetryPolicy()}
}

func normalise(n *berth.NewTask, path string) error {
	var f berth.Faults
	n.Normalise(path, t0, &f)
	return f.Err()
}

func TestNormaliseFillsAndSorts(t *testing.T) {
	n := valid()
	n.Name, n.Tags = "  spaced  ", []string{"b", "a", "b"}
	n.Retry.On = []berth.Outcome{berth.OutcomeTimedOut, berth.OutcomeFailed, berth.OutcomeFailed}
	if err := normalise(&n, ""); err != nil {
		t.Fatal(err)
	}
	if n.Name != "spaced" || !slices.Equal(n.Tags, []string{"a", "b"}) || n.RunTimeout != berth.DefaultRunTimeout ||
		!slices.Equal(n.Retry.On, []berth.Outcome{berth.OutcomeFailed, berth.OutcomeTimedOut}) {
		t.Errorf("%+v", n)
	}
}

func TestNormaliseNamesEveryFault(t *testing.T) {
	long := strings.Repeat("x", berth.MaxNameLen+1)
	for _, c := range []struct {
		name   string
		change func(*berth.NewTask)
		path   string
	}{
		{"long name", func(n *berth.NewTask) { n.Name = long }, "name"},
		{"control character", func(n *berth.NewTask) { n.Name = "a\nb" }, "name"},
		{"no UTF-8", func(n *berth.NewTask) { n.Name = "a\xff" }, "name"},
		{"many tags", func(n *berth.NewTask) { n.Tags = make([]string, berth.MaxTags+1) }, "tags"},
		{"bad tag", func(n *berth.NewTask) { n.Tags = []string{"ok", "not ok"} }, "tags[1]"},
		{"empty tag", func(n *berth.NewTask) { n.Tags = []string{""} }, "tags[0]"},
		{"long tag", func(n *berth.NewTask) { n.Tags = []string{long} }, "tags[0]"},
		{"priority below", func(n *berth.NewTask) { n.Priority = -1 }, "priority"},
		{"priority above", func(n *berth.NewTask) { n.Priority = 10 }, "priority"},
		{"large payload", func(n *berth.NewTask) { n.Payload = redact.NewBytes(make([]byte, berth.MaxPayloadBytes+1)) }, "payload"},
		{"short run time", func(n *berth.NewTask) { n.RunTimeout = time.Millisecond }, "run_timeout_seconds"},
		{"negative run time", func(n *berth.NewTask) { n.RunTimeout = -time.Second }, "run_timeout_seconds"},
		{"long run time", func(n *berth.NewTask) { n.RunTimeout = berth.MaxRunTimeout + 1 }, "run_timeout_seconds"},
		{"negative queue time", func(n *berth.NewTask) { n.QueueTimeout = -1 }, "queue_timeout_seconds"},
		{"long queue time", func(n *berth.NewTask) { n.QueueTimeout = math.MaxInt64 }, "queue_timeout_seconds"},
		{"far ahead", func(n *berth.NewTask) { n.NotBefore = t0.Add(berth.MaxNotBeforeFuture + 1) }, "not_before"},
		{"no tries", func(n *berth.NewTask) { n.Retry.MaxAttempts = 0 }, "retry.max_attempts"},
		{"too many tries", func(n *berth.NewTask) { n.Retry.MaxAttempts = berth.MaxTries + 1 }, "retry.max_attempts"},
		{"retry of success", func(n *berth.NewTask) { n.Retry.On = []berth.Outcome{"failed", "succeeded"} }, "retry.on[1]"},
		{"retry of cancelled", func(n *berth.NewTask) { n.Retry.On = []berth.Outcome{"cancelled"} }, "retry.on[0]"},
		{"retry of nonsense", func(n *berth.NewTask) { n.Retry.On = []berth.Outcome{"x"} }, "retry.on[0]"},
		{"negative backoff", func(n *berth.NewTask) { n.Retry.Initial = -1 }, "retry.backoff_initial_seconds"},
		{"max below initial", func(n *berth.NewTask) { n.Retry.Max = n.Retry.Initial - 1 }, "retry.backoff_max_seconds"},
		{"long backoff", func(n *berth.NewTask) { n.Retry.Max = 25 * time.Hour }, "retry.backoff_max_seconds"},
		{"shrinking backoff", func(n *berth.NewTask) { n.Retry.Factor = 0.5 }, "retry.backoff_factor"},
		{"no number", func(n *berth.NewTask) { n.Retry.Factor = math.NaN() }, "retry.backoff_factor"},
		{"jitter above one", func(n *berth.NewTask) { n.Retry.Jitter = 1.1 }, "retry.backoff_jitter"},
		{"jitter no number", func(n *berth.NewTask) { n.Retry.Jitter = math.NaN() }, "retry.backoff_jitter"},
	} {
		for path, want := range map[string]string{"": c.path, "tasks[3]": "tasks[3]." + c.path} {
			n := valid()
			c.change(&n)
			checkFaults(t, c.name, normalise(&n, path), want)
		}
	}
	n := valid()
	n.Name, n.Priority, n.Retry.MaxAttempts = long, 11, -1
	checkFaults(t, "all at once", normalise(&n, ""), "name", "priority", "retry.max_attempts")
}

func TestNormaliseTakesTheLimits(t *testing.T) {
	n := valid()
	n.Name = strings.Repeat("x", berth.MaxNameLen)
	for i := range berth.MaxTags {
		n.Tags = append(n.Tags, fmt.Sprintf("%0*d", berth.MaxTagLen, i))
	}
	n.Priority, n.RunTimeout, n.NotBefore = berth.MaxPriority, berth.MaxRunTimeout, t0.Add(berth.MaxNotBeforeFuture)
	n.Payload = redact.NewBytes(make([]byte, berth.MaxPayloadBytes))
	n.Retry.MaxAttempts, n.Retry.Jitter = berth.MaxTries, 1
	if err := normalise(&n, ""); err != nil {
		t.Error(err)
	}
}

// No fault repeats content, and a second pass changes nothing.
func TestNormaliseIsAFixedPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := valid()
		n.Name = rapid.String().Draw(t, "name")
		n.Tags = rapid.SliceOf(rapid.String()).Draw(t, "tags")
		n.Priority = rapid.Int().Draw(t, "priority")
		n.Payload = redact.NewBytes([]byte(strings.Repeat("m4rk", rapid.IntRange(0, 100000).Draw(t, "payload"))))
		if err := normalise(&n, ""); err != nil {
			if strings.Contains(err.Error(), "m4rk") {
				t.Fatal("a fault repeats the payload")
			}
			return
		}
		before := fmt.Sprintf("%+v", n)
		if err := normalise(&n, ""); err != nil || fmt.Sprintf("%+v", n) != before {
			t.Fatalf("%s became %+v (%v)", before, n, err)
		}
	})
}

func TestRankIsSubmitTimeLessPriority(t *testing.T) {
	step := berth.DefaultAgeingStep
	if a, b := berth.RankOf(t0, 1, step), berth.RankOf(t0.Add(step), 2, step); a != b {
		t.Errorf("one step of waiting is not one of priority: %d, %d", a, b)
	}
	if berth.RankOf(t0, 0, step) >= berth.RankOf(t0.Add(time.Microsecond), 0, step) {
		t.Error("of equal priority the earlier does not go first")
	}
	if berth.RankOf(t0, 5, 0) != berth.RankOf(t0, 0, 0) {
		t.Error("priority counts without a step")
	}
}

// No task waits behind an endless stream of urgent ones: whatever is submitted
// nine steps later comes after it. With the strict step the urgent go first.
func TestRankStarvesNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := time.Duration(rapid.Int64Range(1, int64(time.Hour/time.Microsecond)).Draw(t, "step")) * time.Microsecond
		low, high := rapid.IntRange(0, 9).Draw(t, "low"), rapid.IntRange(0, 9).Draw(t, "high")
		late := t0.Add(9*step + time.Microsecond)
		if berth.RankOf(t0, low, step) >= berth.RankOf(late, high, step) {
			t.Fatalf("priority %d waits behind a later %d", low, high)
		}
		if low < high {
			later := t0.Add(time.Duration(rapid.Int64Range(0, 50*365*24).Draw(t, "hours")) * time.Hour)
			if berth.RankOf(t0, low, berth.StrictPriorityStep) <= berth.RankOf(later, high, berth.StrictPriorityStep) {
				t.Fatalf("strict: priority %d goes before a later %d", low, high)
			}
		}
	})
}

func TestStatesAreInOnePlace(t *testing.T) {
	for _, s := range berth.TaskStates() {
		if !s.Valid() || s.Live() && s.Finished() {
			t.Errorf("%s: valid %v, live %v, finished %v", s, s.Valid(), s.Live(), s.Finished())
		}
	}
	if berth.TaskState("").Valid() || berth.TaskState("pending").Valid() || len(berth.TaskStates()) != 9 {
		t.Error("states")
	}
	for _, s := range []berth.AttemptState{berth.AttemptAssigned, berth.AttemptClaimed, berth.AttemptRunning} {
		if !s.TaskState().Live() || s.Started() != (s == berth.AttemptRunning) {
			t.Errorf("attempt state %s", s)
		}
	}
}

func TestOutcomesThatAgentsReport(t *testing.T) {
	for _, o := range berth.Outcomes() {
		want := o != berth.OutcomeLost && o != berth.OutcomeReleased
		if o.ReportableByAgent() != want || !o.Valid() {
			t.Errorf("%s: reportable %v", o, o.ReportableByAgent())
		}
	}
	if berth.Outcome("").Valid() || berth.Outcome("x").ReportableByAgent() {
		t.Error("nonsense is an outcome")
	}
}

func TestScopeSees(t *testing.T) {
	ann := berth.Principal{Kind: berth.ActorUser, ID: "ann"}
	for _, c := range []struct {
		scope berth.Scope
		who   berth.Principal
		want  bool
	}{
		{berth.Scope{All: true}, ann, true},
		{berth.Scope{Owner: ann}, ann, true},
		{berth.Scope{}, ann, false},
		{berth.Scope{}, berth.Principal{}, false},
		{berth.Scope{Owner: berth.Principal{Kind: berth.ActorHost, ID: "ann"}}, ann, false},
		{berth.Scope{Owner: berth.Principal{Kind: berth.ActorUser}}, berth.Principal{Kind: berth.ActorUser}, false},
	} {
		if got := c.scope.Sees(c.who); got != c.want {
			t.Errorf("%+v sees a task of %+v: %v", c.scope, c.who, got)
		}
	}
}

func TestRolesInclude(t *testing.T) {
	roles := append(berth.Roles(), berth.RoleHost, "nonsense")
	for i, r := range roles {
		for j, other := range roles {
			want := r == other && r != "nonsense" || i < 4 && j <= i
			if got := r.Includes(other); got != want {
				t.Errorf("%s includes %s: %v", r, other, got)
			}
		}
	}
}

func TestErrorsAreTheirKinds(t *testing.T) {
	for _, c := range []struct{ err, kind error }{
		{berth.Invalid("a", "b", "c"), berth.ErrInvalid},
		{&berth.WrongStateError{Thing: "task", State: "queued", Message: "m"}, berth.ErrWrongState},
		{&berth.GapError{Next: 3}, berth.ErrGap},
	} {
		if wrapped := fmt.Errorf("wrapped: %w", c.err); !errors.Is(wrapped, c.kind) || errors.Is(wrapped, berth.ErrNotFound) {
			t.Errorf("%v is not its kind", c.err)
		}
	}
	if (&berth.Faults{}).Err() != nil {
		t.Error("no faults are an error")
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10", "01976F3C-5f4e-7c1a-9b55-0d6b1f6f2f10", "{01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10}", "01976f3c5f4e7c1a9b550d6b1f6f2f10", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f1é", strings.Repeat("ü", 50)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := berth.ParseID[berth.TaskID]("task_id", s)
		if (err == nil) != berth.ValidID(s) {
			t.Fatalf("%q: %v", s, err)
		}
		if err == nil {
			if string(id) != s || strings.ToLower(s) != s || len(s) != 36 || strings.Count(s, "-") != 4 {
				t.Fatalf("%q became %q", s, id)
			}
			return
		}
		if id != "" || !errors.Is(err, berth.ErrInvalid) || !utf8.ValidString(err.Error()) || len(err.Error()) > 400 {
			t.Fatalf("%q: id %q, %v", s, id, err)
		}
	})
}

func FuzzValidArtifactName(f *testing.F) {
	for _, s := range []string{"", ".", "..", "a.png", "-rf", "a/b", `a\b`, "A_b-c.9", "a\x00", "é", strings.Repeat("a", 121), "a%2e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ok := berth.ValidArtifactName(s)
		safe := len(s) > 0 && len(s) <= 120 && s[0] != '.' && s[0] != '-'
		for i := range len(s) {
			safe = safe && strings.IndexByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", s[i]) >= 0
		}
		if ok != safe {
			t.Fatalf("%q: %v", s, ok)
		}
	})
}

func TestClipKeepsWholeRunes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "s"), rapid.IntRange(0, 20).Draw(t, "n")
		got := berth.Clip(s, n)
		if !utf8.ValidString(got) || len(got) > max(len(s), n+3) || len(s) <= n && got != s || !strings.HasPrefix(s, strings.TrimSuffix(got, "...")) && len(s) > n {
			t.Fatalf("%q clipped to %d is %q", s, n, got)
		}
	})
}

func TestReasonsAreCodes(t *testing.T) {
	for s, want := range map[string]bool{
		"lease_expired": true, "a1": true, "": false, "Upper": false, "with space": false, "é": false, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
	} {
		if berth.ValidReason(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func TestNames(t *testing.T) {
	for s, want := range map[string]bool{
		"lab": true, "a": true, "browser.script": true, "a-b_c.9": true, "": false, "-a": false, "a-": false, "A": false, "a b": false, "a/b": false, "é": false,
		strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "a\n": false,
	} {
		if berth.ValidName(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}
