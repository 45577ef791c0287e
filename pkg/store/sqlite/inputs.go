package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const uploadSelect = `SELECT id, size, received, created_at, hash_state FROM input_uploads
	WHERE digest = ?1 AND principal_kind = ?2 AND principal_id = ?3 AND stored_at IS NULL`

// loadUpload reads a principal's upload that is not stored yet.
func loadUpload(t *tx, owner berth.Principal, digest string) (store.InputUpload, bool, error) {
	return queryOne(t, func(r row) (u store.InputUpload, err error) {
		u.Digest = digest
		return u, r.Scan(&u.ID, &u.Size, &u.Received, at(&u.CreatedAt), &u.HashState)
	}, uploadSelect, digest, owner.Kind, owner.ID)
}

// BeginInput implements store.Inputs.
func (s *Store) BeginInput(ctx context.Context, p store.BeginInputParams) (u store.InputUpload, err error) {
	if p.Size > berth.MaxInputBytes {
		return u, berth.TooLarge("the input", p.Size, berth.MaxInputBytes)
	}
	err = s.write(ctx, "BeginInput", func(t *tx) error {
		stored, err := useInputs(t, berth.Scope{Owner: p.Actor.Principal}, []string{p.Digest})
		if err != nil {
			return err
		}
		if len(stored) > 0 {
			if stored[0].Size != p.Size {
				return berth.Invalid("size", fmt.Sprintf("the input of this digest has %d bytes", stored[0].Size), "send the file's size in bytes")
			}
			if _, lost, err := lostUpload(t, p.Digest, p.Lost); err != nil || !lost {
				u.Input = stored[0]
				return err
			}
		}
		u, err = beginUpload(t, p)
		return err
	})
	if err != nil {
		return store.InputUpload{}, err
	}
	return u, nil
}

// lostUpload is the upload that is a stored input, if the blob key is of it.
func lostUpload(t *tx, digest, key string) (id string, ok bool, err error) {
	if key == "" {
		return "", false, nil
	}
	return queryOne(t, scanText, `SELECT i.upload_id FROM inputs i WHERE i.digest = ?1
		AND EXISTS (SELECT 1 FROM input_parts p WHERE p.upload_id = i.upload_id AND p.blob_key = ?2)`, digest, key)
}

// beginUpload resumes the principal's upload, or begins one.
func beginUpload(t *tx, p store.BeginInputParams) (store.InputUpload, error) {
	u, ok, err := loadUpload(t, p.Actor.Principal, p.Digest)
	if err != nil {
		return u, err
	}
	var dropped []string
	if ok {
		if u.Size == p.Size {
			return u, t.execOne("UPDATE input_uploads SET updated_at = ?2 WHERE id = ?1", u.ID, micros(t.now))
		}
		if dropped, err = dropUploads(t, []string{u.ID}); err != nil {
			return u, err
		}
	}
	err = t.execOne(`INSERT INTO input_uploads (id, digest, principal_kind, principal_id, size, hash_state, created_at, updated_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)`,
		p.ID, p.Digest, p.Actor.Kind, p.Actor.ID, p.Size, p.HashState, micros(t.now))
	return store.InputUpload{
		ID: p.ID, HashState: p.HashState, Dropped: dropped,
		Input: berth.Input{Digest: p.Digest, Size: p.Size, CreatedAt: t.now},
	}, err
}

// dropUploads removes uploads and returns the keys of their blobs.
func dropUploads(t *tx, ids []string) ([]string, error) {
	keys, err := queryAll(t, scanText, `SELECT blob_key FROM input_parts
		WHERE upload_id IN (SELECT value FROM json_each(?1)) ORDER BY upload_id, start_at`, list(ids))
	if err != nil {
		return nil, err
	}
	_, err = t.exec("DELETE FROM input_uploads WHERE id IN (SELECT value FROM json_each(?1))", list(ids))
	return keys, err
}

// OpenInput implements store.Inputs.
func (s *Store) OpenInput(ctx context.Context, owner berth.Principal, digest string) (u store.InputUpload, err error) {
	err = s.read(ctx, "OpenInput", func(t *tx) error {
		var ok bool
		if u, ok, err = loadUpload(t, owner, digest); err == nil && !ok {
			err = notFound("upload")
		}
		return err
	})
	return u, err
}

