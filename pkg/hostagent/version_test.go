package hostagent

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
)

// offer makes the server see only some of the versions that the agent offers.
func (w *world) offer(versions ...int) {
	w.proxy.show(func(r *http.Request) {
		if r.URL.Path != protocol.PathSync {
			return
		}
		var req map[string]any
		peek(r, &req)
		req["protocol_versions"] = versions
		b, err := json.Marshal(req)
		must(w.t, err)
		setBody(r, b)
	})
}

// Against a server that speaks version 1 only, the agent keeps to that: it tells
// the healths that changed, and follows no directive that version 1 has not.
func TestAgainstAServerOfVersion1(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.offer(1)
	var healths, beats atomic.Int32
	offer := *w.proxy.seen.Load()
	w.proxy.show(func(r *http.Request) {
		offer(r)
		if r.URL.Path == protocol.PathHeartbeat {
			var req protocol.HeartbeatRequest
			peek(r, &req)
			beats.Add(1)
			healths.Add(int32(len(req.Health)))
		}
	})
	w.proxy.answered(func(r *http.Response) error {
		if r.Request.URL.Path != protocol.PathHeartbeat {
			return nil
		}
		body := []byte(`{"interval_ms":300,"drain":true,"resync":false,"of_the_future":{"a":[1]}}`)
		r.Header.Del("Content-Length")
		r.Body, r.ContentLength = bodyOf(body), int64(len(body))
		return nil
	})
	w.agent(1)
	await(t, "some heartbeats", func() bool { return beats.Load() >= 3 })
	w.awaitState(w.submit("true"), berth.StateSucceeded)
	if healths.Load() != 0 {
		t.Errorf("%d healths were told, none changed", healths.Load())
	}
	if w.host().Protocol != 1 {
		t.Errorf("the server has version %d", w.host().Protocol)
	}
}

// A server that is put back to version 1 while a drain is asked for tells nobody
// of its end: the agent does not drain on for ever.
func TestADrainEndsWithTheVersionThatKnowsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	drain := func(on bool) {
		_, _, err := w.store.DrainHost(t.Context(), berth.Daemon(berth.ActorSystem, "test"), w.last.id.HostID, on)
		must(t, err)
	}
	drain(true)
	await(t, "the agent drains", func() bool { return w.host().Draining })
	w.offer(1)
	w.last.askSync()
	await(t, "version 1 is spoken", func() bool { return w.host().Protocol == 1 })
	drain(false)
	w.awaitState(w.submit("true"), berth.StateSucceeded)
}

// A server that shares no version, and one that chooses one that was not
// offered, end the agent with the remedy.
func TestNoCommonVersionSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		offered []int
		chosen  int
		want    string
	}{
		"the server refuses":         {[]int{protocol.Version + 1}, 0, protocol.CodeUnsupported},
		"the server chooses another": {protocol.Versions(), protocol.Version + 5, "no common protocol version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.offer(c.offered...)
			w.proxy.answered(func(r *http.Response) error {
				if r.Request.URL.Path != protocol.PathSync || c.chosen == 0 {
					return nil
				}
				var res map[string]any
				err := json.NewDecoder(r.Body).Decode(&res)
				res["protocol_version"] = c.chosen
				b, merr := json.Marshal(res)
				r.Header.Del("Content-Length")
				r.Body, r.ContentLength = bodyOf(b), int64(len(b))
				return errors.Join(err, merr)
			})
			rt, err := builtin.New(t.Context(), builtin.Config{StateDir: w.dir, ProcessSlots: 1})
			must(t, err)
			defer func() { must(t, rt.Close()) }()
			a, err := New(Config{Server: w.proxy.URL, StateDir: w.dir, Name: "h", EnrolmentToken: w.token, Runtime: rt.Runtime})
			must(t, err)
			ended := make(chan error, 1)
			go func() { ended <- a.Run(t.Context()) }()
			select {
			case err = <-ended:
			case <-time.After(20 * time.Second):
				t.Fatal("the agent goes on")
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(strings.ToLower(err.Error()), "bring agent and server to neighbouring releases") {
				t.Errorf("err = %v", err)
			}
		})
	}
}
