package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// upload is the attempt that a log chunk or an artifact belongs to.
type upload struct {
	task     berth.TaskID
	number   int
	logBytes int64
	now      time.Time
}

// judgeUpload reads, after the locks, whether the host may still write under
// (attempt, fence).
func (t *tx) judgeUpload(p store.HolderParams) (upload, error) {
	h, err := t.judgeCaller(p.Host, p.Epoch)
	if err != nil {
		return upload{}, err
	}
	type row struct {
		upload
		fence berth.Fence
		ended time.Time
	}
	a, err := found(t, "attempt", func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.task, &r.number, &r.logBytes, &r.fence, instant(&r.ended))
	}, `SELECT task_id, number, log_bytes, fence, ended_at FROM attempts WHERE id = $1 AND host_id = $2`, uid(p.Attempt), uid(p.Host))
	if err != nil {
		return upload{}, err
	}
	a.now = h.now
	switch {
	case a.fence != p.Fence:
		return upload{}, fmt.Errorf("the attempt's fence is %d: %w", a.fence, berth.ErrLeaseLost)
	case !a.ended.IsZero() && h.now.Sub(a.ended) > store.UploadWindow:
		return upload{}, fmt.Errorf("the attempt ended %v ago: %w", h.now.Sub(a.ended).Round(time.Second), berth.ErrLeaseLost)
	}
	return a.upload, nil
}

// CheckUpload is documented at store.Agents.
func (s *Store) CheckUpload(ctx context.Context, p store.HolderParams) error {
	return s.read(ctx, "CheckUpload", func(t *tx) error {
		_, err := t.judgeUpload(p)
		return err
	})
}

// lockUpload locks the attempt's row, which orders all that is written under it.
func (t *tx) lockUpload(p store.HolderParams) (upload, error) {
	if _, err := t.lockAttempts([]berth.AttemptID{p.Attempt}, p.Host); err != nil {
		return upload{}, err
	}
	return t.judgeUpload(p)
}

// AppendLog is documented at store.Agents.
func (s *Store) AppendLog(ctx context.Context, p store.AppendLogParams) (next int64, stored bool, err error) {
	if err := store.CheckChunk(p.Chunk); err != nil {
		return 0, false, err
	}
	err = s.write(ctx, "AppendLog", func(t *tx) error {
		next, stored = 0, false
		a, err := t.lockUpload(p.HolderParams)
		if err != nil {
			return err
		}
		c := p.Chunk
		switch next = a.logBytes; {
		case c.Offset > next:
			return &berth.GapError{Next: next}
		case c.Offset < next:
			stored, err = t.sameChunk(p)
			return err
		case next+c.Size > store.MaxLogBytes:
			return berth.TooLarge("the log with this chunk", next+c.Size, store.MaxLogBytes)
		}
		if _, err := t.exec(`INSERT INTO log_chunks (attempt_id, start_at, size, sha256, blob_key) VALUES ($1, $2, $3, $4, $5)`,
			uid(p.Attempt), c.Offset, c.Size, digestOf(c.SHA256), c.BlobKey); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE attempts SET log_bytes = $3 WHERE task_id = $1 AND number = $2`,
			uid(a.task), a.number, next+c.Size); err != nil {
			return err
		}
		next, stored = next+c.Size, true
		t.hint(store.HintTask, string(a.task))
		return nil
	})
	return committed(next, stored, err)
}

// sameChunk is nil when what is stored at the chunk's offset is the chunk, and
// reports whether its blob is the one in use.
func (t *tx) sameChunk(p store.AppendLogParams) (bool, error) {
	old, ok, err := first(t, scanChunk, `
SELECT attempt_id, start_at, size, encode(sha256, 'hex'), blob_key FROM log_chunks WHERE attempt_id = $1 AND start_at = $2`,
		uid(p.Attempt), p.Chunk.Offset)
	if err == nil && (!ok || old.Size != p.Chunk.Size || old.SHA256 != p.Chunk.SHA256) {
		err = fmt.Errorf("log at offset %d: %w", p.Chunk.Offset, berth.ErrMismatch)
	}
	return err == nil && old.BlobKey == p.Chunk.BlobKey, err
}

// AddArtifact is documented at store.Agents.
func (s *Store) AddArtifact(ctx context.Context, p store.AddArtifactParams) (stored bool, err error) {
	if err := store.CheckArtifact(p.Artifact); err != nil {
		return false, err
	}
	err = s.write(ctx, "AddArtifact", func(t *tx) error {
		stored = false
		a, err := t.lockUpload(p.HolderParams)
		if err != nil {
			return err
		}
		sum, known, err := first(t, column[[]byte], `SELECT sha256 FROM artifacts WHERE attempt_id = $1 AND name = $2`,
			uid(p.Attempt), p.Artifact.Name)
		switch {
		case err != nil:
			return err
		case known && bytes.Equal(sum, digestOf(p.Artifact.SHA256)):
			return nil
		case known:
			return fmt.Errorf("artifact %s: %w", p.Artifact.Name, berth.ErrMismatch)
		}
		if err := t.roomFor(p); err != nil {
			return err
		}
		_, err = t.exec(`
INSERT INTO artifacts (attempt_id, name, task_id, number, class, content_type, size, sha256, blob_key, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			uid(p.Attempt), p.Artifact.Name, uid(a.task), a.number, string(p.Artifact.Class), clean(p.Artifact.ContentType),
			p.Artifact.Size, digestOf(p.Artifact.SHA256), p.Artifact.BlobKey, a.now)
		stored = err == nil
		t.hint(store.HintTask, string(a.task))
		return err
	})
	return only(stored, err)
}

// roomFor is berth.ErrTooLarge when one more artifact would pass a limit.
func (t *tx) roomFor(p store.AddArtifactParams) error {
	type row struct{ count, bytes int64 }
	have, _, err := first(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.count, &r.bytes)
	}, `SELECT count(*), COALESCE(sum(size), 0)::bigint FROM artifacts WHERE attempt_id = $1`, uid(p.Attempt))
	switch {
	case err != nil:
		return err
	case have.count >= store.MaxArtifacts:
		return &berth.TooLargeError{What: fmt.Sprintf("the attempt has %d artifacts already, and more are not allowed", have.count)}
	case p.Artifact.Size > store.MaxArtifactBytes:
		return berth.TooLarge("the artifact", p.Artifact.Size, store.MaxArtifactBytes)
	case have.bytes+p.Artifact.Size > store.MaxAttemptArtifacts:
		return berth.TooLarge("the attempt with this artifact", have.bytes+p.Artifact.Size, store.MaxAttemptArtifacts)
	}
	return nil
}
