package hostagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/protocol"
)

// cacheOf has a limit of so many bytes and fetches what is asked for.
func cacheOf(t *testing.T, dir string, limit int64) (*inputCache, *atomic.Int32, fetcher) {
	t.Helper()
	c, err := openInputCache(dir, limit, zap.NewNop())
	must(t, err)
	count := &atomic.Int32{}
	return c, count, func(_ context.Context, in protocol.Input, into *os.File) error {
		count.Add(1)
		_, err := into.WriteString(contentOf(in.Name))
		return err
	}
}

// contentOf is ten bytes.
func contentOf(name string) string { return fmt.Sprintf("%-10s", name) }

// ten is an input of ten bytes.
func ten(name string) []protocol.Input {
	sum := sha256.Sum256([]byte(contentOf(name)))
	return []protocol.Input{{Name: name, Digest: hex.EncodeToString(sum[:]), Size: 10}}
}

func kept(t *testing.T, dir string) (names int) {
	t.Helper()
	files, err := os.ReadDir(dir)
	must(t, err)
	return len(files)
}

func TestTheCacheDropsWhatWasUnusedLongestAndNothingInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "inputs")
	synctest.Test(t, func(t *testing.T) {
		c, count, fetch := cacheOf(t, dir, 30)
		take := func(name string) func() {
			t.Helper()
			paths, release, err := c.take(t.Context(), ten(name), fetch)
			must(t, err)
			if info, err := os.Stat(paths[name]); err != nil || info.Mode().Perm() != inputMode {
				t.Errorf("%s: %v, %v", name, info, err)
			}
			time.Sleep(time.Second)
			return release
		}
		for _, name := range []string{"a", "b", "c", "a"} {
			take(name)()
		}
		inUse := take("b") // a is newer than c now
		take("d")()        // drops c
		if n := count.Load(); n != 4 || kept(t, dir) != 3 {
			t.Errorf("%d fetched, %d kept", n, kept(t, dir))
		}
		take("e")() // drops a; b is in use
		take("b")()
		if n := count.Load(); n != 5 {
			t.Errorf("what was in use was fetched again: %d", n)
		}
		inUse()
		take("a")()
		if n := count.Load(); n != 6 {
			t.Errorf("what was dropped was not fetched again: %d", n)
		}
		if _, _, err := c.take(t.Context(), slices.Concat(ten("a"), ten("b"), ten("c"), ten("d")), fetch); !errors.Is(err, errCacheTooSmall) {
			t.Errorf("more than there is room for: %v", err)
		}
	})
	// A lower limit at the next start, the order as it was.
	c, count, fetch := cacheOf(t, dir, 10)
	_, release, err := c.take(t.Context(), ten("a"), fetch)
	must(t, err)
	release()
	if count.Load() != 0 || kept(t, dir) != 1 {
		t.Errorf("%d fetched, %d kept", count.Load(), kept(t, dir))
	}
}

func TestRoomInTheCacheIsWaitedForAllAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "inputs")
	synctest.Test(t, func(t *testing.T) {
		c, count, fetch := cacheOf(t, dir, 30)
		_, first, err := c.take(t.Context(), slices.Concat(ten("a"), ten("b")), fetch)
		must(t, err)
		// Each of these needs two, so that both together would hold one each and
		// wait for ever if they took them one by one.
		done := make(chan error, 2)
		for _, pair := range [][]protocol.Input{slices.Concat(ten("c"), ten("d")), slices.Concat(ten("e"), ten("f"))} {
			go func() {
				_, release, err := c.take(t.Context(), pair, fetch)
				if err == nil {
					release()
				}
				done <- err
			}()
		}
		synctest.Wait()
		if n := count.Load(); n != 2 {
			t.Errorf("%d fetched while there was no room", n)
		}
		gone, stop := context.WithCancel(t.Context())
		stop()
		if _, _, err := c.take(gone, slices.Concat(ten("g"), ten("h")), fetch); !errors.Is(err, context.Canceled) {
			t.Errorf("an end while waiting: %v", err)
		}
		first()
		must(t, <-done)
		must(t, <-done)
		if n := count.Load(); n != 6 {
			t.Errorf("%d fetched", n)
		}
	})
}

func TestADigestIsFetchedByOneAtATimeAndAFailureLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "inputs")
	synctest.Test(t, func(t *testing.T) {
		c, count, fetch := cacheOf(t, dir, 100)
		at, most := atomic.Int32{}, atomic.Int32{}
		slow := func(ctx context.Context, in protocol.Input, into *os.File) error {
			most.Store(max(most.Load(), at.Add(1)))
			defer at.Add(-1)
			time.Sleep(time.Second)
			if count.Load() == 0 {
				count.Add(1)
				return fmt.Errorf("broken off: %w", os.ErrDeadlineExceeded)
			}
			return fetch(ctx, in, into)
		}
		done := make(chan error, 5)
		for range 5 {
			go func() {
				_, release, err := c.take(t.Context(), ten("a"), slow)
				if err == nil {
					release()
				}
				done <- err
			}()
		}
		failed := 0
		for range 5 {
			if err := <-done; err != nil {
				failed++
			}
		}
		if failed != 1 || most.Load() != 1 || count.Load() != 2 || kept(t, dir) != 1 {
			t.Errorf("%d failed, %d at once, %d fetched, %d kept", failed, most.Load(), count.Load(), kept(t, dir))
		}
		full := func(context.Context, protocol.Input, *os.File) error { return fmt.Errorf("%w: full", errInputWrite) }
		if _, _, err := c.take(t.Context(), ten("b"), full); !errors.Is(err, errInputWrite) || kept(t, dir) != 1 {
			t.Errorf("%v, %d kept", err, kept(t, dir))
		}
		c.purge()
		if kept(t, dir) != 0 || c.bytes != 0 {
			t.Errorf("%d kept, %d bytes", kept(t, dir), c.bytes)
		}
	})
}
