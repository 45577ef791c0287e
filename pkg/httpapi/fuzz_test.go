package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

// pair is the same API on both engines: what one refuses, the other has to refuse
// in the same words.
type pair struct {
	servers [2]*apitest.Server
	tokens  [2]string
}

// newPair makes both, with an administrator and what prepare adds.
func newPair(f *testing.F, prepare func(s *apitest.Server)) *pair {
	p := &pair{servers: [2]*apitest.Server{apitest.OnSQLite(f), apitest.OnPostgres(f)}}
	for i, s := range p.servers {
		s.User("root", berth.RoleAdmin)
		p.tokens[i] = s.Token("root")
		prepare(s)
	}
	return p
}

// given is an answer without what differs from one request to the next.
type given struct {
	status int
	header http.Header
	body   []byte
	problem
}

// send has both answer a request of this text, as a server reads it off the wire;
// ok is false for what the standard library's server refuses by itself. The answers
// are held to what every answer keeps.
func (p *pair) send(t *testing.T, method string, target func(engine int) string, body string) (answers [2]given, ok bool) {
	t.Helper()
	for i, s := range p.servers {
		head := method + " " + target(i) + " HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
		for try := 0; ; try++ {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head + body)))
			if err != nil || r.Host != "berth" || r.Method != method || len(r.Header) != 2 {
				return answers, false
			}
			r.RemoteAddr = "127.0.0.1:1"
			r.Header.Set("Authorization", "Bearer "+p.tokens[i])
			rec := httptest.NewRecorder()
			s.Echo.ServeHTTP(rec, r.WithContext(t.Context()))
			if rec.Code == http.StatusUnauthorized && try == 0 {
				p.tokens[i] = s.Token("root") // its ten minutes are over
				continue
			}
			answers[i] = given{status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
			break
		}
		for _, line := range s.Logs.TakeAll() {
			if line.Message == "request failed" {
				t.Fatalf("%s %q, engine %d: %v", method, target(i), i, line.ContextMap())
			}
		}
		if a := &answers[i]; a.status >= 400 {
			judgeProblem(t, a)
		}
	}
	a, b := answers[0], answers[1]
	if a.status != b.status || a.Code != b.Code || fmt.Sprint(a.Errors) != fmt.Sprint(b.Errors) {
		t.Fatalf("%s %q: SQLite %d %s, Postgres %d %s", method, target(0), a.status, a.body, b.status, b.body)
	}
	return answers, true
}

