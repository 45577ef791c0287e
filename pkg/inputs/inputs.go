// Package inputs moves the files that tasks bring: from a client, part by part,
// into the blob store, and out of it again to clients and hosts. What counts is
// what the database says (store.Inputs); a part is recorded when its bytes are
// in the blob store, and a blob that no record names is deleted here or left to
// the leasekeeper's orphan sweep.
//
// The digest of a whole input is computed on the way, once: the SHA-256's state
// is kept with the upload between two parts, so a resumed upload reads no byte
// twice and any API process can take the next part.
package inputs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/store"
)

// deleteWithin bounds the deletion of one blob that is not used.
const deleteWithin = 5 * time.Second

// Service is what the routes and the leasekeeper call. Its methods may be called
// by several goroutines.
type Service struct {
	store  store.Inputs
	blobs  blob.Store
	logger *zap.Logger
}

// New makes a service; logger may be nil.
func New(s store.Inputs, blobs blob.Store, logger *zap.Logger) *Service {
	if logger == nil {
		logger = zap.NewNop()
	}
	return &Service{store: s, blobs: blobs, logger: logger}
}

// Begin starts or resumes an upload. Stored in the answer: there is nothing to
// send; otherwise go on with the byte Received. Another size than the open
// upload's starts it over. A stored input whose bytes the blob store lacks is
// lost, and to be sent again; nothing is taken from it until that upload is whole.
//
// A digest that is none, a size below 0 or one that contradicts the digest is a
// *berth.InvalidError with the paths digest and size; a size over
// berth.MaxInputBytes is berth.ErrTooLarge.
func (s *Service) Begin(ctx context.Context, actor berth.Actor, digest string, size int64) (berth.Input, error) {
	if err := judgeBegin(digest, size); err != nil {
		return berth.Input{}, err
	}
	h := sha256.New()
	state, err := stateOf(h)
	if err != nil {
		return berth.Input{}, err
	}
	p := store.BeginInputParams{Actor: actor, ID: uuid.Must(uuid.NewV7()).String(), Digest: digest, Size: size, HashState: state}
	u, err := s.store.BeginInput(ctx, p)
	if err == nil && u.Stored {
		if p.Lost = s.lost(ctx, digest); p.Lost != "" {
			u, err = s.store.BeginInput(ctx, p)
		}
	}
	s.discard(ctx, u.Dropped)
	if err != nil || u.Stored || size > 0 {
		return u.Input, err
	}
	return s.record(ctx, store.AppendInputParams{Actor: actor, Digest: digest, Upload: u.ID, HashState: state, Sum: sumOf(h)})
}

func judgeBegin(digest string, size int64) error {
	var f berth.Faults
	if !berth.ValidDigest(digest) {
		f.Add("digest", "it is no SHA-256", "send the file's SHA-256 as 64 lower-case hex digits")
	}
	switch {
	case size < 0:
		f.Add("size", "it is below 0", "send the file's size in bytes")
	case size == 0 && digest != sumOf(sha256.New()):
		f.Add("size", "0 bytes do not have this digest", "send the file's size in bytes")
	}
	if err := f.Err(); err != nil {
		return err
	}
	if size > berth.MaxInputBytes {
		return berth.TooLarge("the input", size, berth.MaxInputBytes)
	}
	return nil
}

