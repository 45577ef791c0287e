package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// logTarget is where an answer stops taking further chunks, in bytes; with
	// the last chunk it stays below twice store.MaxLogChunk.
	logTarget = 1 << 20
	// logChunks is how many chunks one look at the database takes.
	logChunks = 64
)

// ReadLog answers GET /tasks/{id}/attempts/{number}/log.
func (s *Server) ReadLog(ctx context.Context, in ReadLogRequestObject) (ReadLogResponseObject, error) {
	p := store.ReadLogParams{
		Scope: reads(ctx), Task: berth.TaskID(in.ID), Number: in.Number, Offset: in.Params.Offset, Limit: logChunks,
	}
	wait := maxWait
	if !in.Params.Follow {
		wait = 0
	}
	var out logAnswer
	err := s.poll(ctx, p.Task, wait, func() (done bool, err error) {
		out, err = s.readLog(ctx, p)
		return len(out.bytes) > 0 || out.ended, err
	})
	if err == nil && len(out.bytes) > 0 {
		err = s.recordPiece(ctx, berth.AuditEvent{Action: berth.AuditLogRead, TargetKind: "log", TargetID: in.ID, Number: in.Number})
	}
	return out, err
}

func (s *Server) readLog(ctx context.Context, p store.ReadLogParams) (logAnswer, error) {
	chunks, ended, err := s.cfg.Store.ReadLog(ctx, p)
	if err != nil {
		return logAnswer{}, err
	}
	out := logAnswer{next: p.Offset, ended: ended && len(chunks) < p.Limit}
	for _, c := range chunks {
		if len(out.bytes) >= logTarget {
			out.ended = false
			break
		}
		part, err := s.chunk(ctx, c, out.next-c.Offset)
		if err != nil {
			return logAnswer{}, err
		}
		out.bytes = append(out.bytes, part...)
		out.next = c.Offset + c.Size
	}
	return out, nil
}

// chunk reads a chunk's bytes from skip on.
func (s *Server) chunk(ctx context.Context, c berth.LogChunk, skip int64) ([]byte, error) {
	r, _, err := s.cfg.Blob.Get(ctx, blob.Key(c.BlobKey))
	if err != nil {
		return nil, lost("log chunk", err)
	}
	defer func() { _ = r.Close() }()
	all, err := io.ReadAll(io.LimitReader(r, c.Size))
	if err != nil {
		return nil, fmt.Errorf("read a log chunk: %w", err)
	}
	if int64(len(all)) != c.Size || skip < 0 || skip > c.Size {
		return nil, fmt.Errorf("log chunk at %d has %d bytes, %d are recorded", c.Offset, len(all), c.Size)
	}
	return all[skip:], nil
}

// lost is the error of a blob that the database knows and the blob store does
// not have: the server's fault, not a "not found".
func lost(what string, err error) error {
	return fmt.Errorf("the %s is recorded, but its bytes cannot be read: %s", what, err.Error())
}

// logAnswer is a piece of a log.
type logAnswer struct {
	bytes []byte
	next  int64
	ended bool
}

// VisitReadLogResponse writes the piece as text that no browser runs.
func (a logAnswer) VisitReadLogResponse(w http.ResponseWriter) error {
	h := w.Header()
	harmless(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(a.bytes)))
	h.Set("Berth-Next-Offset", strconv.FormatInt(a.next, 10))
	h.Set("Berth-Log-Ended", strconv.FormatBool(a.ended))
	extendWrite(w)
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(a.bytes)
	return err
}
