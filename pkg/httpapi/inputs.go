package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
)

const (
	// partIdle bounds the wait for a part's next 16 KiB, partWithin the whole part.
	partIdle   = 30 * time.Second
	partWithin = 15 * time.Minute
)

// BeginInput answers POST /inputs.
func (s *Server) BeginInput(ctx context.Context, in BeginInputRequestObject) (BeginInputResponseObject, error) {
	if in.Body.Size > berth.MaxInputBytes {
		return nil, &problem.Error{
			Status: http.StatusRequestEntityTooLarge, Code: protocol.CodeTooLarge, Title: "Too large",
			Detail: fmt.Sprintf("The input has %d bytes, %d are allowed.", in.Body.Size, int64(berth.MaxInputBytes)),
			Remedy: "Pack it tighter, or split it into several inputs.", Err: berth.ErrTooLarge,
		}
	}
	u, err := s.inputs.Begin(ctx, actorOf(ctx), in.Body.Digest, in.Body.Size)
	if err != nil {
		return nil, err
	}
	return BeginInput200JSONResponse(uploadOf(u)), nil
}

// AppendInput answers PATCH /inputs/{digest}. The body has come through validate,
// which bounds it.
func (s *Server) AppendInput(ctx context.Context, in AppendInputRequestObject) (AppendInputResponseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, partWithin)
	defer cancel()
	u, err := s.inputs.Append(ctx, actorOf(ctx), in.Digest, in.Params.Offset, in.Body)
	var gap *berth.GapError
	switch {
	case errors.As(err, &gap):
		return nil, &problem.Error{
			Status: http.StatusRequestedRangeNotSatisfiable, Code: problem.CodeUploadGap, Title: "Gap in the upload",
			Detail: fmt.Sprintf("The part begins at %d, and the upload goes on at %d.", in.Params.Offset, gap.Next),
			Remedy: "Go on at `next_offset`.", NextOffset: &gap.Next, Err: err,
		}
	case errors.Is(err, berth.ErrNotFound):
		return nil, &problem.Error{
			Status: http.StatusNotFound, Code: protocol.CodeNotFound, Title: "Not found",
			Detail: "You have no upload of this digest.", Remedy: "Begin it with POST /inputs.", Err: err,
		}
	case err != nil:
		return nil, err
	}
	return AppendInput200JSONResponse(uploadOf(u)), nil
}

// ListInputs answers GET /inputs.
func (s *Server) ListInputs(ctx context.Context, in ListInputsRequestObject) (ListInputsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidDigest)
	if err != nil {
		return nil, err
	}
	all, next, err := s.inputs.List(ctx, reads(ctx), page)
	if err != nil {
		return nil, err
	}
	out := ListInputs200JSONResponse{Inputs: make([]Input, 0, len(all)), NextPageToken: pageToken(ctx, next)}
	for _, i := range all {
		out.Inputs = append(out.Inputs, inputOf(i))
	}
	return out, nil
}

// GetInput answers GET /inputs/{digest}.
func (s *Server) GetInput(ctx context.Context, in GetInputRequestObject) (GetInputResponseObject, error) {
	i, err := s.inputs.Get(ctx, reads(ctx), in.Digest)
	if err != nil {
		return nil, err
	}
	return GetInput200JSONResponse(inputOf(i)), nil
}

// GetInputContent answers GET /inputs/{digest}/content.
func (s *Server) GetInputContent(ctx context.Context, in GetInputContentRequestObject) (GetInputContentResponseObject, error) {
	i, content, err := s.inputs.Open(ctx, reads(ctx), in.Digest)
	if err != nil {
		return nil, err
	}
	// Opens the first part, so that what is lost is said before the answer begins.
	if _, err := content.Read(nil); err != nil && !errors.Is(err, io.EOF) {
		_ = content.Close()
		return nil, lostInput(err)
	}
	if err := s.recordPiece(ctx, berth.AuditEvent{
		Action: berth.AuditInputRead, TargetKind: "input", TargetID: i.Digest, After: berth.NumberFacts("size", i.Size),
	}); err != nil {
		_ = content.Close()
		return nil, err
	}
	return contentAnswer{input: i, content: content, request: requestOf(ctx)}, nil
}

