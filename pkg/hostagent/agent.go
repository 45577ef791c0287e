package hostagent

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// Config says what an agent is made of.
type Config struct {
	// Server is the base URL: https://berth.example.com.
	Server string
	// StateDir keeps key, identity, journal and runs; 0700. One agent at a time
	// uses it: the Runtime's process table holds its lock.
	StateDir string
	// Name of the host, for its enrolment.
	Name string
	// EnrolmentToken is used when StateDir has no identity yet.
	EnrolmentToken redact.String
	// Runtime has the devices; the caller made it after it killed what an
	// earlier process left over, and closes it after Run returned.
	Runtime *runtime.Runtime
	// Version of the agent, for people.
	Version string
	// StopWithin bounds handing in what there is at the end; default 10 s.
	StopWithin time.Duration
	// HTTP is the client to use; nil makes two, so that uploads cannot hold up
	// renewals. It must not have a Timeout: claims are long polls.
	HTTP *http.Client
	// Clock measures leases; nil: BootClock.
	Clock Clock
	// Wall is the machine's clock, for assertions alone; nil: time.Now.
	Wall func() time.Time
	// MinFree is the room in StateDir, in bytes, below which no attempts are
	// taken; default 16 MiB.
	MinFree int64
	// InputCache is how many bytes of inputs are kept in StateDir; 0:
	// DefaultInputCache.
	InputCache int64
	// KeyMaxAge is the age from which the host's key is changed unasked; 0: never.
	KeyMaxAge time.Duration
	// TLS of the connections to the server; nil: the system's roots.
	TLS *tls.Config
	// Metrics may be nil.
	Metrics *Metrics
	// Logger gets ids and codes only.
	Logger *zap.Logger

	// keyStep, for tests, is called after each step of a change of the key.
	keyStep func(n int)
}

// Agent is one run of the Host Agent on this machine.
type Agent struct {
	cfg      Config
	log      *zap.Logger
	clock    Clock
	api      *api
	journal  *Journal
	inputs   *inputCache
	metrics  *Metrics
	id       hostIdentity
	instance string

	resync  chan struct{} // asks for a sync
	synced  chan struct{} // closed after the first sync
	beatNow chan struct{} // asks for a heartbeat
	rotate  chan bool     // asks for a new key
	// surveying is held during a survey: the drivers are asked one at a time.
	surveying sync.Mutex
	// claiming holds a token during a claim; it guards claimID, which stays the
	// same until its answer came.
	claiming chan struct{}
	claimID  string
	// starts is held for reading while a start is asked for, and for writing
	// during a sync: the server ends as lost what runs and is not in the sync's
	// list of what is held, so nothing may start between the two.
	starts sync.RWMutex

	mu        sync.Mutex
	settings  protocol.Settings
	version   int           // of the protocol, as the last sync settled
	beatEvery time.Duration // as the last heartbeat's answer says; 0: as settings say
	devices   map[berth.DeviceID]*device
	byKey     map[string]*device
	seen      inventory
	reported  string // what the last sync reported of the devices
	holds     map[berth.AttemptID]*hold
	drains    map[drain]bool
	drainTurn chan struct{} // closed when the agent begins or ends to drain
	ready     bool
	work      sync.WaitGroup
	// stop ends the agent with a reason; nil before Run has come to its loops.
	stop     context.CancelCauseFunc
	expelled bool
}

// New makes an agent. It reads the state directory and talks to nobody.
func New(cfg Config) (*Agent, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Clock == nil {
		cfg.Clock = BootClock
	}
	if cfg.StopWithin <= 0 {
		cfg.StopWithin = 10 * time.Second
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.MinFree <= 0 {
		cfg.MinFree = minFree
	}
	cfg.Server = strings.TrimRight(cfg.Server, "/")
	if !strings.HasPrefix(cfg.Server, "https://") && !strings.HasPrefix(cfg.Server, "http://") {
		return nil, fmt.Errorf("server: %q is no http(s) address: use for example https://berth.example.com", berth.Clip(cfg.Server, 80))
	}
	// Runs need absolute paths: their commands work elsewhere.
	dir, err := filepath.Abs(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	cfg.StateDir = dir
	if err := os.MkdirAll(filepath.Join(cfg.StateDir, "runs"), 0o700); err != nil {
		return nil, storageFault(cfg.StateDir, err)
	}
	journal, err := OpenJournal(cfg.StateDir)
	if err != nil {
		return nil, storageFault(cfg.StateDir, err)
	}
	cache, err := openInputCache(filepath.Join(cfg.StateDir, "inputs"), cfg.InputCache, cfg.Logger)
	if err != nil {
		return nil, errors.Join(storageFault(cfg.StateDir, err), journal.Close())
	}
	return &Agent{
		cfg: cfg, inputs: cache, log: cfg.Logger, clock: cfg.Clock, journal: journal,
		api:       newAPI(cfg),
		metrics:   cfg.Metrics,
		instance:  rand.Text(),
		resync:    make(chan struct{}, 1),
		synced:    make(chan struct{}),
		beatNow:   make(chan struct{}, 1),
		rotate:    make(chan bool, 1),
		claiming:  make(chan struct{}, 1),
		claimID:   uuid.NewString(),
		version:   protocol.Version,
		devices:   map[berth.DeviceID]*device{},
		byKey:     map[string]*device{},
		holds:     map[berth.AttemptID]*hold{},
		drains:    map[drain]bool{},
		drainTurn: make(chan struct{}),
		settings:  defaultSettings(),
	}, nil
}

// storageFault says what to do about a state directory that cannot be used.
func storageFault(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the state directory %s is full: free space there and start again: %w", dir, err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the state directory %s cannot be written: give it to the user that runs this, or pass another with --state-dir: %w", dir, err)
	}
	return fmt.Errorf("state directory: %w", err)
}

