package agentapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// uploadWithin bounds one upload, uploadIdle the wait for its next 16 KiB.
	uploadWithin = 15 * time.Minute
	uploadIdle   = 30 * time.Second
	// deleteWithin bounds the deletion of a blob that is not used.
	deleteWithin = 5 * time.Second
)

// upload is who uploads, under what, and which bytes it promises.
type upload struct {
	holder store.HolderParams
	digest string
}

// begin checks an upload's path and headers, and asks the store whether the
// bytes are wanted at all, before any is read.
func (a *API) begin(c echo.Context) (upload, error) {
	call, err := caller(c)
	if err != nil {
		return upload{}, err
	}
	attempt, err := pathID[berth.AttemptID](c)
	if err != nil {
		return upload{}, err
	}
	fence, err := headerNumber(c, protocol.HeaderFence)
	if err != nil {
		return upload{}, err
	}
	digest, ok := strings.CutPrefix(c.Request().Header.Get(protocol.HeaderDigest), "sha-256=")
	if !ok || !validDigest(digest) {
		return upload{}, berth.Invalid(protocol.HeaderDigest, "the header is missing or no digest", "send sha-256=<lower-case hex> of the bytes")
	}
	u := upload{digest: digest, holder: store.HolderParams{
		AgentCall: call, Holder: store.Holder{Attempt: attempt, Fence: berth.Fence(fence)},
	}}
	return u, a.Store.CheckUpload(c.Request().Context(), u.holder)
}

// stored is a blob that was just written.
type stored struct {
	key  blob.Key
	size int64
}

// receive streams the body into a fresh blob and holds it against the promised
// digest. On an error no blob is left.
func (a *API) receive(ctx context.Context, c echo.Context, kind blob.Kind, u upload, limit int64) (stored, error) {
	if n := c.Request().ContentLength; n > limit {
		return stored{}, &http.MaxBytesError{Limit: limit}
	}
	key := blob.NewKey(kind)
	body := &patient{r: httpserver.Steady(c, c.Request().Body, uploadIdle, uploadWithin)}
	size, sum, err := a.Blobs.Put(ctx, key, body, limit)
	if body.err != nil {
		return stored{}, &problem.Error{
			Status: http.StatusRequestTimeout, Code: problem.CodeTimeout, Title: "Body broke off",
			Detail: "The body broke off before its end.", Remedy: "Send it again, whole.",
		}
	}
	if err != nil {
		return stored{}, err
	}
	if sum != u.digest {
		a.discard(ctx, key)
		return stored{}, berth.Invalid(protocol.HeaderDigest, "the bytes that came have another digest", "send them again")
	}
	return stored{key: key, size: size}, nil
}

// settle deletes the blob of an upload that was not recorded. When it is not
// known whether the record was committed, the blob stays: one too many costs
// space, one too few is a log that is lost.
func (a *API) settle(ctx context.Context, key blob.Key, used bool, err error) {
	if err == nil && used {
		return
	}
	refusals := []error{
		berth.ErrMismatch, berth.ErrGap, berth.ErrTooLarge, berth.ErrNotFound, berth.ErrLeaseLost, berth.ErrStaleEpoch, berth.ErrInvalid,
	}
	if err == nil || slices.ContainsFunc(refusals, func(kind error) bool { return errors.Is(err, kind) }) {
		a.discard(ctx, key)
	}
}

// discard deletes a blob that nothing refers to.
func (a *API) discard(ctx context.Context, key blob.Key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteWithin)
	defer cancel()
	if err := a.Blobs.Delete(ctx, key); err != nil {
		a.Logger.Warn("a blob that is not used could not be deleted", zap.String("blob_key", string(key)), zap.String("error", err.Error()))
	}
}

// logOffset reads where a chunk of a log begins.
func logOffset(s string) (int64, error) {
	offset, ok := number(s)
	if !ok || offset > store.MaxLogBytes {
		return 0, berth.Invalid("offset", "it is no position in a log", "send the position of the chunk's first byte")
	}
	return offset, nil
}

