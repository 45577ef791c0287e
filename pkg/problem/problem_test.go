package problem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
)

// serve runs one handler that fails with err behind the real echo and returns
// the answer and what was logged.
func serve(t *testing.T, method string, err error) (*http.Response, protocol.Problem, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	e := echo.New()
	e.HTTPErrorHandler = problem.Handler(zap.New(core))
	e.Any("/x", func(c echo.Context) error {
		c.Response().Header().Set(echo.HeaderXRequestID, "req-1")
		return err
	})
	s := httptest.NewServer(e)
	defer s.Close()
	req, rerr := http.NewRequestWithContext(t.Context(), method, s.URL+"/x", nil)
	if rerr != nil {
		t.Fatal(rerr)
	}
	res, rerr := http.DefaultClient.Do(req)
	if rerr != nil {
		t.Fatal(rerr)
	}
	defer res.Body.Close()
	var p protocol.Problem
	if method != http.MethodHead {
		if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
			t.Fatal(err)
		}
	}
	return res, p, logs
}

func TestEachKindHasItsStatusAndCode(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("words of the case: %w", err) }
	for _, tc := range []struct {
		err    error
		status int
		code   string
	}{
		{berth.ErrNotFound, 404, "not_found"},
		{&berth.WrongStateError{Thing: "task", State: "running", Message: "cancel it first"}, 409, "wrong_state"},
		{berth.ErrWrongState, 409, "wrong_state"},
		{berth.ErrExists, 409, "exists"},
		{&berth.ExistsError{What: "a pool named lab"}, 409, "exists"},
		{berth.TooLarge("the chunk", 9, 8), 413, "too_large"},
		{berth.ErrMismatch, 409, "content_differs"},
		{berth.ErrLeaseLost, 410, "lease_lost"},
		{berth.ErrUsed, 410, "enrolment_token_used"},
		{berth.ErrExpired, 410, "enrolment_token_expired"},
		{berth.ErrStaleEpoch, 412, "stale_epoch"},
		{berth.CheckEpoch(2, 1), 412, "stale_epoch"},
		{berth.CheckEpoch(1, 2), 412, "epoch_ahead"},
		{berth.ErrTooLarge, 413, "too_large"},
		{&http.MaxBytesError{Limit: 1}, 413, "too_large"},
		{&berth.GapError{Next: 7}, 416, "log_gap"},
		{berth.Invalid("a.b", "is wrong", "mend it"), 422, "invalid"},
		{berth.ErrIdempotencyMismatch, 422, "idempotency_mismatch"},
		{berth.ErrUnauthenticated, 401, "unauthenticated"},
		{berth.ErrForbidden, 403, "forbidden"},
		{&berth.RoleError{Needs: berth.RoleOperator}, 403, "forbidden"},
		{&berth.TooManyError{RetryAfter: 90 * time.Second}, 429, "too_many_requests"},
		{&berth.TooManyError{}, 429, "too_many_requests"},
		{&problem.Error{Status: 503, Code: "stopping", Title: "Stopping", Remedy: "Try again."}, 503, "stopping"},
		{berth.ErrUnavailable, 503, "database_unavailable"},
		{problem.SchemaUnusable(problem.CodeSchemaBehind), 503, "schema_behind"},
		{context.DeadlineExceeded, 503, "timeout"},
		{echo.ErrNotFound, 404, "not_found"},
		{echo.ErrMethodNotAllowed, 405, "method_not_allowed"},
		{echo.ErrStatusRequestEntityTooLarge, 413, "too_large"},
		{echo.ErrUnsupportedMediaType, 415, "unsupported_media_type"},
		{echo.NewHTTPError(400, "client words"), 400, "bad_request"},
	} {
		t.Run(tc.code+"/"+fmt.Sprintf("%T", tc.err), func(t *testing.T) {
			res, p, logs := serve(t, http.MethodPost, wrap(tc.err))
			if res.StatusCode != tc.status || p.Status != tc.status || p.Code != tc.code {
				t.Errorf("got %d %q, want %d %q", res.StatusCode, p.Code, tc.status, tc.code)
			}
			if res.Header.Get("Content-Type") != problem.ContentType || p.Title == "" || p.RequestID != "req-1" {
				t.Errorf("incomplete: %+v, %v", p, res.Header)
			}
			if p.Remedy == "" && len(p.Errors) == 0 {
				t.Error("says nothing to try")
			}
			if (tc.status == 503 || tc.status == 429) && res.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			if logs.Len() != 0 {
				t.Errorf("logged %v", logs.All())
			}
		})
	}
}

