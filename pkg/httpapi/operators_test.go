package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

const nowhere = "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10"

// says fails the test unless err is a problem of that code whose text holds all
// of the words.
func says(t *testing.T, what string, err error, code string, words ...string) {
	t.Helper()
	if !bclient.HasCode(err, code) {
		t.Errorf("%s: %v, want the code %s", what, err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q lacks %q", what, err, w)
		}
	}
}

func TestOperatorsActOnDevices(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		agent := s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
		c, id := s.As("ops", berth.RoleOperator), string(agent.Devices[0])
		for range 2 { // a repeat says the same
			d, err := c.CordonDevice(t.Context(), id, " it flickers ")
			if err != nil || d.Admin != "cordoned" || d.AdminNote != "it flickers" || d.Occupancy != "free" || d.Health != "good" {
				t.Fatalf("cordon: %+v, %v", d, err)
			}
		}
		_, err := c.CordonDevice(t.Context(), id, "two\nlines")
		says(t, "two lines", err, "invalid", "note", "one line")
		for query, want := range map[string]int{
			"admin=cordoned": 1, "admin=active": 1, "health=good": 2, "health=suspect": 0, "occupancy=free": 2, "occupancy=held": 0,
			"driver=process": 2, "driver=adb": 0, "admin=cordoned&occupancy=free&driver=process": 1,
		} {
			if a := send(t, s, "GET", "/api/v1/devices?"+query, s.Token("ops"), ""); strings.Count(a.body, `"hardware_id"`) != want {
				t.Errorf("%s: want %d: %s", query, want, a.body)
			}
		}
		if d, err := c.MaintainDevice(t.Context(), id, "battery"); err != nil || d.Admin != "maintenance" || d.AdminNote != "battery" {
			t.Errorf("maintenance: %+v, %v", d, err)
		}
		if d, err := c.ActivateDevice(t.Context(), id, ""); err != nil || d.Admin != "active" || d.AdminNote != "" {
			t.Errorf("activate: %+v, %v", d, err)
		}
		d, err := c.SetDeviceLabels(t.Context(), id, map[string]string{"os": "bsd", "rack": "b7"})
		if err != nil || d.Labels["os"] != "bsd" || d.Labels["rack"] != "b7" || len(d.AdminLabels) != 2 {
			t.Errorf("labels: %+v, %v", d, err)
		}
		_, err = c.SetDeviceLabels(t.Context(), id, map[string]string{berth.LabelProbe: "x", "a b": "c"})
		says(t, "Berth's labels", err, "invalid", "labels.berth.dev/probe", "Berth's own", `"a b" is no label's name`)
		if d, err := c.TrustDevice(t.Context(), id); err != nil || d.Health != "good" {
			t.Errorf("trust: %+v, %v", d, err)
		}
		if d, err := c.CleanDevice(t.Context(), id); err != nil || d.Occupancy != "free" {
			t.Errorf("clean: %+v, %v", d, err)
		}
		_, err = c.MoveDevice(t.Context(), id, nowhere)
		if !bclient.HasCode(err, "not_found") && !bclient.HasCode(err, "invalid") {
			t.Errorf("move of a slot: %v", err)
		}
		if d, err := c.RetireDevice(t.Context(), id, "broken"); err != nil || d.Admin != "retired" || d.AdminNote != "broken" {
			t.Errorf("retire: %+v, %v", d, err)
		}
		for what, err := range map[string]error{
			"cordon": second(c.CordonDevice(t.Context(), nowhere, "")), "maintenance": second(c.MaintainDevice(t.Context(), nowhere, "")),
			"activate": second(c.ActivateDevice(t.Context(), nowhere, "")), "retire": second(c.RetireDevice(t.Context(), nowhere, "")),
			"trust": second(c.TrustDevice(t.Context(), nowhere)), "clean": second(c.CleanDevice(t.Context(), nowhere)),
			"release": second(c.ForceRelease(t.Context(), nowhere, "")), "move": second(c.MoveDevice(t.Context(), nowhere, nowhere)),
			"labels": second(c.SetDeviceLabels(t.Context(), nowhere, nil)), "drain": second(c.DrainHost(t.Context(), nowhere)),
			"undrain": second(c.UndrainHost(t.Context(), nowhere)), "pause": second(c.PausePool(t.Context(), "none")),
			"priority": second(c.SetTaskPriority(t.Context(), nowhere, 1)), "placement": second(c.GetPlacement(t.Context(), nowhere)),
		} {
			says(t, what+" of what is unknown", err, "not_found")
		}
	})
}

