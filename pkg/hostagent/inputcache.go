package hostagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
)

// DefaultInputCache is how many bytes of inputs a host keeps.
const DefaultInputCache = 10 << 30

// inputCache keeps inputs on this host's disk by their digest: a task that names
// what an earlier one named finds it here. It never holds more than its limit,
// counting what is being fetched; what is not used goes, longest unused first.
//
// A file appears under its digest only when it is whole, has that digest, and is
// on disk for good, so what a crash leaves is either that or a temporary file,
// which the next start removes. Files are read-only and carry a fixed
// modification time; but work of the same user may change both a file and its
// times, so its bytes are read and compared with the digest before each use, and
// what was changed is fetched anew.
type inputCache struct {
	dir   string
	limit int64
	log   *zap.Logger

	mu      sync.Mutex
	entries map[string]*cachedInput
	bytes   int64         // of all entries, those being fetched too
	freed   chan struct{} // closed, and made anew, when a pin went
}

// cachedInput is an input that is there, or being fetched.
type cachedInput struct {
	size int64
	pins int
	used time.Time
	// turn holds a token while somebody fetches the file or judges it.
	turn chan struct{}
}

const (
	// fetchPrefix marks files that are being fetched; no digest begins so.
	fetchPrefix = ".fetch-"
	inputMode   = 0o400
)

// verified is the modification time of files that were verified.
func verified() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// errCacheTooSmall: the inputs of one task do not fit into the cache.
var errCacheTooSmall = errors.New("the task's inputs do not fit into this host's cache of inputs")

