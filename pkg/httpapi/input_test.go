package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
)

const mark = "c0ntent-m4rk"

func TestHostileJSONIsRefusedWithItsPlace(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	token := s.Token("sub")
	deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)
	for name, tc := range map[string]struct {
		body   string
		status int
		fault  string // a fault of the answer, or "" for none to check
	}{
		"trailing":           {`{"plugin":"work","payload":{"do":"x"}} {}`, 422, ": something follows the JSON value"},
		"duplicate key":      {`{"plugin":"work","plugin":"other"}`, 422, "plugin: the key stands there twice"},
		"duplicate nested":   {`{"plugin":"work","payload":{"do":"a","do":"b"}}`, 422, "payload.*: the key stands there twice"},
		"escaped duplicate":  {`{"plugin":"work","plu\u0067in":"other"}`, 422, "plugin: the key stands there twice"},
		"unknown field":      {`{"plugin":"work","priorty":1}`, 422, "priorty: is not a field here"},
		"other case":         {`{"plugin":"work","Priority":1,"payload":{"do":"x"}}`, 422, "Priority: is not a field here"},
		"duplicate marked":   {`{"plugin":"work","payload":{"` + mark + `":{"` + mark + `":1,"` + mark + `":2}}}`, 422, "payload.*.*: the key stands there twice"},
		"marked keys":        {`{"plugin":"work","payload":{"do":"x","` + mark + `":1,"` + mark + `2":1}}`, 422, "payload.*: is not a field here"},
		"owner":              {`{"plugin":"work","submitter":{"kind":"user","id":"x"},"payload":{"do":"x"}}`, 422, "submitter: is not a field here"},
		"state":              {`{"plugin":"work","state":"succeeded","payload":{"do":"x"}}`, 422, "state: is not a field here"},
		"many values":        {`{"plugin":"work","payload":{"do":[` + strings.Repeat("0,", 149_000) + `0]}}`, 422, "payload.do: must be a string"},
		"not JSON":           {`{"plugin":`, 422, ""},
		"huge number":        {`{"plugin":"work","payload":{"do":1e999}}`, 422, "payload.*: the number is too large"},
		"deep":               {`{"plugin":"work","payload":` + deep + `}`, 422, ""},
		"broken UTF-8":       {"{\"plugin\":\"work\",\"name\":\"\xff\"}", 422, ": the body is not valid UTF-8"},
		"array":              {`[]`, 422, ": must be an object"},
		"null":               {`null`, 422, ": must be an object"},
		"null field":         {`{"plugin":null}`, 422, "plugin: must be a string"},
		"too large":          {`{"plugin":"work","payload":{"do":"` + strings.Repeat("x", 400<<10) + `"}}`, 413, ""},
		"payload too large":  {`{"plugin":"work","payload":{"do":"` + strings.Repeat("x", 260<<10) + `"}}`, 422, "payload.do: must have at most 100 characters"},
		"payload is a list":  {`{"plugin":"work","payload":[1]}`, 422, "payload: must be an object"},
		"payload breaks":     {`{"plugin":"work","payload":{"do":"` + mark + `","times":9,"` + "other" + `":"` + mark + `"}}`, 422, "payload.times: must be at most 3"},
		"payload wrong type": {`{"plugin":"work","payload":{"do":{"` + "x" + `":"` + mark + `"}}}`, 422, "payload.do: must be a string"},
		"control in name":    {`{"plugin":"work","name":"a\u001bb","payload":{"do":"x"}}`, 422, "name: the name is too long or has control characters"},
		"bad time":           {`{"plugin":"work","not_before":"` + mark + `"}`, 422, "not_before: must be a date-time"},
		"bad pattern":        {`{"plugin":"` + mark + `!"}`, 422, "plugin: must be lower-case letters, digits, dots, hyphens and underscores; begins and ends with a letter or digit"},
		"selector":           {`{"plugin":"work","selector":"a in (","payload":{"do":"x"}}`, 422, ""},
		"huge seconds":       {`{"plugin":"work","run_timeout_seconds":1e300,"payload":{"do":"x"}}`, 422, "run_timeout_seconds: must be at most 604800"},
	} {
		t.Run(name, func(t *testing.T) {
			a := send(t, s, "POST", "/api/v1/tasks", token, tc.body)
			p := a.problem(t)
			if a.StatusCode != tc.status {
				t.Fatalf("status %d, want %d: %s", a.StatusCode, tc.status, a.body)
			}
			if tc.fault != "" && !slices.Contains(p.faults(), tc.fault) {
				t.Errorf("faults are %q, want %q among them", p.faults(), tc.fault)
			}
			if strings.Contains(a.body, mark) {
				t.Errorf("the answer repeats content: %s", a.body)
			}
		})
	}
	tasks, _, err := s.Store.ListTasks(t.Context(), berth.Scope{All: true}, taskFilter, page)
	if err != nil || len(tasks) > 0 {
		t.Errorf("%d tasks were stored (%v)", len(tasks), err)
	}
	s.AssertSilentAbout(mark)
}