// lostInput tells a person what heals an input whose bytes are gone, and not to
// wait for it: only agents do.
func lostInput(err error) error {
	switch {
	case errors.Is(err, berth.ErrInputLost):
		return &problem.Error{
			Status: http.StatusGone, Code: protocol.CodeInputLost, Title: "Input lost",
			Detail: "The input is recorded, but the server's store has its bytes no more.",
			Remedy: "Upload the file again (`berth input put FILE`); all that use it have it then.", Err: err,
		}
	case errors.Is(err, berth.ErrUnavailable):
		return err
	}
	return lost("input", err)
}

// contentAnswer streams an input, or the ranges of it that were asked for.
type contentAnswer struct {
	input   berth.Input
	content *inputs.Content
	request request
}

// VisitGetInputContentResponse writes the bytes as a download, so that a browser
// never runs them.
func (a contentAnswer) VisitGetInputContentResponse(w http.ResponseWriter) error {
	defer func() { _ = a.content.Close() }()
	h := w.Header()
	harmless(h)
	h.Set("Content-Type", echo.MIMEOctetStream)
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": a.input.Digest}))
	h.Set("ETag", inputs.ETag(a.input.Digest))
	if sum, err := hex.DecodeString(a.input.Digest); err == nil {
		h.Set("Digest", "sha-256="+base64.StdEncoding.EncodeToString(sum))
	}
	asked := &http.Request{Method: http.MethodGet, Header: a.request.header}
	http.ServeContent(&rangedWriter{ResponseWriter: w, request: a.request}, asked, "", time.Time{}, a.content)
	return nil
}

// rangedWriter is what http.ServeContent writes to: it moves the write deadline
// on with every piece, and answers a bad range with a problem document.
type rangedWriter struct {
	http.ResponseWriter
	request request
	refused bool
}

// WriteHeader implements http.ResponseWriter.
func (r *rangedWriter) WriteHeader(status int) {
	extendWrite(r.ResponseWriter)
	if status < http.StatusBadRequest {
		r.ResponseWriter.WriteHeader(status)
		return
	}
	r.refused = true
	var err error = echo.NewHTTPError(http.StatusInternalServerError)
	if status == http.StatusRequestedRangeNotSatisfiable {
		err = &problem.Error{
			Status: status, Code: problem.CodeRange, Title: "Range not satisfiable",
			Detail: "The input has no such bytes.", Remedy: "Ask for a range inside its size, which Content-Range tells.",
		}
	}
	d := problem.Of(err)
	d.RequestID = r.request.id
	for _, name := range []string{"Content-Disposition", "Digest", "ETag"} {
		r.Header().Del(name)
	}
	problem.Write(r.ResponseWriter, http.MethodGet, d)
}

// Write implements http.ResponseWriter.
func (r *rangedWriter) Write(p []byte) (int, error) {
	if r.refused {
		return len(p), nil // the document has been written
	}
	return steadyWriter{r.ResponseWriter}.Write(p)
}

// patient is a body that may take long, as an upload's fault is told.
type patient struct{ r io.Reader }

func (p patient) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	var tooLarge *http.MaxBytesError
	if err == nil || errors.Is(err, io.EOF) || errors.As(err, &tooLarge) {
		return n, err
	}
	return n, &problem.Error{
		Status: http.StatusRequestTimeout, Code: problem.CodeTimeout, Title: "Body broke off",
		Detail: "The body broke off before its end, or came too slowly.", Remedy: "Send it again, whole; smaller parts take less time.",
	}
}

func (p patient) Close() error { return nil } // the server closes it

func uploadOf(i berth.Input) InputUpload {
	return InputUpload{Digest: i.Digest, Size: i.Size, Received: i.Received, Stored: i.Stored}
}

func inputOf(i berth.Input) Input {
	return Input{Digest: i.Digest, Size: i.Size, CreatedAt: i.CreatedAt.UTC(), LastUsedAt: i.LastUsedAt.UTC()}
}