func TestForceReleaseEndsWhatItNames(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		agent := s.Agent("lab-1", map[string]string{"os": "linux"})
		c, id := s.As("ops", berth.RoleOperator), string(agent.Devices[0])
		task := submit(t, c, work("x"))
		agent.Run(task.ID)
		held, err := c.GetDevice(t.Context(), id)
		if err != nil || held.AttemptID == "" {
			t.Fatalf("device: %+v, %v", held, err)
		}
		_, err = c.CleanDevice(t.Context(), id)
		says(t, "clean a held device", err, "wrong_state", "held")
		for range 2 {
			d, err := c.ForceRelease(t.Context(), id, held.AttemptID)
			if err != nil || d.Occupancy != "unclean" || d.AttemptID != "" || d.Fence <= held.Fence {
				t.Fatalf("release: %+v, %v", d, err)
			}
		}
		attempts, err := c.ListAttempts(t.Context(), task.ID)
		if err != nil || len(attempts) != 1 || attempts[0].Outcome != "infra_failed" || attempts[0].Reason != berth.ReasonForceReleased {
			t.Errorf("attempts: %+v, %v", attempts, err)
		}
		_, err = c.ForceRelease(t.Context(), id, "")
		says(t, "release what is free", err, "wrong_state")
		if d, err := c.CleanDevice(t.Context(), id); err != nil || d.Occupancy != "free" {
			t.Errorf("clean: %+v, %v", d, err)
		}
		if s.Logs.FilterField(zap.String("task_id", task.ID)).Len() < 2 { // submitted, ended
			t.Error("the end of the attempt was not logged")
		}
	})
}

func TestHostsDrainAndAreRevoked(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.Agent("lab-1", map[string]string{"os": "linux"})
		c, root := s.As("ops", berth.RoleOperator), s.As("root", berth.RoleAdmin)
		hosts, err := c.ListHosts(t.Context(), bclient.ListHostsParams{})
		if err != nil || len(hosts.Hosts) != 1 || hosts.Hosts[0].Draining || hosts.Hosts[0].Protocol < 1 || !hosts.Hosts[0].DrainRequestedAt.IsZero() {
			t.Fatalf("hosts: %+v, %v", hosts, err)
		}
		id := hosts.Hosts[0].ID
		first, err := c.DrainHost(t.Context(), id)
		if err != nil || !first.Draining || first.DrainRequestedAt.IsZero() {
			t.Fatalf("drain: %+v, %v", first, err)
		}
		if again, err := c.DrainHost(t.Context(), id); err != nil || !again.DrainRequestedAt.Equal(first.DrainRequestedAt) {
			t.Errorf("drain again: %+v, %v", again, err)
		}
		if h, err := c.UndrainHost(t.Context(), id); err != nil || h.Draining || !h.DrainRequestedAt.IsZero() {
			t.Errorf("undrain: %+v, %v", h, err)
		}
		_, err = c.RevokeHost(t.Context(), id)
		says(t, "an operator revokes", err, "forbidden")
		for range 2 {
			if h, err := root.RevokeHost(t.Context(), id); err != nil || h.State != "revoked" {
				t.Errorf("revoke: %+v, %v", h, err)
			}
		}
		_, err = c.DrainHost(t.Context(), id)
		says(t, "drain what is revoked", err, "wrong_state", "revoked")
		_, err = root.RevokeHost(t.Context(), nowhere)
		says(t, "revoke what is unknown", err, "not_found")
	})
}

func TestPoolsPauseAndPluginsAreSwitchedOff(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("root", berth.RoleAdmin)
		for range 2 {
			if p, err := c.PausePool(t.Context(), "default"); err != nil || !p.Paused {
				t.Fatalf("pause: %+v, %v", p, err)
			}
		}
		if p, err := c.ResumePool(t.Context(), "default"); err != nil || p.Paused {
			t.Errorf("resume: %+v, %v", p, err)
		}
		for range 2 {
			if p, err := c.DisablePlugin(t.Context(), apitest.Plugin, apitest.Version); err != nil || p.Enabled || p.Schema != nil {
				t.Fatalf("disable: %+v, %v", p, err)
			}
		}
		_, err := c.SubmitTask(t.Context(), work("x"), bclient.SubmitOptions{})
		says(t, "submit for a disabled plugin", err, "invalid", "no version of this plugin is enabled")
		if p, err := c.EnablePlugin(t.Context(), apitest.Plugin, apitest.Version); err != nil || !p.Enabled {
			t.Errorf("enable: %+v, %v", p, err)
		}
		submit(t, c, work("x"))
		_, err = c.EnablePlugin(t.Context(), apitest.Plugin, "9.9.9")
		says(t, "an unknown version", err, "not_found")
		_, err = c.EnablePlugin(t.Context(), apitest.Plugin, "latest")
		says(t, "what is no version", err, "invalid", "version: must be a full semantic version such as 1.4.0")
	})
}

