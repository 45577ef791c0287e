package blob_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
	"github.com/berth-dev/berth/pkg/redact"
)

func TestS3(t *testing.T) { conform(t, blobtest.OpenS3(t)) }

// part of an S3 blob: what is larger is sent in parts.
const part = 8 << 20

func TestS3SendsLargeBlobsInParts(t *testing.T) {
	s := blobtest.OpenS3(t)
	content := make([]byte, 2*part+5)
	_, _ = rand.Read(content)
	for _, size := range []int{part - 1, part, part + 1, 2 * part, 2*part + 5} {
		key := blob.NewKey("artifacts")
		n, sum, err := s.Put(t.Context(), key, bytes.NewReader(content[:size]), int64(size))
		if err != nil || n != int64(size) || sum != hexOf(content[:size]) {
			t.Fatalf("%d bytes: %d, %v", size, n, err)
		}
		r, got, err := s.GetFrom(t.Context(), key, 3)
		if err != nil || got != int64(size) {
			t.Fatalf("%d bytes: %d, %v", size, got, err)
		}
		b, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil || !bytes.Equal(b, content[3:size]) {
			t.Errorf("%d bytes: read %d, %v", size, len(b), err)
		}
		if _, _, err := s.Put(t.Context(), key, bytes.NewReader(content[:size]), int64(size)); !errors.Is(err, berth.ErrExists) {
			t.Errorf("%d bytes again: %v", size, err)
		}
		over := blob.NewKey("artifacts")
		if _, _, err := s.Put(t.Context(), over, bytes.NewReader(content[:size]), int64(size-1)); !errors.Is(err, berth.ErrTooLarge) {
			t.Errorf("%d bytes of %d: %v", size, size-1, err)
		}
		if _, _, err := s.Get(t.Context(), over); !errors.Is(err, berth.ErrNotFound) {
			t.Errorf("left after too many bytes: %v", err)
		}
	}
}

