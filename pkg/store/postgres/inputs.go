package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// openUpload is a principal's upload that is not stored yet.
type openUpload struct {
	id             string
	size, received int64
	created        time.Time
	state          []byte
	now            time.Time
}

const uploadColumns = `
SELECT id, size, received, created_at, hash_state, berth_now() FROM input_uploads
WHERE digest = $1 AND principal_kind = $2 AND principal_id = $3 AND stored_at IS NULL`

func scanUpload(row pgx.CollectableRow) (u openUpload, err error) {
	return u, row.Scan(&u.id, &u.size, &u.received, &u.created, &u.state, &u.now)
}

func (u openUpload) answer(digest string) store.InputUpload {
	return store.InputUpload{
		ID: u.id, HashState: u.state,
		Input: berth.Input{Digest: digest, Size: u.size, Received: u.received, CreatedAt: u.created},
	}
}

// lockUploadOf locks a principal's open upload; ok is false when there is none.
func (t *tx) lockUploadOf(owner berth.Principal, digest string) (u openUpload, ok bool, err error) {
	u, ok, err = first(t, scanUpload, uploadColumns+` FOR UPDATE`, digestOf(digest), string(owner.Kind), owner.ID)
	if err != nil || !ok {
		return u, ok, err
	}
	u.now, err = t.now() // the lock may have been waited for
	return u, true, err
}

// BeginInput is documented at store.Inputs.
func (s *Store) BeginInput(ctx context.Context, p store.BeginInputParams) (u store.InputUpload, err error) {
	if p.Size > berth.MaxInputBytes {
		return u, berth.TooLarge("the input", p.Size, berth.MaxInputBytes)
	}
	err = s.write(ctx, "BeginInput", func(t *tx) error {
		u = store.InputUpload{}
		open, ok, err := t.lockUploadOf(p.Actor.Principal, p.Digest)
		if err != nil {
			return err
		}
		stored, known, err := t.useInput(berth.Scope{Owner: p.Actor.Principal}, p.Digest)
		lost := false
		if err == nil && known && p.Lost != "" {
			_, lost, err = first(t, column[string], lostUpload, digestOf(p.Digest), p.Lost)
		}
		switch {
		case err != nil:
			return err
		case known && stored.Size != p.Size:
			return berth.Invalid("size", fmt.Sprintf("the input of this digest has %d bytes", stored.Size), "send the file's size in bytes")
		case known && !lost:
			u.Input = stored
			return nil
		case ok && open.size == p.Size:
			u = open.answer(p.Digest)
			_, err = t.exec(`UPDATE input_uploads SET updated_at = $2 WHERE id = $1`, uid(open.id), open.now)
			return err
		case ok:
			if u.Dropped, err = t.dropUploads([]string{open.id}); err != nil {
				return err
			}
		}
		dropped := u.Dropped
		u, err = t.newUpload(p)
		u.Dropped = dropped
		return err
	})
	return only(u, err)
}

// lostUpload is the upload that is a stored input ($1), if the blob $2 is of it.
const lostUpload = `
SELECT i.upload_id FROM inputs i
WHERE i.digest = $1 AND EXISTS (SELECT 1 FROM input_parts p WHERE p.upload_id = i.upload_id AND p.blob_key = $2)`

func (t *tx) newUpload(p store.BeginInputParams) (store.InputUpload, error) {
	made, ok, err := first(t, scanUpload, `
INSERT INTO input_uploads (id, digest, principal_kind, principal_id, size, hash_state, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, berth_now(), berth_now()) ON CONFLICT DO NOTHING
RETURNING id, size, received, created_at, hash_state, berth_now()`,
		uid(p.ID), digestOf(p.Digest), string(p.Actor.Kind), p.Actor.ID, p.Size, p.HashState)
	if err == nil && !ok {
		err = errStartOver // another call of the principal began it just now
	}
	return made.answer(p.Digest), err
}