func TestOperatorsChangePriorities(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c, sub := s.As("ops", berth.RoleOperator), s.As("sub", berth.RoleSubmitter)
		task := submit(t, sub, work("x"))
		_, err := sub.SetTaskPriority(t.Context(), task.ID, 9)
		says(t, "a submitter", err, "forbidden")
		for range 2 {
			if got, err := c.SetTaskPriority(t.Context(), task.ID, 9); err != nil || got.Priority != 9 || got.State != "queued" {
				t.Fatalf("priority: %+v, %v", got, err)
			}
		}
		events, err := c.ListTaskEvents(t.Context(), task.ID, bclient.ListTaskEventsParams{})
		if err != nil || len(events.Events) != 2 {
			t.Errorf("events: %+v, %v", events, err)
		}
		for body, fault := range map[string]string{
			`{}`: "priority: is missing", `{"priority":10}`: "priority: must be at most 9", `{"priority":1,"name":"x"}`: "name: is not a field here",
		} {
			a := send(t, s, "PATCH", "/api/v1/tasks/"+task.ID, s.Token("ops"), body)
			if a.StatusCode != http.StatusUnprocessableEntity || !slices.Contains(a.problem(t).faults(), fault) {
				t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
			}
		}
		if _, err := c.CancelTask(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
		_, err = c.SetTaskPriority(t.Context(), task.ID, 1)
		says(t, "a finished task", err, "wrong_state", "cancelled")
	})
}

func TestPlacementIsExplained(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
		sub, other := s.As("sub", berth.RoleSubmitter), s.As("other", berth.RoleSubmitter)
		spec := work("x")
		spec.Selector = "os=windows"
		task := submit(t, sub, spec)
		p, err := sub.GetPlacement(t.Context(), task.ID)
		if err != nil || p.State != "queued" || !p.Unsatisfiable || p.Devices != 2 || p.Fitting != 0 || len(p.Reasons) == 0 ||
			p.Reasons[0].Code != "label_missing" || p.Summary != p.Reasons[0].Message || !strings.Contains(p.Summary, "os=windows") ||
			len(p.RuledOut) != 1 || p.RuledOut[0] != (bclient.PlacementRuledOut{Requirement: "os=windows", Devices: 2}) {
			t.Errorf("placement: %+v, %v", p, err)
		}
		_, err = other.GetPlacement(t.Context(), task.ID)
		says(t, "another's task", err, "not_found")
		fits := submit(t, sub, work("x"))
		if p, err := sub.GetPlacement(t.Context(), fits.ID); err != nil || p.Unsatisfiable || p.Fitting != 2 || p.Free != 2 || p.Reasons[0].Code != "next" {
			t.Errorf("placement of what fits: %+v, %v", p, err)
		}
	})
}

func TestOnlyOperatorsProbe(t *testing.T) {
	s := apitest.OnSQLite(t)
	agent := s.Agent("lab-1", map[string]string{"os": "linux"})
	sub, c := s.As("sub", berth.RoleSubmitter), s.As("ops", berth.RoleOperator)
	spec := work("x")
	for _, selector := range []string{"berth.dev/probe=" + string(agent.Devices[0]), "os=linux,berth.dev/probe", "berth.dev/probe notin (x)"} {
		spec.Selector = selector
		_, err := sub.SubmitTask(t.Context(), spec, bclient.SubmitOptions{})
		says(t, selector, err, "invalid", "selector: asks for berth.dev/probe, which only operators may", "berth.dev/device=ID")
		_, err = sub.SubmitTasks(t.Context(), []bclient.TaskSpec{spec}, bclient.SubmitOptions{})
		says(t, selector, err, "invalid", "tasks[0].selector: asks for berth.dev/probe")
	}
	spec.Selector = "berth.dev/probe=" + string(agent.Devices[0])
	submit(t, c, spec)
	spec.Selector = "berth.dev/device=" + string(agent.Devices[0])
	submit(t, sub, spec)
}

func TestAWaitMayEndAtTheStart(t *testing.T) {
	s := apitest.OnSQLite(t)
	agent := s.Agent("lab-1", map[string]string{"os": "linux"})
	c := s.As("sub", berth.RoleSubmitter)
	token, task := s.Token("sub"), submit(t, c, work("x"))
	path := "/api/v1/tasks/" + task.ID
	if a := send(t, s, "GET", path+"?wait=0.01&wait_for=started", token, ""); !strings.Contains(a.body, `"state":"queued"`) {
		t.Errorf("a wait that ends before the start: %s", a.body)
	}
	waited := make(chan answer, 1)
	go func() { waited <- send(t, s, "GET", path+"?wait=25&wait_for=started", token, "") }()
	attempt := agent.Run(task.ID)
	if a := <-waited; !strings.Contains(a.body, `"state":"running"`) {
		t.Errorf("the wait for the start: %s", a.body)
	}
	attempt.Complete(berth.OutcomeSucceeded, "", "")
	if a := send(t, s, "GET", path+"?wait=25&wait_for=started", token, ""); !strings.Contains(a.body, `"state":"succeeded"`) {
		t.Errorf("the wait for the start of what is over: %s", a.body)
	}
	a := send(t, s, "GET", path+"?wait=1&wait_for=ever", token, "")
	if got := a.problem(t).faults(); !slices.Contains(got, "wait_for: must be one of finished, started") {
		t.Errorf("faults: %q", got)
	}
	for device, want := range map[string]int{string(agent.Devices[0]): 1, nowhere: 0} {
		l, err := c.ListTasks(t.Context(), bclient.ListTasksParams{Device: device})
		if err != nil || len(l.Tasks) != want {
			t.Errorf("tasks of device %s: %+v, %v", device, l, err)
		}
	}
}