func TestAFullStorageIsNamedAndLogged(t *testing.T) {
	err := fmt.Errorf("write a blob: %w", berth.ErrStorageFull)
	if !errors.Is(err, berth.ErrUnavailable) || strings.Contains(err.Error(), "database") {
		t.Errorf("%v: retry it, and do not blame the database", err)
	}
	res, p, logs := serve(t, http.MethodPut, err)
	if res.StatusCode != 503 || p.Code != "storage_full" || res.Header.Get("Retry-After") == "" || !strings.Contains(p.Remedy, "blob directory") {
		t.Errorf("%d %+v %v", res.StatusCode, p, res.Header)
	}
	if logs.Len() != 1 || !strings.Contains(logs.All()[0].Message, "full") {
		t.Errorf("logged %v", logs.All())
	}
}

func TestDetailsThatClientsActOn(t *testing.T) {
	_, p, _ := serve(t, "PUT", fmt.Errorf("x: %w", &berth.GapError{Next: 4711}))
	if p.NextOffset == nil || *p.NextOffset != 4711 {
		t.Errorf("next_offset: %+v", p)
	}
	_, p, _ = serve(t, "POST", berth.Invalid("tasks[3].priority", "12 is out of range", "use 0 to 9"))
	if len(p.Errors) != 1 || p.Errors[0].Path != "tasks[3].priority" || p.Errors[0].Remedy != "use 0 to 9" {
		t.Errorf("errors: %+v", p)
	}
	res, _, _ := serve(t, "POST", &berth.TooManyError{RetryAfter: 1500 * time.Millisecond})
	if res.Header.Get("Retry-After") != "2" {
		t.Errorf("Retry-After must round up: %q", res.Header.Get("Retry-After"))
	}
	res, _, _ = serve(t, "HEAD", berth.ErrNotFound)
	if res.StatusCode != 404 {
		t.Errorf("HEAD: %d", res.StatusCode)
	}
}

func TestAnUnknownErrorIsABare500LoggedOnce(t *testing.T) {
	for _, err := range []error{
		errors.New("pq: password authentication failed at 10.0.0.1"),
		echo.NewHTTPError(500, "pq: 10.0.0.1").SetInternal(errors.New("pq: password authentication failed at 10.0.0.1")),
	} {
		res, p, logs := serve(t, "GET", err)
		body, _ := json.Marshal(p)
		if res.StatusCode != 500 || p.Code != "internal" || strings.Contains(string(body), "pq") {
			t.Errorf("got %d %s", res.StatusCode, body)
		}
		if logs.Len() != 1 || logs.All()[0].ContextMap()["request_id"] != "req-1" || !strings.Contains(fmt.Sprint(logs.All()[0].ContextMap()["error"]), "pq:") {
			t.Errorf("log: %v", logs.All())
		}
	}
}

func TestACommittedAnswerIsLeftAlone(t *testing.T) {
	e := echo.New()
	e.HTTPErrorHandler = problem.Handler(zap.NewNop())
	e.GET("/x", func(c echo.Context) error {
		_ = c.String(200, "done")
		return errors.New("too late")
	})
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, httptest.NewRequest("GET", "/x", nil))
	if rec.Code != 200 || rec.Body.String() != "done" {
		t.Errorf("got %d %q", rec.Code, rec.Body)
	}
}

// What is there already, and which limit would be passed, is said by name.
func TestTheDetailNamesTheCase(t *testing.T) {
	for want, err := range map[string]error{
		"A pool named lab exists already.":                                    &berth.ExistsError{What: "a pool named lab"},
		"The chunk has 9 bytes, 8 are allowed.":                               berth.TooLarge("the chunk", 9, 8),
		"The request's body has more than the 8 bytes that are allowed here.": &http.MaxBytesError{Limit: 8},
	} {
		if got := problem.Of(fmt.Errorf("words of the case: %w", err)); got.Detail != want || got.Remedy == "" {
			t.Errorf("%v: says %q, try %q; want %q", err, got.Detail, got.Remedy, want)
		}
	}
}
