package httpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
)

// conn is a client's connection. What net/http itself answers, in plain text and
// before any handler, to a request that it cannot read, becomes a problem
// document; under TLS, where these bytes are not seen, it stays what it is.
type conn struct {
	net.Conn
	// answered: a handler has run. From then on bytes may be a client's content.
	answered atomic.Bool
}

type connKey struct{}

// withConn is http.Server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if own, ok := beneath(c).(*conn); ok {
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

// noteAnswered wraps a handler so that its connection knows of it.
func noteAnswered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.answered.Store(true)
		}
		h.ServeHTTP(w, r)
	})
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if !c.answered.Load() {
		if document := ofPlainAnswer(b); document != nil {
			_, err := c.Conn.Write(document)
			return len(b), err
		}
	}
	return c.Conn.Write(b)
}

// ReadFrom implements io.ReaderFrom, with what the connection below can do.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	if below, ok := c.Conn.(io.ReaderFrom); ok {
		return below.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// plainHead ends the head of what net/http answers by itself.
var plainHead = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// ofPlainAnswer is the problem document in the place of an answer of net/http's
// own, nil for other bytes.
func ofPlainAnswer(b []byte) []byte {
	line, _, ok := bytes.Cut(b, plainHead)
	if !ok || len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 4")) {
		return nil
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return nil
	}
	p := protocol.Problem{
		Type: "about:blank", Status: status, Code: problem.CodeBadRequest, Title: http.StatusText(status), RequestID: uuid.NewString(),
		Detail: "This is no HTTP request that the server can read.", Remedy: "Check the client, and what is between it and the server.",
	}
	if status == http.StatusRequestHeaderFieldsTooLarge {
		p.Code, p.Detail, p.Remedy = problem.CodeHeadersTooLarge, "The request's headers have more than the 32 KiB that are allowed.", "Send fewer or shorter headers."
	}
	body, err := json.Marshal(p)
	if err != nil {
		return nil
	}
	return fmt.Appendf(nil, "%s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n%s",
		line, problem.ContentType, len(body), body)
}
