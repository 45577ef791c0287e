package leasekeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// DefaultInputsInterval is between two looks for inputs that nobody uses.
	DefaultInputsInterval = 10 * time.Minute
	// DefaultBlobsInterval is between two sweeps of the whole blob store.
	DefaultBlobsInterval = time.Hour
	// DefaultOrphansAfter is the age below which no blob is an orphan: uploads
	// write the bytes first and the record that refers to them afterwards.
	DefaultOrphansAfter = 24 * time.Hour

	// inputsBatch is how many inputs one store call forgets, blobsPage how many
	// blobs are listed and asked about at once.
	inputsBatch = 100
	blobsPage   = 500
)

// BlobStore is what a BlobKeeper needs of the store.
type BlobStore interface {
	store.Inputs
	// UnknownBlobs as in store.Keeping.
	UnknownBlobs(ctx context.Context, keys []string) ([]string, error)
}

// BlobConfig of a BlobKeeper. Store and Blobs are required.
type BlobConfig struct {
	Store BlobStore
	Blobs blob.Store
	// Instance names this process in the audit trail.
	Instance string
	// OrphansAfter; 0: DefaultOrphansAfter. The blob store's clock may differ from
	// this machine's by much less.
	OrphansAfter time.Duration
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics *BlobMetrics
}

// BlobKeeper frees space in the blob store. Any number may run.
type BlobKeeper struct {
	c      BlobConfig
	inputs *inputs.Service
}

// NewBlobKeeper makes a BlobKeeper.
func NewBlobKeeper(c BlobConfig) *BlobKeeper {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.OrphansAfter <= 0 {
		c.OrphansAfter = DefaultOrphansAfter
	}
	return &BlobKeeper{c: c, inputs: inputs.New(c.Store, c.Blobs, c.Log)}
}

// InputsOnce forgets uploads that broke off and inputs that nobody uses, and
// deletes their bytes, in batches.
func (k *BlobKeeper) InputsOnce(ctx context.Context) error {
	actor := berth.Daemon(berth.ActorLeasekeeper, k.c.Instance)
	actor.RequestID = uuid.NewString()
	for range maxBatches {
		n, err := k.inputs.Expire(ctx, actor, inputsBatch)
		k.c.Metrics.expire(n)
		if err != nil {
			return fmt.Errorf("forget inputs that nobody uses: %w", err)
		}
		if n > 0 {
			k.c.Log.Info("forgot inputs that nobody uses", zap.Int("blobs", n))
		}
		if n == 0 || ctx.Err() != nil {
			break
		}
	}
	return ctx.Err()
}

// BlobsOnce walks the whole blob store and deletes those of Berth's own blobs
// (blob.Key.Made) that are older than OrphansAfter and referred to by nothing: the
// bytes of uploads whose record was refused or lost on its way. One that cannot be
// deleted is left to the next sweep and does not keep it from the others; the
// first such error is returned.
func (k *BlobKeeper) BlobsOnce(ctx context.Context) error {
	before := time.Now().Add(-k.c.OrphansAfter)
	if err := k.c.Blobs.Tidy(ctx, before); err != nil {
		return fmt.Errorf("remove broken-off uploads: %w", err)
	}
	var first error
	removed, bytes := 0, int64(0)
	for after := blob.Key(""); ; {
		page, err := k.c.Blobs.List(ctx, "", after, blobsPage)
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		orphans, err := k.orphans(ctx, page, before)
		if err != nil {
			return err
		}
		for _, o := range orphans {
			if err := k.c.Blobs.Delete(ctx, o.Key); err != nil {
				if first == nil {
					first = fmt.Errorf("delete an orphan: %w", err)
				}
				if ctx.Err() != nil {
					return first
				}
				continue
			}
			removed, bytes = removed+1, bytes+o.Size
			k.c.Metrics.remove(o.Size)
		}
		if len(page) < blobsPage {
			break
		}
		after = page[len(page)-1].Key
	}
	if removed > 0 {
		k.c.Log.Warn("deleted blobs that nothing refers to", zap.Int("blobs", removed), zap.Int64("bytes", bytes))
	}
	return first
}

// orphans are those of a page that are old and that nothing refers to.
func (k *BlobKeeper) orphans(ctx context.Context, page []blob.Info, before time.Time) ([]blob.Info, error) {
	old := map[string]blob.Info{}
	var keys []string
	for _, b := range page {
		if b.Key.Made() && b.ModTime.Before(before) {
			old[string(b.Key)] = b
			keys = append(keys, string(b.Key))
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	unknown, err := k.c.Store.UnknownBlobs(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("ask which blobs nothing refers to: %w", err)
	}
	var orphans []blob.Info
	for _, key := range unknown {
		orphans = append(orphans, old[key])
	}
	return orphans, nil
}

// BlobLoopsConfig says how the loops run. Zero intervals are the defaults.
type BlobLoopsConfig struct {
	InputsInterval, BlobsInterval time.Duration
	InputsDisabled, BlobsDisabled bool
	// Gate, Metrics and RoundGrace as in LoopsConfig.
	Gate       daemon.Gate
	Metrics    *daemon.LoopMetrics
	RoundGrace time.Duration
}

// Components are the keeper's loops, to be started and stopped by a daemon.
func (k *BlobKeeper) Components(c BlobLoopsConfig) []daemon.Component {
	loop := func(name string, interval, standard time.Duration, disabled bool, run func(context.Context) error) daemon.Component {
		if interval <= 0 {
			interval = standard
		}
		return daemon.NewLoop(daemon.LoopConfig{
			Name: name, Interval: interval, Jitter: loopJitter, Disabled: disabled,
			Gate: c.Gate, RunOnce: run, Log: k.c.Log, Metrics: c.Metrics, RoundGrace: c.RoundGrace,
		}).Component()
	}
	return []daemon.Component{
		loop("inputs", c.InputsInterval, DefaultInputsInterval, c.InputsDisabled, k.InputsOnce),
		loop("blobs", c.BlobsInterval, DefaultBlobsInterval, c.BlobsDisabled, k.BlobsOnce),
	}
}

// BlobMetrics count what is freed. A nil one counts nothing.
type BlobMetrics struct{ expired, orphans, orphanBytes prometheus.Counter }

// NewBlobMetrics registers the counters with r.
func NewBlobMetrics(r prometheus.Registerer) *BlobMetrics {
	m := &BlobMetrics{
		expired:     prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leasekeeper_input_blobs_expired_total", Help: "Blobs of inputs that nobody used and of uploads that broke off."}),
		orphans:     prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leasekeeper_orphan_blobs_total", Help: "Blobs deleted because nothing referred to them."}),
		orphanBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leasekeeper_orphan_bytes_total", Help: "Bytes of those blobs."}),
	}
	r.MustRegister(m.expired, m.orphans, m.orphanBytes)
	return m
}

func (m *BlobMetrics) expire(blobs int) {
	if m != nil {
		m.expired.Add(float64(blobs))
	}
}

func (m *BlobMetrics) remove(bytes int64) {
	if m != nil {
		m.orphans.Inc()
		m.orphanBytes.Add(float64(bytes))
	}
}
