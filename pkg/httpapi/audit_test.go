package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

// audit searches as an operator.
func audit(t *testing.T, s *apitest.Server, query string) bclient.AuditList {
	t.Helper()
	a := send(t, s, "GET", "/api/v1/audit?"+query, s.Token("op"), "")
	var l bclient.AuditList
	if err := json.Unmarshal([]byte(a.body), &l); err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("audit %s: %d %s", query, a.StatusCode, a.body)
	}
	return l
}

// TestTheAuditTrailIsSearched: operators find an act with who, from where, with
// what, before and after; others find nothing; what a filter says is checked; and a
// page goes on in its own search alone.
func TestTheAuditTrailIsSearched(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.As("op", berth.RoleOperator)
		s.As("sub", berth.RoleSubmitter)
		for i, name := range []string{"pause", "resume", "pause"} {
			if a := send(t, s, "POST", "/api/v1/pools/default/"+name, s.Token("op"), "", "X-Request-Id", fmt.Sprint("of-", name, i)); a.StatusCode != http.StatusOK {
				t.Fatalf("%s: %d %s", name, a.StatusCode, a.body)
			}
		}
		l := audit(t, s, "action=pool.paused&target_kind=pool")
		if len(l.Events) != 2 {
			t.Fatalf("found %+v", l.Events)
		}
		e := l.Events[0]
		if e.ActorKind != "user" || e.ActorName != "op" || e.Client != "127.0.0.1" || !strings.HasPrefix(e.Credential, "session:") ||
			e.RequestID == "" || e.TargetKind != "pool" || e.Before["paused"] != "false" || e.After["paused"] != "true" || time.Since(e.At) > time.Hour {
			t.Errorf("the act is %+v", e)
		}
		if l := audit(t, s, "request_id="+url.QueryEscape(e.RequestID)); len(l.Events) != 1 || l.Events[0].ID != e.ID {
			t.Errorf("of the request: %+v", l.Events)
		}
		first := audit(t, s, "action=pool.&page_size=1")
		if len(first.Events) != 1 || first.NextPageToken == "" {
			t.Fatalf("a page: %+v", first)
		}
		token := url.QueryEscape(first.NextPageToken)
		if l := audit(t, s, "action=pool.&page_size=1&page_token="+token); len(l.Events) != 1 || l.Events[0].ID == first.Events[0].ID {
			t.Errorf("the next page: %+v", l)
		}
		path := "/api/v1/audit"
		for query, want := range map[string]string{
			"action=user.&page_token=" + token: "page_token", "page_token=" + token: "page_token", "page_token=LTE": "page_token",
			"target=x": "target_kind", "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z": "to", "action=' OR 1": "action", "host=x": "host", "from=today": "from",
			"nobody=1": "nobody",
		} {
			query = strings.ReplaceAll(query, " ", "%20")
			a := send(t, s, "GET", path+"?"+query, s.Token("op"), "")
			if a.StatusCode != http.StatusBadRequest && a.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(a.body, want) {
				t.Errorf("%s: %d %s", query, a.StatusCode, a.body)
			}
		}
		if a := send(t, s, "GET", path, s.Token("sub"), ""); a.StatusCode != http.StatusForbidden {
			t.Errorf("a submitter: %d", a.StatusCode)
		}
		// The token of another list.
		if a := send(t, s, "GET", "/api/v1/plugins?page_token="+token, s.Token("op"), ""); a.StatusCode == http.StatusOK {
			t.Error("another list takes the token")
		}
	})
}

