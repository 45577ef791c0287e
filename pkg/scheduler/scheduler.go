package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// DefaultMaxPlacements of one placement round (one transaction).
	DefaultMaxPlacements = 1000
	// maxRounds bounds the placement rounds of one pool in a RunOnce, so that
	// one busy pool does not starve the others.
	maxRounds = 40
	// batch is how many rows PromoteDue and GiveUp take at once, and maxBatches
	// how many batches one RunOnce takes.
	batch      = 500
	maxBatches = 40
)

// Store is what a Scheduler needs of the storage contract.
type Store interface {
	store.Scheduling
	FireDue(ctx context.Context, p store.FireDueParams) (store.FireDueResult, error)
}

// Config of a Scheduler. Store is required.
type Config struct {
	Store Store
	// Instance names this process in the audit trail.
	Instance string
	// MaxPlacements of one round; 0: DefaultMaxPlacements.
	MaxPlacements int
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics *Metrics
}

// Scheduler runs rounds. Its methods may run at the same time as each other,
// but none at the same time as itself.
type Scheduler struct {
	c     Config
	match matchers
}

// New makes a Scheduler.
func New(c Config) *Scheduler {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.MaxPlacements <= 0 {
		c.MaxPlacements = DefaultMaxPlacements
	}
	return &Scheduler{c: c}
}

func (s *Scheduler) actor() berth.Actor {
	actor := berth.Daemon(berth.ActorScheduler, s.c.Instance)
	actor.RequestID = uuid.NewString()
	return actor
}

