package chromium

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/berth-dev/berth/pkg/runtime"
)

// conn speaks the Chrome DevTools Protocol over the two pipes that
// --remote-debugging-pipe uses: JSON messages that end with a NUL byte.
//
// Pipes rather than the usual web socket: no port through which another local
// user, or a page, could command the browser, and the death of the browser is
// the end of the file, seen at once.
type conn struct {
	in  *os.File // from the browser
	out *os.File // to the browser

	writeMu sync.Mutex

	mu      sync.Mutex
	nextID  int64
	pending map[int64]chan reply
	subs    map[string]func(event) // by session id
	gone    bool
	done    chan struct{} // closed when the browser is gone
}

type reply struct {
	result json.RawMessage
	err    error
}

// event is a message of the browser that nobody asked for.
type event struct {
	session string
	method  string
	params  json.RawMessage
}

// protocolError is what the browser answers to a call it refuses. Its text can
// quote content, so it never leaves this package.
type protocolError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *protocolError) Error() string { return "the browser refused a command" }

func newConn(in, out *os.File) *conn {
	c := &conn{in: in, out: out, pending: map[int64]chan reply{}, subs: map[string]func(event){}, done: make(chan struct{})}
	go c.read()
	return c
}

// close ends the connection; read ends with it.
func (c *conn) close() {
	_ = c.in.Close()
	_ = c.out.Close()
}

// subscribe has f called with the events of a protocol session, in order, from
// the reading goroutine: f must not call the browser. Nil ends it.
func (c *conn) subscribe(session string, f func(event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f == nil {
		delete(c.subs, session)
	} else {
		c.subs[session] = f
	}
}

// call sends a command and decodes its result into out unless that is nil.
// runtime.ErrDeviceLost when the browser is gone, ctx.Err() when ctx ended.
func (c *conn) call(ctx context.Context, session, method string, params, out any) error {
	answer := make(chan reply, 1)
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return runtime.ErrDeviceLost
	}
	c.nextID++
	id := c.nextID
	c.pending[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()
	msg, err := json.Marshal(struct {
		ID      int64  `json:"id"`
		Session string `json:"sessionId,omitempty"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{id, session, method, params})
	if err != nil {
		return err
	}
	if err := c.write(append(msg, 0)); err != nil {
		return runtime.ErrDeviceLost
	}
	select {
	case r := <-answer:
		if r.err != nil || out == nil {
			return r.err
		}
		return json.Unmarshal(r.result, out)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *conn) write(msg []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	_, err := c.out.Write(msg)
	return err
}

// read hands out messages until the browser is gone.
func (c *conn) read() {
	r := bufio.NewReaderSize(c.in, 64<<10)
	for {
		msg, err := r.ReadBytes(0)
		if err != nil {
			break
		}
		c.dispatch(msg[:len(msg)-1])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for id, answer := range c.pending {
		answer <- reply{err: runtime.ErrDeviceLost}
		delete(c.pending, id)
	}
	close(c.done)
}

func (c *conn) dispatch(msg []byte) {
	var m struct {
		ID      int64           `json:"id"`
		Session string          `json:"sessionId"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params"`
		Result  json.RawMessage `json:"result"`
		Error   *protocolError  `json:"error"`
	}
	if json.Unmarshal(msg, &m) != nil {
		return // not a message; a lost answer ends with the caller's context
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.ID == 0 {
		if f := c.subs[m.Session]; f != nil {
			f(event{m.Session, m.Method, m.Params})
		}
		return
	}
	if answer := c.pending[m.ID]; answer != nil {
		delete(c.pending, m.ID)
		r := reply{result: m.Result}
		if m.Error != nil {
			r.err = m.Error
		}
		answer <- r
	}
}

// isStale reports whether err is a refusal, which during a navigation means that
// the page just changed and the action may be tried again.
func isStale(err error) bool {
	var p *protocolError
	return errors.As(err, &p)
}

// pipes makes the two pipes; the browser's ends come first in each pair.
func pipes() (toBrowser, fromBrowser [2]*os.File, err error) {
	if toBrowser[0], toBrowser[1], err = os.Pipe(); err != nil {
		return
	}
	if fromBrowser[1], fromBrowser[0], err = os.Pipe(); err != nil {
		closeAll(toBrowser[0], toBrowser[1])
		return
	}
	// fromBrowser[0] is now the writing end, which the browser gets.
	return
}

func closeAll(cs ...io.Closer) {
	for _, c := range cs {
		_ = c.Close()
	}
}
