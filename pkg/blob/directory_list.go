package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Tidy implements Store.
func (d *Directory) Tidy(ctx context.Context, olderThan time.Time) error {
	if latest := time.Now().Add(-staleAfter); olderThan.After(latest) {
		olderThan = latest
	}
	if err := d.sweep(ctx, olderThan); err != nil {
		return fmt.Errorf("tidy the blob directory: %w", err)
	}
	return nil
}

// List implements Store. Its order is the paths': a page reads only the
// directories from where the last one ended.
func (d *Directory) List(ctx context.Context, prefix string, after Key, limit int) ([]Info, error) {
	from := ""
	if after != "" {
		if err := after.Valid(); err != nil {
			return nil, err
		}
		from = d.path(after)
	}
	l := listing{prefix: prefix, from: from, limit: limit}
	if err := l.walk(ctx, d.root, 0); err != nil {
		return nil, fmt.Errorf("list blobs: %w", err)
	}
	return l.blobs, nil
}

// levels of directories below the root.
const levels = 2

type listing struct {
	prefix, from string
	limit        int
	blobs        []Info
}

// walk lists what is in dir, which is so many levels below the root.
func (l *listing) walk(ctx context.Context, dir string, level int) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case len(l.blobs) >= l.limit:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case level < levels && entry.IsDir():
			// A directory is over when all of its paths come before from.
			if path+string(filepath.Separator) < l.from && !strings.HasPrefix(l.from, path+string(filepath.Separator)) {
				continue
			}
			err = l.walk(ctx, path, level+1)
		case level == levels && entry.Type().IsRegular() && path > l.from:
			err = l.add(entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add notes a file that is a blob of the prefix.
func (l *listing) add(entry fs.DirEntry) error {
	key := Key(strings.ReplaceAll(entry.Name(), "~", "/"))
	if key.Valid() != nil || !strings.HasPrefix(string(key), l.prefix) {
		return nil
	}
	info, err := entry.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		l.blobs = append(l.blobs, Info{Key: key, Size: info.Size(), ModTime: info.ModTime()})
	}
	return err
}