// Append takes the bytes from offset on, at most berth.MaxInputPart of them, and
// records them as one part. In the answer Received is where to go on, and Stored
// says that the input is whole, had its digest and may be used.
//
// It may be repeated: an offset before the upload's end (its answer was lost, or
// another call was faster) reads nothing and answers what is there. One behind
// the end is *berth.GapError; without an upload it is berth.ErrNotFound; more
// bytes than one part or than the input may have are berth.ErrTooLarge; none at
// all, or bytes whose sum is not the digest once all are there, are a
// *berth.InvalidError (the upload is then to begin again). An error of r is
// returned as it is; then no byte of the call is kept.
func (s *Service) Append(ctx context.Context, actor berth.Actor, digest string, offset int64, r io.Reader) (berth.Input, error) {
	if !berth.ValidDigest(digest) {
		return berth.Input{}, fmt.Errorf("upload: %w", berth.ErrNotFound)
	}
	if offset < 0 {
		return berth.Input{}, berth.Invalid("offset", "it is below 0", "send the position of the first byte")
	}
	u, err := s.store.OpenInput(ctx, actor.Principal, digest)
	switch {
	case errors.Is(err, berth.ErrNotFound):
		// The last part may have been stored, and its answer lost.
		return s.store.GetInput(ctx, berth.Scope{Owner: actor.Principal}, digest)
	case err != nil:
		return berth.Input{}, err
	case offset > u.Received:
		return berth.Input{}, &berth.GapError{Next: u.Received}
	case offset < u.Received:
		return u.Input, nil
	}
	h, err := resume(u.HashState)
	if err != nil {
		return berth.Input{}, err
	}
	p := store.AppendInputParams{Actor: actor, Digest: digest, Upload: u.ID, Part: berth.InputPart{Offset: offset}}
	if err := s.receive(ctx, &p, io.TeeReader(r, h), min(berth.MaxInputPart, u.Size-u.Received)); err != nil {
		return berth.Input{}, err
	}
	p.Sum = sumOf(h)
	if offset+p.Part.Size == u.Size {
		p.Lost = s.lost(ctx, digest)
	}
	if p.HashState, err = stateOf(h); err != nil {
		return berth.Input{}, err
	}
	return s.record(ctx, p)
}

// lostAtOnce is how many parts are looked for at once.
const lostAtOnce = 16

// lost is the key of a part of the stored input that the blob store lacks, or has
// with another size; "" when there is none, no such input, or it cannot be told:
// then the record counts.
func (s *Service) lost(ctx context.Context, digest string) string {
	parts, err := s.store.InputParts(ctx, berth.Scope{All: true}, digest)
	if err != nil {
		return ""
	}
	var missing atomic.Pointer[string]
	look, ctx := errgroup.WithContext(ctx)
	look.SetLimit(lostAtOnce)
	for _, p := range parts {
		look.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			info, err := s.blobs.Stat(ctx, blob.Key(p.BlobKey))
			if errors.Is(err, berth.ErrNotFound) || err == nil && info.Size != p.Size {
				missing.Store(&p.BlobKey)
				return berth.ErrInputLost // one will do
			}
			return err
		})
	}
	_ = look.Wait()
	key := missing.Load()
	if key == nil {
		return ""
	}
	s.logger.Warn("an input's bytes are gone from the blob store: it is taken anew", zap.String("digest", digest))
	return *key
}

// receive streams r into a fresh blob, the part's.
func (s *Service) receive(ctx context.Context, p *store.AppendInputParams, r io.Reader, limit int64) error {
	key := blob.NewKey(blob.KindInput)
	size, _, err := s.blobs.Put(ctx, key, r, limit)
	if err != nil {
		return err
	}
	if size == 0 {
		s.discard(ctx, []string{string(key)})
		return berth.Invalid("", "the part is empty", "send at least one byte")
	}
	p.Part.Size, p.Part.BlobKey = size, string(key)
	return nil
}

