package berth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// PluginVersion names one version of a plugin.
type PluginVersion struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Plugin is a known version of a kind of work.
type Plugin struct {
	PluginVersion
	// Enabled: hosts may serve it. Reported but unapproved ones are not.
	Enabled bool
	// Pending: a host reported it and nobody has decided; never together with
	// Enabled.
	Pending bool
	// Deprecated versions are served, and whoever submits work that nothing else can do is
	// warned.
	Deprecated bool
	// Schema of the payload, JSON Schema 2020-12.
	Schema []byte
	// ResultSchema of what succeeded work returns; empty: any object. The host
	// that did the work holds it to that.
	ResultSchema []byte
	// Requires is a selector that every device which runs it must satisfy, such
	// as driver=chromium; "" for any device. It is added to the selector of each
	// task at its submit.
	Requires    string
	Description string
	// Defaults of tasks.
	Defaults PluginDefaults
	// Note of an administrator.
	Note string
	// Revision counts the changes, from 1.
	Revision  int
	CreatedAt time.Time
	DecidedAt time.Time // by whoever enabled or disabled it; zero: nobody
}

// PluginState is what may be done with a version.
type PluginState string

// The states of a plugin's version. Deprecated is a mark beside them.
const (
	// PluginPending: hosts report it, and it waits for an administrator.
	PluginPending PluginState = "pending"
	// PluginEnabled: hosts serve it.
	PluginEnabled PluginState = "enabled"
	// PluginDisabled: an administrator decided against it.
	PluginDisabled PluginState = "disabled"
)

// State of the version.
func (p Plugin) State() PluginState {
	switch {
	case p.Enabled:
		return PluginEnabled
	case p.Pending:
		return PluginPending
	}
	return PluginDisabled
}

// bare: only its name is known, as from releases that kept no more of what hosts
// reported.
func (p Plugin) bare() bool { return len(p.Schema) == 0 }

// AsReported is a version that a host reported as it is stored where nothing was
// known of it.
func (p Plugin) AsReported(approve bool) Plugin {
	return Plugin{
		PluginVersion: p.PluginVersion, Enabled: approve, Pending: !approve,
		Schema: p.Schema, ResultSchema: p.ResultSchema, Requires: p.Requires, Description: p.Description,
	}
}

// Report is what a host's report makes of the version that is known. The first
// report that has a schema stays until somebody decides: an administrator approves
// what was read, not what another host says meanwhile. It fills in a bare version
// that is not enabled. What is enabled is left alone, also where it is bare, or
// submits would be judged by what nobody approved.
//
// differs: the host does another kind of work under this name. A report without a
// schema says nothing, and differs from nothing; so does one without a result
// schema about results.
func (p Plugin) Report(r Plugin) (next Plugin, filled, differs bool) {
	switch {
	case len(r.Schema) == 0:
		return p, false, false
	case p.bare() && !p.Enabled:
		return p.filled(r), true, false
	case p.bare():
		return p, false, false
	}
	differs = !sameJSON(p.Schema, r.Schema) || p.Requires != r.Requires ||
		len(p.ResultSchema) > 0 && len(r.ResultSchema) > 0 && !sameJSON(p.ResultSchema, r.ResultSchema)
	return p, false, differs
}

// Registered is what a registration makes of the version that is known: one that
// nobody has decided about, or of which only the name is known, becomes what is
// registered. Every other is left alone.
func (p Plugin) Registered(r Plugin) (next Plugin, changed bool) {
	if p.Enabled || !p.Pending && !p.bare() || !r.Enabled && r.bare() {
		return p, false
	}
	next = p.filled(r)
	next.Enabled, next.Pending = r.Enabled, false
	return next, true
}

func (p Plugin) filled(r Plugin) Plugin {
	p.Schema, p.ResultSchema, p.Requires, p.Description = r.Schema, r.ResultSchema, r.Requires, r.Description
	p.Revision++
	return p
}