// PlaceOnce places what can be placed now, in every pool that is not paused and
// has no other active scheduler, in rounds of at most MaxPlacements. Pools are
// taken from a random one on, so that several schedulers spread over them. One
// pool's error does not keep it from the others; it is returned at the end.
func (s *Scheduler) PlaceOnce(ctx context.Context) error {
	pools, err := s.c.Store.SchedulablePools(ctx)
	if err != nil {
		return fmt.Errorf("list pools: %w", err)
	}
	var errs []error
	for i, first := 0, rand.IntN(max(1, len(pools))); i < len(pools) && ctx.Err() == nil; i++ {
		pool := pools[(first+i)%len(pools)]
		switch err := s.placePool(ctx, pool); {
		case errors.Is(err, berth.ErrNotActive):
			s.c.Metrics.standby()
		case err != nil:
			errs = append(errs, fmt.Errorf("pool %s: %w", pool, err))
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// placePool runs rounds of one pool while they are full.
//
// A batch whose Apply fails is tried once more as it is, then halved; a task
// that fails alone is skipped for the rest of this call, counted and logged, so
// that one broken row never stops a pool.
func (s *Scheduler) placePool(ctx context.Context, pool berth.PoolID) error {
	limit, failedBefore := s.c.MaxPlacements, false
	skip := map[berth.TaskID]bool{}
	for range maxRounds {
		r := placementRound{scheduler: s, pool: pool, limit: limit, skip: skip}
		err := r.run(ctx)
		switch {
		case err != nil && r.applyErr == nil:
			return err // not a matter of the batch
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !failedBefore:
			failedBefore = true
			s.c.Log.Warn("placement batch failed, trying again", zap.String("pool_id", string(pool)), zap.Int("batch", len(r.planned)), zap.Error(err))
		case err != nil && len(r.planned) > 1:
			failedBefore, limit = false, len(r.planned)/2
		case err != nil:
			s.skipTask(pool, r.planned[0], skip, err)
			failedBefore, limit = false, s.c.MaxPlacements
		default:
			failedBefore = false
			if len(r.planned) < limit {
				return nil
			}
		}
	}
	return nil
}

func (s *Scheduler) skipTask(pool berth.PoolID, p store.Placement, skip map[berth.TaskID]bool, err error) {
	skip[p.Head.Task] = true
	s.c.Metrics.skipped()
	s.c.Log.Error("task skipped, its placement fails alone", zap.String("pool_id", string(pool)),
		zap.String("task_id", string(p.Head.Task)), zap.String("device_id", string(p.Device)), zap.Error(err))
}

// placementRound is one transaction's worth of placement.
type placementRound struct {
	scheduler *Scheduler
	pool      berth.PoolID
	limit     int
	skip      map[berth.TaskID]bool

	// planned is what was decided; applyErr is Apply's error or that of the
	// commit after it.
	planned  []store.Placement
	applyErr error
}

func (r *placementRound) run(ctx context.Context) error {
	s := r.scheduler
	placed := 0
	transitions, err := s.c.Store.PlacementRound(ctx, s.actor(), r.pool, func(ctx context.Context, round store.Round) error {
		plan, err := r.decide(ctx, round)
		if err != nil || len(plan.placements) == 0 {
			return err
		}
		r.planned = plan.placements
		done, err := round.Apply(ctx, plan.placements)
		r.applyErr, placed = err, len(done)
		return err
	})
	if err != nil {
		if len(r.planned) > 0 {
			r.applyErr = err
		}
		return err
	}
	s.c.Metrics.placed(placed)
	logging.Transitions(s.c.Log, transitions)
	return nil
}

// decide reads devices and classes and asks place.
func (r *placementRound) decide(ctx context.Context, round store.Round) (answer, error) {
	s := r.scheduler
	devices, err := round.FreeDevices(ctx, 0)
	if err != nil {
		return answer{}, err
	}
	classes, err := round.WaitingClasses(ctx)
	if err != nil || len(classes) == 0 {
		return answer{}, err
	}
	var probes []store.FreeDevice
	if ids := probedDevices(classes); len(ids) > 0 {
		if probes, err = round.ProbeDevices(ctx, ids); err != nil {
			return answer{}, err
		}
		probes = onlyProbes(probes, devices)
	}
	if len(devices)+len(probes) == 0 {
		return answer{}, nil
	}
	q := question{devices: devices, probes: probes, classes: classes, limit: r.limit, skip: r.skip}
	plan, err := place(ctx, q, &s.match, round.Heads)
	if err != nil {
		return answer{}, err
	}
	for _, id := range plan.broken {
		s.c.Log.Error("class cannot be matched, its tasks wait", zap.Int64("class_id", int64(id)))
	}
	for i := range plan.placements {
		id, err := uuid.NewV7()
		if err != nil {
			return answer{}, fmt.Errorf("attempt id: %w", err)
		}
		plan.placements[i].Attempt = berth.AttemptID(id.String())
	}
	s.c.Metrics.read(plan.headsRead)
	return plan, nil
}

// PromoteOnce moves the tasks whose time has come from `delayed` to `queue`.
func (s *Scheduler) PromoteOnce(ctx context.Context) error {
	return s.inBatches(ctx, "promote due tasks", s.c.Store.PromoteDue)
}

// GiveUpOnce dead-letters the tasks that have waited longer than they may.
func (s *Scheduler) GiveUpOnce(ctx context.Context) error {
	return s.inBatches(ctx, "give up waiting tasks", s.c.Store.GiveUp)
}

// inBatches repeats act until a batch is not full.
func (s *Scheduler) inBatches(ctx context.Context, what string, act func(context.Context, berth.Actor, int) ([]berth.Transition, error)) error {
	actor := s.actor()
	for range maxBatches {
		transitions, err := act(ctx, actor, batch)
		logging.Transitions(s.c.Log, transitions)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if len(transitions) < batch {
			return nil
		}
	}
	return nil
}

// Metrics count what schedulers do. A nil one counts nothing.
type Metrics struct {
	placements, heads, skips, standbys, fired prometheus.Counter
	skippedSlots                              *prometheus.CounterVec // slots, by reason
}

// NewMetrics registers the scheduler's counters with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	skippedSlots := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_scheduler_slots_skipped_total", Help: "Slots of schedules that were skipped and recorded, by reason.",
	}, []string{"reason"})
	r.MustRegister(skippedSlots)
	return &Metrics{
		fired:        counter("berth_scheduler_slots_fired_total", "Slots of schedules that became tasks."),
		skippedSlots: skippedSlots,
		placements:   counter("berth_scheduler_placements_total", "Tasks placed on devices."),
		heads:        counter("berth_scheduler_heads_read_total", "Queued tasks read while deciding; near the placements when all is well."),
		skips:        counter("berth_scheduler_skipped_tokens_total", "Tasks skipped for a round because their placement failed alone: look at the log."),
		standbys:     counter("berth_scheduler_standby_total", "Placement rounds left to another active scheduler."),
	}
}

func (m *Metrics) placed(n int) {
	if m != nil {
		m.placements.Add(float64(n))
	}
}

func (m *Metrics) read(n int) {
	if m != nil {
		m.heads.Add(float64(n))
	}
}

func (m *Metrics) skipped() {
	if m != nil {
		m.skips.Inc()
	}
}

func (m *Metrics) standby() {
	if m != nil {
		m.standbys.Inc()
	}
}

// slots counts what became of slots.
func (m *Metrics) slots(f berth.Fire) {
	switch {
	case m == nil:
	case f.Task != "":
		m.fired.Inc()
	default:
		m.skippedSlots.WithLabelValues(f.Reason).Add(float64(f.Slots))
	}
}
