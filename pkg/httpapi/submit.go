package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// SubmitTask answers POST /tasks.
func (s *Server) SubmitTask(ctx context.Context, in SubmitTaskRequestObject) (SubmitTaskResponseObject, error) {
	result, err := s.submit(ctx, submission{
		specs: []TaskSpec{*in.Body}, body: in.Body, key: in.Params.IdempotencyKey,
		correlation: in.Params.BerthCorrelationID, trace: in.Params.Traceparent,
	})
	if err != nil {
		return nil, err
	}
	bodyDone(ctx)
	t := result.Tasks[0]
	if in.Params.Wait > 0 && !t.State.Finished() {
		// The task is stored, whatever becomes of the wait.
		if later, err := s.waitFor(ctx, in.Params.WaitFor, writes(ctx), t.ID, in.Params.Wait); err == nil {
			t = later
		}
	}
	return SubmitTask201JSONResponse{
		Body: taskOf(t), Headers: SubmitTask201ResponseHeaders{BerthReplayed: result.Replayed},
	}, nil
}

// SubmitTasks answers POST /tasks/batch.
func (s *Server) SubmitTasks(ctx context.Context, in SubmitTasksRequestObject) (SubmitTasksResponseObject, error) {
	result, err := s.submit(ctx, submission{
		specs: in.Body.Tasks, batch: true, body: in.Body, key: in.Params.IdempotencyKey,
		correlation: in.Params.BerthCorrelationID, trace: in.Params.Traceparent,
	})
	if err != nil {
		return nil, err
	}
	bodyDone(ctx)
	out := SubmitTasks201JSONResponse{
		Body:    SubmittedTasks{Tasks: make([]Task, 0, len(result.Tasks))},
		Headers: SubmitTasks201ResponseHeaders{BerthReplayed: result.Replayed},
	}
	for _, t := range result.Tasks {
		out.Body.Tasks = append(out.Body.Tasks, summaryOf(t))
	}
	return out, nil
}

// submission is what both submits have in common.
type submission struct {
	specs []TaskSpec
	// batch: fault paths begin with tasks[i].
	batch       bool
	body        any
	key         string
	correlation string
	trace       string
}

func (in submission) path(i int) string {
	if in.batch {
		return joinIndex("tasks", i)
	}
	return ""
}

// fault is the store's error with the paths that the request's body has.
func (in submission) fault(err error) error {
	var invalid *berth.InvalidError
	if in.batch || !errors.As(err, &invalid) {
		return err
	}
	var f berth.Faults
	for _, field := range invalid.Fields {
		f.Add(strings.TrimPrefix(field.Path, "tasks[0]."), field.Message, field.Remedy)
	}
	return f.Err()
}

func (s *Server) submit(ctx context.Context, in submission) (store.SubmitResult, error) {
	digest, err := canonicalDigest(in.body)
	if err != nil {
		return store.SubmitResult{}, err
	}
	tasks, err := s.judge(ctx, in)
	if errors.Is(err, berth.ErrInvalid) && in.key != "" {
		return s.submittedBefore(ctx, store.Once{Key: in.key, BodyDigest: digest}, err)
	}
	if err != nil {
		return store.SubmitResult{}, err
	}
	result, err := s.cfg.Store.SubmitTasks(ctx, store.SubmitParams{
		Actor: actorOf(ctx), Scope: writes(ctx), Roles: requestOf(ctx).caller.Roles, Tasks: tasks, IdempotencyKey: in.key, BodyDigest: digest,
		CorrelationID: correlationID(in.correlation, requestOf(ctx).id), TraceParent: traceParent(in.trace),
	})
	if err != nil {
		return store.SubmitResult{}, in.fault(err)
	}
	logging.Transitions(s.cfg.Logger, result.Transitions)
	return result, nil
}

// submittedBefore answers a repeat of a submit that was accepted, though it is
// refused today: its plugin was disabled, or a newer version asks for more. The
// refusal is fault.
func (s *Server) submittedBefore(ctx context.Context, o store.Once, fault error) (store.SubmitResult, error) {
	tasks, err := s.cfg.Store.SubmittedTasks(ctx, actorOf(ctx).Principal, o)
	if errors.Is(err, berth.ErrNotFound) {
		err = fault
	}
	return store.SubmitResult{Tasks: tasks, Replayed: err == nil}, err
}

// judge makes the domain's tasks of the specs, or names every fault of every
// one of them.
func (s *Server) judge(ctx context.Context, in submission) ([]berth.NewTask, error) {
	var f berth.Faults
	j := newJudge(s)
	var err error
	if j.now, err = s.nowFor(ctx, in.specs); err != nil {
		return nil, err
	}
	tasks := make([]berth.NewTask, len(in.specs))
	for i, spec := range in.specs {
		if tasks[i], err = j.task(ctx, in.path(i), spec, &f); err != nil {
			return nil, err
		}
	}
	return tasks, f.Err()
}

