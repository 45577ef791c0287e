// Package explain says in words why a task is where it is: what of the pool its
// requirement rules out, what of the rest is busy, cordoned, unwell, offline or
// unclean, and what to do about it. It is a pure function of what the store
// read (store.PlacementFacts); the rules that it speaks of are those of
// pkg/eligibility and pkg/berth, by which the scheduler places.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/store"
)

// Code names a reason; clients may rely on it.
type Code string

// The codes. Those of a task that does not wait for a device:
const (
	CodeFinished  Code = "finished"
	CodeRunning   Code = "running"
	CodeStarting  Code = "starting" // assigned or claimed
	CodeNotDue    Code = "not_due"
	CodeBackoff   Code = "backoff"
	CodeNowhere   Code = "nowhere" // found lost; the sweep repairs it
	CodeCancelled Code = "cancel_requested"
)

// Those of a requirement that devices do not meet:
const (
	CodeNoDevices        Code = "no_devices"
	CodeLabelMissing     Code = "label_missing"      // one term that no device satisfies
	CodeNoCombination    Code = "no_combination"     // each term has devices, together they have none
	CodePluginUnknown    Code = "plugin_unknown"     // no version is registered
	CodePluginNoVersion  Code = "plugin_no_version"  // none in the asked range
	CodePluginNotThere   Code = "plugin_not_there"   // no host of the devices with these labels provides it
	CodePluginDisabled   Code = "plugin_disabled"    // those that do have it disabled
	CodeRequirementFault Code = "requirement_broken" // it does not compile
)

// Those of devices that fit and cannot be had now:
const (
	CodeBusy        Code = "busy"
	CodeCordoned    Code = "cordoned"
	CodeMaintenance Code = "maintenance"
	CodeQuarantined Code = "quarantined"
	CodeUnclean     Code = "unclean"
	CodeAbsent      Code = "absent"
	CodeOffline     Code = "host_offline"
	CodeDraining    Code = "host_draining"
	CodeRevoked     Code = "host_revoked"
)

// And the rest:
const (
	CodePoolPaused Code = "pool_paused"
	CodeNext       Code = "next"  // a free device fits: the next round takes it
	CodeAhead      Code = "ahead" // so does it, but others of the class go first
)

// Explanation is the answer.
type Explanation struct {
	State berth.TaskState
	// Summary is one sentence: the message of the first reason.
	Summary string
	// Reasons, the most telling first.
	Reasons []Reason
	// Unsatisfiable: no registered device of the pool could ever run it.
	Unsatisfiable bool
	// Ahead counts tasks of the same class before it; AheadMore says that there
	// are more than were counted.
	Ahead     int
	AheadMore bool
	// DueAt and GiveUpAt as in berth.Task.
	DueAt, GiveUpAt time.Time
	// Devices of the pool; Fitting meet the requirement, Free of them are free.
	Devices, Fitting, Free int
	// Truncated: the pool has more devices than were looked at.
	Truncated bool
	// RuledOut counts, for each part of the requirement, the devices that it alone
	// rules out; one device may count in several.
	RuledOut []RuledOut
	// Unavailable counts the fitting devices that cannot be had now, each once.
	Unavailable []Unavailable
}

// Reason is one reason why the task waits, or where it is.
type Reason struct {
	Code    Code
	Message string
	// Remedy is what to do; "" when waiting is all there is.
	Remedy string
}

// RuledOut is a part of the requirement: a term of the selector, or the plugin.
type RuledOut struct {
	Requirement string
	Devices     int
}

// Unavailable is a state of fitting devices.
type Unavailable struct {
	Code    Code
	Devices int
}

// Explain makes the explanation.
func Explain(f store.PlacementFacts) Explanation {
	e := Explanation{
		State: f.Task.State, DueAt: f.Task.DueAt, GiveUpAt: f.Task.GiveUpAt, Devices: len(f.Devices), Truncated: f.Truncated,
		Ahead: f.Ahead, AheadMore: f.Ahead >= store.MaxExplainPosition,
	}
	if reason, ok := elsewhere(f); ok {
		e.Reasons = []Reason{reason}
		if f.Task.State.Live() && f.Task.CancelRequested {
			e.Reasons = append(e.Reasons, Reason{Code: CodeCancelled, Message: "its cancel was asked for: the agent is told at its next renewal"})
		}
	}
	if !f.Task.State.Live() && !f.Task.State.Finished() {
		e.judge(f)
	}
	if len(e.Reasons) > 0 {
		e.Summary = e.Reasons[0].Message
	}
	return e
}