// AppendInput implements store.Inputs.
func (s *Store) AppendInput(ctx context.Context, p store.AppendInputParams) (u store.InputUpload, err error) {
	wrong := false
	err = s.write(ctx, "AppendInput", func(t *tx) error {
		open, ok, err := loadUpload(t, p.Actor.Principal, p.Digest)
		switch {
		case err != nil:
			return err
		case !ok || open.ID != p.Upload:
			return notFound("upload")
		case p.Part.Offset != open.Received:
			return &berth.GapError{Next: open.Received}
		case p.Part.Size > berth.MaxInputPart || open.Received+p.Part.Size > open.Size:
			return &berth.TooLargeError{What: fmt.Sprintf("the part ends at byte %d, the input has %d", open.Received+p.Part.Size, open.Size)}
		}
		if err := addPart(t, &open, p); err != nil {
			return err
		}
		if open.Received < open.Size {
			u = open
			return nil
		}
		if wrong = p.Sum != p.Digest; wrong {
			u.Dropped, err = dropUploads(t, []string{open.ID})
			return err
		}
		u, err = storeInput(t, p, open)
		return err
	})
	if err != nil {
		return store.InputUpload{}, err
	}
	if wrong {
		return u, fmt.Errorf("the input's bytes have another digest: %w", berth.ErrMismatch)
	}
	return u, nil
}

func addPart(t *tx, open *store.InputUpload, p store.AppendInputParams) error {
	if p.Part.Size > 0 {
		err := t.execOne("INSERT INTO input_parts (upload_id, start_at, size, blob_key) VALUES (?1, ?2, ?3, ?4)",
			open.ID, p.Part.Offset, p.Part.Size, p.Part.BlobKey)
		if err != nil {
			return err
		}
	}
	open.Received, open.HashState = open.Received+p.Part.Size, p.HashState
	return t.execOne("UPDATE input_uploads SET received = ?2, hash_state = ?3, updated_at = ?4 WHERE id = ?1",
		open.ID, open.Received, open.HashState, micros(t.now))
}

// storeInput makes a whole upload the input of its digest, or drops it when
// another one was first, unless that one's bytes are lost.
func storeInput(t *tx, p store.AppendInputParams, open store.InputUpload) (u store.InputUpload, err error) {
	n, err := t.exec(`INSERT INTO inputs (digest, size, upload_id, created_at, last_used_at) VALUES (?1, ?2, ?3, ?4, ?4)
		ON CONFLICT DO NOTHING`, open.Digest, open.Size, open.ID, micros(t.now))
	if err != nil {
		return u, err
	}
	stored, useless := n == 1, open.ID
	if !stored {
		old, lost, err := lostUpload(t, open.Digest, p.Lost)
		if err != nil {
			return u, err
		}
		if lost {
			stored, useless = true, old
			if err := t.execOne("UPDATE inputs SET upload_id = ?2 WHERE digest = ?1", open.Digest, open.ID); err != nil {
				return u, err
			}
		}
	}
	if stored {
		if err := t.execOne("UPDATE input_uploads SET stored_at = ?2 WHERE id = ?1", open.ID, micros(t.now)); err != nil {
			return u, err
		}
	}
	if n == 0 {
		if u.Dropped, err = dropUploads(t, []string{useless}); err != nil {
			return u, err
		}
	}
	if _, err := t.exec(`INSERT INTO input_owners (digest, principal_kind, principal_id, created_at) VALUES (?1, ?2, ?3, ?4)
		ON CONFLICT DO NOTHING`, open.Digest, p.Actor.Kind, p.Actor.ID, micros(t.now)); err != nil {
		return u, err
	}
	used, err := useInputs(t, berth.Scope{All: true}, []string{open.Digest})
	if err != nil {
		return u, err
	}
	u.Input = used[0]
	return u, auditChange(t, p.Actor, berth.AuditInputStored, "input", open.Digest, "", berth.NumberFacts("size", open.Size))
}

const inputSelect = "SELECT i.digest, i.size, i.created_at, i.last_used_at FROM inputs i"