// judgeProblem: a refusal is one document that is bounded, and names fields with
// remedies.
func judgeProblem(t *testing.T, a *given) {
	t.Helper()
	if a.status >= 500 || json.Unmarshal(a.body, &a.problem) != nil || a.Code == "" || a.Remedy == "" || len(a.body) > 64<<10 || !utf8.Valid(a.body) {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a.status == http.StatusUnprocessableEntity && a.Code == "invalid" && len(a.Errors) == 0 {
		t.Fatalf("no field is named: %s", a.body)
	}
	for _, e := range a.Errors {
		if e.Message == "" || strings.ContainsFunc(e.Path+e.Message+e.Remedy, func(r rune) bool { return r == 0 }) {
			t.Fatalf("%+v", e)
		}
	}
}

// lists are the routes with filters, and their parameters.
func lists() (paths []string, parameters [][]string) {
	page := []string{"page_size", "page_token"}
	for _, l := range []struct{ path, parameters string }{
		{"/tasks", "state pool plugin tag name_prefix submitter device submitted_from submitted_to"},
		{"/devices", "pool host driver health admin occupancy"},
		{"/hosts", "pool"},
		{"/audit", "actor action target_kind target host device request_id from to"},
		{"/plugins", ""},
		{"/secrets", ""},
		{"/users", ""},
	} {
		paths = append(paths, "/api/v1"+l.path)
		parameters = append(parameters, append(strings.Fields(l.parameters), page...))
	}
	return paths, parameters
}

// FuzzListQuery: whatever stands behind the ? of a list, it is answered by both
// engines alike: with one page whose token is taken again, or with a refusal that
// names parameters of the list, or what is none, and quotes no value but a pool's.
func FuzzListQuery(f *testing.F) {
	paths, parameters := lists()
	for i := range paths {
		f.Add(uint8(i), "")
		f.Add(uint8(i), "page_size=1")
		for _, name := range parameters[i] {
			for _, value := range []string{"x", "", "%00", "%ff", "c4n4ry%27%3B--", "2026-01-01T00:00:00Z", "default", "queued", "1", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10"} {
				f.Add(uint8(i), name+"="+value)
			}
		}
	}
	for _, q := range []string{
		"state=queued&state=running&page_size=2", "state=queued,running", "pool=default&pool=lab", "tag=%E2%80%AE", "a=%zz", "a;b", "&&=&", "submitted_from=9999-12-31T23:59:59.999999999Z",
		"submitted_to=0000-01-01T00:00:00Z", "from=2026-01-01T00:00:00-23:59&to=2026-01-01T00:00:00Z", "page_size=1e1", "page_size=+1", "page_size=201", "name_prefix=%25_%5C", "stat%65=queued",
	} {
		for i := range paths {
			f.Add(uint8(i), q)
		}
	}
	p := newPair(f, func(s *apitest.Server) {
		c := s.Client(s.Token("root"))
		for _, name := range []string{"n-1", "n_2", "%3"} {
			spec := work("x")
			spec.Name, spec.Tags = name, []string{"a", "b"}
			if _, err := c.SubmitTask(f.Context(), spec, bclient.SubmitOptions{}); err != nil {
				f.Fatal(err)
			}
		}
		s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
	})
	f.Fuzz(func(t *testing.T, list uint8, query string) {
		i := int(list) % len(paths)
		answers, ok := p.send(t, "GET", func(int) string { return paths[i] + "?" + query }, "")
		if !ok {
			return
		}
		if answers[0].status == http.StatusOK {
			p.nextPage(t, paths[i], query, answers)
			return
		}
		if answers[0].status != http.StatusUnprocessableEntity {
			t.Fatalf("%q: %d %s", query, answers[0].status, answers[0].body)
		}
		asked, err := url.ParseQuery(query)
		for _, e := range answers[0].Errors {
			named := e.Path == "" && err != nil
			for _, name := range append(parameters[i], keysOf(asked)...) {
				named = named || e.Path == berth.Clip(name, 40) || strings.ToValidUTF8(berth.Clip(name, 40), "\ufffd") == e.Path
			}
			if !named {
				t.Fatalf("%q: the fault names none of its parameters: %+v", query, e)
			}
		}
		asked.Del("pool")
		if values := fmt.Sprint(valuesOf(asked)); strings.Contains(values, "c4n4ry") && !strings.Contains(fmt.Sprint(keysOf(asked)), "c4n4ry") &&
			strings.Contains(string(answers[0].body), "c4n4ry") {
			t.Fatalf("%q is quoted: %s", query, answers[0].body)
		}
	})
}

// nextPage holds pages to each other: both engines have as many rows, and the next
// page of each is asked for with the same filters.
func (p *pair) nextPage(t *testing.T, path, query string, answers [2]given) {
	t.Helper()
	var counts [2]int
	var next [2]string
	for i, a := range answers {
		var page map[string]json.RawMessage
		if err := json.Unmarshal(a.body, &page); err != nil {
			t.Fatal(err)
		}
		for name, value := range page {
			var rows []json.RawMessage
			if name == "next_page_token" {
				_ = json.Unmarshal(value, &next[i])
			} else if json.Unmarshal(value, &rows) == nil {
				counts[i] += len(rows)
			}
		}
	}
	asked, err := url.ParseQuery(query)
	// Each look at the audit's rows, and each login, is a row by itself.
	if err != nil || path != "/api/v1/audit" && counts[0] != counts[1] || path != "/api/v1/audit" && (next[0] == "") != (next[1] == "") {
		t.Fatalf("%s?%s: %d rows and %d, %v", path, query, counts[0], counts[1], err)
	}
	if next[0] == "" || next[1] == "" {
		return
	}
	more, ok := p.send(t, "GET", func(i int) string {
		asked.Set("page_token", next[i])
		return path + "?" + asked.Encode()
	}, "")
	if !ok || more[0].status != http.StatusOK {
		t.Fatalf("the next page of %s?%s: %d %s", path, query, more[0].status, more[0].body)
	}
}

func keysOf(q url.Values) (keys []string) {
	for k := range q {
		keys = append(keys, k)
	}
	return keys
}

func valuesOf(q url.Values) (all []string) {
	for _, values := range q {
		all = append(all, values...)
	}
	return all
}

// FuzzReadLog: a log's bytes from an offset on are those that were written, and the
// next call goes on where they end; an offset that is none is refused as offset.
func FuzzReadLog(f *testing.F) {
	chunks := []string{"first line\n", "\x00\xff bytes\n", strings.Repeat("z", 5000)}
	whole := strings.Join(chunks, "")
	var ids []string
	p := newPair(f, func(s *apitest.Server) {
		task, err := s.Client(s.Token("root")).SubmitTask(f.Context(), work("x"), bclient.SubmitOptions{})
		if err != nil {
			f.Fatal(err)
		}
		run := s.Agent("lab-1", map[string]string{"os": "linux"}).Run(task.ID)
		for _, c := range chunks {
			run.Log(c)
		}
		run.Complete(berth.OutcomeSucceeded, "", "")
		ids = append(ids, task.ID)
	})
	for _, s := range []string{"", "0", "1", "10", "11", "12", "5019", "5020", "5021", "-1", "+1", "01", "1e3", "0.0", "1_0", "9223372036854775807", "9223372036854775808", "x", "%00", "1&offset=2"} {
		f.Add("1", "offset="+s)
		f.Add("1", "follow=true&offset="+s)
		f.Add(s, "offset=0")
	}
	f.Add("1", "limit=5")
	f.Fuzz(func(t *testing.T, number, query string) {
		answers, ok := p.send(t, "GET", func(i int) string {
			return "/api/v1/tasks/" + ids[i] + "/attempts/" + url.PathEscape(number) + "/log?" + query
		}, "")
		if !ok {
			return
		}
		a, b := answers[0], answers[1]
		switch a.status {
		case http.StatusOK:
			q, err := url.ParseQuery(query)
			if err != nil {
				t.Fatalf("%q passes", query)
			}
			var from int64
			if text := q.Get("offset"); text != "" {
				if from, err = strconv.ParseInt(text, 10, 64); err != nil || from < 0 {
					t.Fatalf("the offset %q passes", text)
				}
			}
			want := whole[min(from, int64(len(whole))):]
			if string(a.body) != want || string(b.body) != want || a.header.Get("Berth-Log-Ended") != "true" {
				t.Fatalf("from %d on: %d bytes and %d, want %d; ended %s", from, len(a.body), len(b.body), len(want), a.header.Get("Berth-Log-Ended"))
			}
			for _, g := range answers {
				if next := g.header.Get("Berth-Next-Offset"); next != strconv.FormatInt(from+int64(len(want)), 10) {
					t.Fatalf("from %d on, next %s", from, next)
				}
			}
		case http.StatusUnprocessableEntity, http.StatusNotFound:
		default:
			t.Fatalf("%q, %q: %d %s", number, query, a.status, a.body)
		}
	})
}

// FuzzBody: whatever body a task, a pool, a secret or labels are made of, both
// engines take it or refuse it alike; what is taken is read as it was written, in
// text that moves nobody's cursor.
func FuzzBody(f *testing.F) {
	routes := []struct{ method, path string }{
		{"POST", "/tasks"}, {"POST", "/pools"}, {"PUT", "/secrets/s-1"}, {"PUT", "/devices/%s/labels"}, {"POST", "/tasks/batch"},
	}
	device := map[int]string{}
	p := newPair(f, func(s *apitest.Server) {
		device[len(device)] = string(s.Agent("lab-1", map[string]string{"os": "linux"}).Devices[0])
	})
	task := `{"plugin":"work","payload":{"do":"x"},"name":"n","tags":["a"],"selector":"os=linux"}`
	f.Add(uint8(0), task)
	f.Add(uint8(4), `{"tasks":[`+task+`,`+task+`]}`)
	f.Add(uint8(1), `{"name":"lab","description":"d"}`)
	f.Add(uint8(2), `{"value":"abc","description":"d","grants":[{"role":"submitter"}]}`)
	f.Add(uint8(3), `{"labels":{"rack":"7"}}`)
	for _, bad := range []string{`\u0000`, `\ud800`, `\u009b`, `\u202e`, "\xff", `é`, strings.Repeat("l", 300), `'; --`, `\\x00`, `a"`} {
		f.Add(uint8(0), strings.Replace(task, `"n"`, `"`+bad+`"`, 1))
		f.Add(uint8(0), strings.Replace(task, `"x"`, `"`+bad+`"`, 1))
		f.Add(uint8(0), strings.Replace(task, `"a"`, `"`+bad+`"`, 1))
		f.Add(uint8(1), `{"name":"`+bad+`","description":"`+bad+`"}`)
		f.Add(uint8(1), `{"name":"p","description":"`+bad+`"}`)
		f.Add(uint8(2), `{"value":"`+bad+`"}`)
		f.Add(uint8(2), `{"value":"value","description":"`+bad+`"}`)
		f.Add(uint8(3), `{"labels":{"`+bad+`":"7","rack":"`+bad+`"}}`)
	}
	f.Fuzz(func(t *testing.T, route uint8, body string) {
		r := routes[int(route)%len(routes)]
		answers, ok := p.send(t, r.method, func(i int) string { return "/api/v1" + strings.Replace(r.path, "%s", device[i], 1) }, body)
		if !ok || answers[0].status >= 400 {
			return
		}
		var read [2]map[string]any
		for i, a := range answers {
			if err := json.Unmarshal(a.body, &read[i]); err != nil {
				t.Fatalf("%s: %v", a.body, err)
			}
		}
		var sent map[string]any
		if err := json.Unmarshal([]byte(body), &sent); err != nil {
			t.Fatalf("%q is taken: %v", body, err)
		}
		for _, name := range []string{"name", "description", "tags", "payload", "admin_labels"} {
			a, b := fmt.Sprint(read[0][name]), fmt.Sprint(read[1][name])
			if a != b {
				t.Fatalf("%s: SQLite has %q, Postgres %q", name, a, b)
			}
			if name != "payload" && (!utf8.ValidString(a) || strings.ContainsFunc(a, unicode.IsControl)) {
				t.Fatalf("%s is %q", name, a)
			}
		}
		if text, ok := sent["name"].(string); ok && fmt.Sprint(read[0]["name"]) != strings.TrimSpace(text) && read[0]["name"] != nil {
			t.Fatalf("the name %q is read as %q", text, read[0]["name"])
		}
		if payload, ok := sent["payload"]; ok && route%5 == 0 && fmt.Sprint(payload) != fmt.Sprint(read[0]["payload"]) {
			t.Fatalf("the payload %v is read as %v", payload, read[0]["payload"])
		}
	})
}
