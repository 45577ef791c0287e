package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
)

// ListArtifacts answers GET /tasks/{id}/artifacts.
func (s *Server) ListArtifacts(ctx context.Context, in ListArtifactsRequestObject) (ListArtifactsResponseObject, error) {
	artifacts, err := s.cfg.Store.ListArtifacts(ctx, reads(ctx), berth.TaskID(in.ID))
	if err != nil {
		return nil, err
	}
	out := ListArtifacts200JSONResponse{Artifacts: make([]Artifact, 0, len(artifacts))}
	for _, a := range artifacts {
		out.Artifacts = append(out.Artifacts, Artifact{
			AttemptID: string(a.Attempt), Number: a.Number, Name: a.Name, Class: ArtifactClass(a.Class),
			ContentType: a.ContentType, Size: a.Size, Sha256: a.SHA256, CreatedAt: a.CreatedAt.UTC(),
		})
	}
	return out, nil
}

// GetArtifact answers GET /tasks/{id}/attempts/{number}/artifacts/{name}.
func (s *Server) GetArtifact(ctx context.Context, in GetArtifactRequestObject) (GetArtifactResponseObject, error) {
	a, err := s.cfg.Store.GetArtifact(ctx, reads(ctx), berth.TaskID(in.ID), in.Number, in.Name)
	if err != nil {
		return nil, err
	}
	r, size, err := s.cfg.Blob.Get(ctx, blob.Key(a.BlobKey))
	if err != nil {
		if errors.Is(err, berth.ErrUnavailable) {
			return nil, err
		}
		return nil, lost("artifact", err)
	}
	if size != a.Size {
		_ = r.Close()
		return nil, lost("artifact", errors.New("its size differs"))
	}
	if err := s.recordRead(ctx, berth.AuditEvent{
		Action: berth.AuditArtifactRead, TargetKind: "artifact", TargetID: in.ID, Attempt: a.Attempt, Number: a.Number,
		After: berth.NewFacts(map[string]string{"name": a.Name, "size": strconv.FormatInt(a.Size, 10)}),
	}); err != nil {
		_ = r.Close()
		return nil, err
	}
	return artifactAnswer{artifact: a, bytes: r}, nil
}

// artifactAnswer streams an artifact.
type artifactAnswer struct {
	artifact berth.Artifact
	bytes    io.ReadCloser
}

// VisitGetArtifactResponse writes the bytes so that a browser never runs them:
// they come from devices and from pages that nobody vouches for.
func (a artifactAnswer) VisitGetArtifactResponse(w http.ResponseWriter) error {
	defer func() { _ = a.bytes.Close() }()
	h := w.Header()
	harmless(h)
	h.Set("Content-Type", served(a.artifact.ContentType))
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": a.artifact.Name}))
	h.Set("Content-Length", strconv.FormatInt(a.artifact.Size, 10))
	if sum, err := hex.DecodeString(a.artifact.SHA256); err == nil {
		h.Set("Digest", "sha-256="+base64.StdEncoding.EncodeToString(sum))
	}
	w.WriteHeader(http.StatusOK)
	_, err := io.Copy(steadyWriter{w}, a.bytes)
	return err
}

// harmless forbids a browser to guess a type, run anything or keep a copy.
func harmless(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
	h.Set("Cache-Control", "private, no-store")
}

// served is the content type an artifact is served with: of those that no browser
// runs; whatever else an agent claimed, HTML and SVG above all, is plain bytes.
func served(stored string) string {
	base, _, _ := mime.ParseMediaType(stored) // "" where it is none
	switch base {
	case "image/png", "image/jpeg", "image/webp", "video/mp4", "video/webm", "application/zip", "application/gzip":
		return base
	case "application/json", "text/plain", "text/csv":
		return base + "; charset=utf-8"
	}
	return echo.MIMEOctetStream
}

// writeWithin is how long a client may take for each piece of a stream.
const writeWithin = 30 * time.Second

// steadyWriter moves the write deadline on with every piece, so that a large
// download ends when it stalls and not when it is slow.
type steadyWriter struct{ w http.ResponseWriter }

func (s steadyWriter) Write(p []byte) (int, error) {
	extendWrite(s.w)
	return s.w.Write(p)
}

func extendWrite(w http.ResponseWriter) {
	// A writer without deadlines has no time-out either.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWithin))
}
