package sqlite_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// operation is one writing operation, ready to run once.
type operation struct {
	name string
	// prepare makes what the operation works on and returns it.
	prepare func(w *site) func(ctx context.Context) error
}

func operations() []operation {
	hash := func(s string) [32]byte { return sha256.Sum256([]byte(s)) }
	return []operation{
		{"SubmitTasks", func(w *site) func(context.Context) error {
			later := w.task(func(n *berth.NewTask) { n.NotBefore = w.clock.Now().Add(time.Hour) })
			p := store.SubmitParams{Actor: operator, Tasks: []berth.NewTask{w.task(), later}, IdempotencyKey: "key", BodyDigest: hash("body")}
			return func(ctx context.Context) error { _, err := w.s.SubmitTasks(ctx, p); return err }
		}},
		{"CancelTask", func(w *site) func(context.Context) error { return w.cancels(w.submit()) }},
		{"CancelTask", func(w *site) func(context.Context) error { return w.cancels(w.claimed().Task) }},
		{"CancelTask", func(w *site) func(context.Context) error { return w.cancels(w.running().Task) }},
		{"RetryTask", func(w *site) func(context.Context) error {
			id := w.submit(func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
			must(w.tb, w.place(bg()))
			a := w.claim()[0]
			must(w.tb, w.complete(bg(), a, berth.OutcomeInfraFailed, true))
			return func(ctx context.Context) error {
				_, _, err := w.s.RetryTask(ctx, store.RetryParams{TaskParams: store.TaskParams{Actor: operator, Scope: everything, Task: id}})
				return err
			}
		}},
		{"PromoteDue", func(w *site) func(context.Context) error {
			w.submit(func(n *berth.NewTask) { n.NotBefore = w.clock.Now().Add(time.Second) })
			w.clock.Advance(time.Second)
			return func(ctx context.Context) error { _, err := w.s.PromoteDue(ctx, operator, 10); return err }
		}},
		{"GiveUp", func(w *site) func(context.Context) error {
			w.submit(func(n *berth.NewTask) { n.QueueTimeout = time.Second })
			w.clock.Advance(time.Second)
			return func(ctx context.Context) error { _, err := w.s.GiveUp(ctx, operator, 10); return err }
		}},
		{"PlacementRound", func(w *site) func(context.Context) error {
			w.submit()
			w.submit()
			return w.place
		}},
		{"ClaimAttempts", func(w *site) func(context.Context) error {
			w.submit()
			must(w.tb, w.place(bg()))
			p := store.ClaimParams{AgentCall: w.call, ClaimID: w.id(), Max: 10}
			return func(ctx context.Context) error { _, _, err := w.s.ClaimAttempts(ctx, p); return err }
		}},
		{"StartAttempts", func(w *site) func(context.Context) error {
			p := store.StartParams{AgentCall: w.call, Items: []store.Holder{holder(w.claimed())}}
			return func(ctx context.Context) error { _, _, err := w.s.StartAttempts(ctx, p); return err }
		}},
		{"RenewAttempts", func(w *site) func(context.Context) error {
			item := store.RenewItem{Holder: holder(w.running()), Progress: 0.5, Note: redact.NewString("half")}
			w.clock.Advance(time.Second)
			p := store.RenewParams{AgentCall: w.call, Items: []store.RenewItem{item}}
			return func(ctx context.Context) error { _, _, err := w.s.RenewAttempts(ctx, p); return err }
		}},
		{"CompleteAttempts", func(w *site) func(context.Context) error {
			a := w.running()
			return func(ctx context.Context) error { return w.complete(ctx, a, berth.OutcomeSucceeded, true) }
		}},
		{"CompleteAttempts", func(w *site) func(context.Context) error {
			a := w.running()
			return func(ctx context.Context) error { return w.complete(ctx, a, berth.OutcomeFailed, false) }
		}},
		{"ReleaseAttempts", func(w *site) func(context.Context) error {
			p := store.ReleaseParams{AgentCall: w.call, Items: []store.Holder{holder(w.claimed())}}
			return func(ctx context.Context) error { _, _, err := w.s.ReleaseAttempts(ctx, p); return err }
		}},
		{"CleanDevice", func(w *site) func(context.Context) error {
			a := w.running()
			must(w.tb, w.complete(bg(), a, berth.OutcomeFailed, false))
			p := store.CleanParams{AgentCall: w.call, Device: a.Device, Fence: a.Fence}
			return func(ctx context.Context) error { return w.s.CleanDevice(ctx, p) }
		}},
		{"SyncHost", func(w *site) func(context.Context) error {
			w.running()
			p := w.syncParams(3)
			w.clock.Advance(time.Second)
			return func(ctx context.Context) error { _, err := w.s.SyncHost(ctx, p); return err }
		}},
		{"Heartbeat", func(w *site) func(context.Context) error {
			w.clock.Advance(time.Second)
			p := store.HeartbeatParams{AgentCall: w.call, Draining: true}
			return func(ctx context.Context) error { _, err := w.s.Heartbeat(ctx, p); return err }
		}},
		{"AppendLog", func(w *site) func(context.Context) error {
			p := store.AppendLogParams{HolderParams: store.HolderParams{AgentCall: w.call, Holder: holder(w.running())}, Chunk: berth.LogChunk{
				Size: 3, SHA256: strings.Repeat("ab", 32), BlobKey: "k",
			}}
			return func(ctx context.Context) error { _, _, err := w.s.AppendLog(ctx, p); return err }
		}},
		{"AddArtifact", func(w *site) func(context.Context) error {
			p := store.AddArtifactParams{HolderParams: store.HolderParams{AgentCall: w.call, Holder: holder(w.running())}, Artifact: berth.Artifact{
				Name: "a.txt", Class: berth.ClassFile, Size: 3, SHA256: strings.Repeat("ab", 32), BlobKey: "k",
			}}
			return func(ctx context.Context) error { _, err := w.s.AddArtifact(ctx, p); return err }
		}},
		{"Enrol", func(w *site) func(context.Context) error {
			w.token("second")
			p := w.enrolParams("second", "host-2")
			return func(ctx context.Context) error { _, err := w.s.Enrol(ctx, p); return err }
		}},
		{"RegisterPlugins", func(w *site) func(context.Context) error {
			p := []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "a", Version: "1.0.0"}}, {PluginVersion: berth.PluginVersion{Name: "b", Version: "1.0.0"}}}
			return func(ctx context.Context) error { return w.s.RegisterPlugins(ctx, operator, p) }
		}},
		{"AddSigningKey", func(w *site) func(context.Context) error {
			key := store.SigningKey{ID: "k", Algorithm: "EdDSA", Public: []byte{1}, Private: redact.NewBytes([]byte{2})}
			return func(ctx context.Context) error { _, err := w.s.AddSigningKey(ctx, key, time.Hour); return err }
		}},
		{"RotateRefreshToken", func(w *site) func(context.Context) error {
			_, err := w.s.BootstrapAdmin(bg(), berth.UserID(w.id()), "admin", redact.NewString("hash"))
			must(w.tb, err)
			u, _, err := w.s.UserByName(bg(), "admin")
			must(w.tb, err)
			must(w.tb, w.s.AddRefreshToken(bg(), store.RefreshToken{Hash: hash("1"), Family: w.id(), User: u.ID, TTL: time.Hour}))
			return func(ctx context.Context) error {
				_, _, err := w.s.RotateRefreshToken(ctx, store.RotateParams{Old: hash("1"), Next: hash("2"), TTL: time.Hour})
				return err
			}
		}},
		{"ReapLeases", func(w *site) func(context.Context) error {
			w.running()
			w.clock.Advance(10 * time.Minute)
			// The sweep's mark is moved in a transaction of its own: let it stand where
			// it will be moved to.
			_, err := w.s.ReapLeases(bg(), operator, 0)
			must(w.tb, err)
			return func(ctx context.Context) error { _, err := w.s.ReapLeases(ctx, operator, 10); return err }
		}},
		{"MarkSilentHosts", func(w *site) func(context.Context) error {
			w.clock.Advance(10 * time.Minute)
			return func(ctx context.Context) error { _, err := w.s.MarkSilentHosts(ctx, operator, 10); return err }
		}},
	}
}