// inputSeen is the condition that a scope (parameters 1 to 3) sees input i.
const inputSeen = ` (?1 OR EXISTS (
	SELECT 1 FROM input_owners o WHERE o.principal_kind = ?2 AND o.principal_id = ?3 AND o.digest = i.digest))`

func inputScope(scope berth.Scope, more ...any) []any {
	return append([]any{scope.All, scope.Owner.Kind, scope.Owner.ID}, more...)
}

func scanInput(r row) (i berth.Input, err error) {
	err = r.Scan(&i.Digest, &i.Size, at(&i.CreatedAt), at(&i.LastUsedAt))
	i.Received, i.Stored = i.Size, true
	return i, err
}

// lastUsedEvery is how exact an input's last use is: submits of many tasks would
// write its row over and over.
const lastUsedEvery = time.Hour

// useInputs reads the stored inputs that scope sees, by digest, and notes their
// use.
func useInputs(t *tx, scope berth.Scope, digests []string) ([]berth.Input, error) {
	got, err := queryAll(t, scanInput, inputSelect+" WHERE"+inputSeen+" AND i.digest IN (SELECT value FROM json_each(?4)) ORDER BY i.digest",
		inputScope(scope, list(digests))...)
	if err != nil {
		return nil, err
	}
	for i := range got {
		if t.now.Sub(got[i].LastUsedAt) < lastUsedEvery {
			continue
		}
		got[i].LastUsedAt = t.now
		if err := t.execOne("UPDATE inputs SET last_used_at = ?2 WHERE digest = ?1", got[i].Digest, micros(t.now)); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// bindInputs fills in the sizes of the tasks' inputs; what is not stored or not
// to be used is a fault of its field.
func bindInputs(t *tx, scope berth.Scope, tasks []berth.NewTask) ([][]berth.InputRef, error) {
	var usable []berth.Input
	if digests := berth.InputDigests(tasks); len(digests) > 0 {
		var err error
		if usable, err = useInputs(t, scope, digests); err != nil {
			return nil, err
		}
	}
	return berth.BindInputs(tasks, usable)
}

// insertTaskInputs notes which inputs a task names.
func insertTaskInputs(t *tx, id berth.TaskID, refs []berth.InputRef) error {
	for _, in := range refs {
		if _, err := t.exec("INSERT INTO task_inputs (digest, task_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING", in.Digest, id); err != nil {
			return err
		}
	}
	return nil
}

// GetInput implements store.Inputs.
func (s *Store) GetInput(ctx context.Context, scope berth.Scope, digest string) (i berth.Input, err error) {
	err = s.read(ctx, "GetInput", func(t *tx) error {
		var ok bool
		i, ok, err = queryOne(t, scanInput, inputSelect+" WHERE"+inputSeen+" AND i.digest = ?4", inputScope(scope, digest)...)
		if err == nil && !ok {
			err = notFound("input")
		}
		return err
	})
	return i, err
}

// ListInputs implements store.Inputs.
func (s *Store) ListInputs(ctx context.Context, scope berth.Scope, p store.Page) (inputs []berth.Input, next string, err error) {
	err = s.read(ctx, "ListInputs", func(t *tx) error {
		inputs, err = queryAll(t, scanInput, inputSelect+" WHERE"+inputSeen+" AND i.digest > ?4 ORDER BY i.digest LIMIT ?5",
			inputScope(scope, p.After, p.Limit()+1)...)
		return err
	})
	inputs, next = page(inputs, p.Limit(), func(i berth.Input) string { return i.Digest })
	return inputs, next, err
}

// InputParts implements store.Inputs.
func (s *Store) InputParts(ctx context.Context, scope berth.Scope, digest string) (parts []berth.InputPart, err error) {
	err = s.read(ctx, "InputParts", func(t *tx) error {
		_, parts, err = inputParts(t, inputSeen+" AND i.digest = ?4", inputScope(scope, digest)...)
		return err
	})
	return parts, err
}

// AttemptInput implements store.Inputs.
func (s *Store) AttemptInput(ctx context.Context, call store.AgentCall, digest string) (i berth.Input, parts []berth.InputPart, err error) {
	err = s.read(ctx, "AttemptInput", func(t *tx) error {
		if _, err := callingHost(t, call); err != nil {
			return err
		}
		i, parts, err = inputParts(t, ` i.digest = ?1 AND EXISTS (
			SELECT 1 FROM attempts a JOIN task_inputs n ON n.task_id = a.task_id AND n.digest = i.digest
			WHERE a.host_id = ?2 AND a.ended_at IS NULL)`, digest, call.Host)
		return err
	})
	return i, parts, err
}

// inputParts reads an input with its parts.
func inputParts(t *tx, where string, args ...any) (i berth.Input, parts []berth.InputPart, err error) {
	type found struct {
		berth.Input
		upload string
	}
	f, ok, err := queryOne(t, func(r row) (f found, err error) {
		return f, r.Scan(&f.Digest, &f.Size, at(&f.CreatedAt), at(&f.LastUsedAt), &f.upload)
	}, "SELECT i.digest, i.size, i.created_at, i.last_used_at, i.upload_id FROM inputs i WHERE"+where, args...)
	if err != nil || !ok {
		return i, nil, orNotFound(err, "input")
	}
	f.Received, f.Stored = f.Size, true
	parts, err = queryAll(t, func(r row) (p berth.InputPart, err error) {
		return p, r.Scan(&p.Offset, &p.Size, &p.BlobKey)
	}, "SELECT start_at, size, blob_key FROM input_parts WHERE upload_id = ?1 ORDER BY start_at", f.upload)
	return f.Input, parts, err
}

// ExpireInputs implements store.Inputs.
func (s *Store) ExpireInputs(ctx context.Context, actor berth.Actor, limit int) (keys []string, err error) {
	err = s.write(ctx, "ExpireInputs", func(t *tx) error {
		stale, err := queryAll(t, scanText, `SELECT id FROM input_uploads WHERE stored_at IS NULL AND updated_at < ?1
			ORDER BY updated_at LIMIT ?2`, micros(t.now.Add(-berth.InputUploadWithin)), limit)
		if err != nil {
			return err
		}
		if keys, err = dropUploads(t, stale); err != nil {
			return err
		}
		more, err := expireUnused(t, actor, limit)
		keys = append(keys, more...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return keys, nil
}

func expireUnused(t *tx, actor berth.Actor, limit int) ([]string, error) {
	type unused struct {
		digest, upload string
		size           int64
	}
	gone, err := queryAll(t, func(r row) (u unused, err error) {
		return u, r.Scan(&u.digest, &u.upload, &u.size)
	}, `SELECT i.digest, i.upload_id, i.size FROM inputs i
		WHERE i.last_used_at < ?1 AND NOT EXISTS (SELECT 1 FROM task_inputs n WHERE n.digest = i.digest)
			AND NOT EXISTS (SELECT 1 FROM schedule_inputs n WHERE n.digest = i.digest)
		ORDER BY i.last_used_at LIMIT ?2`, micros(t.now.Add(-berth.InputUnusedFor)), limit)
	if err != nil {
		return nil, err
	}
	var uploads []string
	for _, u := range gone {
		uploads = append(uploads, u.upload)
		if err := t.execOne("DELETE FROM inputs WHERE digest = ?1", u.digest); err != nil {
			return nil, err
		}
		if err := auditChange(t, actor, berth.AuditInputExpired, "input", u.digest, berth.NumberFacts("size", u.size), ""); err != nil {
			return nil, err
		}
	}
	return dropUploads(t, uploads)
}

// UnknownBlobs implements store.Keeping.
func (s *Store) UnknownBlobs(ctx context.Context, keys []string) (unknown []string, err error) {
	err = s.read(ctx, "UnknownBlobs", func(t *tx) error {
		unknown, err = queryAll(t, scanText, `SELECT k.value FROM json_each(?1) k
			WHERE NOT EXISTS (SELECT 1 FROM log_chunks c WHERE c.blob_key = k.value)
			AND NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.blob_key = k.value)
			AND NOT EXISTS (SELECT 1 FROM input_parts p WHERE p.blob_key = k.value)
			ORDER BY k.key`, list(keys))
		return err
	})
	return unknown, err
}
