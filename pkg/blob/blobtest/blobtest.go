// Package blobtest gives tests an object store that speaks S3: gofakes3 inside
// the test's process, or, where BERTH_TEST_S3 names the URL of a bucket (with
// BERTH_TEST_S3_ACCESS_KEY and BERTH_TEST_S3_SECRET_KEY), a real server. What the
// former cannot prove is in docs/operations.md.
package blobtest

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/redact"
)

// Keys of the store that S3 makes.
const (
	AccessKey = "test-access-key"
	SecretKey = "test-secret-key"
)

// S3 is an empty place in a bucket; it lasts as long as the test.
func S3(tb testing.TB) blob.S3Options {
	tb.Helper()
	if real := os.Getenv("BERTH_TEST_S3"); real != "" {
		u, err := url.Parse(real)
		if err != nil {
			tb.Fatal(err)
		}
		u.Path = "/" + uuid.NewString()
		return blob.S3Options{
			URL:       u.String(),
			AccessKey: redact.NewString(os.Getenv("BERTH_TEST_S3_ACCESS_KEY")),
			SecretKey: redact.NewString(os.Getenv("BERTH_TEST_S3_SECRET_KEY")),
		}
	}
	return inProcess(tb, func(h http.Handler) http.Handler { return h })
}

func inProcess(tb testing.TB, before func(http.Handler) http.Handler) blob.S3Options {
	tb.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("berth"); err != nil {
		tb.Fatal(err)
	}
	server := httptest.NewServer(before(gofakes3.New(backend).Server()))
	tb.Cleanup(server.Close)
	return blob.S3Options{
		URL:       "s3://berth/installation/one?endpoint=" + url.QueryEscape(server.URL),
		AccessKey: redact.NewString(AccessKey), SecretKey: redact.NewString(SecretKey),
	}
}

// Door is in front of an object store. While it is shut, requests are taken and
// not answered, as by a process that is stopped.
type Door struct {
	mu   sync.Mutex
	open chan struct{} // closed while it is open
}

// Shut the door.
func (d *Door) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = make(chan struct{})
}

// Open the door; what waits is answered.
func (d *Door) Open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.open:
	default:
		close(d.open)
	}
}

func (d *Door) way() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

// Stalling opens a store behind a door, which is open; it waits for half a second
// where the store stands still.
func Stalling(tb testing.TB) (*blob.S3, *Door) {
	tb.Helper()
	d := &Door{open: make(chan struct{})}
	d.Open()
	o := inProcess(tb, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-d.way():
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		})
	})
	tb.Cleanup(d.Open) // before the server is closed, which waits for its requests
	o.StallWithin = 500 * time.Millisecond
	s, unreachable, err := blob.OpenS3(tb.Context(), o)
	if err != nil || unreachable != nil {
		tb.Fatal(err, unreachable)
	}
	return s, d
}

// OpenS3 opens a store in a place that S3 makes.
func OpenS3(tb testing.TB) *blob.S3 {
	tb.Helper()
	s, unreachable, err := blob.OpenS3(tb.Context(), S3(tb))
	if err != nil || unreachable != nil {
		tb.Fatal(err, unreachable)
	}
	return s
}