// defaultSettings hold until the first sync tells the installation's.
func defaultSettings() protocol.Settings {
	t := berth.DefaultTimings()
	return protocol.Settings{
		LeaseTTL: protocol.MillisOf(t.LeaseTTL), RenewEvery: protocol.MillisOf(t.RenewEvery), RequestTimeout: protocol.MillisOf(t.RequestTimeout),
		FenceMargin: protocol.MillisOf(t.FenceMargin), KillMargin: protocol.MillisOf(t.KillMargin), HeartbeatEvery: protocol.MillisOf(t.HeartbeatEvery),
		CancelWithin: protocol.MillisOf(t.CancelWithin), MaxLogChunk: 1 << 20, MaxLogBytes: 64 << 20, MaxArtifact: 256 << 20, MaxArtifacts: 200,
	}
}

// Synced is closed when the first sync succeeded.
func (a *Agent) Synced() <-chan struct{} { return a.synced }

// Ready reports whether the last sync or heartbeat succeeded.
func (a *Agent) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready
}

func (a *Agent) setReady(ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready = ok
}

// Condition is a code that says why the agent cannot do its work just now, or
// "": ConditionUnreachable or ConditionStorage.
func (a *Agent) Condition() string {
	switch {
	case !a.Ready():
		return ConditionUnreachable
	case a.storageFull():
		return ConditionStorage
	}
	return ""
}

// The conditions of an agent.
const (
	// ConditionUnreachable: the last sync or heartbeat was not answered.
	ConditionUnreachable = "server_unreachable"
	// ConditionStorage: the state directory takes nothing more.
	ConditionStorage = "state_dir_full"
)

// Run enrols if need be, syncs, and works until ctx ends; then it drains, and
// ends what runs too: it releases what had not started, kills what runs, hands
// in all it can within StopWithin and returns nil. An error means that this agent may not go on: a newer one of the
// host runs (berth.ErrStaleEpoch), the server takes nothing of the host any more (it
// was revoked): then what runs is killed at once; or the server refuses what it
// reports. A host whose assertions are refused because of its clock keeps asking and
// is not Ready.
func (a *Agent) Run(ctx context.Context) error {
	defer func() { _ = a.journal.Close() }()
	defer a.api.close()
	if err := a.identify(ctx); err != nil {
		return stopped(ctx, err)
	}
	// What is held goes on while ctx has ended, so that it can be handed in.
	holdCtx, endHolds := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endHolds(errStopping)
	loops, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	a.mu.Lock()
	a.stop = stop
	a.mu.Unlock()

	a.survey(loops, firstSurvey)
	if err := a.sync(loops); err != nil {
		return stopped(ctx, err)
	}
	close(a.synced)
	a.log.Info("synced", zap.String("host_id", string(a.id.HostID)), zap.Int64("epoch", int64(a.api.heldEpoch())))
	a.resumeFinished(holdCtx)

	var wg sync.WaitGroup
	a.poke() // whether to drain
	wg.Go(func() { a.claimLoop(loops, holdCtx) })
	wg.Go(func() { a.heartbeatLoop(loops) })
	wg.Go(func() { a.surveyLoop(loops) })
	wg.Go(func() { a.storageLoop(loops) })
	wg.Go(func() { a.keyLoop(loops) })
	wg.Go(func() {
		if err := a.syncLoop(loops); err != nil {
			stop(err)
		}
	})
	// Renewals and fences go on until nothing is held.
	keep, stopKeeping := context.WithCancel(holdCtx)
	defer stopKeeping()
	var keepers sync.WaitGroup
	keepers.Go(func() { a.renewLoop(keep) })
	keepers.Go(func() { a.fenceLoop(keep) })

	<-loops.Done()
	cause := context.Cause(loops)
	a.setDrain(drainStopping, true)
	wg.Wait()
	var last sync.WaitGroup
	if !final(cause) {
		last.Go(func() { a.sayStopping(holdCtx) })
	}
	a.stopHolds(cause, endHolds)
	last.Wait()
	stopKeeping()
	keepers.Wait()
	a.setReady(false)
	return stopped(ctx, cause)
}