// nowFor is the deciding clock's time where a spec has a time to compare.
func (s *Server) nowFor(ctx context.Context, specs []TaskSpec) (time.Time, error) {
	for _, spec := range specs {
		if !spec.NotBefore.IsZero() {
			return s.cfg.Store.Now(ctx)
		}
	}
	return time.Time{}, nil
}

// judge keeps what it looked up, so that a batch of a thousand tasks of one
// kind asks once.
type judge struct {
	server  *Server
	now     time.Time
	pools   map[string]found[berth.PoolID]
	plugins map[string]found[[]berth.Plugin]
	// places of payloads that name secrets
	places map[berth.PluginVersion][][]string
}

func newJudge(s *Server) *judge {
	return &judge{server: s, pools: map[string]found[berth.PoolID]{}, plugins: map[string]found[[]berth.Plugin]{}, places: map[berth.PluginVersion][][]string{}}
}

func (j *judge) placesOf(p berth.Plugin) [][]string {
	places, ok := j.places[p.PluginVersion]
	if !ok {
		places = secretPlaces(p.Schema)
		j.places[p.PluginVersion] = places
	}
	return places
}

// found is a look-up's answer: a value, or why there is none.
type found[T any] struct {
	value T
	fault *berth.InvalidError
}

// task makes one task of its spec and notes its faults under path. The error
// is nobody's fault but the server's.
func (j *judge) task(ctx context.Context, path string, spec TaskSpec, f *berth.Faults) (berth.NewTask, error) {
	t := newTask(spec)
	t.Normalise(path, j.now, f)
	var err error
	if t.Pool, err = j.pool(ctx, path, spec.Pool, f); err != nil {
		return t, err
	}
	// What is faulty comes back empty, so that the rest can be judged.
	t.Requirement, err = eligibility.Canonical(path, t.Requirement)
	if err := noted(err, f); err != nil {
		return t, err
	}
	if eligibility.Mentions(t.Requirement.Selector, berth.LabelProbe) && !writes(ctx).All {
		f.Add(joinPath(path, "selector"), "asks for "+berth.LabelProbe+", which only operators may",
			"pin the task with "+berth.LabelDevice+"=ID, which leaves cordoned and quarantined devices alone, or ask an operator")
	}
	return t, j.plugin(ctx, path, &t, f)
}

func (j *judge) pool(ctx context.Context, path, name string, f *berth.Faults) (berth.PoolID, error) {
	if name == "" {
		name = berth.DefaultPool
	}
	p, ok := j.pools[name]
	if !ok {
		var err error
		if p.value, err = j.server.poolNamed(ctx, "pool", name); err != nil && !errors.As(err, &p.fault) {
			return "", err
		}
		j.pools[name] = p
	}
	addUnder(path, p.fault, f)
	return p.value, nil
}

// plugin checks that the plugin is there, that an enabled version is in the
// range, and that the payload fits the highest of those, and adds what that one
// requires of a device to the task's selector.
func (j *judge) plugin(ctx context.Context, path string, t *berth.NewTask, f *berth.Faults) error {
	p, err := j.versions(ctx, t.Requirement.Plugin)
	if err != nil || p.fault != nil {
		addUnder(path, p.fault, f)
		return err
	}
	matcher, err := eligibility.Compile(t.Requirement)
	if err != nil {
		return err
	}
	provided := make([]berth.PluginVersion, len(p.value))
	for i, v := range p.value {
		provided[i] = v.PluginVersion
	}
	version, ok := matcher.Version(provided)
	if !ok {
		var have []string
		for _, v := range provided {
			have = append(have, v.Version)
		}
		f.Add(joinPath(path, "plugin_version"), fmt.Sprintf("no enabled version of %s is in this range", t.Requirement.Plugin), known(have, false))
		return nil
	}
	for _, v := range p.value {
		if v.Version == version {
			brings := len(t.Inputs)+len(t.Secrets) > 0
			t.Requirement.Selector, err = eligibility.Required(t.Requirement.Selector, v.Requires, brings)
			if err != nil {
				who, room := "the plugin requires", eligibility.MaxSelectorTerms-1
				if brings {
					who, room = "the plugin and the inputs or secrets require", room-1
				}
				f.Add(joinPath(path, "selector"), "is too long with what "+who+" of a device", fmt.Sprintf("use at most %d terms", room))
			}
			unnamedSecrets(joinPath(path, "payload"), t.Payload.Reveal(), j.placesOf(v), t.Secrets, f)
			return j.server.schemas.check(joinPath(path, "payload"), t.Payload.Reveal(), v, f)
		}
	}
	return nil
}

