package store

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// Inputs are the files that tasks bring. Bytes are in the blob store, in parts;
// an input is stored once by its digest, and may be used by those who uploaded
// it (scope.All sees all).
//
// Lock order: an input's row comes after the idempotency key and before the
// class.
type Inputs interface {
	// BeginInput starts or resumes the upload of an input. Stored in the answer:
	// nothing to send (this principal proved to have the bytes before, or the
	// upload is over). Another size than the open upload's starts it over: Dropped
	// names the blobs that are of no use any more. Too large is berth.ErrTooLarge.
	// Where the stored input has the part Lost, it has to be sent again.
	BeginInput(ctx context.Context, p BeginInputParams) (InputUpload, error)

	// OpenInput reads the principal's open upload, or berth.ErrNotFound.
	OpenInput(ctx context.Context, owner berth.Principal, digest string) (InputUpload, error)

	// AppendInput records a part whose bytes the blob store has. It must begin
	// where the upload ends: otherwise *berth.GapError names that offset (also a
	// repeat of a part that is there: go on from Next). HashState is the digest's
	// state after the part. An upload that is not the principal's open one any
	// more (it was stored, expired or started over) is berth.ErrNotFound: its
	// hash state says nothing about the bytes of another.
	// When all bytes are there and Sum is the digest, the input is stored and the
	// principal its owner; another Sum drops the upload and is berth.ErrMismatch.
	// Dropped names blobs that nothing refers to any more: another upload of the
	// same bytes was stored first, or the sum was wrong (then with the error).
	// Where the stored input has the part Lost, this upload takes its place, for all
	// its owners and tasks, and Dropped names the blobs that it had.
	// A part of no bytes records none; it ends the upload of an empty input.
	AppendInput(ctx context.Context, p AppendInputParams) (InputUpload, error)

	// GetInput returns a stored input that scope sees, or berth.ErrNotFound.
	GetInput(ctx context.Context, scope berth.Scope, digest string) (berth.Input, error)
	// ListInputs that scope sees, by digest.
	ListInputs(ctx context.Context, scope berth.Scope, page Page) (inputs []berth.Input, next string, err error)
	// InputParts returns the parts of a stored input that scope sees, in order, or
	// berth.ErrNotFound.
	InputParts(ctx context.Context, scope berth.Scope, digest string) ([]berth.InputPart, error)
	// AttemptInput returns the parts of an input of a live attempt of the calling
	// host, or berth.ErrNotFound.
	AttemptInput(ctx context.Context, call AgentCall, digest string) (berth.Input, []berth.InputPart, error)

	// ExpireInputs forgets at most limit unfinished uploads without a part for
	// berth.InputUploadWithin, and at most limit inputs that no task names and
	// nobody used for berth.InputUnusedFor, and returns their blobs' keys, which
	// the caller deletes.
	ExpireInputs(ctx context.Context, actor berth.Actor, limit int) (blobKeys []string, err error)
}

// BeginInputParams of BeginInput.
type BeginInputParams struct {
	Actor  berth.Actor
	ID     string // of the upload, a UUID, if it is new
	Digest string
	Size   int64
	// HashState of no bytes.
	HashState []byte
	// Lost is the key of a blob that the blob store was found to lack; "": none was.
	Lost string
}

// InputUpload is an upload and the input that it makes.
type InputUpload struct {
	berth.Input
	// ID of the upload that is open; "" when the input is stored.
	ID        string
	HashState []byte
	Dropped   []string
}

// AppendInputParams of AppendInput.
type AppendInputParams struct {
	Actor  berth.Actor
	Digest string
	// Upload is the id of the open upload that HashState and Sum go on from.
	Upload    string
	Part      berth.InputPart
	HashState []byte
	// Sum of all bytes so far, lower-case hex.
	Sum string
	// Lost as in BeginInputParams.
	Lost string
}