func TestEveryFaultOfABatchIsNamedAtOnce(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	a := send(t, s, "POST", "/api/v1/tasks/batch", s.Token("sub"), `{"tasks":[
		{"plugin":"work","payload":{"do":"fine"}},
		{"plugin":"nope","pool":"none","payload":{}},
		{"plugin":"work","plugin_version":"^9","selector":"a in (","payload":{"do":"x"}},
		{"plugin":"work","tags":["ok","no spaces"],"payload":{"times":9}},
		{"plugin":"work","retry":{"backoff_initial_seconds":50,"backoff_max_seconds":10},"payload":{"do":"x"}}
	]}`)
	if a.StatusCode != http.StatusUnprocessableEntity {
		t.Fatalf("status %d: %s", a.StatusCode, a.body)
	}
	p := a.problem(t)
	var paths []string
	for _, e := range p.Errors {
		paths = append(paths, e.Path)
		if e.Path == "tasks[1].plugin" && (e.Message != "unknown plugin" || e.Remedy != "known is work") {
			t.Errorf("fault of the plugin is %q, %q", e.Message, e.Remedy)
		}
		if e.Path == "tasks[1].pool" && e.Remedy != "known is default" {
			t.Errorf("remedy of the pool is %q", e.Remedy)
		}
	}
	want := []string{
		"tasks[1].pool", "tasks[1].plugin", "tasks[2].selector", "tasks[2].plugin_version", "tasks[3].tags[1]",
		"tasks[3].payload.do", "tasks[3].payload.times", "tasks[4].retry.backoff_max_seconds",
	}
	slices.Sort(want)
	slices.Sort(paths)
	if d := cmp.Diff(want, paths); d != "" {
		t.Errorf("paths differ (-want +got):\n%s\n%v", d, p.faults())
	}
}

func TestManyFaultsAreBounded(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	task := `{"plugin":"work","payload":{"times":0}}`
	a := send(t, s, "POST", "/api/v1/tasks/batch", s.Token("sub"), `{"tasks":[`+strings.Repeat(task+",", 999)+task+`]}`)
	p := a.problem(t)
	if len(p.Errors) != 101 || !strings.Contains(p.Errors[100].Message, "more faults") {
		t.Errorf("%d faults are listed, the last is %+v", len(p.Errors), p.Errors[len(p.Errors)-1])
	}
	a = send(t, s, "POST", "/api/v1/tasks/batch", s.Token("sub"), `{"tasks":[`+strings.Repeat(task+",", 1000)+task+`]}`)
	if got := a.problem(t).faults(); !slices.Equal(got, []string{"tasks: must have at most 1000 items"}) {
		t.Errorf("1,001 tasks: %v", got)
	}
}

