package inputs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func user(id string) berth.Actor {
	return berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: id}}
}

var ada, bob = user("ada"), user("bob")

func mine(a berth.Actor) berth.Scope { return berth.Scope{Owner: a.Principal} }

// world is a service on one engine and one blob store.
type world struct {
	*inputs.Service
	t      *testing.T
	blobs  blob.Store
	broken atomic.Pointer[func(op string, n int) error]
}

// onAll runs a test on a service over either blob store.
func onAll(t *testing.T, test func(w *world)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) blob.Store{
		"directory": func(t *testing.T) blob.Store {
			d, err := blob.OpenDirectory(filepath.Join(t.TempDir(), "blobs"))
			must(t, err)
			return d
		},
		"s3": func(t *testing.T) blob.Store { return blobtest.OpenS3(t) },
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, blobs: open(t)}
			s := enginetest.SQLite(t).Open(t, store.Options{BeforeStatement: func(_ context.Context, op string, n int) error {
				if f := w.broken.Load(); f != nil {
					return (*f)(op, n)
				}
				return nil
			}})
			w.Service = inputs.New(s, w.blobs, nil)
			test(w)
		})
	}
}

func (w *world) append(actor berth.Actor, content []byte, from, to int) (berth.Input, error) {
	return w.Append(w.t.Context(), actor, digestOf(content), int64(from), iotest.HalfReader(bytes.NewReader(content[from:to])))
}

func (w *world) appended(actor berth.Actor, content []byte, from, to int) berth.Input {
	w.t.Helper()
	in, err := w.append(actor, content, from, to)
	must(w.t, err)
	return in
}

func (w *world) begin(actor berth.Actor, content []byte) berth.Input {
	w.t.Helper()
	in, err := w.Begin(w.t.Context(), actor, digestOf(content), int64(len(content)))
	must(w.t, err)
	return in
}

// left asserts how many blobs there are.
func (w *world) left(want int) {
	w.t.Helper()
	all, err := w.blobs.List(w.t.Context(), "", "", 1000)
	must(w.t, err)
	if len(all) != want {
		w.t.Errorf("%d blobs, want %d", len(all), want)
	}
}

func TestAFileGoesUpInPartsAndComesBackFromAnyByte(t *testing.T) {
	onAll(t, func(w *world) {
		content := []byte(strings.Repeat("0123456789", 1000))
		if in := w.begin(ada, content); in.Stored || in.Received != 0 {
			t.Fatalf("%+v", in)
		}
		for at, size := range map[int]int{0: 3000} {
			if in := w.appended(ada, content, at, at+size); in.Received != 3000 || in.Stored {
				t.Fatalf("%+v", in)
			}
		}
		// A repeat whose answer was lost; another process would go on likewise.
		if in := w.appended(ada, content, 0, 3000); in.Received != 3000 {
			t.Errorf("a repeat: %+v", in)
		}
		if in := w.begin(ada, content); in.Received != 3000 {
			t.Errorf("resumed: %+v", in)
		}
		var gap *berth.GapError
		if _, err := w.append(ada, content, 3001, 4000); !errors.As(err, &gap) || gap.Next != 3000 {
			t.Errorf("behind the end: %v", err)
		}
		w.appended(ada, content, 3000, 3001)
		for range 2 { // the last one twice, too
			if in := w.appended(ada, content, 3001, 10_000); !in.Stored || in.Received != 10_000 {
				t.Fatalf("%+v", in)
			}
		}
		w.left(3)
		in, c, err := w.Open(t.Context(), mine(ada), digestOf(content))
		must(t, err)
		defer c.Close()
		if in.Size != 10_000 || c.Size() != 10_000 {
			t.Errorf("%+v", in)
		}
		must(t, iotest.TestReader(c, content))
		for _, at := range []int64{0, 1, 2999, 3000, 3001, 9999, 10_000} {
			_, err := c.Seek(at, io.SeekStart)
			must(t, err)
			if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, content[at:]) {
				t.Errorf("from %d: %d bytes, %v", at, len(b), err)
			}
		}
		if _, _, err := w.Open(t.Context(), mine(bob), digestOf(content)); !errors.Is(err, berth.ErrNotFound) {
			t.Errorf("another's: %v", err)
		}
		if _, err := w.append(bob, content, 0, 10); !errors.Is(err, berth.ErrNotFound) {
			t.Errorf("a part of no upload: %v", err)
		}
	})
}

