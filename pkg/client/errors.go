package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// Error says what happened, what to do, and under which code and request id
// the server knows it.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.What())
	if p.Remedy != "" {
		b.WriteString(" " + sentence(p.Remedy))
	}
	known := p.Code
	if p.RequestID != "" {
		known += ", request " + p.RequestID
	}
	fmt.Fprintf(&b, " (%s)", known)
	return b.String()
}

// What says what happened, in one sentence, with the faulty fields.
func (p *Problem) What() string {
	var faults []string
	for _, f := range p.Errors {
		if s := f.String(); s != "" {
			faults = append(faults, s)
		}
	}
	for _, what := range []string{strings.Join(faults, "; "), p.Detail, p.Title} {
		if what = sentence(what); what != "" {
			return what
		}
	}
	return fmt.Sprintf("The server answered %d.", p.Status)
}

// String is the field, its fault and the remedy in one line.
func (f FieldError) String() string {
	s := f.Message
	if f.Path != "" {
		s = f.Path + ": " + s
	}
	if f.Remedy != "" {
		s += " (" + f.Remedy + ")"
	}
	return s
}

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.ContainsAny(s[len(s)-1:], ".!?") {
		return s
	}
	return s + "."
}

// HasCode reports whether err is a problem of that code.
func HasCode(err error, code string) bool {
	var p *Problem
	return errors.As(err, &p) && p.Code == code
}

// UnreachableError says that there was no answer.
type UnreachableError struct {
	// Server is the address that was asked, without credentials.
	Server string
	Err    error
}

// Error names the server and the reason, without the request.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot reach Berth at %s: %s", e.Server, e.reason())
}

// Unwrap returns what the transport said.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Remedy says what to do.
func (e *UnreachableError) Remedy() string {
	if errors.Is(e.Err, http.ErrSchemeMismatch) {
		return "write http:// in the address (--url, BERTH_URL)"
	}
	if fault := tlsfiles.FaultOf(e.Err); fault != nil {
		return fault.Remedy
	}
	return "check the address (--url, BERTH_URL) and that Berth runs; on this machine: berth up"
}

func (e *UnreachableError) reason() string {
	var dns *net.DNSError
	var timeout net.Error
	if fault := tlsfiles.FaultOf(e.Err); fault != nil {
		return fault.What
	}
	switch {
	case errors.Is(e.Err, http.ErrSchemeMismatch):
		return "it speaks http, not https"
	case errors.Is(e.Err, io.EOF), errors.Is(e.Err, syscall.ECONNRESET):
		return "it closed the connection without an answer"
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.As(e.Err, &dns):
		return "no such host " + dns.Name
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	var wrapped *url.Error
	if errors.As(e.Err, &wrapped) {
		return wrapped.Err.Error() // without the method and the URL
	}
	return e.Err.Error()
}

// CodeNoProblemDocument is the code of an answer that is no success and none of
// Berth's: of a proxy in between, or of another server.
const CodeNoProblemDocument = "no_problem_document"

// maxProblem bounds what is read of an error's body, in bytes.
const maxProblem = 1 << 20

// problemOf reads the problem document of an answer that is no success.
func problemOf(r *http.Response) *Problem {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxProblem)) // half a document is no document
	var p Problem
	if err := json.Unmarshal(body, &p); err != nil || p.Code == "" {
		if r.StatusCode == http.StatusBadRequest && bytes.Contains(bytes.ToUpper(body), []byte("HTTPS")) {
			// What web servers say of plain requests on a TLS port.
			return &Problem{
				Status: r.StatusCode, Code: CodeNoProblemDocument, Title: http.StatusText(r.StatusCode),
				Detail: "The server speaks https, not http", Remedy: "Write https:// in the address.",
			}
		}
		// Not Berth's: a proxy in between, or another server.
		return &Problem{
			Status: r.StatusCode, Code: CodeNoProblemDocument, Title: http.StatusText(r.StatusCode),
			Detail:    fmt.Sprintf("The server answered %d without saying why", r.StatusCode),
			Remedy:    "Check that the address is Berth's; a proxy in between may have answered.",
			RequestID: r.Header.Get("X-Request-Id"),
		}
	}
	p.Status = r.StatusCode
	return &p
}
