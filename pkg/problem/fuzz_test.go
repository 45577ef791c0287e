package problem_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
)

// FuzzWrite: whatever error of whatever words is answered, the answer is one JSON
// document of a bounded size that says its own status and a code, and nothing of an
// error that is nobody's business. HEAD gets no body.
func FuzzWrite(f *testing.F) {
	for i := range uint8(9) {
		f.Add(i, "tasks[0].name", "is wrong", "mend it", int64(time.Second), uint16(1))
	}
	f.Add(uint8(0), "\xff", "\x00\u2028</script>", strings.Repeat("long ", 10_000), int64(-1), uint16(5000))
	f.Add(uint8(2), "ünïcode is there", "", "", int64(1<<62), uint16(0))
	f.Fuzz(func(t *testing.T, which uint8, path, message, remedy string, retry int64, times uint16) {
		secret := "pq: " + strconv.Quote(message) + " at 10.0.0.1"
		err, known := errorOf(which, path, message, remedy, retry, int(times), secret)
		d := problem.Of(fmt.Errorf("words of the case %s: %w", secret, err))
		d.RequestID = "req-1"
		rec := httptest.NewRecorder()
		problem.Write(rec, http.MethodGet, d)
		body := rec.Body.Bytes()
		var got protocol.Problem
		if json.Unmarshal(body, &got) != nil || !utf8.Valid(body) || len(body) > 2<<20 {
			t.Fatalf("no document, or a long one: %d bytes, %.200q", len(body), body)
		}
		if got.Status != rec.Code || rec.Code < 400 || got.Code == "" || got.Title == "" || got.RequestID != "req-1" || rec.Header().Get(echo.HeaderContentType) != problem.ContentType {
			t.Fatalf("%d: %+v", rec.Code, got)
		}
		if known == d.Unknown || d.Unknown != (rec.Code == 500) {
			t.Fatalf("%v is unknown: %v, status %d", err, d.Unknown, rec.Code)
		}
		if strings.Contains(got.Detail+got.Title+got.Remedy+fmt.Sprint(got.Errors), "10.0.0.1") || !utf8.ValidString(got.Detail) || strings.HasPrefix(got.Detail, "\ufffd") && utf8.ValidString(path) && !strings.HasPrefix(path, "\ufffd") {
			t.Fatalf("%.500s", body)
		}
		if after := rec.Header().Get("Retry-After"); after != "" || rec.Code == 429 || rec.Code == 503 {
			if n, err := strconv.ParseInt(after, 10, 64); err != nil || n < 1 {
				t.Fatalf("Retry-After %q", after)
			}
		}
		head := httptest.NewRecorder()
		problem.Write(head, http.MethodHead, d)
		if head.Body.Len() > 0 || head.Code != rec.Code {
			t.Fatalf("HEAD: %d, %q", head.Code, head.Body)
		}
	})
}

// errorOf is an error of the kind that which chooses, and whether a caller is told
// of it.
func errorOf(which uint8, path, message, remedy string, retry int64, times int, secret string) (err error, known bool) { //nolint:revive,staticcheck // the error is what it makes
	switch which % 9 {
	case 0:
		var faults berth.Faults
		for range 1 + times {
			faults.Add(path, message, remedy)
		}
		return faults.Err(), true
	case 1:
		return &berth.WrongStateError{Thing: path, State: message, Message: remedy}, true
	case 2:
		return &berth.ExistsError{What: path}, true
	case 3:
		return berth.TooLarge(path, retry, int64(times)), true
	case 4:
		return &berth.TooManyError{RetryAfter: time.Duration(retry)}, true
	case 5:
		return &berth.GapError{Next: retry}, true
	case 6:
		return &problem.Error{Status: 400 + int(which/9)%29, Code: "code", Title: "title", Detail: path, Remedy: remedy, RetryAfter: time.Duration(retry)}, true
	case 7:
		return echo.NewHTTPError(http.StatusBadRequest, secret).SetInternal(errors.New(secret)), true
	}
	return errors.New(secret), false
}