// elsewhere is the reason of a task that does not wait for a device now.
func elsewhere(f store.PlacementFacts) (Reason, bool) {
	t := f.Task
	switch t.State {
	case berth.StateSucceeded, berth.StateCancelled:
		return Reason{Code: CodeFinished, Message: "it has ended and waits for nothing"}, true
	case berth.StateDeadLetter:
		return Reason{
			Code: CodeFinished, Message: fmt.Sprintf("it was given up (%s)", cmp.Or(t.FinalReason, "no reason")),
			Remedy: "look at its attempts, then retry it",
		}, true
	case berth.StateRunning:
		return Reason{Code: CodeRunning, Message: "it runs on " + deviceName(f, t.Device)}, true
	case berth.StateAssigned, berth.StateClaimed:
		return Reason{Code: CodeStarting, Message: "it has " + deviceName(f, t.Device) + " and is about to start"}, true
	case berth.StateScheduled:
		return Reason{
			Code: CodeNotDue, Message: "its not-before lies ahead: it becomes due in " + about(t.DueAt.Sub(f.Now)),
		}, true
	case berth.StateFailed:
		return Reason{
			Code:    CodeBackoff,
			Message: fmt.Sprintf("try %d of %d failed: it is tried again in %s", t.Tries, t.Budget, about(t.DueAt.Sub(f.Now))),
			Remedy:  "an operator may retry it at once: berth task retry ID",
		}, true
	case berth.StateQueued:
		return Reason{}, false
	}
	return Reason{Code: CodeNowhere, Message: "it is in no place; the leasekeeper's sweep queues it again"}, true
}

func deviceName(f store.PlacementFacts, id berth.DeviceID) string {
	for _, d := range f.Devices {
		if d.ID == id {
			return fmt.Sprintf("device %s of host %s", d.Name, d.HostName)
		}
	}
	return "device " + string(id)
}

