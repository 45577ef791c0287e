package blob

import (
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
	"syscall"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// ErrFull says that the store has no room left. It wraps berth.ErrStorageFull.
var ErrFull = fmt.Errorf("blob store: %w", berth.ErrStorageFull)

// tempPrefix marks files that are being written. Keys cannot start with a dot.
const tempPrefix = ".put-"

// staleAfter is the age at which a temporary file belongs to nobody: no upload
// goes on that long without a write.
const staleAfter = time.Hour

// Directory is a Store in a directory of the local file system. Several
// processes may share it.
type Directory struct {
	root string
}

// OpenDirectory opens the store in root, makes the directory if it is missing,
// and removes what broken-off uploads of dead processes left.
func OpenDirectory(root string) (*Directory, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("blob directory: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, unusable(abs, err)
	}
	d := &Directory{root: abs}
	if err := d.sweep(context.Background(), time.Now().Add(-staleAfter)); err != nil {
		return nil, unusable(abs, err)
	}
	return d, nil
}

// unusable is the error of a directory that cannot be a store.
func unusable(root string, err error) error {
	why := err.Error()
	var errno syscall.Errno
	if errors.As(err, &errno) {
		why = errno.Error()
	}
	return &berth.SetupError{
		What:   "the blob directory " + root + " cannot be used (" + why + ")",
		Remedy: "give this user the right to write there, or name another (BERTH_BLOB_DIR; with berth up: --data-dir)",
	}
}

// sweep removes temporary files that were last written before olderThan.
func (d *Directory) sweep(ctx context.Context, olderThan time.Time) error {
	return filepath.WalkDir(d.root, func(path string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process swept it
		}
		if err != nil {
			return err
		}
		if !entry.Type().IsRegular() || !strings.HasPrefix(entry.Name(), tempPrefix) {
			return nil
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().Before(olderThan) {
			err = os.Remove(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// path spreads keys over 256 x 256 directories by their digest, so that no
// directory grows with the number of blobs.
func (d *Directory) path(key Key) string {
	sum := sha256.Sum256([]byte(key))
	name := strings.ReplaceAll(string(key), "/", "~") // ~ is in no key: names stay distinct
	return filepath.Join(d.root, hex.EncodeToString(sum[:1]), hex.EncodeToString(sum[1:2]), name)
}

// Put implements Store.
func (d *Directory) Put(ctx context.Context, key Key, r io.Reader, limit int64) (int64, string, error) {
	if err := key.Valid(); err != nil {
		return 0, "", err
	}
	path := d.path(key)
	if err := d.makeDirs(filepath.Dir(path)); err != nil {
		return 0, "", fullOr("make a blob's directory", err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return 0, "", fullOr("make a blob's file", err)
	}
	size, sum, err := fill(ctx, temp, r, limit)
	if err == nil {
		err = publish(temp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return 0, "", err
	}
	return size, sum, nil
}

// fill writes r into temp, makes it durable and closes it.
func fill(ctx context.Context, temp *os.File, r io.Reader, limit int64) (size int64, sum string, err error) {
	defer func() {
		if cerr := temp.Close(); cerr != nil && err == nil {
			err = fullOr("close a blob's file", cerr)
		}
	}()
	digest := sha256.New()
	source := &contextReader{ctx: ctx, r: io.LimitReader(r, limit)}
	size, err = io.Copy(io.MultiWriter(temp, digest), source)
	if source.err != nil {
		return 0, "", source.err
	}
	if err != nil {
		return 0, "", fullOr("write a blob", err)
	}
	if size == limit {
		over, err := hasMore(ctx, r)
		if err != nil {
			return 0, "", err
		}
		if over {
			return 0, "", fmt.Errorf("more than %d bytes: %w", limit, berth.ErrTooLarge)
		}
	}
	if err := temp.Sync(); err != nil {
		return 0, "", fullOr("write a blob through", err)
	}
	return size, hex.EncodeToString(digest.Sum(nil)), nil
}

// hasMore reports whether r has a byte left.
func hasMore(ctx context.Context, r io.Reader) (bool, error) {
	source := &contextReader{ctx: ctx, r: r}
	n, err := io.ReadFull(source, make([]byte, 1))
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return n > 0, err
}

// publish gives the finished file its name, unless the name is taken, and
// makes the name durable. A link, unlike a rename, never replaces.
func publish(temp, path string) error {
	err := os.Link(temp, path)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("blob: %w", berth.ErrExists)
	}
	if err != nil {
		return fullOr("name a blob", err)
	}
	if err := os.Remove(temp); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("name a blob: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		_ = os.Remove(path)
		return fullOr("write a blob's name through", err)
	}
	return nil
}

// makeDirs makes the two levels below the root and makes their names durable.
func (d *Directory) makeDirs(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return syncDir(d.root)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Get implements Store.
func (d *Directory) Get(ctx context.Context, key Key) (io.ReadCloser, int64, error) {
	return d.GetFrom(ctx, key, 0)
}

// GetFrom implements Store.
func (d *Directory) GetFrom(_ context.Context, key Key, offset int64) (io.ReadCloser, int64, error) {
	if err := key.Valid(); err != nil {
		return nil, 0, err
	}
	f, err := os.Open(d.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("blob: %w", berth.ErrNotFound)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open a blob: %w", err)
	}
	size, err := seek(f, offset)
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

// Stat implements Store.
func (d *Directory) Stat(_ context.Context, key Key) (Info, error) {
	if err := key.Valid(); err != nil {
		return Info{}, err
	}
	info, err := os.Stat(d.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, fmt.Errorf("blob: %w", berth.ErrNotFound)
	}
	if err != nil {
		return Info{}, fmt.Errorf("look at a blob: %w", err)
	}
	return Info{Key: key, Size: info.Size(), ModTime: info.ModTime()}, nil
}

// seek moves to offset and returns the file's size.
func seek(f *os.File, offset int64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("open a blob: %w", err)
	}
	if offset < 0 || offset > info.Size() {
		return 0, fmt.Errorf("offset %d of a blob of %d bytes: %w", offset, info.Size(), berth.ErrInvalid)
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return 0, fmt.Errorf("open a blob: %w", err)
		}
	}
	return info.Size(), nil
}

// Delete implements Store.
func (d *Directory) Delete(_ context.Context, key Key) error {
	if err := key.Valid(); err != nil {
		return err
	}
	if err := os.Remove(d.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete a blob: %w", err)
	}
	return nil
}

// fullOr names a full disk for what it is.
func fullOr(doing string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%s: %w", doing, ErrFull)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// contextReader ends with the context and remembers the source's own error, so
// that it is not taken for one of the disk.
type contextReader struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		c.err = err
		return 0, err
	}
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
