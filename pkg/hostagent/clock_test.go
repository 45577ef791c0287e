package hostagent

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
)

// A wrong clock of the host hinders nothing: assertions are signed by the
// server's, one line says so with the remedy, and jumps while work runs change
// neither lease nor fence.
func TestAWrongClockHindersNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var off atomic.Int64
	off.Store(int64(-3 * time.Hour))
	w.change = func(c *Config) { c.Wall = func() time.Time { return time.Now().Add(time.Duration(off.Load())) } }
	w.agent(1)
	id := w.submit("sleep 2")
	w.awaitState(id, berth.StateRunning)
	if w.said("this host's clock is 3h0m0s behind the server's") != 1 || w.said("timedatectl") != 1 {
		t.Errorf("it is not said once how far off the clock is")
	}
	for _, jump := range []time.Duration{26 * time.Hour, 0} {
		n := w.said("signing by the server's") + w.said("clock is right again")
		off.Store(int64(jump))
		w.last.api.dropToken() // the next call needs a fresh one
		await(t, "a token was fetched", func() bool {
			w.last.api.dropToken()
			return w.said("signing by the server's")+w.said("clock is right again") > n
		})
	}
	w.awaitState(id, berth.StateSucceeded)
	if at := w.attempts(id); len(at) != 1 {
		t.Errorf("attempts %+v", at)
	}
	if w.said("this host's clock is 26h0m0s ahead of the server's") != 1 || w.said("clock is right again") != 1 {
		t.Error("the jumps were not seen")
	}
}

// Where the server's clock cannot be learned, one sentence says what is wrong.
func TestAWrongClockIsNamedWhereItHinders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	a := w.last.api
	a.wall = func() time.Time { return time.Now().Add(-2 * time.Hour) }
	// What is between has a wrong clock of its own.
	w.proxy.answered(func(r *http.Response) error {
		if r.Request.URL.Path == protocol.PathToken {
			r.Header.Set("Date", time.Now().Add(-5*time.Hour).UTC().Format(http.TimeFormat))
		}
		return nil
	})
	_, err := a.fetchToken(t.Context())
	want := "this host's clock is 3h0m0s ahead of the server's and its assertion was refused: set the clock"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("err = %v", err)
	}
	a.mu.Lock()
	a.skew = 0
	a.mu.Unlock()
	a.wall = time.Now
	w.proxy.answered(func(*http.Response) error { return nil })
	other := *a.id
	other.HostID = berth.HostID(strings.Repeat("0", 8) + "-0000-7000-8000-" + strings.Repeat("0", 12))
	a.id = &other
	if _, err := a.fetchToken(t.Context()); err == nil || !strings.Contains(err.Error(), "was the host revoked") {
		t.Errorf("err = %v", err)
	}
}
