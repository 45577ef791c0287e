package blob_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
)

func hexOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// conform is what every blob store promises.
func conform(t *testing.T, s blob.Store) {
	ctx := t.Context()
	read := func(key blob.Key) string {
		t.Helper()
		r, size, err := s.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil || int64(len(b)) != size {
			t.Fatalf("size %d, read %d, %v", size, len(b), err)
		}
		return string(b)
	}
	absent := func(key blob.Key) {
		t.Helper()
		if _, _, err := s.Get(ctx, key); !errors.Is(err, berth.ErrNotFound) {
			t.Fatalf("Get: %v", err)
		}
	}

	t.Run("what is put is got, with its size and digest", func(t *testing.T) {
		for _, content := range []string{"", "x", strings.Repeat("0123456789", 100_000)} {
			key := blob.NewKey("logs")
			size, sum, err := s.Put(ctx, key, iotest.HalfReader(strings.NewReader(content)), 1<<20)
			if err != nil || size != int64(len(content)) || sum != hexOf([]byte(content)) {
				t.Fatalf("%d %s %v", size, sum, err)
			}
			if got := read(key); got != content {
				t.Fatalf("got %d bytes", len(got))
			}
		}
	})
	t.Run("the limit is exact and leaves nothing", func(t *testing.T) {
		key := blob.NewKey("logs")
		if _, _, err := s.Put(ctx, key, strings.NewReader("12345"), 5); err != nil {
			t.Fatal(err)
		}
		over := blob.NewKey("logs")
		if _, _, err := s.Put(ctx, over, iotest.OneByteReader(strings.NewReader("123456")), 5); !errors.Is(err, berth.ErrTooLarge) {
			t.Fatalf("Put: %v", err)
		}
		absent(over)
	})
	t.Run("a broken source leaves nothing and its error is told", func(t *testing.T) {
		key := blob.NewKey("logs")
		broken := errors.New("client went away")
		if _, _, err := s.Put(ctx, key, io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), 100); !errors.Is(err, broken) {
			t.Fatalf("Put: %v", err)
		}
		absent(key)
		// Also when it breaks just where the limit is.
		if _, _, err := s.Put(ctx, key, io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), 3); !errors.Is(err, broken) {
			t.Fatalf("Put: %v", err)
		}
		absent(key)
	})
	t.Run("an ended context leaves nothing", func(t *testing.T) {
		key := blob.NewKey("logs")
		ctx, cancel := context.WithCancel(ctx)
		r, w := io.Pipe()
		go func() {
			_, _ = w.Write([]byte("abc"))
			cancel()
			_, _ = w.Write([]byte("def"))
			_ = w.Close()
		}()
		_, _, err := s.Put(ctx, key, r, 100)
		_ = r.Close()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Put: %v", err)
		}
		absent(key)
	})
	t.Run("a blob never changes", func(t *testing.T) {
		key := blob.NewKey("logs")
		if _, _, err := s.Put(ctx, key, strings.NewReader("one"), 10); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Put(ctx, key, strings.NewReader("two"), 10); !errors.Is(err, berth.ErrExists) {
			t.Fatalf("Put: %v", err)
		}
		if got := read(key); got != "one" {
			t.Fatalf("got %q", got)
		}
	})
	t.Run("of many writers of one key one wins, whole", func(t *testing.T) {
		key := blob.NewKey("logs")
		var wg sync.WaitGroup
		won := make(chan string, 8)
		for i := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				content := strings.Repeat(fmt.Sprint(i), 10_000)
				if _, _, err := s.Put(ctx, key, strings.NewReader(content), 1<<20); err == nil {
					won <- content
				} else if !errors.Is(err, berth.ErrExists) {
					t.Errorf("Put: %v", err)
				}
			}()
		}
		wg.Wait()
		close(won)
		if got := read(key); len(won) != 1 || got != <-won {
			t.Errorf("%d winners", len(won))
		}
	})
	t.Run("delete, twice, and a reader that goes on", func(t *testing.T) {
		key := blob.NewKey("logs")
		if _, _, err := s.Put(ctx, key, strings.NewReader("one"), 10); err != nil {
			t.Fatal(err)
		}
		r, _, err := s.Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for range 2 {
			if err := s.Delete(ctx, key); err != nil {
				t.Fatal(err)
			}
		}
		absent(key)
		if b, err := io.ReadAll(r); err != nil || string(b) != "one" {
			t.Errorf("%q %v", b, err)
		}
	})
	t.Run("a blob is read from any of its bytes on", func(t *testing.T) {
		content := strings.Repeat("0123456789", 100)
		key := blob.NewKey("logs")
		if _, _, err := s.Put(ctx, key, strings.NewReader(content), 1000); err != nil {
			t.Fatal(err)
		}
		for _, offset := range []int64{0, 1, 999, 1000} {
			r, size, err := s.GetFrom(ctx, key, offset)
			if err != nil || size != 1000 {
				t.Fatalf("from %d: size %d, %v", offset, size, err)
			}
			if b, err := io.ReadAll(r); err != nil || string(b) != content[offset:] {
				t.Errorf("from %d: %d bytes, %v", offset, len(b), err)
			}
			_ = r.Close()
		}
		for _, offset := range []int64{-1, 1001} {
			if _, _, err := s.GetFrom(ctx, key, offset); !errors.Is(err, berth.ErrInvalid) {
				t.Errorf("from %d: %v", offset, err)
			}
		}
		if _, _, err := s.GetFrom(ctx, blob.NewKey("logs"), 5); !errors.Is(err, berth.ErrNotFound) {
			t.Errorf("of none: %v", err)
		}
	})
	t.Run("a list shows each blob once, in pages, while blobs come and go", func(t *testing.T) {
		before := time.Now().Add(-2 * time.Second) // a store's clock may count in seconds
		want := map[blob.Key]int64{}
		for i := range 25 {
			key := blob.NewKey("listed")
			if _, _, err := s.Put(ctx, key, strings.NewReader(strings.Repeat("x", i)), 100); err != nil {
				t.Fatal(err)
			}
			want[key] = int64(i)
		}
		seen := map[blob.Key]int64{}
		for after := blob.Key(""); ; {
			page, err := s.List(ctx, "listed/", after, 4)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range page {
				if size, ok := want[b.Key]; ok && size != b.Size || b.ModTime.Before(before) || b.ModTime.After(time.Now().Add(2*time.Second)) {
					t.Errorf("%+v, put %d bytes at %v", b, size, before)
				}
				if _, ok := seen[b.Key]; ok {
					t.Errorf("twice: %s", b.Key)
				}
				seen[b.Key] = b.Size
				after = b.Key
			}
			if len(page) < 4 {
				break
			}
			// The page's last blob goes, and another comes: both change nothing.
			if err := s.Delete(ctx, after); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Put(ctx, blob.NewKey("listed"), strings.NewReader(""), 100); err != nil {
				t.Fatal(err)
			}
		}
		for key := range want {
			if _, ok := seen[key]; !ok {
				t.Errorf("missing: %s", key)
			}
		}
		if all, err := s.List(ctx, "", "", 10_000); err != nil || len(all) < 25 {
			t.Errorf("%d blobs of any prefix, %v", len(all), err)
		}
	})
	t.Run("blobs outlive a tidying", func(t *testing.T) {
		key := blob.NewKey("logs")
		if _, _, err := s.Put(ctx, key, strings.NewReader("one"), 10); err != nil {
			t.Fatal(err)
		}
		if err := s.Tidy(ctx, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if got := read(key); got != "one" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("keys that could leave the store are refused", func(t *testing.T) {
		for _, key := range []blob.Key{
			"", "/", "a//b", "../x", "a/../b", ".", "..", ".hidden", "a/.put-1", "/etc/passwd", "a\\b", "a\x00b", "a b", "ä", "~",
			blob.Key(strings.Repeat("a", blob.MaxKeyLen+1)),
		} {
			if _, _, err := s.Put(ctx, key, bytes.NewReader(nil), 1); !errors.Is(err, berth.ErrInvalid) {
				t.Errorf("Put %q: %v", key, err)
			}
			if _, _, err := s.Get(ctx, key); !errors.Is(err, berth.ErrInvalid) {
				t.Errorf("Get %q: %v", key, err)
			}
			if err := s.Delete(ctx, key); !errors.Is(err, berth.ErrInvalid) {
				t.Errorf("Delete %q: %v", key, err)
			}
		}
	})
}

func files(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestDirectory(t *testing.T) {
	root := t.TempDir()
	s, err := blob.OpenDirectory(root)
	if err != nil {
		t.Fatal(err)
	}
	conform(t, s)
	for _, name := range files(t, root) {
		if strings.HasPrefix(filepath.Base(name), ".") {
			t.Errorf("left behind: %s", name)
		}
		if rel, _ := filepath.Rel(root, name); len(strings.Split(rel, string(filepath.Separator))) != 3 {
			t.Errorf("not below two levels: %s", rel)
		}
	}
}

func TestDirectorySweepsWhatDeadProcessesLeft(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "ab", "cd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stale, fresh, kept := filepath.Join(dir, ".put-1"), filepath.Join(dir, ".put-2"), filepath.Join(dir, "logs~x")
	for _, f := range []string{stale, fresh, kept} {
		if err := os.WriteFile(f, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, f := range []string{stale, kept} {
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := blob.OpenDirectory(root); err != nil {
		t.Fatal(err)
	}
	if got := files(t, root); len(got) != 2 || got[0] != fresh || got[1] != kept {
		t.Errorf("left: %v", got)
	}
}