func TestATinyQueueTimeoutIsNotNone(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	a := send(t, s, "POST", "/api/v1/tasks", s.Token("sub"), `{"plugin":"work","payload":{"do":"it"},"queue_timeout_seconds":1e-12}`)
	if a.StatusCode != http.StatusCreated || !strings.Contains(a.body, `"queue_timeout_seconds":0.000001`) && !strings.Contains(a.body, `"queue_timeout_seconds":1e-06`) {
		t.Errorf("status %d: %s", a.StatusCode, a.body)
	}
}

func TestParametersAreJudged(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	token := s.Token("sub")
	for path, want := range map[string]string{
		"/tasks?sate=queued":                            "sate: is not a parameter of this operation",
		"/tasks?state=queued&state=foo":                 "state: must be one of scheduled, queued, assigned, claimed, running, failed, succeeded, dead_letter, cancelled",
		"/tasks?page_size=0":                            "page_size: must be at least 1",
		"/tasks?page_size=201":                          "page_size: must be at most 200",
		"/tasks?page_size=x":                            "page_size: must be an integer",
		"/tasks?page_size=1&page_size=2":                "page_size: stands there twice",
		"/tasks?submitted_from=" + mark:                 "submitted_from: must be a date-time",
		"/tasks?page_token=" + mark:                     "page_token: is not a page token of this list and these filters",
		"/tasks?pool=none":                              `pool: there is no pool "none"`,
		"/tasks/ABC":                                    "id: must be a UUID in lower case",
		"/tasks/{01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10}": "id: must be a UUID in lower case",
		"/tasks/01976F3C-5f4e-7c1a-9b55-0d6b1f6f2f10":   "id: must be a UUID in lower case",
		"/tasks?tag=%00":                                "tag: is no UTF-8 text, or has a NUL character",
		"/tasks?tag=%ff":                                "tag: is no UTF-8 text, or has a NUL character",
		"/tasks?name_prefix=a%ff":                       "name_prefix: is no UTF-8 text, or has a NUL character",
		"/tasks?submitter=%00":                          "submitter: is no UTF-8 text, or has a NUL character",
		"/tasks?page_size=1&state=queued%zz":            ": the query cannot be read",
		"/tasks?page_size=1;state=queued":               ": the query cannot be read",
		"/devices?host=x":                               "host: must be a UUID in lower case",
		"/auth/me?x=1":                                  "x: is not a parameter of this operation",
	} {
		a := send(t, s, "GET", "/api/v1"+path, token, "")
		if a.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s: status %d: %s", path, a.StatusCode, a.body)
			continue
		}
		if got := a.problem(t).faults(); !slices.Contains(got, want) {
			t.Errorf("%s: faults are %q, want %q", path, got, want)
		}
		if strings.Contains(a.body, mark) {
			t.Errorf("%s: the answer repeats the value: %s", path, a.body)
		}
	}
}

func TestWrongRequestsHaveTheirStatus(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	token := s.Token("sub")
	for _, tc := range []struct {
		method, path, body string
		headers            []string
		status             int
	}{
		{"GET", "/nope", "", nil, 404},
		{"PATCH", "/tasks", "", nil, 405},
		{"POST", "/tasks", `{}`, []string{"Content-Type", "text/plain"}, 415},
		{"POST", "/tasks", `{}`, []string{"Content-Type", ""}, 415},
		{"POST", "/tasks", "", nil, 422},
		{"POST", "/tasks", `{"plugin":"work","payload":{"do":"x"}}`, []string{"Idempotency-Key", "a b"}, 422},
		{"POST", "/tasks", `{"plugin":"work","payload":{"do":"x"}}`, []string{"Idempotency-Key", strings.Repeat("k", 201)}, 422},
		{"POST", "/tasks/01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10/cancel", `{}`, nil, 422},
		{"GET", "/tasks", `{}`, nil, 422},
	} {
		a := send(t, s, tc.method, "/api/v1"+tc.path, token, tc.body, tc.headers...)
		if a.StatusCode != tc.status {
			t.Errorf("%s %s: status %d, want %d: %s", tc.method, tc.path, a.StatusCode, tc.status, a.body)
		}
		a.problem(t)
	}
}