// dropUploads removes uploads and returns the keys of their blobs.
func (t *tx) dropUploads(ids []string) ([]string, error) {
	keys, err := collect(t, column[string], `
SELECT blob_key FROM input_parts WHERE upload_id = ANY ($1) ORDER BY upload_id, start_at`, uids(ids))
	if err != nil {
		return nil, err
	}
	_, err = t.exec(`DELETE FROM input_uploads WHERE id = ANY ($1)`, uids(ids))
	return keys, err
}

// OpenInput is documented at store.Inputs.
func (s *Store) OpenInput(ctx context.Context, owner berth.Principal, digest string) (u store.InputUpload, err error) {
	err = s.read(ctx, "OpenInput", func(t *tx) error {
		open, err := found(t, "upload", scanUpload, uploadColumns, digestOf(digest), string(owner.Kind), owner.ID)
		u = open.answer(digest)
		return err
	})
	return only(u, err)
}

// AppendInput is documented at store.Inputs.
func (s *Store) AppendInput(ctx context.Context, p store.AppendInputParams) (u store.InputUpload, err error) {
	var wrong bool
	err = s.write(ctx, "AppendInput", func(t *tx) error {
		u, wrong = store.InputUpload{}, false
		open, ok, err := t.lockUploadOf(p.Actor.Principal, p.Digest)
		switch {
		case err != nil:
			return err
		case !ok || open.id != p.Upload:
			return fmt.Errorf("upload: %w", berth.ErrNotFound)
		case p.Part.Offset != open.received:
			return &berth.GapError{Next: open.received}
		case p.Part.Size > berth.MaxInputPart || open.received+p.Part.Size > open.size:
			return &berth.TooLargeError{What: fmt.Sprintf("the part ends at byte %d, the input has %d", open.received+p.Part.Size, open.size)}
		}
		if err := t.addPart(&open, p); err != nil {
			return err
		}
		if open.received < open.size {
			u = open.answer(p.Digest)
			return nil
		}
		if wrong = p.Sum != p.Digest; wrong {
			u.Dropped, err = t.dropUploads([]string{open.id})
			return err
		}
		u, err = t.storeInput(p, open)
		return err
	})
	if err == nil && wrong {
		return u, fmt.Errorf("the input's bytes have another digest: %w", berth.ErrMismatch)
	}
	return only(u, err)
}

func (t *tx) addPart(open *openUpload, p store.AppendInputParams) error {
	if p.Part.Size > 0 {
		if _, err := t.exec(`INSERT INTO input_parts (upload_id, start_at, size, blob_key) VALUES ($1, $2, $3, $4)`,
			uid(open.id), p.Part.Offset, p.Part.Size, p.Part.BlobKey); err != nil {
			return err
		}
	}
	open.received, open.state = open.received+p.Part.Size, p.HashState
	_, err := t.exec(`UPDATE input_uploads SET received = $2, hash_state = $3, updated_at = $4 WHERE id = $1`,
		uid(open.id), open.received, open.state, open.now)
	return err
}

