package hostagent

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime"
)

// Why a held attempt's context ended.
var (
	// errFenced: no renewal succeeded in time; the work dies before the lease.
	errFenced = errors.New("the lease could not be renewed in time")
	// errGone: the server says the attempt is not ours any more.
	errGone = errors.New("the server ended the attempt")
	// errCancelled: the task was cancelled.
	errCancelled = errors.New("the task was cancelled")
	// errStopping: the agent stops.
	errStopping = errors.New("the agent stops")
	// errDraining: the agent takes nothing more, and this had not begun to start.
	errDraining = errors.New("the agent drains")
	// errUnplugged: the device is not there any more.
	errUnplugged = errors.New("the device is gone")
)

// device is one of this host's devices as the server knows it. Its id never
// changes once it is registered.
type device struct {
	id    berth.DeviceID
	local runtime.DeviceID
	key   string // driver/hardware id: its name in the journal
	// health is what the server was told last; Agent.mu guards it.
	health berth.Health
	// use holds a token while work on the device may be alive: nothing starts
	// before older work is dead.
	use chan struct{}
}

// hold is an attempt that this agent holds.
type hold struct {
	protocol.Assignment
	dev  *device
	base context.Context // ends when the agent has no more time to report
	ctx  context.Context // ends with one of the causes above
	end  context.CancelCauseFunc
	dir  string
	// inputs are the paths of the task's inputs by name, of the executing goroutine.
	inputs map[string]string
	up     *uploads // of the executing goroutine; nil until there is something to send

	mu       sync.Mutex
	stage    Stage
	leaseEnd time.Duration // by the agent's Clock
	progress float64       // negative: nothing new
	note     string
}

func newHold(ctx context.Context, as protocol.Assignment, dev *device, dir string) *hold {
	h := &hold{Assignment: as, dev: dev, base: ctx, dir: dir, stage: StageClaimed, progress: -1}
	h.ctx, h.end = context.WithCancelCause(ctx)
	return h
}

// extend moves the lease's end: left to go, as answered to a request that was
// sent at sent. It never moves back, since answers may overtake each other.
func (h *hold) extend(sent, left time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaseEnd = max(h.leaseEnd, sent+left)
}

// overdue reports whether work that was started must end at now, the fence
// margin before its lease ends. What was not started touches no device: its
// start asks whether the lease is alive still.
func (h *hold) overdue(now, margin time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stage == StageStarted && now >= h.leaseEnd-margin
}

// tooLate is for how long work is still waited for that should be dead already:
// the machine slept, say. It was not alive meanwhile.
const tooLate = time.Second

// stopWithin is how long the work may live once it was told to end at now: until
// the kill margin before its lease ends, and never longer than from the fence
// to there.
func (h *hold) stopWithin(now time.Duration, s protocol.Settings) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	usual := s.FenceMargin.Duration() - s.KillMargin.Duration()
	if c := s.CancelWithin.Duration(); c > 0 {
		usual = min(usual, c)
	}
	return max(min(usual, h.leaseEnd-s.KillMargin.Duration()-now), min(usual, tooLate))
}

// endUnasked ends the hold unless its start was asked for.
func (h *hold) endUnasked(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stage == StageClaimed {
		h.end(cause)
	}
}

// asking moves a hold on to StageStarting; false when it has ended.
func (h *hold) asking() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.stage = StageStarting
	return true
}

func (h *hold) setStage(s Stage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stage = s
}

func (h *hold) getStage() Stage {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stage
}

// maxNote bounds a note, below what the server takes.
const maxNote = 900

// setProgress notes what the next renewal reports. What the server would refuse
// is mended here: one bad item would keep all leases from being renewed.
func (h *hold) setProgress(p float64, note string) {
	if math.IsNaN(p) {
		p = -1
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progress, h.note = min(p, 1), berth.Clip(note, maxNote)
}

// renewal is the item of the next renewal.
func (h *hold) renewal() protocol.RenewItem {
	h.mu.Lock()
	defer h.mu.Unlock()
	item := protocol.RenewItem{Holder: h.holder()}
	if h.progress >= 0 {
		p := h.progress
		item.Progress, item.Note = &p, h.note
	}
	return item
}

func (h *hold) holder() protocol.Holder {
	return protocol.Holder{Attempt: h.Attempt, Fence: h.Fence}
}

// record is the journal's line for the attempt at a stage.
func (h *hold) record(s Stage) Record {
	return Record{Stage: s, Attempt: h.Attempt, Task: h.Task, Number: h.Number, Device: h.dev.key, Fence: h.Fence}
}

// cause is why the hold's context ended, nil while it goes on.
func (h *hold) cause() error {
	if h.ctx.Err() == nil {
		return nil
	}
	return context.Cause(h.ctx)
}