func about(d time.Duration) string {
	switch {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	case d < 72*time.Hour:
		return fmt.Sprintf("%d h", int(d.Round(time.Hour).Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// judge explains a waiting task: what rules devices out, then what those that
// fit are doing.
func (e *Explanation) judge(f store.PlacementFacts) {
	m, err := eligibility.Compile(f.Task.Requirement)
	if err != nil {
		e.add(CodeRequirementFault, "its requirement cannot be read any more", "cancel it and submit it again")
		return
	}
	j := judgement{f: f, m: m, enabled: map[string]bool{}, unavailable: map[Code]int{}, pluginFaults: map[Code]int{}}
	for _, p := range f.Plugins {
		j.enabled[p.Version] = p.Enabled
	}
	j.count()
	e.Fitting, e.Free = j.fitting, j.free
	e.RuledOut = j.ruledOut()
	e.Unsatisfiable = !j.couldFit && !f.Truncated
	for _, s := range states() {
		if n := j.unavailable[s.code]; n > 0 {
			e.Unavailable = append(e.Unavailable, Unavailable{Code: s.code, Devices: n})
		}
	}
	slices.SortStableFunc(e.Unavailable, func(a, b Unavailable) int { return b.Devices - a.Devices })
	if f.Pool.Paused {
		e.add(CodePoolPaused, fmt.Sprintf("pool %s is paused: nothing is placed in it", f.Pool.Name), "an operator may resume it: berth pool resume "+f.Pool.Name)
	}
	switch {
	case j.fitting == 0:
		e.Reasons = append(e.Reasons, j.whyNothingFits()...)
	case j.free > 0 && f.Task.State == berth.StateQueued && !f.Pool.Paused:
		if f.Ahead > 0 {
			e.add(CodeAhead, fmt.Sprintf("%s fit and %s free; %s of its kind before it", devices(j.fitting), isAre(j.free), tasks(f.Ahead, e.AheadMore)), "")
		} else {
			e.add(CodeNext, fmt.Sprintf("%s free: the scheduler's next round takes it", fittingAre(j.free)),
				"if it stays so, see that a scheduler runs: berth_scheduler metrics and its /readyz")
		}
	}
	if j.fitting > 0 && j.free == 0 {
		for _, u := range e.Unavailable {
			s := stateOf(u.Code)
			e.add(u.Code, fmt.Sprintf(s.message, ofFitting(u.Devices, j.fitting)), s.remedy)
		}
	}
}

func (e *Explanation) add(code Code, message, remedy string) {
	e.Reasons = append(e.Reasons, Reason{Code: code, Message: message, Remedy: remedy})
}

// state is what can keep a fitting device from being had.
type state struct {
	code            Code
	message, remedy string // message has one %s: "2 of 3 fitting devices are"
}

func states() []state {
	return []state{
		{CodeBusy, "%s busy with other tasks", ""},
		{CodeCordoned, "%s cordoned by an operator", "activate one (berth device activate ID), or probe it with " + berth.LabelProbe + "=ID as an operator"},
		{CodeMaintenance, "%s in maintenance", "an operator may end it: berth device activate ID"},
		{CodeQuarantined, "%s quarantined after failures", "see its last attempts; good probes end it, or an operator's berth device trust ID"},
		{CodeUnclean, "%s unclean: work there was not seen to end", "its agent cleans it when it is back, or an operator who knows says so: berth device clean ID"},
		{CodeAbsent, "%s not reported by the host's agent any more", "plug it in again, or retire it"},
		{CodeOffline, "%s on a host that is offline", "start its Host Agent"},
		{CodeDraining, "%s on a host that drains", "end the drain (berth host undrain), or wait for its agent to come back"},
		{CodeRevoked, "%s on a host that was revoked", "enrol that machine again, under another name"},
	}
}

func stateOf(code Code) state {
	for _, s := range states() {
		if s.code == code {
			return s
		}
	}
	return state{}
}

// judgement counts devices.
type judgement struct {
	f       store.PlacementFacts
	m       *eligibility.Matcher
	enabled map[string]bool // by version

	terms        []eligibility.Term
	lacking      []int // by term
	labelled     int   // satisfy the selector
	noPlugin     int   // of all, whose host cannot run the plugin
	pluginFaults map[Code]int
	fitting      int
	free         int
	couldFit     bool
	unavailable  map[Code]int
}

func (j *judgement) count() {
	j.terms = j.m.Terms()
	j.lacking = make([]int, len(j.terms))
	for _, d := range j.f.Devices {
		labelled := true
		for i, t := range j.terms {
			if !t.Matches(d.Labels) {
				j.lacking[i]++
				labelled = false
			}
		}
		fault := j.pluginFault(d)
		if fault != "" {
			j.noPlugin++
		}
		if !labelled {
			continue
		}
		j.labelled++
		if fault != "" {
			j.pluginFaults[fault]++
			// Enabling the version or bringing the host back would do.
			j.couldFit = j.couldFit || fault == CodePluginDisabled
			continue
		}
		j.couldFit = j.couldFit || d.HostState != berth.HostRevoked
		j.fitting++
		if code := j.why(d); code != "" {
			j.unavailable[code]++
		} else {
			j.free++
		}
	}
}

// pluginFault is why a device's host cannot run the plugin, "" when it can.
func (j *judgement) pluginFault(d store.PlacementDevice) Code {
	var enabled []berth.PluginVersion
	for _, p := range d.Provides {
		if j.enabled[p.Version] {
			enabled = append(enabled, p)
		}
	}
	if _, ok := j.m.Version(enabled); ok {
		return ""
	}
	switch _, ok := j.m.Version(d.Provides); {
	case ok:
		return CodePluginDisabled
	case len(d.Provides) > 0:
		return CodePluginNoVersion
	}
	return CodePluginNotThere
}

// why a fitting device cannot be had now, "" when it can. The first cause that
// somebody must end stands for the others.
func (j *judgement) why(d store.PlacementDevice) Code {
	_, probe := eligibility.Probe(j.f.Task.Requirement.Selector)
	switch {
	case d.HostState == berth.HostRevoked:
		return CodeRevoked
	case d.HostState != berth.HostOnline || !d.HostFresh:
		return CodeOffline
	case !d.Present:
		return CodeAbsent
	case d.Admin == berth.AdminMaintenance:
		return CodeMaintenance
	case d.Admin == berth.AdminCordoned && !probe:
		return CodeCordoned
	case d.Health == berth.HealthQuarantined && !probe:
		return CodeQuarantined
	case d.HostDraining:
		return CodeDraining
	case d.Attempt != "":
		return CodeBusy
	case d.Unclean:
		return CodeUnclean
	}
	return ""
}

// ruledOut lists what rules out devices, most first.
func (j *judgement) ruledOut() []RuledOut {
	var out []RuledOut
	for i, t := range j.terms {
		if j.lacking[i] > 0 {
			out = append(out, RuledOut{Requirement: t.String(), Devices: j.lacking[i]})
		}
	}
	if j.noPlugin > 0 {
		out = append(out, RuledOut{Requirement: j.plugin(), Devices: j.noPlugin})
	}
	slices.SortStableFunc(out, func(a, b RuledOut) int { return b.Devices - a.Devices })
	return out
}

func (j *judgement) plugin() string {
	r := j.f.Task.Requirement
	return strings.TrimSpace(r.Plugin + " " + r.VersionRange)
}

// whyNothingFits are the reasons when no device meets the requirement: those of
// the labels, and those of the plugin on devices that have the labels.
func (j *judgement) whyNothingFits() []Reason {
	pool, all := j.f.Pool.Name, len(j.f.Devices)
	if all == 0 {
		return []Reason{{
			Code: CodeNoDevices, Message: fmt.Sprintf("pool %s has no devices", pool),
			Remedy: "enrol a host into it, or submit to another pool",
		}}
	}
	reasons := j.missingLabels()
	registered := j.registered()
	switch {
	case registered != nil:
		reasons = append(reasons, *registered)
	case j.labelled > 0:
		reasons = append(reasons, j.missingPlugin())
	case len(reasons) == 0:
		reasons = append(reasons, Reason{
			Code:    CodeNoCombination,
			Message: fmt.Sprintf("no device of pool %s has all of %s, though some have each", pool, j.f.Task.Requirement.Selector),
			Remedy:  "ask for less, or label a device",
		})
	}
	return reasons
}

func (j *judgement) missingLabels() []Reason {
	var reasons []Reason
	for i, t := range j.terms {
		if j.lacking[i] == len(j.f.Devices) {
			reasons = append(reasons, Reason{
				Code:    CodeLabelMissing,
				Message: fmt.Sprintf("no device of pool %s has %s", j.f.Pool.Name, t.String()),
				Remedy:  "correct the selector, label a device, or add one",
			})
		}
	}
	return reasons
}

// registered is the reason of a plugin that is not known at all, or not in the
// range.
func (j *judgement) registered() *Reason {
	if len(j.f.Plugins) == 0 {
		return &Reason{
			Code: CodePluginUnknown, Message: fmt.Sprintf("plugin %s is not registered", j.f.Task.Requirement.Plugin),
			Remedy: "correct the name, or start a host that brings it",
		}
	}
	versions := make([]berth.PluginVersion, len(j.f.Plugins))
	for i, p := range j.f.Plugins {
		versions[i] = p.PluginVersion
	}
	if _, ok := j.m.Version(versions); ok {
		return nil
	}
	return &Reason{
		Code:    CodePluginNoVersion,
		Message: fmt.Sprintf("no registered version of %s is in %s", j.f.Task.Requirement.Plugin, j.f.Task.Requirement.VersionRange),
		Remedy:  "ask for one of " + j.known() + ", or add a host that brings it",
	}
}

func (j *judgement) known() string {
	names := make([]string, 0, len(j.f.Plugins))
	for _, p := range j.f.Plugins {
		names = append(names, p.Version)
	}
	const shown = 5
	if len(names) > shown {
		names = append(names[len(names)-shown:], "others")
	}
	return strings.Join(names, ", ")
}

func (j *judgement) missingPlugin() Reason {
	with := fmt.Sprintf("the %s of pool %s with its labels", number(j.labelled, "device"), j.f.Pool.Name)
	switch {
	case j.pluginFaults[CodePluginDisabled] > 0:
		return Reason{
			Code: CodePluginDisabled, Message: fmt.Sprintf("%s is disabled", j.plugin()),
			Remedy: "an administrator may enable a version: berth plugin enable NAME VERSION",
		}
	case j.pluginFaults[CodePluginNoVersion] > 0:
		return Reason{
			Code: CodePluginNoVersion, Message: fmt.Sprintf("no host of %s has a version in %s", with, j.plugin()),
			Remedy: "ask for another range, or update the hosts",
		}
	}
	return Reason{
		Code: CodePluginNotThere, Message: fmt.Sprintf("no host of %s has plugin %s", with, j.f.Task.Requirement.Plugin),
		Remedy: "install it on such a host, or correct the selector",
	}
}

func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func devices(n int) string { return number(n, "device") }

func tasks(n int, more bool) string {
	switch {
	case more:
		return fmt.Sprintf("more than %d tasks are", n)
	case n == 1:
		return "1 task is"
	}
	return fmt.Sprintf("%d tasks are", n)
}

func isAre(n int) string {
	if n == 1 {
		return "1 is"
	}
	return fmt.Sprintf("%d are", n)
}

func fittingAre(n int) string {
	if n == 1 {
		return "1 fitting device is"
	}
	return fmt.Sprintf("%d fitting devices are", n)
}

func ofFitting(n, all int) string {
	switch {
	case all == 1:
		return "the only device that fits is"
	case n == all:
		return fmt.Sprintf("all %d devices that fit are", all)
	case n == 1:
		return fmt.Sprintf("1 of %d devices that fit is", all)
	}
	return fmt.Sprintf("%d of %d devices that fit are", n, all)
}
