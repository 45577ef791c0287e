// Package blobtest gives tests an object store that speaks S3: gofakes3 inside
// the test's process, or, where BERTH_TEST_S3 names the URL of a bucket (with
// BERTH_TEST_S3_ACCESS_KEY and BERTH_TEST_S3_SECRET_KEY), a real server. What the
// former cannot prove is in docs/operations.md.
package blobtest

import (
	"net/http/httptest"
	"net/url"
	"os"
	"testing"

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
	backend := s3mem.New()
	if err := backend.CreateBucket("berth"); err != nil {
		tb.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	tb.Cleanup(server.Close)
	return blob.S3Options{
		URL:       "s3://berth/installation/one?endpoint=" + url.QueryEscape(server.URL),
		AccessKey: redact.NewString(AccessKey), SecretKey: redact.NewString(SecretKey),
	}
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
