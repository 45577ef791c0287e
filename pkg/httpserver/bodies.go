package httpserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/semaphore"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/problem"
)

const (
	// SmallBody is what a body may have in bytes without waiting for room before it
	// is read: nearly all have less, and must not wait for the few large ones.
	SmallBody = 64 << 10
	// freeCost of decoding waits for nobody: a login, or a task of a few hundred
	// values.
	freeCost = 64 << 10
	// roomWithin bounds the wait for room, twice in a request.
	roomWithin = 10 * time.Second
	// readWithin bounds the reading of a large body once there is room for it.
	readWithin = 30 * time.Second
	// answeredWithin is above the longest wait for a turn and for a task.
	answeredWithin = time.Minute
)

// Bodies bounds the memory that JSON bodies cost a process at a time. A large body
// has room before its first byte is read, one caller never more than half of it, so
// that slow senders keep nobody else out; and every body but the smallest takes its
// turn to be decoded, which costs many times its bytes (see decodingCost). Small ones
// have room of their own for that. A body that finds no room within ten seconds is
// answered 503 with Retry-After. Its methods may be called by several goroutines.
type Bodies struct {
	reading, small, large *lane
	within                time.Duration

	mu      sync.Mutex
	callers map[string]*callerLane
}

// NewBodies makes one that keeps to about so many bytes: a quarter for large bodies
// while they come, a quarter for small ones while they are decoded, half for large
// ones while they are decoded and acted on.
func NewBodies(most int64) *Bodies {
	return &Bodies{reading: newLane(most / 4), small: newLane(most / 4), large: newLane(most / 2), within: roomWithin, callers: map[string]*callerLane{}}
}

// Body is the body of one request, and the room it has.
type Body struct {
	bytes []byte
	small bool
	once  sync.Once
	leave []func()
}

// Bytes of the body; nil after Release.
func (b *Body) Bytes() []byte { return b.bytes }

// Decoded says that the costly form of a small body is gone; a large one keeps its
// room until Release.
func (b *Body) Decoded() {
	if b.small {
		b.release()
	}
}

// Release gives the room back. The bytes must not be used afterwards. It may be
// called twice.
func (b *Body) Release() {
	b.release()
	b.bytes = nil
}

func (b *Body) release() {
	b.once.Do(func() {
		for _, leave := range slices.Backward(b.leave) {
			leave()
		}
	})
}

// Read reads a caller's body of at most limit bytes, and returns when it may be
// decoded. A longer one is an *http.MaxBytesError. The Body is to be released.
func (b *Bodies) Read(c echo.Context, who string, limit int64) (*Body, error) {
	r := c.Request()
	if r.Body == nil || r.Body == http.NoBody {
		return &Body{}, nil
	}
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	body := &Body{}
	err := b.read(c, body, who, limit)
	if err == nil {
		lane := b.large
		if body.small = len(body.bytes) <= SmallBody; body.small {
			lane = b.small
		}
		if cost := decodingCost(body.bytes); cost > freeCost {
			err = b.enter(r.Context(), body, lane, cost)
		}
	}
	if err != nil {
		body.Release()
		return nil, err
	}
	return body, nil
}

func (b *Bodies) read(c echo.Context, body *Body, who string, limit int64) error {
	r := c.Request()
	in := http.MaxBytesReader(c.Response(), r.Body, limit)
	var buf bytes.Buffer
	if r.ContentLength >= 0 && r.ContentLength <= SmallBody {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	// One without a length is small until it proves not to be.
	if r.ContentLength <= SmallBody {
		if _, err := io.CopyN(&buf, in, min(limit, SmallBody)+1); err != nil {
			body.bytes = buf.Bytes()
			return ignoreEOF(err)
		}
	}
	size := limit
	if r.ContentLength >= 0 {
		size = r.ContentLength
	}
	if err := b.enterCaller(r.Context(), body, who, size); err != nil {
		return err
	}
	if err := b.enter(r.Context(), body, b.reading, size); err != nil {
		return err
	}
	// What was waited for room is no time of the client's; nor is what comes after
	// the last byte, when the connection's deadline would end the request.
	deadline := http.NewResponseController(c.Response()).SetReadDeadline
	_ = deadline(time.Now().Add(readWithin))
	buf.Grow(int(size) - buf.Len() + bytes.MinRead)
	_, err := buf.ReadFrom(in)
	if err == nil { // else the server would wait as long for the rest
		_ = deadline(time.Now().Add(answeredWithin))
	}
	body.bytes = buf.Bytes()
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// decodingCost is about the memory that a body costs while it is decoded, checked
// against its schema and made into Go's values: some copies of its bytes, and for
// each value in it, of which there are no more than there are marks of structure,
// the header of a map, a slice or an interface.
func decodingCost(body []byte) int64 {
	const copies, valueCost = 4, 200
	values := 0
	for _, mark := range []string{"{", "[", ":", ","} {
		values += bytes.Count(body, []byte(mark))
	}
	return copies*int64(len(body)) + valueCost*int64(min(values, mostValues))
}

// mostValues is above what pkg/strictjson lets pass, by which all are refused.
const mostValues = 1 << 19

// lane is room for so much at a time, in the order of asking.
type lane struct {
	room *semaphore.Weighted
	most int64
}

func newLane(most int64) *lane { return &lane{semaphore.NewWeighted(most), most} }

// enter waits for room of a size, which counts as no more than all there is.
func (b *Bodies) enter(ctx context.Context, body *Body, l *lane, size int64) error {
	size = min(size, l.most)
	bound, cancel := context.WithTimeout(ctx, b.within)
	defer cancel()
	if l.room.Acquire(bound, size) != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return noRoom()
	}
	body.leave = append(body.leave, func() { l.room.Release(size) })
	return nil
}

// callerLane is one caller's part of the room, while it has any.
type callerLane struct {
	*lane
	users int
}

// enterCaller waits until the caller has no more than half of all the room for
// bodies that are being read.
func (b *Bodies) enterCaller(ctx context.Context, body *Body, who string, size int64) error {
	b.mu.Lock()
	own := b.callers[who]
	if own == nil {
		own = &callerLane{lane: newLane(b.reading.most / 2)}
		b.callers[who] = own
	}
	own.users++
	b.mu.Unlock()
	body.leave = append(body.leave, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(b.callers, who)
		}
	})
	return b.enter(ctx, body, own.lane, size)
}

func noRoom() error {
	return &problem.Error{
		Status: http.StatusServiceUnavailable, Code: problem.CodeBusy, Title: "Too many large requests at once",
		Detail: "There was no memory left for the request's body.", Remedy: "Send the same request again after Retry-After, or smaller ones.",
		RetryAfter: 2 * time.Second, Err: berth.ErrUnavailable,
	}
}