// TestReadsOfAnInputAreOnRecord: with who and what, one row for the pieces of one
// reading and none for what was refused.
func TestReadsOfAnInputAreOnRecord(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.As("op", berth.RoleOperator)
		s.As("other", berth.RoleSubmitter)
		sub, digest := s.As("sub", berth.RoleSubmitter), apitest.SHA256(bundle)
		if _, err := sub.BeginInput(t.Context(), digest, int64(len(bundle))); err != nil {
			t.Fatal(err)
		}
		if a := part(t, s, s.Token("sub"), digest, "?offset=0", bundle); a.StatusCode != http.StatusOK {
			t.Fatalf("upload: %d %s", a.StatusCode, a.body)
		}
		path := "/api/v1/inputs/" + digest + "/content"
		tokens := map[string]string{"sub": s.Token("sub"), "other": s.Token("other"), "op": s.Token("op")}
		for _, c := range []struct {
			user, ranges string
			status, rows int
		}{
			{"other", "bytes=0-3", http.StatusNotFound, 0},
			{"sub", "bytes=5-8", http.StatusPartialContent, 1}, // whichever piece comes first
			{"sub", "bytes=0-3", http.StatusPartialContent, 1},
			{"sub", "", http.StatusOK, 1},
			{"op", "bytes=1-2", http.StatusPartialContent, 2},
		} {
			a := send(t, s, "GET", path, tokens[c.user], "", "Range", c.ranges)
			l := audit(t, s, "action=input.read&target_kind=input&target="+digest)
			if a.StatusCode != c.status || len(l.Events) != c.rows {
				t.Fatalf("%s reads %q: %d, and %d rows, should be %d and %d", c.user, c.ranges, a.StatusCode, len(l.Events), c.status, c.rows)
			}
			if c.rows > 0 && (l.Events[0].Credential == "" || l.Events[0].Client == "" || l.Events[0].After["size"] == "") {
				t.Errorf("the row is %+v", l.Events[0])
			}
		}
	})
}

// TestWhatCannotBeRecordedIsNotDone: while the trail takes no rows, no content is
// sent and no act is done, and the log says why; afterwards all goes on.
func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	const mark = "c0ntent-that-must-not-le4ve"
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.As("op", berth.RoleOperator)
		sub, digest := s.As("sub", berth.RoleSubmitter), apitest.SHA256(mark)
		if _, err := sub.BeginInput(t.Context(), digest, int64(len(mark))); err != nil {
			t.Fatal(err)
		}
		if a := part(t, s, s.Token("sub"), digest, "?offset=0", mark); a.StatusCode != http.StatusOK {
			t.Fatalf("upload: %d %s", a.StatusCode, a.body)
		}
		task := submit(t, sub, work("x"))
		run := s.Agent("lab-1", map[string]string{}).Run(task.ID)
		run.Log(mark)
		run.Artifact("page.txt", "text/plain", mark)
		run.Complete(berth.OutcomeSucceeded, "", "")

		attempt, op := "/api/v1/tasks/"+task.ID+"/attempts/1", s.Token("op")
		reads := [][]string{
			{attempt + "/artifacts/page.txt"},
			{attempt + "/log"},
			{attempt + "/log?offset=3&follow=true"},
			{"/api/v1/inputs/" + digest + "/content"},
			{"/api/v1/inputs/" + digest + "/content", "Range", "bytes=2-5"},
		}
		mend := s.DB.RefuseAudit(t)
		for _, r := range reads {
			a := send(t, s, "GET", r[0], op, "", r[1:]...)
			p := a.problem(t)
			if a.StatusCode != http.StatusServiceUnavailable || p.Code != "database_unavailable" || strings.Contains(a.body, mark[:4]) || a.Header.Get("Retry-After") == "" {
				t.Errorf("%v: %d %s", r, a.StatusCode, a.body)
			}
			if n := s.Logs.FilterMessage("what was asked for is not sent: its reading cannot be put on record").
				FilterField(zap.String("request_id", p.RequestID)).Len(); n != 1 {
				t.Errorf("%v: %d lines in the log", r, n)
			}
		}
		if a := send(t, s, "POST", "/api/v1/pools/default/pause", op, ""); a.StatusCode < 500 {
			t.Errorf("an act: %d %s", a.StatusCode, a.body)
		}
		if p, err := s.Store.GetPool(t.Context(), berth.DefaultPool); err != nil || p.Paused {
			t.Errorf("the act without a row is done: %+v, %v", p, err)
		}
		if _, err := s.Client("").Login(t.Context(), "sub", apitest.Password); err == nil {
			t.Error("a login without a row is good")
		}
		mend()
		for _, r := range reads {
			if a := send(t, s, "GET", r[0], op, "", r[1:]...); a.StatusCode/100 != 2 || a.body == "" || !strings.Contains(mark, a.body) {
				t.Errorf("%v after the repair: %d %s", r, a.StatusCode, a.body)
			}
		}
	})
}