func TestWhatIsRefusedLeavesNoBlob(t *testing.T) {
	onAll(t, func(w *world) {
		content := []byte(strings.Repeat("0123456789", 10))
		w.begin(ada, content)
		digest := digestOf(content)
		put := func(r io.Reader) error {
			_, err := w.Append(t.Context(), ada, digest, 0, r)
			return err
		}
		gone := errors.New("client went away")
		if err := put(io.MultiReader(bytes.NewReader(content[:50]), iotest.ErrReader(gone))); !errors.Is(err, gone) {
			t.Errorf("a broken source: %v", err)
		}
		if err := put(bytes.NewReader(append(content, 'x'))); !errors.Is(err, berth.ErrTooLarge) {
			t.Errorf("too many bytes: %v", err)
		}
		if err := put(bytes.NewReader(nil)); !errors.Is(err, berth.ErrInvalid) {
			t.Errorf("no bytes: %v", err)
		}
		w.left(0)
		w.appended(ada, content, 0, 50)
		wrong := bytes.Repeat([]byte("x"), 50)
		_, err := w.Append(t.Context(), ada, digest, 50, bytes.NewReader(wrong))
		var invalid *berth.InvalidError
		if !errors.As(err, &invalid) || invalid.Fields[0].Path != "digest" || invalid.Fields[0].Remedy == "" {
			t.Errorf("another sum: %v", err)
		}
		w.left(0)
		if in := w.begin(ada, content); in.Received != 0 {
			t.Errorf("after a wrong sum: %+v", in)
		}
		w.appended(ada, content, 0, 50)
		if _, err := w.Begin(t.Context(), ada, digest, 99); err != nil {
			t.Error(err)
		}
		w.left(0)
		for _, c := range []struct {
			digest string
			size   int64
			want   error
		}{
			{"abc", 5, berth.ErrInvalid}, {digest, -1, berth.ErrInvalid}, {digest, 0, berth.ErrInvalid}, {digest, berth.MaxInputBytes + 1, berth.ErrTooLarge},
		} {
			if _, err := w.Begin(t.Context(), ada, c.digest, c.size); !errors.Is(err, c.want) {
				t.Errorf("%s of %d bytes: %v", c.digest, c.size, err)
			}
		}
		if in := w.begin(ada, nil); !in.Stored {
			t.Errorf("an empty file: %+v", in)
		}
		_, c, err := w.Open(t.Context(), mine(ada), digestOf(nil))
		must(t, err)
		if b, err := io.ReadAll(c); err != nil || len(b) != 0 {
			t.Errorf("an empty file: %q, %v", b, err)
		}
	})
}

// The record of a part fails in a way that says nothing about its commit: the
// blob stays for the orphan sweep, and the same call succeeds afterwards.
func TestAPartWhoseRecordFailedIsSentAgain(t *testing.T) {
	onAll(t, func(w *world) {
		content := []byte(strings.Repeat("0123456789", 10))
		w.begin(ada, content)
		fail := func(op string, _ int) error {
			if op == "AppendInput" {
				return fmt.Errorf("the connection broke: %w", berth.ErrUnavailable)
			}
			return nil
		}
		w.broken.Store(&fail)
		if _, err := w.append(ada, content, 0, 60); !errors.Is(err, berth.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		w.broken.Store(nil)
		w.left(1)
		w.appended(ada, content, 0, 60)
		if in := w.appended(ada, content, 60, 100); !in.Stored {
			t.Errorf("%+v", in)
		}
		w.left(3)
	})
}

// Two principals and, for each, two clients upload one file at once. All end
// with the stored input, and one copy of its bytes is left.
func TestManyUploadsOfOneFileAtOnceLeaveItOnce(t *testing.T) {
	onAll(t, func(w *world) {
		content := []byte(strings.Repeat("0123456789", 100))
		upload := func(actor berth.Actor) error {
			in, err := w.Begin(t.Context(), actor, digestOf(content), int64(len(content)))
			for err == nil && !in.Stored {
				at := int(in.Received)
				in, err = w.append(actor, content, at, min(at+170, len(content)))
			}
			return err
		}
		var wg sync.WaitGroup
		for _, actor := range []berth.Actor{ada, bob, ada, bob} {
			wg.Go(func() {
				if err := upload(actor); err != nil {
					t.Errorf("%s: %v", actor.ID, err)
				}
			})
		}
		wg.Wait()
		w.left(6)
		for _, actor := range []berth.Actor{ada, bob} {
			_, c, err := w.Open(t.Context(), mine(actor), digestOf(content))
			must(t, err)
			if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, content) {
				t.Errorf("%s reads %d bytes, %v", actor.ID, len(b), err)
			}
			must(t, c.Close())
		}
	})
}

