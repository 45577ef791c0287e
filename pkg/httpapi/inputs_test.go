package httpapi_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

const bundle = "the bytes of a test bundle"

// part sends a part of an input as it is.
func part(t *testing.T, s *apitest.Server, token, digest, query, bytes string, headers ...string) answer {
	t.Helper()
	return send(t, s, "PATCH", "/api/v1/inputs/"+digest+query, token, bytes, append([]string{"Content-Type", "application/octet-stream"}, headers...)...)
}

func TestAnInputIsUploadedInPartsAndUsed(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		sub, other := s.As("sub", berth.RoleSubmitter), s.As("other", berth.RoleSubmitter)
		token, digest, size := s.Token("sub"), apitest.SHA256(bundle), int64(len(bundle))
		if a := part(t, s, token, digest, "", bundle); a.StatusCode != http.StatusNotFound || !strings.Contains(a.problem(t).Remedy, "POST /inputs") {
			t.Errorf("a part of no upload: %d %s", a.StatusCode, a.body)
		}
		u, err := sub.BeginInput(t.Context(), digest, size)
		if err != nil || u != (bclient.InputUpload{Digest: digest, Size: size}) {
			t.Fatalf("begin: %+v, %v", u, err)
		}
		for range 2 { // a repeat gives the same answer
			if a := part(t, s, token, digest, "?offset=0", bundle[:10]); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"received":10,`) {
				t.Fatalf("first part: %d %s", a.StatusCode, a.body)
			}
		}
		a := part(t, s, token, digest, "?offset=11", bundle[11:])
		if a.StatusCode != http.StatusRequestedRangeNotSatisfiable || a.problem(t).Code != "upload_gap" || !strings.Contains(a.body, `"next_offset":10`) {
			t.Errorf("a gap: %d %s", a.StatusCode, a.body)
		}
		if u, err := sub.BeginInput(t.Context(), digest, size); err != nil || u.Received != 10 || u.Stored {
			t.Errorf("resume: %+v, %v", u, err)
		}
		for range 2 {
			if a := part(t, s, token, digest, "?offset=10", bundle[10:]); a.StatusCode != http.StatusOK || !strings.Contains(a.body, `"stored":true`) {
				t.Fatalf("last part: %d %s", a.StatusCode, a.body)
			}
		}
		stored, err := sub.GetInput(t.Context(), digest)
		if err != nil || stored.Size != size || stored.LastUsedAt.IsZero() {
			t.Errorf("get: %+v, %v", stored, err)
		}
		list, err := sub.ListInputs(t.Context(), bclient.ListInputsParams{})
		if err != nil || len(list.Inputs) != 1 || list.Inputs[0] != stored {
			t.Errorf("list: %+v, %v", list, err)
		}
		usesInput(t, sub, other, digest)
		downloads(t, s, token, digest)
	})
}

// usesInput: a task names it; somebody who only knows its digest cannot.
func usesInput(t *testing.T, sub, other *bclient.Client, digest string) {
	t.Helper()
	spec := work("x")
	spec.Inputs = []bclient.InputUse{{Name: "bundle.zip", Digest: digest}}
	task := submit(t, sub, spec)
	got, err := sub.GetTask(t.Context(), task.ID, 0)
	if err != nil || !slices.Equal(got.Inputs, []bclient.TaskInput{{Name: "bundle.zip", Digest: digest, Size: int64(len(bundle))}}) || got.Selector != "berth.dev/protocol>1" {
		t.Errorf("task: %+v, %v", got, err)
	}
	_, err = other.SubmitTask(t.Context(), spec, bclient.SubmitOptions{})
	says(t, "somebody else's input", err, "invalid", "inputs[0].digest")
	_, err = other.SubmitTasks(t.Context(), []bclient.TaskSpec{work("y"), spec}, bclient.SubmitOptions{})
	says(t, "somebody else's input", err, "invalid", "tasks[1].inputs[0].digest")
	_, err = other.GetInput(t.Context(), digest)
	says(t, "see somebody else's input", err, "not_found")
	_, err = other.InputContent(t.Context(), digest)
	says(t, "read somebody else's input", err, "not_found")
	list, err := other.ListInputs(t.Context(), bclient.ListInputsParams{})
	if err != nil || len(list.Inputs) != 0 {
		t.Errorf("somebody else lists %+v, %v", list, err)
	}
	spec.Inputs = []bclient.InputUse{{Name: "a", Digest: digest}, {Name: "a", Digest: digest}}
	_, err = sub.SubmitTask(t.Context(), spec, bclient.SubmitOptions{})
	says(t, "one name twice", err, "invalid", `inputs[1].name: "a" is named twice`)
}

func downloads(t *testing.T, s *apitest.Server, token, digest string) {
	t.Helper()
	path := "/api/v1/inputs/" + digest + "/content"
	a := send(t, s, "GET", path, token, "")
	if a.StatusCode != http.StatusOK || a.body != bundle || a.Header.Get("Content-Type") != "application/octet-stream" ||
		!strings.HasPrefix(a.Header.Get("Content-Disposition"), "attachment") || a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("content: %d %v %q", a.StatusCode, a.Header, a.body)
	}
	// Over the border of the two parts.
	a = send(t, s, "GET", path, token, "", "Range", "bytes=8-13")
	if a.StatusCode != http.StatusPartialContent || a.body != bundle[8:14] || a.Header.Get("Content-Range") != fmt.Sprintf("bytes 8-13/%d", len(bundle)) {
		t.Errorf("range: %d %v %q", a.StatusCode, a.Header, a.body)
	}
	a = send(t, s, "GET", path, token, "", "Range", "bytes=1000-")
	if a.StatusCode != http.StatusRequestedRangeNotSatisfiable || a.problem(t).Code != "range_not_satisfiable" || a.Header.Get("Content-Disposition") != "" {
		t.Errorf("bad range: %d %v %q", a.StatusCode, a.Header, a.body)
	}
}

func TestBadPartsOfInputsAreRefused(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	token, digest := s.Token("sub"), apitest.SHA256(mark)
	if _, err := c.BeginInput(t.Context(), digest, int64(len(mark))); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		digest, query, bytes string
		headers              []string
		status               int
		want                 string
	}{
		"JSON":             {digest, "", mark, []string{"Content-Type", "application/json"}, 415, "unsupported_media_type"},
		"no digest":        {"abc", "", mark, nil, 422, "digest: must be a SHA-256 in 64 lower-case hex digits"},
		"bad offset":       {digest, "?offset=-1", mark, nil, 422, "offset: must be at least 0"},
		"no number":        {digest, "?offset=" + mark, mark, nil, 422, "offset: must be an integer"},
		"unknown query":    {digest, "?ofset=1", mark, nil, 422, "ofset: is not a parameter of this operation"},
		"empty":            {digest, "", "", nil, 422, "the part is empty"},
		"more than it has": {digest, "", mark + "x", nil, 413, "too_large"},
		"other bytes":      {digest, "", strings.ToUpper(mark), nil, 422, "digest: the bytes that came have another SHA-256, so they were dropped"},
	} {
		t.Run(name, func(t *testing.T) {
			a := part(t, s, token, tc.digest, tc.query, tc.bytes, tc.headers...)
			p := a.problem(t)
			if a.StatusCode != tc.status || !strings.Contains(p.Code+strings.Join(p.faults(), "\n"), tc.want) {
				t.Errorf("%d %s, want %d %q", a.StatusCode, a.body, tc.status, tc.want)
			}
			if strings.Contains(strings.ToLower(a.body), mark) {
				t.Errorf("the answer repeats content: %s", a.body)
			}
			if _, err := c.BeginInput(t.Context(), digest, int64(len(mark))); err != nil { // what was dropped begins anew
				t.Error(err)
			}
		})
	}
	_, err := c.BeginInput(t.Context(), digest, berth.MaxInputBytes+1)
	says(t, "a huge input", err, "too_large", "4294967297 bytes, 4294967296 are allowed")
	_, err = c.AppendInput(t.Context(), zeros{}, digest, 0, berth.MaxInputPart+1)
	says(t, "a huge part", err, "too_large")
	u, err := c.BeginInput(t.Context(), digest, int64(len(mark)))
	if err != nil || u.Received != 0 {
		t.Errorf("after all that: %+v, %v", u, err)
	}
	s.AssertSilentAbout(mark, strings.ToUpper(mark))
}

// zeros is a file without end.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

func TestABodyThatBreaksOffKeepsNothing(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	digest := apitest.SHA256(bundle)
	if _, err := c.BeginInput(t.Context(), digest, int64(len(bundle))); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PATCH /api/v1/inputs/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s",
		digest, s.Token("sub"), len(bundle), bundle[:5])
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.Contains(answer, []byte("HTTP/1.1 408 ")) || !bytes.Contains(answer, []byte(`"code":"timeout"`)) {
		t.Errorf("answer: %s, %v", answer, err)
	}
	if u, err := c.BeginInput(t.Context(), digest, int64(len(bundle))); err != nil || u.Received != 0 {
		t.Errorf("after it: %+v, %v", u, err)
	}
	if n := s.Logs.FilterMessage("request failed").Len(); n > 0 {
		t.Errorf("%d lines call it the server's fault", n)
	}
}

// losesAnswers lets every second part come, and loses the server's answer.
type losesAnswers struct {
	http.RoundTripper
	parts atomic.Int64
}

func (l *losesAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.Method == http.MethodPatch && l.parts.Add(1)%2 == 1 {
		_ = res.Body.Close()
		return nil, errors.New("the answer was lost")
	}
	return res, err
}

func TestAnUploadGoesOnWhereItWas(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	lossy := &losesAnswers{RoundTripper: client.Transport}
	c, err := bclient.New(s.URL, bclient.StaticToken(s.Token("sub")), bclient.WithHTTP(&http.Client{Transport: lossy}))
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("0123456789abcdef"), 20<<20/16) // three parts
	digest, size, err := bclient.DigestOf(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	told := int64(0)
	u, err := c.UploadInput(t.Context(), bytes.NewReader(content), digest, size, func(u bclient.InputUpload) {
		if u.Received <= told {
			t.Errorf("progress went from %d to %d", told, u.Received)
		}
		told = u.Received
	})
	if err != nil || !u.Stored || u.Received != size {
		t.Fatalf("upload: %+v, %v", u, err)
	}
	if n := lossy.parts.Load(); n != 3 {
		t.Errorf("%d parts were sent, not 3: what had come was sent again", n)
	}
	body, err := c.InputContent(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if back, n, err := bclient.DigestOf(body); err != nil || back != digest || n != size {
		t.Errorf("it came back as %s, %d bytes, %v", back, n, err)
	}
	if u, err := c.UploadInput(t.Context(), bytes.NewReader(content), digest, size, nil); err != nil || !u.Stored || lossy.parts.Load() != 3 {
		t.Errorf("again: %+v, %v", u, err)
	}
}