// raw is a client of the same bucket that is not the store.
func raw(t *testing.T, o blob.S3Options) (core minio.Core, bucket, prefix string) {
	t.Helper()
	u, err := url.Parse(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := url.Parse(u.Query().Get("endpoint"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := minio.New(endpoint.Host, &minio.Options{Creds: credentials.NewStaticV4(o.AccessKey.Reveal(), o.SecretKey.Reveal(), ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return minio.Core{Client: c}, u.Host, strings.Trim(u.Path, "/") + "/"
}

func broken(ctx context.Context, s *blob.S3, at int) error {
	gone := errors.New("client went away")
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(make([]byte, at))
		_ = w.CloseWithError(gone)
	}()
	_, _, err := s.Put(ctx, blob.NewKey("artifacts"), r, 1<<30)
	if errors.Is(err, gone) {
		return nil
	}
	return fmt.Errorf("a broken source: %w", err)
}

func TestS3LeavesNoPartsBehind(t *testing.T) {
	o := blobtest.S3(t)
	s, _, err := blob.OpenS3(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	core, bucket, prefix := raw(t, o)
	uploads := func() (n int) {
		for u := range core.ListIncompleteUploads(t.Context(), bucket, prefix, true) {
			if u.Err != nil {
				t.Fatal(u.Err)
			}
			n++
		}
		return n
	}
	if err := broken(t.Context(), s, part+100); err != nil {
		t.Fatal(err)
	}
	if n := uploads(); n != 0 {
		t.Errorf("%d uploads left by a source that broke off", n)
	}
	// A process that died left one; the other is of an installation whose prefix
	// begins with this one's.
	for _, key := range []string{string(blob.NewKey(blob.KindArtifact)), "two/" + string(blob.NewKey(blob.KindArtifact))} {
		if _, err := core.NewMultipartUpload(t.Context(), bucket, prefix+key, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Tidy(t.Context(), time.Now().Add(-time.Hour)); err != nil || uploads() != 2 {
		t.Errorf("a young one was removed: %v", err)
	}
	if err := s.Tidy(t.Context(), time.Now().Add(time.Hour)); err != nil || uploads() != 1 {
		t.Errorf("an old one was left, or one that is not ours removed: %v, %d uploads", err, uploads())
	}
}

// between passes requests on to the real store, unless hook answers.
func between(t *testing.T, o blob.S3Options, hook func(w http.ResponseWriter, r *http.Request, pass func() *http.Response) bool) blob.S3Options {
	t.Helper()
	u, err := url.Parse(o.URL)
	if err != nil {
		t.Fatal(err)
	}
	behind := u.Query().Get("endpoint")
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pass := func() *http.Response {
			out := r.Clone(r.Context())
			target, _ := url.Parse(behind)
			out.URL.Scheme, out.URL.Host, out.RequestURI = target.Scheme, target.Host, ""
			res, err := http.DefaultTransport.RoundTrip(out)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			return res
		}
		if hook(w, r, pass) {
			return
		}
		res := pass()
		defer res.Body.Close()
		for name, values := range res.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	}))
	t.Cleanup(proxy.Close)
	u.RawQuery = "endpoint=" + url.QueryEscape(proxy.URL)
	o.URL = u.String()
	return o
}

// The store commits the blob and its answer is lost: the client's own repeat is
// refused because the key is taken, by this very Put.
func TestS3TellsItsOwnBlobFromAnothers(t *testing.T) {
	var dropped atomic.Int32
	o := between(t, blobtest.S3(t), func(_ http.ResponseWriter, r *http.Request, pass func() *http.Response) bool {
		if r.Method != http.MethodPut || dropped.Add(1) > 1 {
			return false
		}
		res := pass()
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode != http.StatusOK {
			t.Errorf("the store answered %d", res.StatusCode)
		}
		_ = res.Body.Close()
		panic(http.ErrAbortHandler)
	})
	s, _, err := blob.OpenS3(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	key := blob.NewKey("logs")
	if _, _, err := s.Put(t.Context(), key, strings.NewReader("mine"), 10); err != nil {
		t.Errorf("Put after a lost answer: %v", err)
	}
	if dropped.Load() < 2 {
		t.Fatal("no answer was lost")
	}
	if _, _, err := s.Put(t.Context(), key, strings.NewReader("mine"), 10); !errors.Is(err, berth.ErrExists) {
		t.Errorf("Put of a key that another took: %v", err)
	}
}

func answer(status int, code string) func(http.ResponseWriter, *http.Request, func() *http.Response) bool {
	return func(w http.ResponseWriter, r *http.Request, _ func() *http.Response) bool {
		if r.Method != http.MethodPut {
			return false
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>words of the server</Message></Error>", code)
		return true
	}
}

func TestS3FaultsAreKinds(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   error
	}{
		{507, "XMinioStorageFull", berth.ErrStorageFull},
		{507, "", berth.ErrStorageFull},
		{403, "QuotaExceeded", berth.ErrStorageFull},
		{403, "AccessDenied", berth.ErrStorageUnavailable},
		{404, "NoSuchBucket", berth.ErrStorageUnavailable},
		{501, "NotImplemented", berth.ErrStorageUnavailable},
	} {
		s, _, err := blob.OpenS3(t.Context(), between(t, blobtest.S3(t), answer(c.status, c.code)))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = s.Put(t.Context(), blob.NewKey("logs"), strings.NewReader("x"), 10)
		if !errors.Is(err, c.want) || !errors.Is(err, berth.ErrUnavailable) {
			t.Errorf("%d %s: %v", c.status, c.code, err)
		}
		if strings.Contains(err.Error(), "words of the server") || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%d %s: the error says %q", c.status, c.code, err)
		}
	}
}

func TestS3IsOpenedOrTheFaultNamed(t *testing.T) {
	good := blobtest.S3(t)
	with := func(change func(*blob.S3Options)) blob.S3Options { o := good; change(&o); return o }
	denied := between(t, good, func(w http.ResponseWriter, _ *http.Request, _ func() *http.Response) bool {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>InvalidAccessKeyId</Code></Error>")
		return true
	})
	for _, c := range []struct {
		name, says string
		o          blob.S3Options
	}{
		{"no such bucket", "no bucket of this name", with(func(o *blob.S3Options) { o.URL = strings.Replace(o.URL, "s3://berth/", "s3://other/", 1) })},
		{"wrong keys", "BERTH_BLOBS_SECRET_KEY", denied},
		{"no URL", "s3://bucket/prefix", with(func(o *blob.S3Options) { o.URL = "bucket" })},
		{"keys in the URL", "BERTH_BLOBS_ACCESS_KEY", with(func(o *blob.S3Options) { o.URL = "s3://key:s3cret@bucket" })},
		{"no bucket", "no bucket's name", with(func(o *blob.S3Options) { o.URL = "s3:///prefix" })},
		{"a bad prefix", "no prefix", with(func(o *blob.S3Options) { o.URL = "s3://bucket/a/../b" })},
		{"a bad endpoint", "https://host:port", with(func(o *blob.S3Options) { o.URL = "s3://bucket?endpoint=localhost:9000" })},
		{"an unknown setting", "endpoint, region and path_style", with(func(o *blob.S3Options) { o.URL = "s3://bucket?access_key=s3cret" })},
	} {
		_, _, err := blob.OpenS3(t.Context(), c.o)
		var setup *berth.SetupError
		if !errors.As(err, &setup) || !strings.Contains(setup.Error(), c.says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	down := with(func(o *blob.S3Options) { o.URL = "s3://bucket?endpoint=http://127.0.0.1:1" })
	s, unreachable, err := blob.OpenS3(t.Context(), down)
	if err != nil || !errors.Is(unreachable, berth.ErrStorageUnavailable) {
		t.Fatalf("an object store that is down: %v, %v", err, unreachable)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := s.Get(ctx, blob.NewKey("logs")); !errors.Is(err, berth.ErrStorageUnavailable) || strings.Contains(err.Error(), "bucket") {
		t.Errorf("Get: %v", err)
	}
	if s := fmt.Sprintf("%v %+v", good, good); strings.Contains(s, blobtest.SecretKey) || !strings.Contains(s, fmt.Sprint(redact.NewString("x"))) {
		t.Errorf("printed: %s", s)
	}
}
