package kill

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// kindOf task: how it ends when nobody cancels it.
type kindOf string

const (
	saysYes kindOf = "says-yes" // succeeds, whatever is killed
	saysNo  kindOf = "says-no"  // fails and is not tried again
)

// most tries that a policy can allow: kills must not use them up.
const manyTries = 100

// load submits tasks and cancels some, until it is told to stop, and remembers
// what was acknowledged.
type load struct {
	t  *testing.T
	c  *harness.Cluster
	db *sql.DB
	// begun, done: the work wrote its attempt's id there. twice: it found its
	// device in other hands.
	begun, done, twice string

	running, queued atomic.Int64 // as the last look found them

	stop    chan struct{}
	workers sync.WaitGroup

	mu        sync.Mutex
	random    *rand.Rand
	client    *client.Client
	number    int
	submitted map[string]kindOf   // task id: acknowledged
	order     []string            // their ids, in that order
	keys      map[string][]string // idempotency key: task ids
	specs     map[string][]client.TaskSpec
	asked     map[string]bool // a cancel was sent
	cancelled []string        // acknowledged
}

func newLoad(t *testing.T, c *harness.Cluster, random *rand.Rand) *load {
	t.Helper()
	db, err := sql.Open("pgx", c.DatabaseURL)
	must(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return &load{
		t: t, c: c, db: db, random: random, client: c.Client, stop: make(chan struct{}),
		begun: filepath.Join(c.Folder, "begun"), done: filepath.Join(c.Folder, "done"), twice: filepath.Join(c.Folder, "twice"),
		submitted: map[string]kindOf{}, keys: map[string][]string{}, specs: map[string][]client.TaskSpec{}, asked: map[string]bool{},
	}
}

// look counts running attempts and queued tasks. While the database does not answer
// none is known to run.
func (l *load) look() {
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
	defer cancel()
	var running, queued int64
	err := l.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM attempts WHERE ended_at IS NULL AND state = 'running'), (SELECT count(*) FROM queue)`).Scan(&running, &queued)
	if err != nil {
		running = 0
	}
	l.running.Store(running)
	l.queued.Store(queued)
}

// start begins to look, to submit and to cancel.
func (l *load) start() {
	l.workers.Go(func() { l.repeat(200*time.Millisecond, l.look) })
	for range 2 {
		l.workers.Go(func() { l.repeat(150*time.Millisecond, l.submit) })
	}
	l.workers.Go(func() { l.repeat(700*time.Millisecond, l.cancel) })
}

// end stops it and waits for the calls that are under way.
func (l *load) end() {
	close(l.stop)
	l.workers.Wait()
}

func (l *load) repeat(every time.Duration, do func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			do()
		}
	}
}

// login renews the session, as the refresh of one can be lost in a kill.
func (l *load) login() {
	l.t.Helper()
	l.c.Login(l.t)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client = l.c.Client
}

// submit sends one to five tasks under a key, unless enough wait already.
func (l *load) submit() {
	const enough = 25
	if l.queued.Load() >= enough {
		return
	}
	l.mu.Lock()
	l.number++
	key := fmt.Sprintf("load-%d", l.number)
	var specs []client.TaskSpec
	for range 1 + l.random.IntN(5) {
		specs = append(specs, l.spec())
	}
	cl := l.client
	l.mu.Unlock()
	tasks, err := l.send(cl, key, specs)
	if err != nil {
		l.t.Errorf("a submit was given up: %v", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.specs[key] = specs
	for i, task := range tasks {
		l.keys[key] = append(l.keys[key], task.ID)
		l.submitted[task.ID] = kindOf(specs[i].Name)
		l.order = append(l.order, task.ID)
	}
}

func (l *load) send(cl *client.Client, key string, specs []client.TaskSpec) ([]client.Task, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*harness.Patience)
	defer cancel()
	o := client.SubmitOptions{IdempotencyKey: key}
	if len(specs) > 1 {
		return cl.SubmitTasks(ctx, specs, o)
	}
	task, err := cl.SubmitTask(ctx, specs[0], o)
	return []client.Task{task}, err
}

// spec makes a task that sleeps, and leaves witness of its life: it holds a lock
// of its device for as long as anything of it is alive.
func (l *load) spec() client.TaskSpec {
	kind, code := saysYes, 0
	on := []client.RetriedOutcome{client.RetriedOutcomeFailed, client.RetriedOutcomeInfraFailed, client.RetriedOutcomeLost, client.RetriedOutcomeTimedOut}
	if l.random.IntN(10) == 0 {
		kind, code, on = saysNo, 3, on[1:]
	}
	spec := harness.Shell(l.t, fmt.Sprintf(`exec 9>"${HOME%%/runs/*}/touched-${BERTH_DEVICE##*/}"
flock -n 9 || { echo "$BERTH_DEVICE $BERTH_RUN_ID" >>%s; exit 9; }
echo "$BERTH_RUN_ID" >>%s
sleep %d
echo "$BERTH_RUN_ID" >>%s
echo the end of its log
exit %d`, l.twice, l.begun, 4+l.random.IntN(18), l.done, code))
	spec.Name = string(kind)
	spec.Retry = &client.RetrySpec{MaxAttempts: ptr(manyTries), On: &on, BackoffInitialSeconds: ptr(0.05), BackoffMaxSeconds: ptr(0.5)}
	return spec
}

// cancel asks for the end of one of the last tasks, queued, running or finished.
func (l *load) cancel() {
	l.mu.Lock()
	if len(l.order) == 0 {
		l.mu.Unlock()
		return
	}
	const recent = 90
	id := l.order[len(l.order)-1-l.random.IntN(min(len(l.order), recent))]
	l.asked[id] = true
	cl := l.client
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*harness.Patience)
	defer cancel()
	_, err := cl.CancelTask(ctx, id)
	var refused *client.Problem
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusConflict: // finished
		return
	case err != nil:
		l.t.Errorf("a cancel was given up: %v", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancelled = append(l.cancelled, id)
}

// repeatKeys submits again what was submitted: the same tasks are answered.
func (l *load) repeatKeys(most int) {
	l.t.Helper()
	for key, ids := range l.keys {
		if most--; most < 0 {
			return
		}
		tasks, err := l.send(l.c.Client, key, l.specs[key])
		must(l.t, err)
		for i, task := range tasks {
			if task.ID != ids[i] {
				l.t.Errorf("key %s gave task %s, and now %s", key, ids[i], task.ID)
			}
		}
	}
}
