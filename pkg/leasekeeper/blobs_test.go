package leasekeeper_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

// onBlobs runs a test on each engine with a blob store each.
func onBlobs(t *testing.T, test func(t *testing.T, db enginetest.DB, blobs blob.Store)) {
	t.Helper()
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		if t.Name()[len(t.Name())-len("sqlite"):] == "sqlite" {
			d, err := blob.OpenDirectory(filepath.Join(t.TempDir(), "blobs"))
			if err != nil {
				t.Fatal(err)
			}
			test(t, db, d)
			return
		}
		test(t, db, blobtest.OpenS3(t))
	})
}

var uploader = berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "u"}}

// upload stores a file in parts of 10 bytes.
func upload(ctx context.Context, s *inputs.Service, content string) (digest string, err error) {
	sum := sha256.Sum256([]byte(content))
	digest = hex.EncodeToString(sum[:])
	in, err := s.Begin(ctx, uploader, digest, int64(len(content)))
	for err == nil && !in.Stored {
		at := int(in.Received)
		in, err = s.Append(ctx, uploader, digest, in.Received, bytes.NewReader([]byte(content)[at:min(at+10, len(content))]))
	}
	return digest, err
}

func blobsIn(t *testing.T, b blob.Store) int {
	t.Helper()
	all, err := b.List(t.Context(), "", "", 10_000)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Uploads go on while two keepers sweep as fast as they can. What is recorded is
// never deleted, however old it becomes meanwhile; what nothing refers to is, once
// it is old.
func TestTheOrphanSweepNeverTakesWhatIsReferredTo(t *testing.T) {
	const age = 2 * time.Second
	onBlobs(t, func(t *testing.T, db enginetest.DB, blobs blob.Store) {
		s := db.Open(t, store.Options{})
		service := inputs.New(s, blobs, nil)
		var orphans []blob.Key
		orphan := func() {
			key := blob.NewKey("artifacts")
			if _, _, err := blobs.Put(t.Context(), key, bytes.NewReader([]byte("lost")), 10); err != nil {
				t.Fatal(err)
			}
			orphans = append(orphans, key)
		}
		for range 30 {
			orphan()
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*age)
		defer stop()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				k := leasekeeper.NewBlobKeeper(leasekeeper.BlobConfig{Store: s, Blobs: blobs, OrphansAfter: age})
				for ctx.Err() == nil {
					if err := errors.Join(k.BlobsOnce(t.Context()), k.InputsOnce(t.Context())); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		var mu sync.Mutex
		contents := map[string]string{}
		for n := range 2 {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					content := fmt.Sprintf("file %d of uploader %d, in several parts", i, n)
					digest, err := upload(t.Context(), service, content)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					contents[digest] = content
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		// All of it is older than the age by now.
		k := leasekeeper.NewBlobKeeper(leasekeeper.BlobConfig{Store: s, Blobs: blobs, OrphansAfter: time.Nanosecond})
		if err := k.BlobsOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, key := range orphans {
			if _, _, err := blobs.Get(t.Context(), key); !errors.Is(err, berth.ErrNotFound) {
				t.Errorf("an orphan is left: %v", err)
			}
		}
		for digest, content := range contents {
			_, c, err := service.Open(t.Context(), berth.Scope{All: true}, digest)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(c); err != nil || string(b) != content {
				t.Fatalf("%q, %v, want %q", b, err, content)
			}
			_ = c.Close()
		}
		if len(contents) < 5 {
			t.Errorf("only %d uploads", len(contents))
		}
		t.Logf("%d uploads", len(contents))
	})
}

func TestYoungOrphansAndInputsInUseAreLeft(t *testing.T) {
	onBlobs(t, func(t *testing.T, db enginetest.DB, blobs blob.Store) {
		clock := storetest.NewClock()
		s := db.Open(t, store.Options{Clock: clock})
		service := inputs.New(s, blobs, nil)
		k := leasekeeper.NewBlobKeeper(leasekeeper.BlobConfig{Store: s, Blobs: blobs})
		if _, _, err := blobs.Put(t.Context(), blob.NewKey("logs"), bytes.NewReader([]byte("young")), 10); err != nil {
			t.Fatal(err)
		}
		if err := k.BlobsOnce(t.Context()); err != nil || blobsIn(t, blobs) != 1 {
			t.Errorf("%v, %d blobs", err, blobsIn(t, blobs))
		}
		if _, err := upload(t.Context(), service, "used by nobody, in parts"); err != nil {
			t.Fatal(err)
		}
		clock.Advance(berth.InputUnusedFor)
		if err := k.InputsOnce(t.Context()); err != nil || blobsIn(t, blobs) != 4 {
			t.Errorf("too early: %v, %d blobs", err, blobsIn(t, blobs))
		}
		clock.Advance(time.Second)
		if err := k.InputsOnce(t.Context()); err != nil || blobsIn(t, blobs) != 1 {
			t.Errorf("expired: %v, %d blobs", err, blobsIn(t, blobs))
		}
	})
}

// A bucket may hold other things, and a prefix may begin like another
// installation's: the sweep deletes nothing that Berth would not have named so.
func TestTheOrphanSweepLeavesWhatIsNotItsOwn(t *testing.T) {
	onBlobs(t, func(t *testing.T, db enginetest.DB, blobs blob.Store) {
		own := blob.NewKey(blob.KindInput)
		foreign := []blob.Key{
			"backup.tar", "backups/monday.tar", "artifacts/readme", "photos" + own[len(blob.KindInput):], "staging/" + own, own + "/1",
			blob.Key(blob.KindInput) + "/" + blob.Key(strings.ReplaceAll(string(own[len(blob.KindInput)+1:]), "-", "")),
		}
		for _, key := range append(foreign, own) {
			if _, _, err := blobs.Put(t.Context(), key, strings.NewReader("x"), 10); err != nil {
				t.Fatal(err)
			}
		}
		k := leasekeeper.NewBlobKeeper(leasekeeper.BlobConfig{Store: db.Open(t, store.Options{}), Blobs: blobs, OrphansAfter: time.Nanosecond})
		deadline := time.Now().Add(20 * time.Second) // an object store tells whole seconds
		for gone := false; !gone && time.Now().Before(deadline); {
			if err := k.BlobsOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, _, err := blobs.Get(t.Context(), own)
			gone = errors.Is(err, berth.ErrNotFound)
		}
		if n := blobsIn(t, blobs); n != len(foreign) {
			t.Errorf("%d blobs are left, want the %d that are not the sweep's", n, len(foreign))
		}
	})
}

// The blob store or the database failing in a sweep deletes nothing.
func TestASweepThatCannotAskDeletesNothing(t *testing.T) {
	d, err := blob.OpenDirectory(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	s := enginetest.SQLite(t).Open(t, store.Options{})
	if _, _, err := d.Put(t.Context(), blob.NewKey("logs"), bytes.NewReader([]byte("x")), 10); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	k := leasekeeper.NewBlobKeeper(leasekeeper.BlobConfig{Store: s, Blobs: d, OrphansAfter: time.Nanosecond})
	if err := k.BlobsOnce(t.Context()); !errors.Is(err, berth.ErrUnavailable) || blobsIn(t, d) != 1 {
		t.Errorf("%v, %d blobs", err, blobsIn(t, d))
	}
}
