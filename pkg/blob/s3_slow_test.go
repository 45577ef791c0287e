package blob

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// server takes a request and answers it, in the time of a bubble.
type server func(*http.Request) (*http.Response, error)

func (s server) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

// dripping gives a byte after each of the pauses.
type dripping struct {
	r      *http.Request
	pauses []time.Duration
}

func (d *dripping) Read(p []byte) (int, error) {
	if len(d.pauses) == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(d.pauses[0]):
	case <-d.r.Context().Done():
		return 0, d.r.Context().Err()
	}
	d.pauses = d.pauses[1:]
	p[0] = 'x'
	return 1, nil
}

func (d *dripping) Close() error { return nil }

func repeated(d time.Duration, n int) (out []time.Duration) {
	for range n {
		out = append(out, d)
	}
	return out
}

// What is slow and never stands still is waited for, however long it takes: the
// server, in both directions, and whoever reads the answer.
func TestSlowIsNotStalled(t *testing.T) {
	const almost = stallWithin - time.Second
	for _, c := range []struct {
		name           string
		taken, sent    []time.Duration
		think          time.Duration
		read           int
		failed, broken bool
	}{
		{name: "slow both ways", taken: repeated(almost, 100), think: almost, sent: repeated(almost, 100), read: 100},
		{name: "takes nothing more", taken: append(repeated(almost, 3), stallWithin+1), failed: true},
		{name: "does not answer", taken: repeated(almost, 3), think: stallWithin + 1, failed: true},
		{name: "sends nothing more", sent: append(repeated(almost, 3), stallWithin+1), read: 3, broken: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of := begin(t.Context())
				defer of.end()
				w := &watched{stall: stallWithin, next: server(func(r *http.Request) (*http.Response, error) {
					for _, pause := range append(c.taken, c.think) {
						select {
						case <-time.After(pause):
						case <-r.Context().Done():
							return nil, r.Context().Err()
						}
						_, _ = r.Body.Read(make([]byte, 1))
					}
					return &http.Response{Body: &dripping{r: r, pauses: c.sent}}, nil
				})}
				r, err := http.NewRequestWithContext(of.ctx, http.MethodPut, "http://store", &dripping{pauses: make([]time.Duration, 1000), r: &http.Request{}})
				if err != nil {
					t.Fatal(err)
				}
				res, err := w.RoundTrip(r)
				if c.failed != errors.Is(err, errStalled) || (err != nil) != c.failed {
					t.Fatalf("answered %v", err)
				}
				if err == nil {
					for read := 0; ; read++ {
						time.Sleep(time.Hour) // the reader's own time is not the server's
						if _, err := res.Body.Read(make([]byte, 1)); err != nil {
							if read != c.read || c.broken != errors.Is(err, errStalled) {
								t.Errorf("read %d bytes, then %v", read, err)
							}
							break
						}
					}
					_ = res.Body.Close()
				}
				if n := of.stalls.Load(); (n == 1) != (c.failed || c.broken) || of.ctx.Err() != nil {
					t.Errorf("%d stalls, the call ended: %v", n, of.ctx.Err())
				}
				of.stalls.Store(maxStalls - 1)
				if of.stalled(); !errors.Is(of.judge("x", of.ctx.Err()), berth.ErrStorageUnavailable) {
					t.Errorf("the second stall did not end the call: %v", of.ctx.Err())
				}
			})
		})
	}
}