// putLog stores one chunk of an attempt's log.
func (a *API) putLog(c echo.Context) error {
	offset, err := logOffset(c.Param("offset"))
	if err != nil {
		return err
	}
	u, err := a.begin(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), uploadWithin)
	defer cancel()
	s, err := a.receive(ctx, c, blob.KindLog, u, store.MaxLogChunk)
	if err != nil {
		return err
	}
	if s.size == 0 {
		a.discard(ctx, s.key)
		return berth.Invalid("", "the chunk is empty", "send at least one byte")
	}
	next, used, err := a.Store.AppendLog(ctx, store.AppendLogParams{HolderParams: u.holder, Chunk: berth.LogChunk{
		Attempt: u.holder.Attempt, Offset: offset, Size: s.size, SHA256: u.digest, BlobKey: string(s.key),
	}})
	a.settle(ctx, s.key, used, err)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, protocol.LogResponse{NextOffset: next})
}

// putArtifact stores one file that an attempt leaves: 201, or 200 when it was
// stored before.
func (a *API) putArtifact(c echo.Context) error {
	name := c.Param("name")
	if !berth.ValidArtifactName(name) {
		return berth.Invalid("name", "it is no artifact's name", "use letters, digits and . _ -, at most 120")
	}
	class := berth.ArtifactClass(c.Request().Header.Get(protocol.HeaderArtifactClass))
	contentType, err := contentTypeOf(class, c.Request().Header.Get(echo.HeaderContentType))
	if err != nil {
		return err
	}
	u, err := a.begin(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), uploadWithin)
	defer cancel()
	s, err := a.receive(ctx, c, blob.KindArtifact, u, store.MaxArtifactBytes)
	if err != nil {
		return err
	}
	used, err := a.Store.AddArtifact(ctx, store.AddArtifactParams{HolderParams: u.holder, Artifact: berth.Artifact{
		Attempt: u.holder.Attempt, Name: name, Class: class, ContentType: contentType, Size: s.size, SHA256: u.digest,
		BlobKey: string(s.key),
	}})
	a.settle(ctx, s.key, used, err)
	if err != nil {
		return err
	}
	if used {
		return c.JSON(http.StatusCreated, struct{}{})
	}
	return c.JSON(http.StatusOK, struct{}{})
}

// contentTypeOf is the content type under which an artifact is stored and one
// day shown: of those that its class may have. Reports and files of any other
// type become plain bytes, which no browser runs or shows.
func contentTypeOf(class berth.ArtifactClass, header string) (string, error) {
	if !class.Valid() {
		return "", berth.Invalid(protocol.HeaderArtifactClass, "it is no class", "use screenshot, ui_tree, video, report or file")
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil {
		media = ""
	}
	allowed := map[berth.ArtifactClass][]string{
		berth.ClassScreenshot: {"image/png", "image/jpeg", "image/webp"},
		berth.ClassUITree:     {"application/json"},
		berth.ClassVideo:      {"video/mp4", "video/webm"},
		berth.ClassReport:     harmless(),
		berth.ClassFile:       harmless(),
	}[class]
	switch {
	case slices.Contains(allowed, media):
		if media == "text/plain" {
			media = "text/plain; charset=utf-8"
		}
		return media, nil
	case class == berth.ClassReport || class == berth.ClassFile:
		return "application/octet-stream", nil
	}
	return "", berth.Invalid(echo.HeaderContentType, "the class does not allow this type", "use "+strings.Join(allowed, ", "))
}

// harmless types cannot run in a browser that shows them.
func harmless() []string {
	return []string{
		"text/plain", "text/csv", "application/json", "application/zip", "application/gzip",
		"image/png", "image/jpeg", "image/webp", "video/mp4", "video/webm",
	}
}

// patient remembers that the client broke off, so that it is not taken for a
// fault of the disk.
type patient struct {
	r   io.Reader
	err error
}

func (p *patient) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		p.err = err
	}
	return n, err
}
