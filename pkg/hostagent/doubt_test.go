package hostagent

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// A sync whose list of held attempts is on its way would make the server end
// as lost what starts meanwhile.
func TestNothingStartsDuringASync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	syncing, release, started := make(chan struct{}, 1), make(chan struct{}), make(chan struct{}, 1)
	w.proxy.show(func(r *http.Request) {
		switch r.URL.Path {
		case protocol.PathSync:
			select {
			case syncing <- struct{}{}:
			default:
			}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case protocol.PathStart:
			select {
			case started <- struct{}{}:
			default:
			}
		}
	})
	w.last.askSync()
	<-syncing
	id := w.submit("true")
	await(t, "claimed", func() bool {
		at := w.attempts(id)
		return len(at) == 1 && at[0].State != berth.AttemptAssigned
	})
	select {
	case <-started:
		t.Error("a start was asked for during a sync")
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	w.awaitState(id, berth.StateSucceeded)
	if at := w.attempts(id); len(at) != 1 {
		t.Errorf("attempts %+v", at)
	}
}

// An attempt for a device that went away goes back, at once and without end.
func TestAnAttemptForADeviceThatIsGoneIsHandedBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(tm *berth.Timings) {
		tm.ClaimWithin, tm.HostOfflineAfter = time.Minute, time.Minute
	})
	stop := w.agent(2)
	w.proxy.cut.Store(true)
	one, two := w.submit("true"), w.submit("true")
	for _, id := range []berth.TaskID{one, two} {
		w.awaitState(id, berth.StateAssigned)
	}
	must(t, stop())
	w.proxy.cut.Store(false)
	w.agent(1)
	back := 0
	for _, id := range []berth.TaskID{one, two} {
		w.awaitState(id, berth.StateSucceeded)
		if at := w.attempts(id); at[0].Outcome == berth.OutcomeReleased && at[0].Reason == reasonDeviceUnknown {
			back++
		}
	}
	if back != 1 {
		t.Errorf("%d attempts were handed back, one was for the missing device", back)
	}
}

// Bytes that are spoiled on their way are sent again: the work is not to blame.
func TestSpoiledUploadsAreSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	var log, file atomic.Int32
	w.proxy.show(func(r *http.Request) {
		spoiled := &file
		switch {
		case strings.Contains(r.URL.Path, "/log/"):
			spoiled = &log
		case !strings.Contains(r.URL.Path, "/artifacts/"):
			return
		}
		b, _ := io.ReadAll(r.Body)
		if len(b) > 0 && spoiled.Add(1) <= 2 {
			b[0] ^= 1
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
	})
	id := w.submit("", func(n *berth.NewTask) {
		n.Retry.MaxAttempts = 1
		n.Payload = redact.NewBytes([]byte(`{"command": ["sh", "-c", "echo a line; echo content > out.txt"], "files": ["out.txt"]}`))
	})
	w.awaitState(id, berth.StateSucceeded)
	if log.Load() < 3 || file.Load() < 3 {
		t.Errorf("sent the log %d times and the file %d times", log.Load(), file.Load())
	}
}

// What the server refuses of a report ends the attempt all the same, at once,
// and says why.
func TestARefusedReportIsReportedBare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	w.proxy.show(func(r *http.Request) {
		if r.URL.Path != protocol.PathComplete {
			return
		}
		b, _ := io.ReadAll(r.Body)
		// As of a plugin whose result is larger than the server takes.
		if i := bytes.Index(b, []byte(`"exit_code"`)); i >= 0 {
			b = slices.Concat(b[:i], []byte(`"x":"`), bytes.Repeat([]byte("x"), 300<<10), []byte(`",`), b[i:])
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	})
	id := w.submit("true", func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
	w.awaitState(id, berth.StateDeadLetter)
	if at := w.attempts(id); len(at) != 1 || at[0].Outcome != berth.OutcomeFailed || at[0].Reason != reasonRefused {
		t.Errorf("attempts %+v", at)
	}
}

// A heartbeat names every health, so that the server can count good probes; in
// version 1 of the protocol those that changed, once.
func TestAHeartbeatTellsHealths(t *testing.T) {
	a := &Agent{devices: map[berth.DeviceID]*device{}, byKey: map[string]*device{}}
	devices := []protocol.Device{
		{Driver: "process", HardwareID: "0", Health: berth.HealthGood}, {Driver: "process", HardwareID: "1", Health: berth.HealthGood},
	}
	a.seen.devices = devices
	a.take(protocol.SyncResponse{ProtocolVersion: 1, Devices: []protocol.SyncedDevice{{ID: "a"}, {ID: "b"}}}, devices, make([]runtime.DeviceID, 2))
	if got := a.healths(); len(got) != 0 {
		t.Errorf("after a sync: %v", got)
	}
	a.seen.devices = slices.Clone(devices)
	a.seen.devices[1].Health = berth.HealthSuspect
	for range 2 { // until the server was told
		if got := a.healths(); len(got) != 1 || got["b"] != berth.HealthSuspect {
			t.Errorf("changed: %v", got)
		}
	}
	a.healthsTold(a.healths())
	if got := a.healths(); len(got) != 0 {
		t.Errorf("after it was told: %v", got)
	}
	a.version = 2
	for range 2 {
		if got := a.healths(); len(got) != 2 || got["a"] != berth.HealthGood || got["b"] != berth.HealthSuspect {
			t.Errorf("version 2: %v", got)
		}
	}
}

// One note that is too long must not keep every lease from being renewed.
func TestAnyProgressCanBeRenewed(t *testing.T) {
	h := &hold{}
	for _, p := range []float64{math.NaN(), math.Inf(1), 7, 0.5} {
		h.setProgress(p, strings.Repeat("ä", 5000))
		item := h.renewal()
		if _, err := json.Marshal(item); err != nil || len(item.Note) > 1000 || item.Progress != nil && *item.Progress > 1 {
			t.Errorf("%v: %v, a note of %d bytes", p, err, len(item.Note))
		}
	}
}

// A journal that cannot be rewritten whole stays as it is.
func TestAFailedCompactionKeepsTheJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := OpenJournal(dir)
	must(t, err)
	must(t, j.Append(Record{Epoch: 7, Device: "process/0", Fence: 4}))
	// Nothing can be renamed over a directory.
	path := filepath.Join(dir, "journal.jsonl")
	kept := filepath.Join(dir, "kept")
	must(t, os.Rename(path, kept))
	must(t, os.MkdirAll(filepath.Join(path, "x"), 0o700))
	if err := j.compact(); err == nil {
		t.Fatal("no error")
	}
	must(t, os.RemoveAll(path))
	must(t, os.Rename(kept, path))
	must(t, j.Append(Record{Device: "process/0", Fence: 5}))
	must(t, j.Close())
	if j, err = OpenJournal(dir); err != nil || j.Epoch() != 7 || j.Fence("process/0") != 5 {
		t.Errorf("%v, epoch %d, fence %d", err, j.Epoch(), j.Fence("process/0"))
	}
	must(t, j.Close())
}
