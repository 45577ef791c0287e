package blob

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// errStalled: the object store took no byte and sent none for too long.
var errStalled = errors.New("no byte came or went for too long")

// maxStalls is how many of a call's requests may stall: the second may have
// found another server, or a connection that is not dead.
const maxStalls = 2

// call is one call of the store, with all requests that it is tried with. How
// long it may take is not bounded, but how long it may stand still: maxStalls
// times S3Options.StallWithin.
type call struct {
	outer, ctx context.Context // the caller's, and that of the requests
	cancel     context.CancelCauseFunc
	stalls     atomic.Int32
}

type callKey struct{}

// begin a call. It is to be ended, when its body has been read.
func begin(ctx context.Context) *call {
	c := &call{outer: ctx}
	inner, cancel := context.WithCancelCause(ctx)
	c.ctx, c.cancel = context.WithValue(inner, callKey{}, c), cancel
	return c
}

func (c *call) end() { c.cancel(nil) }

// judge is s3Error for the call.
func (c *call) judge(doing string, err error) error {
	if err != nil && c.outer.Err() == nil && errors.Is(context.Cause(c.ctx), errStalled) {
		err = errStalled // in place of the client's word for a cancelled request
	}
	return s3Error(c.outer, doing, err)
}

// stalled notes that a request stalled, and ends the call that has had enough.
func (c *call) stalled() {
	if c != nil && c.stalls.Add(1) >= maxStalls {
		c.cancel(errStalled)
	}
}

// watched ends requests that stand still: whose next byte does not go out, whose
// answer does not begin, or whose answer's next byte does not come within stall.
// A server that is stopped still takes connections, and some bytes.
type watched struct {
	next  http.RoundTripper
	stall time.Duration
}

// RoundTrip implements http.RoundTripper.
func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	of, _ := r.Context().Value(callKey{}).(*call)
	ctx, cancel := context.WithCancelCause(r.Context())
	t := &watch{of: of, ctx: ctx, cancel: cancel, stall: w.stall}
	t.timer = time.AfterFunc(w.stall, t.fire)
	r = r.WithContext(ctx)
	r.GetBody = nil // a copy of the body would go unseen; the caller sends again
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &sentBody{ReadCloser: r.Body, t: t}
	}
	res, err := w.next.RoundTrip(r)
	t.pause()
	if err != nil {
		cancel(nil)
		return nil, t.cause(err)
	}
	res.Body = &cameBody{ReadCloser: res.Body, t: t}
	return res, nil
}

// watch is the clock of one request.
type watch struct {
	of     *call // may be nil
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  time.Duration

	mu     sync.Mutex
	timer  *time.Timer
	paused bool
}

func (t *watch) fire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.paused {
		t.cancel(errStalled)
		t.of.stalled()
	}
}

// moved: a byte came or went, or is to be waited for now.
func (t *watch) moved() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.paused {
		t.timer.Reset(t.stall)
	}
}

// pause while it is not the server that is waited for.
func (t *watch) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused = true
	t.timer.Stop()
}

func (t *watch) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused = false
	t.timer.Reset(t.stall)
}

func (t *watch) cause(err error) error {
	if errors.Is(context.Cause(t.ctx), errStalled) {
		return errStalled
	}
	return err
}

// sentBody sees how much of a request has gone.
type sentBody struct {
	io.ReadCloser
	t *watch
}

// Read implements io.Reader.
func (b *sentBody) Read(p []byte) (int, error) {
	b.t.moved()
	return b.ReadCloser.Read(p)
}

// cameBody bounds each wait for the bytes of an answer.
type cameBody struct {
	io.ReadCloser
	t *watch
}

// Read implements io.Reader.
func (b *cameBody) Read(p []byte) (int, error) {
	b.t.resume()
	n, err := b.ReadCloser.Read(p)
	b.t.pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.t.cause(err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *cameBody) Close() error {
	err := b.ReadCloser.Close()
	b.t.pause()
	b.t.cancel(nil)
	return err
}
