// Package httpserver is what both APIs stand on: the middleware in its one
// right order, the schema gate, and a server that drains.
//
// The order: sanitise the request id, log, recover, secure headers, host and
// origin, limits of the head, schema gate, body limit, time limit; then each
// API's own (rates, authentication, validation). Long polls, streams and uploads
// are told apart by [Kind].
package httpserver

import "sync"

// Kind says how long a request of a route may take and how much it may bring.
type Kind int

// The kinds.
const (
	// Plain: a small body, a time limit.
	Plain Kind = iota
	// Stream: a long poll or a stream of events: a small body, no time limit.
	// The handler ends when the request's context or the [Drain] does.
	Stream
	// Upload: a large body that the handler bounds by itself; no time limit but
	// what it sets with [Extend].
	Upload
)

// Route names a route as echo does: GET and /api/v1/tasks/:id.
type Route struct{ Method, Path string }

// Drain tells long polls and streams that the server is stopping.
type Drain struct {
	once sync.Once
	c    chan struct{}
}

// NewDrain makes a Drain that has not begun.
func NewDrain() *Drain { return &Drain{c: make(chan struct{})} }

// Begin wakes all who wait on C. It may be called twice.
func (d *Drain) Begin() { d.once.Do(func() { close(d.c) }) }

// C is closed when the draining begins.
func (d *Drain) C() <-chan struct{} { return d.c }