// record has the store count a part whose bytes are there. When it is not known
// whether that was committed, the blob stays for the orphan sweep to judge.
func (s *Service) record(ctx context.Context, p store.AppendInputParams) (berth.Input, error) {
	u, err := s.store.AppendInput(ctx, p)
	s.discard(ctx, u.Dropped)
	if refused(err) && p.Part.BlobKey != "" && !slices.Contains(u.Dropped, p.Part.BlobKey) {
		s.discard(ctx, []string{p.Part.BlobKey})
	}
	var gap *berth.GapError
	switch {
	case errors.As(err, &gap) && gap.Next > p.Part.Offset:
		return s.Append(ctx, p.Actor, p.Digest, p.Part.Offset, bytes.NewReader(nil)) // another call was faster
	case errors.Is(err, berth.ErrNotFound):
		// So it was when another call has stored the input meanwhile.
		return s.store.GetInput(ctx, berth.Scope{Owner: p.Actor.Principal}, p.Digest)
	case errors.Is(err, berth.ErrMismatch):
		return berth.Input{}, berth.Invalid("digest", "the bytes that came have another SHA-256, so they were dropped",
			"see that the file does not change, compute its digest anew and upload it from the start")
	}
	return u.Input, err
}

func refused(err error) bool {
	for _, kind := range []error{berth.ErrNotFound, berth.ErrGap, berth.ErrMismatch, berth.ErrTooLarge, berth.ErrInvalid} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Get returns a stored input that scope sees, or berth.ErrNotFound.
func (s *Service) Get(ctx context.Context, scope berth.Scope, digest string) (berth.Input, error) {
	if !berth.ValidDigest(digest) {
		return berth.Input{}, fmt.Errorf("input: %w", berth.ErrNotFound)
	}
	return s.store.GetInput(ctx, scope, digest)
}

// List the stored inputs that scope sees, by digest.
func (s *Service) List(ctx context.Context, scope berth.Scope, page store.Page) (inputs []berth.Input, next string, err error) {
	return s.store.ListInputs(ctx, scope, page)
}

// Open opens a stored input that scope sees, or returns berth.ErrNotFound. Close
// the content.
func (s *Service) Open(ctx context.Context, scope berth.Scope, digest string) (berth.Input, *Content, error) {
	input, err := s.Get(ctx, scope, digest)
	if err != nil {
		return berth.Input{}, nil, err
	}
	parts, err := s.store.InputParts(ctx, scope, digest)
	if err != nil {
		return berth.Input{}, nil, err
	}
	return s.content(ctx, input, parts)
}

// OpenForAttempt opens an input of a live attempt of the calling host, or
// returns berth.ErrNotFound. Close the content.
func (s *Service) OpenForAttempt(ctx context.Context, call store.AgentCall, digest string) (berth.Input, *Content, error) {
	if !berth.ValidDigest(digest) {
		return berth.Input{}, nil, fmt.Errorf("input: %w", berth.ErrNotFound)
	}
	input, parts, err := s.store.AttemptInput(ctx, call, digest)
	if err != nil {
		return berth.Input{}, nil, err
	}
	return s.content(ctx, input, parts)
}

// Expire forgets at most limit broken-off uploads and at most limit inputs that
// nobody uses any more, deletes their blobs, and returns how many blobs that
// were. A blob that could not be deleted is left to the orphan sweep.
func (s *Service) Expire(ctx context.Context, actor berth.Actor, limit int) (blobs int, err error) {
	keys, err := s.store.ExpireInputs(ctx, actor, limit)
	s.discard(ctx, keys)
	return len(keys), err
}

// discard deletes blobs that nothing refers to.
func (s *Service) discard(ctx context.Context, keys []string) {
	for _, key := range keys {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteWithin)
		err := s.blobs.Delete(within, blob.Key(key))
		cancel()
		if err != nil {
			s.logger.Warn("a blob that is not used could not be deleted", zap.String("blob_key", key), zap.String("error", err.Error()))
		}
	}
}

// resume continues a SHA-256 from the state that was kept.
func resume(state []byte) (hash.Hash, error) {
	h := sha256.New()
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
		return nil, errors.New("the upload's hash state cannot be read")
	}
	return h, nil
}

func stateOf(h hash.Hash) ([]byte, error) {
	state, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return nil, errors.New("the hash state cannot be kept")
	}
	return state, nil
}

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// ETag of an input, for conditional and range requests: its bytes never change.
func ETag(digest string) string { return strconv.Quote("sha-256:" + digest) }