func TestALostPartIsTheServersFault(t *testing.T) {
	root := filepath.Join(t.TempDir(), "blobs")
	d, err := blob.OpenDirectory(root)
	must(t, err)
	w := &world{t: t, blobs: d}
	w.Service = inputs.New(enginetest.SQLite(t).Open(t, store.Options{}), d, nil)
	content := []byte("0123456789")
	w.begin(ada, content)
	w.appended(ada, content, 0, 10)
	must(t, os.RemoveAll(root))
	_, c, err := w.Open(t.Context(), mine(ada), digestOf(content))
	must(t, err)
	if _, err := io.ReadAll(c); !errors.Is(err, berth.ErrInputLost) || !errors.Is(err, berth.ErrUnavailable) || errors.Is(err, berth.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// A part's blob is gone. Whoever begins the upload again, or uploads the file for
// the first time, heals it for all; many at once leave one copy.
func TestALostInputIsHealedByTheNextUpload(t *testing.T) {
	content := []byte(strings.Repeat("0123456789", 100))
	lose := func(w *world) {
		w.t.Helper()
		all, err := w.blobs.List(t.Context(), "", "", 1000)
		must(t, err)
		must(t, w.blobs.Delete(t.Context(), all[len(all)/2].Key))
	}
	upload := func(w *world, actor berth.Actor) error {
		in, err := w.Begin(t.Context(), actor, digestOf(content), int64(len(content)))
		if err == nil && in.Stored {
			return nil
		}
		for err == nil && !in.Stored {
			at := int(in.Received)
			in, err = w.append(actor, content, at, min(at+400, len(content)))
		}
		return err
	}
	readable := func(w *world, actor berth.Actor) {
		w.t.Helper()
		_, c, err := w.Open(t.Context(), mine(actor), digestOf(content))
		must(t, err)
		defer c.Close()
		if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, content) {
			t.Errorf("%s reads %d bytes, %v", actor.ID, len(b), err)
		}
		w.left(3)
	}
	onAll(t, func(w *world) {
		must(t, upload(w, ada))
		lose(w)
		if in := w.begin(ada, content); in.Stored || in.Received != 0 {
			t.Fatalf("a lost input: %+v", in)
		}
		w.appended(ada, content, 0, 400) // and breaks off: nothing is taken from what is there
		w.left(3)
		must(t, upload(w, ada))
		readable(w, ada)
		lose(w)
		must(t, upload(w, bob)) // who never had it
		readable(w, ada)
		readable(w, bob)
		lose(w)
		var wg sync.WaitGroup
		for _, actor := range []berth.Actor{ada, bob, ada, bob} {
			wg.Go(func() {
				if err := upload(w, actor); err != nil {
					t.Errorf("%s: %v", actor.ID, err)
				}
			})
		}
		wg.Wait()
		readable(w, ada)
		readable(w, bob)
		if in := w.begin(ada, content); !in.Stored {
			t.Errorf("a healed input: %+v", in)
		}
	})
}

// Where the blob store does not say, the record counts.
func TestAnInputIsNotLostWhileItsStoreHangs(t *testing.T) {
	blobs, door := blobtest.Stalling(t)
	w := &world{t: t, blobs: blobs}
	w.Service = inputs.New(enginetest.SQLite(t).Open(t, store.Options{}), blobs, nil)
	content := []byte("0123456789")
	w.begin(ada, content)
	w.appended(ada, content, 0, 10)
	door.Shut()
	if in := w.begin(ada, content); !in.Stored {
		t.Errorf("%+v", in)
	}
}
