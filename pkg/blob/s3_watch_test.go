package blob_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
)

// promptly is far below the minutes that a client without bounds waits, and far
// above what a machine under load needs for a few short stalls.
const promptly = 30 * time.Second

// hung accepts connections and never answers, as a stopped process does.
func hung(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				<-t.Context().Done()
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); open.Wait() })
	return ln.Addr().String()
}

func TestS3ThatHangsIsUnavailableSoon(t *testing.T) {
	o := blobtest.S3(t)
	o.URL, o.StallWithin = "s3://bucket?endpoint="+url.QueryEscape("http://"+hung(t)), 50*time.Millisecond
	began := time.Now()
	s, unreachable, err := blob.OpenS3(t.Context(), o)
	if err != nil || !errors.Is(unreachable, berth.ErrStorageUnavailable) {
		t.Fatalf("%v, %v", unreachable, err)
	}
	ctx, key := t.Context(), blob.NewKey(blob.KindInput)
	put := func(size int) error {
		_, _, err := s.Put(ctx, key, io.LimitReader(rand.Reader, int64(size)), 1<<30)
		return err
	}
	for name, do := range map[string]func() error{
		"a small put": func() error { return put(10) },
		// More than the sockets' buffers take.
		"a part":        func() error { return put(part - 1) },
		"several parts": func() error { return put(2 * part) },
		"get":           func() error { _, _, err := s.Get(ctx, key); return err },
		"get from":      func() error { _, _, err := s.GetFrom(ctx, key, 5); return err },
		"stat":          func() error { _, err := s.Stat(ctx, key); return err },
		"delete":        func() error { return s.Delete(ctx, key) },
		"list":          func() error { _, err := s.List(ctx, "", "", 10); return err },
		"tidy":          func() error { return s.Tidy(ctx, time.Now()) },
	} {
		if err := do(); !errors.Is(err, berth.ErrStorageUnavailable) || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d := time.Since(began); d > promptly {
		t.Errorf("it took %v", d)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Stat(gone, key); !errors.Is(err, context.Canceled) {
		t.Errorf("whose caller went away: %v", err)
	}
}

// A request that stalls is sent once more; an answer that stalls midway is an
// error, and what was read stands.
func TestS3StallsAreTriedOnceMore(t *testing.T) {
	var stall atomic.Int32
	midway := make(chan struct{})
	o := between(t, blobtest.S3(t), func(w http.ResponseWriter, r *http.Request, pass func() *http.Response) bool {
		if stall.Add(-1) < 0 {
			return false
		}
		if r.Method == http.MethodGet {
			res := pass()
			defer res.Body.Close()
			w.Header().Set("Content-Length", res.Header.Get("Content-Length"))
			w.Header().Set("Last-Modified", res.Header.Get("Last-Modified"))
			w.Header().Set("ETag", res.Header.Get("ETag"))
			_, _ = io.CopyN(w, res.Body, 4)
			_ = http.NewResponseController(w).Flush()
			defer close(midway)
		} else {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		<-r.Context().Done()
		return true
	})
	o.StallWithin = 2 * time.Second // what does not stall must be faster, on a busy machine too
	s, unreachable, err := blob.OpenS3(t.Context(), o)
	if err != nil || unreachable != nil {
		t.Fatal(err, unreachable)
	}
	key := blob.NewKey(blob.KindInput)
	stall.Store(1)
	if _, _, err := s.Put(t.Context(), key, strings.NewReader("0123456789"), 10); err != nil {
		t.Errorf("a put that stalled once: %v", err)
	}
	if stall.Load() >= 0 {
		t.Fatal("nothing stalled")
	}
	stall.Store(1)
	r, _, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if string(b) != "0123" || !errors.Is(err, berth.ErrStorageUnavailable) {
		t.Errorf("read %q, %v", b, err)
	}
	<-midway
}