// openInputCache opens the cache and removes what an earlier process left
// unfinished.
func openInputCache(dir string, limit int64, log *zap.Logger) (*inputCache, error) {
	if limit <= 0 {
		limit = DefaultInputCache
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c := &inputCache{dir: dir, limit: limit, log: log, entries: map[string]*cachedInput{}, freed: make(chan struct{})}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		info, err := f.Info()
		if err == nil && berth.ValidDigest(f.Name()) && intact(info, info.Size()) {
			c.entries[f.Name()] = &cachedInput{size: info.Size(), used: lastRead(info), turn: make(chan struct{}, 1)}
			c.bytes += info.Size()
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shrink(0) // the limit may have been lowered
	return c, nil
}

// intact reports whether a file is as it was when it was verified.
func intact(info os.FileInfo, size int64) bool {
	return info.Mode().IsRegular() && info.Size() == size && info.ModTime().Equal(verified())
}

// lastRead is a file's time of access, which the cache sets at each use.
func lastRead(info os.FileInfo) time.Time {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(st.Atim.Unix())
	}
	return time.Time{}
}

func (c *inputCache) path(digest string) string { return filepath.Join(c.dir, digest) }

// fetcher brings an input's bytes into a file, and has verified them when it
// returns nil.
type fetcher func(ctx context.Context, in protocol.Input, into *os.File) error

// take gives the paths of the inputs by their names, and keeps the files from
// being removed until release is called. What is not there is fetched, each
// digest by one at a time. Room for all of them is reserved at once, so that two
// tasks never wait for each other's; it may be waited for.
func (c *inputCache) take(ctx context.Context, inputs []protocol.Input, fetch fetcher) (paths map[string]string, release func(), err error) {
	if len(inputs) == 0 {
		return nil, func() {}, nil
	}
	sizes := map[string]int64{}
	for _, in := range inputs {
		sizes[in.Digest] = in.Size
	}
	if err := c.reserve(ctx, sizes); err != nil {
		return nil, nil, err
	}
	release = sync.OnceFunc(func() { c.release(sizes) })
	paths = make(map[string]string, len(inputs))
	for _, in := range inputs {
		if err := c.ensure(ctx, in, fetch); err != nil {
			release()
			return nil, nil, err
		}
		paths[in.Name] = c.path(in.Digest)
	}
	return paths, release, nil
}

// reserve pins the digests, when there is room for all.
func (c *inputCache) reserve(ctx context.Context, sizes map[string]int64) error {
	total := int64(0)
	for _, size := range sizes {
		total += size
	}
	if total > c.limit {
		return fmt.Errorf("%w: they have %d bytes, it holds %d", errCacheTooSmall, total, c.limit)
	}
	for {
		freed, ok := c.tryReserve(sizes)
		if ok {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *inputCache) tryReserve(sizes map[string]int64) (freed <-chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := int64(0)
	for digest, size := range sizes {
		if e := c.entries[digest]; e != nil {
			e.pins++ // keeps it while room is made
		} else {
			missing += size
		}
	}
	ok = c.shrink(missing)
	for digest, size := range sizes {
		e := c.entries[digest]
		switch {
		case e == nil && ok:
			c.entries[digest] = &cachedInput{size: size, pins: 1, used: time.Now(), turn: make(chan struct{}, 1)}
			c.bytes += size
		case e != nil && !ok:
			e.pins--
		}
	}
	return c.freed, ok
}

// shrink removes what is not pinned, longest unused first, until there is room
// for so many bytes more; false when there cannot be.
func (c *inputCache) shrink(more int64) bool {
	for c.bytes+more > c.limit {
		oldest := ""
		for digest, e := range c.entries {
			if e.pins == 0 && (oldest == "" || e.used.Before(c.entries[oldest].used)) {
				oldest = digest
			}
		}
		if oldest == "" {
			return false
		}
		c.remove(oldest)
	}
	return true
}

// remove forgets an entry and its file.
func (c *inputCache) remove(digest string) {
	if err := os.Remove(c.path(digest)); err != nil && !errors.Is(err, os.ErrNotExist) {
		c.log.Warn("an input cannot be removed from the cache", zap.String("digest", digest), zap.Error(err))
	}
	c.bytes -= c.entries[digest].size
	delete(c.entries, digest)
}

// release ends the pins of a task.
func (c *inputCache) release(sizes map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for digest := range sizes {
		e := c.entries[digest]
		if e.pins--; e.pins > 0 {
			continue
		}
		if info, err := os.Stat(c.path(digest)); err != nil || !intact(info, e.size) {
			c.remove(digest) // it could not be fetched, or somebody wrote to it
		}
	}
	close(c.freed)
	c.freed = make(chan struct{})
}

// ensure fetches a pinned input unless it is there.
func (c *inputCache) ensure(ctx context.Context, in protocol.Input, fetch fetcher) error {
	c.mu.Lock()
	e := c.entries[in.Digest]
	e.used = time.Now()
	c.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.turn }()
	path := c.path(in.Digest)
	info, err := os.Stat(path)
	if err == nil && intact(info, in.Size) {
		switch same, err := hasDigest(ctx, path, in.Digest); {
		case err != nil:
			return err
		case same:
			// The time of access, which may be set at will, keeps the order for the
			// next start.
			return os.Chtimes(path, time.Now(), verified())
		}
	}
	if err == nil {
		c.log.Warn("an input in the cache was changed; it is fetched again", zap.String("digest", in.Digest))
	}
	return c.fetch(ctx, in, fetch)
}

// hasDigest reads a file and reports whether it has the digest.
func hasDigest(ctx context.Context, path, digest string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	const piece = 8 << 20 // between two looks at ctx
	h := sha256.New()
	for {
		switch _, err := io.CopyN(h, f, piece); {
		case errors.Is(err, io.EOF):
			return hex.EncodeToString(h.Sum(nil)) == digest, nil
		case err != nil:
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		}
	}
}

func (c *inputCache) fetch(ctx context.Context, in protocol.Input, fetch fetcher) error {
	f, err := os.CreateTemp(c.dir, fetchPrefix)
	if err != nil {
		return fmt.Errorf("%w: %w", errInputWrite, err)
	}
	if err = fetch(ctx, in, f); err != nil {
		_ = f.Close()
	} else if err = errors.Join(f.Sync(), f.Close()); err == nil {
		err = publishInput(f.Name(), c.path(in.Digest))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	var fault *os.PathError
	if errors.As(err, &fault) {
		err = fmt.Errorf("%w: %w", errInputWrite, err)
	}
	return err
}

// purge removes everything that is not pinned: the disk is full.
func (c *inputCache) purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for digest, e := range c.entries {
		if e.pins == 0 {
			c.remove(digest)
		}
	}
}

// publishInput gives a verified file its name and makes that durable.
func publishInput(temp, path string) error {
	if err := os.Chmod(temp, inputMode); err != nil {
		return err
	}
	if err := os.Chtimes(temp, time.Now(), verified()); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
