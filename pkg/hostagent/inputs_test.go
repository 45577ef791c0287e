package hostagent

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/inputs"
)

// upload stores an input, in parts of so many bytes, and gives its digest.
func (w *world) upload(content []byte, part int) string {
	w.t.Helper()
	service := inputs.New(w.store, w.blobs, w.log)
	actor := berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "u"}}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	in, err := service.Begin(w.t.Context(), actor, digest, int64(len(content)))
	must(w.t, err)
	for !in.Stored {
		at := int(in.Received)
		in, err = service.Append(w.t.Context(), actor, digest, in.Received, bytes.NewReader(content[at:min(at+part, len(content))]))
		must(w.t, err)
	}
	return digest
}

func bringing(refs ...berth.InputRef) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.Inputs = refs }
}

// downloads counts the requests for inputs, and their ranges.
func (w *world) downloads() (count *atomic.Int32, ranges func() []string) {
	count = &atomic.Int32{}
	var mu sync.Mutex
	var seen []string
	w.proxy.show(func(r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/agent/v1/inputs/") {
			count.Add(1)
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, r.Header.Get("Range"))
		}
	})
	return count, func() []string { mu.Lock(); defer mu.Unlock(); return seen }
}

func TestInputsAreFetchedOnceAndKeptByDigest(t *testing.T) {
	w := newWorld(t)
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	digest := w.upload(content, 1<<20)
	count, _ := w.downloads()
	stop := w.agent(2)
	check := func(times int32) {
		t.Helper()
		script := fmt.Sprintf(`test "$(sha256sum < "$BERTH_INPUTS/app.bin")" = "%s  -" && cmp "$BERTH_INPUTS/app.bin" "$BERTH_INPUTS/same.bin"`, digest)
		id := w.submit(script, bringing(berth.InputRef{Name: "app.bin", Digest: digest}, berth.InputRef{Name: "same.bin", Digest: digest}))
		other := w.submit(script, bringing(berth.InputRef{Name: "app.bin", Digest: digest}, berth.InputRef{Name: "same.bin", Digest: digest}))
		w.awaitState(id, berth.StateSucceeded)
		w.awaitState(other, berth.StateSucceeded)
		if n := count.Load(); n != times {
			t.Errorf("%d downloads, want %d", n, times)
		}
	}
	check(1)
	must(t, stop())
	// A crash left half a file, and the cache is there still.
	cache := filepath.Join(w.dir, "inputs")
	must(t, os.WriteFile(filepath.Join(cache, fetchPrefix+"1"), content[:100], 0o600))
	must(t, os.WriteFile(filepath.Join(cache, strings.Repeat("ab", 32)), content[:100], 0o600))
	stop = w.agent(2)
	check(1)
	files, err := os.ReadDir(cache)
	if err != nil || len(files) != 1 || files[0].Name() != digest {
		t.Errorf("the cache holds %v, %v", files, err)
	}
	// Work that shares the agent's user wrote to the file, and then also put its
	// time back.
	path := filepath.Join(cache, digest)
	for i, hidden := range []bool{false, true} {
		must(t, os.Chmod(path, 0o600))
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.Write([]byte("forged"))
		must(t, errors.Join(err, f.Close()))
		if hidden {
			must(t, os.Chtimes(path, time.Now(), verified()))
		}
		check(int32(2 + i))
	}
	must(t, stop())
	if strings.Contains(fmt.Sprint(w.logs.All()), "forged") {
		t.Error("content in the log")
	}
}

// cutBody ends an answer's body after n bytes as a broken connection does.
type cutBody struct {
	io.ReadCloser
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, errLost
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func TestABrokenOffDownloadGoesOnWhereItEnded(t *testing.T) {
	w := newWorld(t)
	content := make([]byte, 5<<20)
	_, _ = rand.Read(content)
	digest := w.upload(content, 2<<20) // parts end elsewhere than the breaks
	_, ranges := w.downloads()
	var answers atomic.Int32
	w.proxy.answered(func(r *http.Response) error {
		if strings.HasPrefix(r.Request.URL.Path, "/agent/v1/inputs/") && answers.Add(1) <= 2 {
			r.Body = &cutBody{r.Body, 1<<20 + 17}
		}
		return nil
	})
	w.agent(1)
	id := w.submit(fmt.Sprintf(`test "$(sha256sum < "$BERTH_INPUTS/app.bin")" = "%s  -"`, digest), bringing(berth.InputRef{Name: "app.bin", Digest: digest}))
	w.awaitState(id, berth.StateSucceeded)
	got := ranges()
	if len(got) != 3 || got[0] != "" || !strings.HasPrefix(got[1], "bytes=") || got[1] == got[2] || got[2] == "bytes=0-" {
		t.Errorf("asked for %q", got)
	}
	if as := w.attempts(id); len(as) != 1 {
		t.Errorf("attempts %+v", as)
	}
}

// What cannot be had costs no try: the attempt is handed back, five times in a
// row at most.
func TestInputsThatCannotBeHadHandTheAttemptBack(t *testing.T) {
	const lost = "the server has lost it"
	for name, set := range map[string]func(w *world){
		lost: func(w *world) {
			w.proxy.answered(func(r *http.Response) error {
				if strings.HasPrefix(r.Request.URL.Path, "/agent/v1/inputs/") {
					r.StatusCode = http.StatusGone // an answer that is no passing one saves two minutes of asking
					r.Body = io.NopCloser(strings.NewReader(`{"code":"input_lost"}`))
				}
				return nil
			})
		},
		"other bytes come": func(w *world) {
			w.proxy.answered(func(r *http.Response) error {
				if strings.HasPrefix(r.Request.URL.Path, "/agent/v1/inputs/") {
					r.Body = io.NopCloser(bytes.NewReader(make([]byte, 1000)))
				}
				return nil
			})
		},
		"the cache is too small": func(w *world) { w.change = func(c *Config) { c.InputCache = 999 } },
		"the server says no": func(w *world) {
			w.proxy.answered(func(r *http.Response) error {
				if strings.HasPrefix(r.Request.URL.Path, "/agent/v1/inputs/") {
					r.StatusCode = http.StatusNotFound
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			content := make([]byte, 1000)
			_, _ = rand.Read(content)
			digest := w.upload(content, 1000)
			set(w)
			w.agent(1)
			ran := filepath.Join(t.TempDir(), "ran")
			id := w.submit("touch "+ran, bringing(berth.InputRef{Name: "app.bin", Digest: digest}))
			task := w.awaitState(id, berth.StateDeadLetter)
			as := w.attempts(id)
			if len(as) != 5 || task.Tries != 0 {
				t.Errorf("%d attempts, %d tries", len(as), task.Tries)
			}
			reason := reasonInputs
			if name == lost {
				reason = reasonInputLost
			}
			for _, a := range as {
				if a.Outcome != berth.OutcomeReleased || !a.StartedAt.IsZero() || a.Reason != reason {
					t.Errorf("attempt %d: %s %s", a.Number, a.Outcome, a.Reason)
				}
			}
			if _, err := os.Stat(ran); !os.IsNotExist(err) {
				t.Error("the work ran")
			}
		})
	}
}