// versions looks up the enabled versions of a plugin.
func (j *judge) versions(ctx context.Context, name string) (found[[]berth.Plugin], error) {
	if p, ok := j.plugins[name]; ok {
		return p, nil
	}
	var p found[[]berth.Plugin]
	all, err := j.server.cfg.Store.PluginVersions(ctx, name)
	if err != nil {
		return p, err
	}
	for _, v := range all {
		if v.Enabled {
			p.value = append(p.value, v)
		}
	}
	if len(p.value) == 0 {
		names, more, err := j.server.pluginNames(ctx)
		if err != nil {
			return p, err
		}
		p.fault = berth.Invalid("plugin", "unknown plugin", known(names, more))
		if len(all) > 0 {
			p.fault = berth.Invalid("plugin", "no version of this plugin is enabled", "an administrator may enable one: berth plugin enable NAME VERSION")
		}
	}
	j.plugins[name] = p
	return p, nil
}

// noted adds the faults of an *berth.InvalidError to f; another error is
// returned.
func noted(err error, f *berth.Faults) error {
	var invalid *berth.InvalidError
	if err == nil || !errors.As(err, &invalid) {
		return err
	}
	addUnder("", invalid, f)
	return nil
}

func addUnder(path string, e *berth.InvalidError, f *berth.Faults) {
	if e == nil {
		return
	}
	for _, field := range e.Fields {
		f.Add(joinPath(path, field.Path), field.Message, field.Remedy)
	}
}

// newTask is the spec with the defaults that the domain does not fill.
func newTask(spec TaskSpec) berth.NewTask {
	t := berth.NewTask{
		ID: berth.TaskID(newID()), Name: spec.Name, Tags: spec.Tags,
		Requirement: berth.Requirement{Selector: spec.Selector, Plugin: spec.Plugin, VersionRange: spec.PluginVersion},
		Payload:     redact.NewBytes(spec.Payload), Priority: spec.Priority, NotBefore: utc(spec.NotBefore),
		RunTimeout: seconds(spec.RunTimeoutSeconds), QueueTimeout: seconds(spec.QueueTimeoutSeconds), Retry: retryPolicy(spec.Retry),
		Secrets: spec.Secrets,
	}
	for _, in := range spec.Inputs {
		t.Inputs = append(t.Inputs, berth.InputRef{Name: in.Name, Digest: in.Digest})
	}
	if t.Payload.IsZero() {
		t.Payload = redact.NewBytes([]byte("{}"))
	}
	if spec.QueueTimeoutSeconds > 0 {
		// Less than a microsecond would round to zero, which waits for ever.
		t.QueueTimeout = max(t.QueueTimeout, time.Microsecond)
	}
	return t
}

func retryPolicy(spec *RetrySpec) berth.RetryPolicy {
	p := berth.DefaultRetryPolicy()
	if spec == nil {
		return p
	}
	set(&p.MaxAttempts, spec.MaxAttempts)
	set(&p.Factor, spec.BackoffFactor)
	set(&p.Jitter, spec.BackoffJitter)
	if spec.BackoffInitialSeconds != nil {
		p.Initial = seconds(*spec.BackoffInitialSeconds)
		p.Max = max(p.Max, p.Initial) // a long first wait needs no second field
	}
	if spec.BackoffMaxSeconds != nil {
		p.Max = seconds(*spec.BackoffMaxSeconds)
	}
	if spec.RetrySafe != nil {
		p.RetryUnsafe = !*spec.RetrySafe
	}
	if spec.On != nil {
		p.On = nil
		for _, o := range *spec.On {
			p.On = append(p.On, berth.Outcome(o))
		}
	}
	return p
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// onceOf makes a call repeatable under the key that came with it, "" for none.
// operation tells calls apart that have the same body.
func onceOf(key, operation string, body any) (store.Once, error) {
	if key == "" {
		return store.Once{}, nil
	}
	digest, err := canonicalDigest(body)
	if err != nil {
		return store.Once{}, err
	}
	return store.Once{Key: key, BodyDigest: sha256.Sum256(append([]byte(operation+"\n"), digest[:]...))}, nil
}

// canonicalDigest is the SHA-256 of a body in one spelling: keys sorted, no
// white space.
func canonicalDigest(body any) ([32]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return [32]byte{}, errors.New("a body that was read cannot be written") // err quotes it
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return [32]byte{}, errors.New("a body that was written cannot be read")
	}
	if raw, err = json.Marshal(v); err != nil {
		return [32]byte{}, errors.New("a body that was read cannot be written")
	}
	return sha256.Sum256(raw), nil
}

// correlationID keeps the harmless characters of a client's id; without any it
// is the request's.
func correlationID(sent, requestID string) string {
	id := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._:-", r):
			return r
		}
		return -1
	}, sent)
	if id == "" {
		id = requestID
	}
	if len(id) > berth.MaxCorrelationID {
		id = id[:berth.MaxCorrelationID]
	}
	return id
}

var traceParentPattern = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceParent is a valid W3C trace context, or "".
func traceParent(sent string) string {
	if !traceParentPattern.MatchString(sent) || sent[:2] == "ff" ||
		strings.Trim(sent[3:35], "0") == "" || strings.Trim(sent[36:52], "0") == "" {
		return ""
	}
	return sent
}