// stopped is nil when the end was asked for.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && !final(err) {
		return nil
	}
	return unwanted(err)
}

// final reports whether the server takes nothing of this agent any more, so that
// nothing is left to be told to it: a newer one runs, or the host is an outcast.
func final(cause error) bool {
	return errors.Is(cause, berth.ErrStaleEpoch) || errors.Is(cause, errOutcast)
}

// expel ends the agent because the server takes nothing of this host any more.
func (a *Agent) expel(err error) {
	a.mu.Lock()
	stop, expelled := a.stop, a.expelled
	a.expelled = true
	a.mu.Unlock()
	if stop == nil || expelled {
		return
	}
	a.log.Error("the server takes nothing of this host any more: it was revoked, or the server's database is older than its enrolment; what runs here is killed now, and the agent stops",
		zap.String("host_id", string(a.id.HostID)), zap.Int("attempts", len(a.held())), zap.Error(err))
	stop(errors.Join(errOutcast, err))
}

// stopHolds ends everything that is held and waits until it was handed in, or,
// after StopWithin, until the work is dead and the reporting broken off.
func (a *Agent) stopHolds(cause error, breakOff context.CancelCauseFunc) {
	over := final(cause)
	why := errStopping
	if over {
		why = errGone // others decide now
	}
	for _, h := range a.held() {
		h.end(why)
	}
	if over {
		breakOff(errGone) // nothing of ours is taken any more
	}
	done := make(chan struct{})
	go func() { a.work.Wait(); close(done) }()
	t := time.NewTimer(a.cfg.StopWithin)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		left := len(a.held())
		breakOff(errStopping)
		<-done
		a.log.Warn("stopped with attempts that could not be reported; the journal has them", zap.Int("attempts", left))
	}
}

// held lists the holds, oldest attempt first.
func (a *Agent) held() []*hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*hold, 0, len(a.holds))
	for _, h := range a.holds {
		out = append(out, h)
	}
	slices.SortFunc(out, func(x, y *hold) int { return strings.Compare(string(x.Attempt), string(y.Attempt)) })
	return out
}

// identify loads who this host is, or enrols it.
func (a *Agent) identify(ctx context.Context) error {
	id, err := loadIdentity(a.cfg.StateDir)
	switch {
	case errors.Is(err, ErrNotEnrolled) && !a.cfg.EnrolmentToken.IsZero():
		if id, err = enrol(ctx, a.api, a.cfg.StateDir, a.cfg.Name, a.cfg.EnrolmentToken, a.log); err != nil {
			return err
		}
		a.log.Info("enrolled", zap.String("host_id", string(id.HostID)), zap.String("name", id.Name))
	case errors.Is(err, ErrNotEnrolled):
		return &berth.SetupError{What: ErrNotEnrolled.Error(), Remedy: "make a token with `berth host enrol` and pass it with --enrolment-token-file"}
	case err != nil:
		return err
	}
	if a.cfg.keyStep != nil {
		id.keys.step = a.cfg.keyStep
	}
	a.id = id
	a.api.id = &id
	return nil
}

// conf is the installation's settings.
func (a *Agent) conf() protocol.Settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settings
}

// call does one request under the agent's epoch. An answer that this is not the
// server's epoch is for the sync to judge: a newer agent runs, or the database
// was restored and a sync is on its way. It asks for one, and the error is a
// passing one; when this agent was superseded, the sync ends it.
func (a *Agent) call(ctx context.Context, method, path string, in, out any, opt callOptions) error {
	err := a.api.call(ctx, method, path, in, out, opt)
	if outcast(path, err) {
		a.expel(err)
	}
	for _, code := range []string{protocol.CodeStaleEpoch, protocol.CodeEpochAhead} {
		if isCode(err, code) {
			a.askSync()
			return fmt.Errorf("%s %s: %s: %w", method, path, code, errResync)
		}
	}
	return err
}

// errResync: the call can be repeated after a sync.
var errResync = errors.New("the epoch must be settled by a sync first")

// timeout bounds one request that is no long poll and no upload.
func (a *Agent) timeout() callOptions {
	return callOptions{timeout: a.conf().RequestTimeout.Duration()}
}
