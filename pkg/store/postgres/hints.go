package postgres

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/berth-dev/berth/pkg/store"
)

const (
	hintChannel = "berth_hints"
	// hintBytes keeps a notification below the server's limit of 8,000.
	hintBytes = 7000
	// maxPendingHints of one kind wait for a flush; more become one for all keys.
	maxPendingHints = 2000
	// flushEvery is the shortest time between two flushes.
	flushEvery = 5 * time.Millisecond
	flushLimit = 2 * time.Second
	// everyKey stands for all keys of a kind.
	everyKey = "*"

	listenRetryFirst = 100 * time.Millisecond
	listenRetryMost  = 5 * time.Second
	// listenProbe is how long the listener waits before it makes sure that the
	// server is still there.
	listenProbe = 30 * time.Second
)

type hint struct {
	kind store.HintKind
	key  string
}

// hints wakes the subscribers of this process at once, and those of others
// through NOTIFY: by one statement a flush, outside of any transaction, from
// one goroutine. A hint may be lost; nothing rests on it.
type hints struct {
	pool   *pgxpool.Pool
	listen *pgx.ConnConfig // nil: hints of others are not received
	report func(error)
	self   string // names this process in notifications
	wake   chan struct{}
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	pending map[hint]bool
	counts  map[store.HintKind]int
	subs    map[hint]map[chan struct{}]bool
}

func newHints(pool *pgxpool.Pool, listen *pgx.ConnConfig, report func(error)) *hints {
	if report == nil {
		report = func(error) {}
	}
	ctx, stop := context.WithCancel(context.Background())
	h := &hints{
		pool: pool, listen: listen, report: report, self: strconv.FormatUint(rand.Uint64(), 36), wake: make(chan struct{}, 1), stop: stop,
		pending: map[hint]bool{}, counts: map[store.HintKind]int{}, subs: map[hint]map[chan struct{}]bool{},
	}
	h.done.Go(func() { h.flushLoop(ctx) })
	if listen != nil {
		h.done.Go(func() { h.listenLoop(ctx) })
	}
	return h
}

// close flushes what is pending and waits for both loops.
func (h *hints) close() {
	h.stop()
	h.done.Wait()
}

func (h *hints) subscribe(kind store.HintKind, key string) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	at := hint{kind, key}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[at] == nil {
		h.subs[at] = map[chan struct{}]bool{}
	}
	h.subs[at][c] = true
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.subs[at], c)
		if len(h.subs[at]) == 0 {
			delete(h.subs, at)
		}
	}
}

// publish announces the hints of a commit.
func (h *hints) publish(list []hint) {
	if len(list) == 0 {
		return
	}
	h.mu.Lock()
	for _, one := range list {
		h.wakeLocked(one)
		if h.counts[one.kind] >= maxPendingHints {
			one.key = everyKey
		}
		if !h.pending[one] {
			h.pending[one] = true
			h.counts[one.kind]++
		}
	}
	h.mu.Unlock()
	nudge(h.wake)
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (h *hints) wakeLocked(one hint) {
	if one.key == everyKey {
		for at, channels := range h.subs {
			if at.kind == one.kind {
				nudgeAll(channels)
			}
		}
		return
	}
	nudgeAll(h.subs[one])
	nudgeAll(h.subs[hint{one.kind, ""}])
}

func nudgeAll(channels map[chan struct{}]bool) {
	for c := range channels {
		nudge(c)
	}
}

func (h *hints) flushLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			h.flush(context.WithoutCancel(ctx))
			return
		case <-h.wake:
			h.flush(context.WithoutCancel(ctx))
			// The next ones gather meanwhile.
			_ = pause(ctx, flushEvery)
		}
	}
}

// flush notifies the other processes of all that is pending, in one statement.
func (h *hints) flush(ctx context.Context) {
	h.mu.Lock()
	pending := h.pending
	h.pending, h.counts = map[hint]bool{}, map[store.HintKind]int{}
	h.mu.Unlock()
	if len(pending) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if _, err := h.pool.Exec(ctx, `SELECT pg_notify($1, p) FROM unnest($2::text[]) AS p`, hintChannel, h.payloads(pending)); err != nil {
		h.report(classify("hints", err))
	}
}

// payloads packs hints into as few notifications as possible: the sender, then
// a line of kind and key each.
func (h *hints) payloads(pending map[hint]bool) []string {
	var out []string
	var b strings.Builder
	for one := range pending {
		if b.Len() > hintBytes {
			out = append(out, b.String())
			b.Reset()
		}
		if b.Len() == 0 {
			b.WriteString(h.self)
		}
		b.WriteString("\n" + string(one.kind) + " " + one.key)
	}
	return append(out, b.String())
}

func (h *hints) receive(payload string) {
	lines := strings.Split(payload, "\n")
	if lines[0] == h.self {
		return // woken at the commit
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range lines[1:] {
		if kind, key, ok := strings.Cut(line, " "); ok {
			h.wakeLocked(hint{store.HintKind(kind), key})
		}
	}
}

// listenLoop keeps one connection of its own in LISTEN. What was sent while it
// was away is lost, so each new connection wakes everybody once.
func (h *hints) listenLoop(ctx context.Context) {
	wait := listenRetryFirst
	for ctx.Err() == nil {
		heard, err := h.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		h.report(classify("hints", err))
		if heard {
			wait = listenRetryFirst
		}
		_ = pause(ctx, wait/2+time.Duration(rand.Int64N(int64(wait))))
		wait = min(2*wait, listenRetryMost)
	}
}

// listenOnce connects and listens until something fails.
func (h *hints) listenOnce(ctx context.Context) (heard bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, h.listen.Copy())
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+hintChannel); err != nil {
		return false, err
	}
	h.mu.Lock()
	for _, channels := range h.subs {
		nudgeAll(channels)
	}
	h.mu.Unlock()
	for {
		n, err := h.next(ctx, conn)
		if err != nil {
			return true, err
		}
		if n != nil {
			h.receive(n.payload)
		}
	}
}

type notification struct{ payload string }

// next waits for a notification; nil without an error after listenProbe, when
// the server still answers.
func (h *hints) next(ctx context.Context, conn *pgx.Conn) (*notification, error) {
	waiting, cancel := context.WithTimeout(ctx, listenProbe)
	defer cancel()
	n, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		return &notification{n.Payload}, nil
	case ctx.Err() == nil && waiting.Err() != nil && !conn.IsClosed():
		probe, cancel := context.WithTimeout(ctx, connectLimit)
		defer cancel()
		return nil, conn.Ping(probe)
	}
	return nil, err
}