// storeInput makes a whole upload the input of its digest, or drops it when
// another one was first, unless that one's bytes are lost.
func (t *tx) storeInput(p store.AppendInputParams, open openUpload) (u store.InputUpload, err error) {
	actor, digest := p.Actor, p.Digest
	n, err := t.exec(`
INSERT INTO inputs (digest, size, upload_id, created_at, last_used_at) VALUES ($1, $2, $3, $4, $4) ON CONFLICT DO NOTHING`,
		digestOf(digest), open.size, uid(open.id), open.now)
	if err != nil {
		return u, err
	}
	stored, useless := n == 1, open.id
	if !stored && p.Lost != "" {
		if useless, stored, err = t.replaceLost(p, open); err != nil {
			return u, err
		}
	}
	if stored {
		if _, err = t.exec(`UPDATE input_uploads SET stored_at = $2 WHERE id = $1`, uid(open.id), open.now); err != nil {
			return u, err
		}
	}
	if n == 0 {
		if u.Dropped, err = t.dropUploads([]string{useless}); err != nil {
			return u, err
		}
	}
	if _, ok, err := t.useInput(berth.Scope{All: true}, digest); err != nil || !ok {
		if err == nil {
			err = errStartOver // the other one expired meanwhile
		}
		return u, err
	}
	if _, err := t.exec(`
INSERT INTO input_owners (digest, principal_kind, principal_id, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
		digestOf(digest), string(actor.Kind), actor.ID, open.now); err != nil {
		return u, err
	}
	if err := t.auditChange(actor, open.now, berth.AuditInputStored, "input", digest, "", berth.NumberFacts("size", open.size)); err != nil {
		return u, err
	}
	u.Input, err = found(t, "input", scanInput, inputColumns+` WHERE i.digest = $1`, digestOf(digest))
	return u, err
}

// replaceLost lets an upload be the input in place of the one whose part is lost,
// and returns the one that is of no use now: that one, or the new one where
// another has taken its place meanwhile.
func (t *tx) replaceLost(p store.AppendInputParams, open openUpload) (useless string, replaced bool, err error) {
	old, ok, err := first(t, column[string], lostUpload+` FOR NO KEY UPDATE OF i`, digestOf(p.Digest), p.Lost)
	if err != nil || !ok {
		return open.id, false, err
	}
	_, err = t.exec(`UPDATE inputs SET upload_id = $2 WHERE digest = $1`, digestOf(p.Digest), uid(open.id))
	return old, true, err
}

const inputColumns = `SELECT encode(i.digest, 'hex'), i.size, i.created_at, i.last_used_at FROM inputs i`

// inputSeen is the condition that a scope (parameters $1 to $3) sees input i.
const inputSeen = ` ($1 OR EXISTS (
    SELECT 1 FROM input_owners o WHERE o.principal_kind = $2 AND o.principal_id = $3 AND o.digest = i.digest))`

func inputScope(scope berth.Scope, more ...any) []any {
	return append([]any{scope.All, string(scope.Owner.Kind), scope.Owner.ID}, more...)
}

func scanInput(row pgx.CollectableRow) (i berth.Input, err error) {
	err = row.Scan(&i.Digest, &i.Size, &i.CreatedAt, &i.LastUsedAt)
	i.Received, i.Stored = i.Size, true
	return i, err
}

// lastUsedEvery is how exact an input's last use is: submits of many tasks would
// write its row over and over.
const lastUsedEvery = time.Hour

// useInput keeps a stored input that scope sees from expiring until the
// transaction ends, and notes its use; ok is false when there is none.
func (t *tx) useInput(scope berth.Scope, digest string) (i berth.Input, ok bool, err error) {
	got, err := t.useInputs(scope, [][]byte{digestOf(digest)})
	if err != nil || len(got) == 0 {
		return i, false, err
	}
	return got[0], true, nil
}

// useInputs is useInput for many, locked ascending by digest.
func (t *tx) useInputs(scope berth.Scope, digests [][]byte) ([]berth.Input, error) {
	got, err := collect(t, scanInput, inputColumns+`
WHERE`+inputSeen+` AND i.digest = ANY ($4) ORDER BY i.digest FOR KEY SHARE OF i`, inputScope(scope, digests)...)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	now, err := t.now()
	if err != nil {
		return nil, err
	}
	var due [][]byte
	for i := range got {
		if now.Sub(got[i].LastUsedAt) >= lastUsedEvery {
			due, got[i].LastUsedAt = append(due, digestOf(got[i].Digest)), now
		}
	}
	if len(due) > 0 {
		// Whoever holds a row just now notes the same hour.
		_, err = t.exec(`
WITH due AS MATERIALIZED (
    SELECT digest FROM inputs WHERE digest = ANY ($1) ORDER BY digest FOR NO KEY UPDATE SKIP LOCKED)
UPDATE inputs i SET last_used_at = GREATEST(i.last_used_at, $2) FROM due WHERE i.digest = due.digest`, due, now)
	}
	return got, err
}

// bindInputs fills in the sizes of the tasks' inputs and keeps them from
// expiring; what is not stored or not to be used is a fault of its field.
func (t *tx) bindInputs(scope berth.Scope, tasks []berth.NewTask) ([][]berth.InputRef, error) {
	var usable []berth.Input
	if digests := berth.InputDigests(tasks); len(digests) > 0 {
		var err error
		if usable, err = t.useInputs(scope, mapped(digests, digestOf)); err != nil {
			return nil, err
		}
	}
	return berth.BindInputs(tasks, usable)
}

// insertTaskInputs notes which tasks name which inputs.
func (t *tx) insertTaskInputs(tasks []berth.Task) error {
	var digests [][]byte
	var ids []pgtype.UUID
	for _, k := range tasks {
		for _, in := range k.Inputs {
			digests, ids = append(digests, digestOf(in.Digest)), append(ids, uid(k.ID))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := t.exec(`
INSERT INTO task_inputs (digest, task_id) SELECT DISTINCT * FROM unnest($1::bytea[], $2::uuid[])`, digests, ids)
	return err
}

// inputsJSON is how a task's inputs are stored.
func inputsJSON(refs []berth.InputRef) string {
	if len(refs) == 0 {
		return "[]"
	}
	b, err := json.Marshal(refs)
	if err != nil {
		panic("postgres: " + err.Error()) // texts and a number
	}
	return string(b)
}

// inputRefs scans what inputsJSON stored.
func inputRefs(stored []byte) (refs []berth.InputRef, err error) {
	if err = json.Unmarshal(stored, &refs); len(refs) == 0 {
		refs = nil
	}
	return refs, err
}

// GetInput is documented at store.Inputs.
func (s *Store) GetInput(ctx context.Context, scope berth.Scope, digest string) (i berth.Input, err error) {
	err = s.read(ctx, "GetInput", func(t *tx) error {
		i, err = found(t, "input", scanInput, inputColumns+` WHERE`+inputSeen+` AND i.digest = $4`, inputScope(scope, digestOf(digest))...)
		return err
	})
	return i, err
}

// ListInputs is documented at store.Inputs.
func (s *Store) ListInputs(ctx context.Context, scope berth.Scope, page store.Page) (inputs []berth.Input, next string, err error) {
	err = s.read(ctx, "ListInputs", func(t *tx) error {
		inputs, err = collect(t, scanInput, inputColumns+` WHERE`+inputSeen+` AND i.digest > $4 ORDER BY i.digest LIMIT $5`,
			inputScope(scope, digestOf(page.After), page.Limit()+1)...)
		return err
	})
	inputs, next = cut(inputs, page, func(i berth.Input) string { return i.Digest })
	return inputs, next, err
}

// InputParts is documented at store.Inputs.
func (s *Store) InputParts(ctx context.Context, scope berth.Scope, digest string) (parts []berth.InputPart, err error) {
	err = s.read(ctx, "InputParts", func(t *tx) error {
		_, parts, err = t.inputParts(`i.digest = $4 AND`+inputSeen, inputScope(scope, digestOf(digest))...)
		return err
	})
	return parts, err
}

// AttemptInput is documented at store.Inputs.
func (s *Store) AttemptInput(ctx context.Context, call store.AgentCall, digest string) (i berth.Input, parts []berth.InputPart, err error) {
	err = s.read(ctx, "AttemptInput", func(t *tx) error {
		if _, err := t.judgeCaller(call.Host, call.Epoch); err != nil {
			return err
		}
		i, parts, err = t.inputParts(`i.digest = $1 AND EXISTS (
    SELECT 1 FROM attempts a JOIN task_inputs n ON n.task_id = a.task_id AND n.digest = i.digest
    WHERE a.host_id = $2 AND a.ended_at IS NULL)`, digestOf(digest), uid(call.Host))
		return err
	})
	return i, parts, err
}

// inputParts reads an input with its parts in one statement.
func (t *tx) inputParts(where string, args ...any) (i berth.Input, parts []berth.InputPart, err error) {
	type row struct {
		berth.Input
		berth.InputPart
		some bool
	}
	rows, err := collect(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.Digest, &r.Input.Size, &r.CreatedAt, &r.LastUsedAt, &r.some, &r.Offset, &r.InputPart.Size, &r.BlobKey)
	}, `
SELECT encode(i.digest, 'hex'), i.size, i.created_at, i.last_used_at,
       p.upload_id IS NOT NULL, COALESCE(p.start_at, 0), COALESCE(p.size, 0), COALESCE(p.blob_key, '')
FROM inputs i LEFT JOIN input_parts p ON p.upload_id = i.upload_id
WHERE `+where+` ORDER BY p.start_at`, args...)
	if err != nil {
		return i, nil, err
	}
	if len(rows) == 0 {
		return i, nil, fmt.Errorf("input: %w", berth.ErrNotFound)
	}
	i = rows[0].Input
	i.Received, i.Stored = i.Size, true
	for _, r := range rows {
		if r.some {
			parts = append(parts, r.InputPart)
		}
	}
	return i, parts, nil
}

// ExpireInputs is documented at store.Inputs.
func (s *Store) ExpireInputs(ctx context.Context, actor berth.Actor, limit int) (keys []string, err error) {
	err = s.write(ctx, "ExpireInputs", func(t *tx) error {
		keys = nil
		now, err := t.now()
		if err != nil {
			return err
		}
		stale, err := collect(t, column[string], `
SELECT id FROM input_uploads WHERE stored_at IS NULL AND updated_at < $1
ORDER BY updated_at LIMIT $2 FOR UPDATE SKIP LOCKED`, now.Add(-berth.InputUploadWithin), limit)
		if err != nil {
			return err
		}
		if len(stale) > 0 {
			if keys, err = t.dropUploads(stale); err != nil {
				return err
			}
		}
		more, err := t.expireUnused(actor, now, limit)
		keys = append(keys, more...)
		return err
	})
	return only(keys, err)
}

// expireUnused locks inputs that seem unused, and judges them again in a later
// statement: a submit that held one meanwhile has named it.
func (t *tx) expireUnused(actor berth.Actor, now time.Time, limit int) ([]string, error) {
	const unused = `i.last_used_at < $1 AND NOT EXISTS (SELECT 1 FROM task_inputs n WHERE n.digest = i.digest)
        AND NOT EXISTS (SELECT 1 FROM schedule_inputs n WHERE n.digest = i.digest)`
	before := now.Add(-berth.InputUnusedFor)
	locked, err := collect(t, column[[]byte], `
SELECT i.digest FROM inputs i WHERE `+unused+` ORDER BY i.last_used_at LIMIT $2 FOR UPDATE SKIP LOCKED`, before, limit)
	if err != nil || len(locked) == 0 {
		return nil, err
	}
	type gone struct {
		digest, upload string
		size           int64
	}
	expired, err := collect(t, func(row pgx.CollectableRow) (g gone, err error) {
		return g, row.Scan(&g.digest, &g.upload, &g.size)
	}, `DELETE FROM inputs i WHERE i.digest = ANY ($2) AND `+unused+` RETURNING encode(i.digest, 'hex'), i.upload_id, i.size`, before, locked)
	if err != nil || len(expired) == 0 {
		return nil, err
	}
	keys, err := t.dropUploads(mapped(expired, func(g gone) string { return g.upload }))
	if err != nil {
		return nil, err
	}
	return keys, t.auditEvents(mapped(expired, func(g gone) berth.AuditEvent {
		return berth.AuditEvent{
			At: now, Actor: actor, Action: berth.AuditInputExpired, TargetKind: "input", TargetID: g.digest,
			Before: berth.NumberFacts("size", g.size),
		}
	}))
}

// UnknownBlobs is documented at store.Keeping.
func (s *Store) UnknownBlobs(ctx context.Context, keys []string) (unknown []string, err error) {
	err = s.read(ctx, "UnknownBlobs", func(t *tx) error {
		unknown, err = collect(t, column[string], `
SELECT k.key FROM unnest($1::text[]) WITH ORDINALITY AS k (key, n)
WHERE NOT EXISTS (SELECT 1 FROM log_chunks c WHERE c.blob_key = k.key)
  AND NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.blob_key = k.key)
  AND NOT EXISTS (SELECT 1 FROM input_parts p WHERE p.blob_key = k.key)
ORDER BY k.n`, keys)
		return err
	})
	return unknown, err
}