// sameJSON reports whether two documents say the same, however they are spelt.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	decode := func(doc []byte) (v any, err error) {
		dec := json.NewDecoder(bytes.NewReader(doc))
		dec.UseNumber()
		return v, dec.Decode(&v)
	}
	x, errX := decode(a)
	y, errY := decode(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// PluginDefaults are what tasks get that do not say it themselves.
type PluginDefaults struct {
	// RunTimeout is zero for DefaultRunTimeout.
	RunTimeout time.Duration
	// Retry is nil for DefaultRetryPolicy. A task that names a part of a policy
	// takes the rest from here.
	Retry *RetryPolicy
}

// Policy is the retry policy that a task's own is made of.
func (d PluginDefaults) Policy() RetryPolicy {
	if d.Retry == nil {
		return DefaultRetryPolicy()
	}
	p := *d.Retry
	p.On = append([]Outcome(nil), p.On...)
	return p
}

// storedDefaults are PluginDefaults as both engines keep them.
type storedDefaults struct {
	RunTimeout int64        `json:"run_timeout_us,omitempty"`
	Retry      *storedRetry `json:"retry,omitempty"`
}

type storedRetry struct {
	MaxAttempts int       `json:"max_attempts"`
	On          []Outcome `json:"on"`
	Initial     int64     `json:"backoff_initial_us"`
	Factor      float64   `json:"backoff_factor"`
	Max         int64     `json:"backoff_max_us"`
	Jitter      float64   `json:"backoff_jitter"`
	RetryUnsafe bool      `json:"retry_unsafe,omitempty"`
}

// MarshalJSON is the stored form.
func (d PluginDefaults) MarshalJSON() ([]byte, error) {
	s := storedDefaults{RunTimeout: d.RunTimeout.Microseconds()}
	if r := d.Retry; r != nil {
		s.Retry = &storedRetry{
			MaxAttempts: r.MaxAttempts, On: r.On, Initial: r.Initial.Microseconds(), Factor: r.Factor, Max: r.Max.Microseconds(),
			Jitter: r.Jitter, RetryUnsafe: r.RetryUnsafe,
		}
	}
	return json.Marshal(s)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (d *PluginDefaults) UnmarshalJSON(b []byte) error {
	var s storedDefaults
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	*d = PluginDefaults{RunTimeout: us(s.RunTimeout)}
	if r := s.Retry; r != nil {
		d.Retry = &RetryPolicy{
			MaxAttempts: r.MaxAttempts, On: r.On, Initial: us(r.Initial), Factor: r.Factor, Max: us(r.Max), Jitter: r.Jitter, RetryUnsafe: r.RetryUnsafe,
		}
	}
	return nil
}

// normalise judges defaults as a task's own limits are judged, and cuts durations
// to what is stored.
func (d *PluginDefaults) normalise(path string, f *Faults) {
	d.RunTimeout = d.RunTimeout.Truncate(time.Microsecond)
	if d.RunTimeout != 0 && (d.RunTimeout < MinRunTimeout || d.RunTimeout > MaxRunTimeout) {
		f.Add(path+".run_timeout_seconds", "out of range", fmt.Sprintf("use %d to %d seconds", int(MinRunTimeout.Seconds()), int(MaxRunTimeout.Seconds())))
	}
	if d.Retry != nil {
		r := d.Policy()
		r.Initial, r.Max = r.Initial.Truncate(time.Microsecond), r.Max.Truncate(time.Microsecond)
		r.normalise(path+".retry", f)
		d.Retry = &r
	}
}

// PluginChange is what an administrator changes of a version; nil stays.
type PluginChange struct {
	Enabled    *bool
	Deprecated *bool
	Note       *string
	// Defaults replace the whole.
	Defaults *PluginDefaults
	// Revision that the change is based on; 0: any.
	Revision int
}

// Changed is the version after c. A change that has been made already is none,
// whatever its revision: it is the repeat of a call whose answer was lost. Another
// revision is ErrWrongState; what is out of bounds is ErrInvalid.
func (p Plugin) Changed(c PluginChange) (Plugin, error) {
	var f Faults
	next := p
	if c.Enabled != nil {
		next.Enabled, next.Pending = *c.Enabled, false
	}
	if c.Deprecated != nil {
		next.Deprecated = *c.Deprecated
	}
	if c.Note != nil {
		next.Note = strings.TrimSpace(*c.Note)
		if len(next.Note) > MaxNameLen || !utf8.ValidString(next.Note) || !plain(next.Note) {
			f.Add("note", "it is too long or has control characters", fmt.Sprintf("use at most %d bytes of printable characters", MaxNameLen))
		}
	}
	if c.Defaults != nil {
		next.Defaults = *c.Defaults
		next.Defaults.normalise("defaults", &f)
	}
	if err := f.Err(); err != nil {
		return p, err
	}
	if reflect.DeepEqual(next, p) {
		return p, nil
	}
	if c.Revision != 0 && c.Revision != p.Revision {
		return p, fmt.Errorf("plugin %s@%s is at revision %d, the change is based on %d: look at it again: %w",
			p.Name, p.Version, p.Revision, c.Revision, ErrWrongState)
	}
	next.Revision++
	return next, nil
}

// ChangeAction is what the audit trail calls the change from old to p.
func (p Plugin) ChangeAction(old Plugin) AuditAction {
	switch {
	case p.State() == old.State():
		return AuditPluginChanged
	case p.Enabled:
		return AuditPluginEnabled
	}
	return AuditPluginDisabled
}

// PluginFacts are what a version of a plugin was registered with.
func PluginFacts(p Plugin) Facts { return NewFacts(manifestFacts(p)) }

func manifestFacts(p Plugin) map[string]string {
	facts := map[string]string{"state": string(p.State())}
	if p.Requires != "" {
		facts["requires"] = p.Requires
	}
	for name, schema := range map[string][]byte{"schema_sha256": p.Schema, "result_schema_sha256": p.ResultSchema} {
		if len(schema) > 0 {
			sum := sha256.Sum256(schema)
			facts[name] = hex.EncodeToString(sum[:])
		}
	}
	return facts
}

// PluginChangeFacts are what administrators change of a version, and what they
// decided about.
func PluginChangeFacts(p Plugin) Facts {
	facts := manifestFacts(p)
	facts["deprecated"] = strconv.FormatBool(p.Deprecated)
	if p.Note != "" {
		facts["note"] = p.Note
	}
	if p.Defaults.RunTimeout != 0 {
		facts["run_timeout"] = p.Defaults.RunTimeout.String()
	}
	if p.Defaults.Retry != nil {
		facts["retry"] = p.Defaults.Retry.describe()
	}
	return NewFacts(facts)
}

// describe is a policy in a line.
func (p RetryPolicy) describe() string {
	on := make([]string, len(p.On))
	for i, o := range p.On {
		on[i] = string(o)
	}
	safe := "retry safe"
	if p.RetryUnsafe {
		safe = "not retry safe"
	}
	return fmt.Sprintf("%d tries on %s, %s x%g to %s ±%g%%, %s", p.MaxAttempts, strings.Join(on, " "), p.Initial, p.Factor, p.Max, p.Jitter*100, safe)
}
