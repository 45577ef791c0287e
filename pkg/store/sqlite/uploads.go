package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// uploadTo finds the attempt that a host may still write a log or artifacts
// under: its own live one, or one that ended within UploadWindow.
func uploadTo(t *tx, p store.HolderParams) (attempt, error) {
	if _, err := callingHost(t, p.AgentCall); err != nil {
		return attempt{}, err
	}
	a, ok, err := loadAttempt(t, p.Attempt)
	if err != nil {
		return a, err
	}
	if !ok || a.Host != p.Host {
		return a, notFound("attempt")
	}
	if a.Fence != p.Fence || !a.Live() && t.now.Sub(a.EndedAt) > store.UploadWindow {
		return a, berth.ErrLeaseLost
	}
	return a, nil
}

// CheckUpload implements store.Agents.
func (s *Store) CheckUpload(ctx context.Context, p store.HolderParams) error {
	return s.read(ctx, "CheckUpload", func(t *tx) error {
		_, err := uploadTo(t, p)
		return err
	})
}

// storedChunk is a chunk as it is compared with a repeat.
type storedChunk struct {
	size    int64
	sha256  []byte
	blobKey string
}

// AppendLog implements store.Agents.
func (s *Store) AppendLog(ctx context.Context, p store.AppendLogParams) (next int64, stored bool, err error) {
	if err := store.CheckChunk(p.Chunk); err != nil {
		return 0, false, err
	}
	sum, err := digestBytes(p.Chunk.SHA256)
	if err != nil {
		return 0, false, err
	}
	err = s.write(ctx, "AppendLog", func(t *tx) error {
		a, err := uploadTo(t, p.HolderParams)
		if err != nil {
			return err
		}
		next, stored, err = appendChunk(t, a, p.Chunk, sum)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return next, stored, nil
}

func appendChunk(t *tx, a attempt, c berth.LogChunk, sum []byte) (next int64, stored bool, err error) {
	switch {
	case c.Offset > a.LogBytes:
		return 0, false, &berth.GapError{Next: a.LogBytes}
	case c.Offset < a.LogBytes:
		old, ok, err := queryOne(t, func(r row) (o storedChunk, err error) {
			return o, r.Scan(&o.size, &o.sha256, &o.blobKey)
		}, "SELECT size, sha256, blob_key FROM log_chunks WHERE attempt_id = ?1 AND start_at = ?2", a.ID, c.Offset)
		if err != nil {
			return 0, false, err
		}
		if !ok || old.size != c.Size || !bytes.Equal(old.sha256, sum) {
			return 0, false, berth.ErrMismatch
		}
		return a.LogBytes, old.blobKey == c.BlobKey, nil
	case c.Offset+c.Size > store.MaxLogBytes:
		return 0, false, berth.TooLarge("the log with this chunk", c.Offset+c.Size, store.MaxLogBytes)
	}
	err = t.execOne("INSERT INTO log_chunks (attempt_id, start_at, size, sha256, blob_key) VALUES (?1, ?2, ?3, ?4, ?5)",
		a.ID, c.Offset, c.Size, sum, c.BlobKey)
	if err != nil {
		return 0, false, err
	}
	hintOf(t, store.HintTask, a.Task)
	next = c.Offset + c.Size
	return next, true, t.execOne("UPDATE attempts SET log_bytes = ?2 WHERE id = ?1", a.ID, next)
}

// AddArtifact implements store.Agents.
func (s *Store) AddArtifact(ctx context.Context, p store.AddArtifactParams) (stored bool, err error) {
	if err := store.CheckArtifact(p.Artifact); err != nil {
		return false, err
	}
	sum, err := digestBytes(p.Artifact.SHA256)
	if err != nil {
		return false, err
	}
	err = s.write(ctx, "AddArtifact", func(t *tx) error {
		a, err := uploadTo(t, p.HolderParams)
		if err != nil {
			return err
		}
		stored, err = addArtifact(t, a, p.Artifact, sum)
		return err
	})
	if err != nil {
		return false, err
	}
	return stored, nil
}

func addArtifact(t *tx, a attempt, art berth.Artifact, sum []byte) (bool, error) {
	old, ok, err := queryOne(t, func(r row) (b []byte, err error) { return b, r.Scan(&b) },
		"SELECT sha256 FROM artifacts WHERE attempt_id = ?1 AND name = ?2", a.ID, art.Name)
	if err != nil {
		return false, err
	}
	if ok {
		if !bytes.Equal(old, sum) {
			return false, berth.ErrMismatch
		}
		return false, nil
	}
	type usage struct{ count, bytes int64 }
	used, _, err := queryOne(t, func(r row) (u usage, err error) { return u, r.Scan(&u.count, &u.bytes) },
		"SELECT count(*), coalesce(sum(size), 0) FROM artifacts WHERE attempt_id = ?1", a.ID)
	if err != nil {
		return false, err
	}
	switch {
	case used.count >= store.MaxArtifacts:
		return false, &berth.TooLargeError{What: fmt.Sprintf("the attempt has %d artifacts already, and more are not allowed", used.count)}
	case art.Size > store.MaxArtifactBytes:
		return false, berth.TooLarge("the artifact", art.Size, store.MaxArtifactBytes)
	case used.bytes+art.Size > store.MaxAttemptArtifacts:
		return false, berth.TooLarge("the attempt with this artifact", used.bytes+art.Size, store.MaxAttemptArtifacts)
	}
	hintOf(t, store.HintTask, a.Task)
	return true, t.execOne(`INSERT INTO artifacts (attempt_id, name, task_id, number, class, content_type, size, sha256, blob_key, created_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
		a.ID, art.Name, a.Task, a.Number, art.Class, art.ContentType, art.Size, sum, art.BlobKey, micros(t.now))
}

// missingArtifacts names, sorted, the listed artifacts that are not stored with
// that digest (I3).
func missingArtifacts(t *tx, id berth.AttemptID, listed map[string]string) ([]string, error) {
	if len(listed) == 0 {
		return nil, nil
	}
	all, err := queryAll(t, scanArtifact, artifactSelect+" WHERE attempt_id = ?1", id)
	if err != nil {
		return nil, err
	}
	have := make(map[string]string, len(all))
	for _, a := range all {
		have[a.Name] = a.SHA256
	}
	var missing []string
	for name, sum := range listed {
		if got, ok := have[name]; !ok || got != sum {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing, nil
}

const artifactSelect = "SELECT attempt_id, task_id, number, name, class, content_type, size, sha256, blob_key, created_at FROM artifacts"

func scanArtifact(r row) (a berth.Artifact, err error) {
	return a, r.Scan(&a.Attempt, &a.Task, &a.Number, &a.Name, &a.Class, &a.ContentType, &a.Size, digest(&a.SHA256), &a.BlobKey, at(&a.CreatedAt))
}

// ListArtifacts implements store.Tasks.
func (s *Store) ListArtifacts(ctx context.Context, scope berth.Scope, id berth.TaskID) (artifacts []berth.Artifact, err error) {
	err = s.read(ctx, "ListArtifacts", func(t *tx) error {
		if err := seeTask(t, scope, id); err != nil {
			return err
		}
		artifacts, err = queryAll(t, scanArtifact, artifactSelect+" WHERE task_id = ?1 ORDER BY number, name", id)
		return err
	})
	return artifacts, err
}

// GetArtifact implements store.Tasks.
func (s *Store) GetArtifact(ctx context.Context, scope berth.Scope, id berth.TaskID, number int, name string) (artifact berth.Artifact, err error) {
	err = s.read(ctx, "GetArtifact", func(t *tx) error {
		if err := seeTask(t, scope, id); err != nil {
			return err
		}
		var ok bool
		artifact, ok, err = queryOne(t, scanArtifact, artifactSelect+" WHERE task_id = ?1 AND number = ?2 AND name = ?3", id, number, name)
		if err == nil && !ok {
			err = notFound("artifact")
		}
		return err
	})
	return artifact, err
}

// ReadLog implements store.Tasks.
func (s *Store) ReadLog(ctx context.Context, p store.ReadLogParams) (chunks []berth.LogChunk, ended bool, err error) {
	limit := p.Limit
	if limit <= 0 {
		limit = 100
	}
	type found struct {
		id    berth.AttemptID
		ended bool
	}
	err = s.read(ctx, "ReadLog", func(t *tx) error {
		if err := seeTask(t, p.Scope, p.Task); err != nil {
			return err
		}
		a, ok, err := queryOne(t, func(r row) (f found, err error) { return f, r.Scan(&f.id, &f.ended) },
			"SELECT id, ended_at IS NOT NULL FROM attempts WHERE task_id = ?1 AND number = ?2", p.Task, p.Number)
		if err != nil || !ok {
			return orNotFound(err, "attempt")
		}
		ended = a.ended
		// Chunks touch without gaps, so the first one is the last that starts at
		// or before the offset: no look at all that went before.
		chunks, err = queryAll(t, func(r row) (c berth.LogChunk, err error) {
			return c, r.Scan(&c.Attempt, &c.Offset, &c.Size, digest(&c.SHA256), &c.BlobKey)
		}, `SELECT attempt_id, start_at, size, sha256, blob_key FROM log_chunks
			WHERE attempt_id = ?1 AND start_at + size > ?2
			AND start_at >= coalesce((SELECT max(start_at) FROM log_chunks WHERE attempt_id = ?1 AND start_at <= ?2), 0)
			ORDER BY start_at LIMIT ?3`, a.id, p.Offset, limit)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return chunks, ended, nil
}
