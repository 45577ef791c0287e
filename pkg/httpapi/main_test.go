package httpapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/api/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is an HTTP answer, read.
type answer struct {
	*http.Response
	body string
}

// problem is an answer's document.
type problem struct {
	Code      string `json:"code"`
	Title     string `json:"title"`
	Remedy    string `json:"remedy"`
	RequestID string `json:"request_id"`
	Errors    []struct {
		Path    string `json:"path"`
		Message string `json:"message"`
		Remedy  string `json:"remedy"`
	} `json:"errors"`
}

func (a answer) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Code == "" {
		t.Fatalf("%s %s: status %d, no problem document: %q", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.body)
	}
	if kind := a.Header.Get("Content-Type"); kind != "application/problem+json" {
		t.Errorf("content type of a problem is %q", kind)
	}
	if p.RequestID == "" || p.RequestID != a.Header.Get("X-Request-Id") {
		t.Errorf("request id of the problem is %q, of the header %q", p.RequestID, a.Header.Get("X-Request-Id"))
	}
	return p
}

// faults are "path: message" lines.
func (p problem) faults() []string {
	out := make([]string, len(p.Errors))
	for i, e := range p.Errors {
		out[i] = e.Path + ": " + e.Message
	}
	return out
}

// send sends one request as it is.
func send(t *testing.T, s *apitest.Server, method, path, token, body string, headers ...string) answer {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, r)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res, string(bytes.TrimSpace(b))}
}

// client keeps no connection, so that no goroutine is left over.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