func (w *site) cancels(id berth.TaskID) func(context.Context) error {
	return func(ctx context.Context) error {
		_, _, err := w.s.CancelTask(ctx, store.TaskParams{Actor: operator, Scope: everything, Task: id})
		return err
	}
}

// Whatever stops an operation before any of its statements or before its
// COMMIT leaves nothing of it behind, and the store usable.
func TestStoppedAtEachStatementLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	stops := []struct {
		name string
		// stop is what the hook does at the statement.
		stop func(cancel context.CancelFunc) error
		want error // nil: a panic
	}{
		{"context", func(cancel context.CancelFunc) error { cancel(); return nil }, context.Canceled},
		{"failure", func(context.CancelFunc) error { return broken }, broken},
		{"panic", func(context.CancelFunc) error { panic(broken) }, nil},
	}
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			path := migrated(t)
			at, fired := 0, false
			var stop func() error
			w := newSite(t, path, 3, store.Options{BeforeStatement: func(_ context.Context, name string, n int) error {
				if at == 0 || n != at || name != op.name {
					return nil
				}
				fired = true
				return stop()
			}})
			run, db := op.prepare(w), raw(t, path)
			before := dump(t, db)
			for n := 1; ; n++ {
				for _, how := range stops {
					ctx, cancel := context.WithCancel(bg())
					at, fired, stop = n, false, func() error { return how.stop(cancel) }
					err, panicked := runGuarded(ctx, run)
					at = 0
					cancel()
					if !fired {
						must(t, err)
						if n < 3 {
							t.Fatalf("only %d statements were seen", n-1)
						}
						if dump(t, db) == before {
							t.Fatal("the whole operation changed nothing")
						}
						return
					}
					if panicked != (how.want == nil) || !errors.Is(err, how.want) {
						t.Fatalf("statement %d, %s: error %v, panic %v", n, how.name, err, panicked)
					}
					if after := dump(t, db); after != before {
						t.Fatalf("statement %d, %s: something was left; before:\n%s\nafter:\n%s", n, how.name, before, after)
					}
				}
			}
		})
	}
}

func runGuarded(ctx context.Context, run func(context.Context) error) (err error, panicked bool) {
	defer func() {
		if recover() != nil {
			panicked = true
		}
	}()
	return run(ctx), false
}
