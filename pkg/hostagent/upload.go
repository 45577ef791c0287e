package hostagent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// uploads sends an attempt's log and artifacts while it runs. It is the run's
// Sink: what the work reports is on disk already, so that nothing is held in
// memory and everything can be sent again.
type uploads struct {
	a   *Agent
	h   *hold
	ctx context.Context

	wake chan struct{}
	quit chan struct{}
	once sync.Once
	done chan struct{}

	sending sync.Mutex // one flush at a time

	mu      sync.Mutex
	logSize int64 // on disk
	logSent int64 // on the server
	logOver bool  // the server takes no more of it
	queue   []runtime.Artifact
	sent    map[string]runtime.Artifact
	refused map[string]bool
	spoiled map[string]int // by name: how often other bytes arrived than were sent
}

// Timeouts of uploads: a chunk is at most 1 MiB, an artifact may be large.
const (
	chunkTimeout    = 20 * time.Second
	artifactTimeout = 5 * time.Minute
	// uploadEvery gathers log lines that come close together.
	uploadEvery = 250 * time.Millisecond
)

// uploads gives the sender of an attempt, which sends in the background until
// stop.
func (a *Agent) uploads(h *hold) *uploads {
	if h.up != nil {
		return h.up
	}
	u := &uploads{
		a: a, h: h, ctx: h.base, wake: make(chan struct{}, 1), quit: make(chan struct{}),
		done: make(chan struct{}), sent: map[string]runtime.Artifact{}, refused: map[string]bool{}, spoiled: map[string]int{},
	}
	h.up = u
	go u.loop()
	return u
}

// Progress implements runtime.Sink; the next renewal carries it.
func (u *uploads) Progress(fraction float64, message string) { u.h.setProgress(fraction, message) }

// Log implements runtime.Sink; the bytes are in the run's log file already.
func (u *uploads) Log(offset int64, chunk redact.Bytes) {
	u.mu.Lock()
	u.logSize = offset + int64(chunk.Len())
	u.mu.Unlock()
	u.poke()
}

// Artifact implements runtime.Sink.
func (u *uploads) Artifact(f runtime.Artifact) {
	u.mu.Lock()
	u.queue = append(u.queue, f)
	u.mu.Unlock()
	u.poke()
}

func (u *uploads) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// loop sends in the background; what fails is sent again later, at last by
// handIn.
func (u *uploads) loop() {
	defer close(u.done)
	ctx, stop := context.WithCancel(u.ctx)
	defer stop()
	go func() {
		select {
		case <-u.quit:
			stop()
		case <-ctx.Done():
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		}
		if !sleep(ctx, uploadEvery) {
			return
		}
		if err := u.flush(ctx); err != nil && ctx.Err() == nil {
			u.a.log.Warn("upload failed, will be tried again", u.a.fields(u.h, zap.Error(err))...)
			if sleep(ctx, 2*time.Second) {
				u.poke()
			}
		}
	}
}

// stop ends the background sending.
func (u *uploads) stop() {
	u.once.Do(func() { close(u.quit) })
	<-u.done
}

// expect sets what must be on the server: all of the log and all artifacts.
// The background sending ends: from now on the caller flushes.
func (u *uploads) expect(end completion) {
	u.stop()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.logSize = end.LogBytes
	u.queue = nil
	for _, f := range end.Files {
		if _, ok := u.sent[f.Name]; !ok {
			u.queue = append(u.queue, f)
		}
	}
}

// missing queues what the server says it does not have.
func (u *uploads) missing(ans protocol.CompleteAnswer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.logSent = ans.LogNext
	for _, name := range ans.MissingArtifacts {
		if f, ok := u.sent[name]; ok {
			u.queue = append(u.queue, f)
		}
	}
}

// maxSpoiled is how often bytes that were spoiled on their way are sent again;
// more often than that, the file itself is not what it was.
const maxSpoiled = 5

// onceMore makes the answer that other bytes arrived a passing error, so that
// they are sent again, up to maxSpoiled times for what.
func (u *uploads) onceMore(what string, err error) error {
	var e *apiError
	if !errors.As(err, &e) || !slices.ContainsFunc(e.Errors, func(f berth.FieldError) bool { return f.Path == protocol.HeaderDigest }) {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.spoiled[what]++; u.spoiled[what] > maxSpoiled {
		return err
	}
	return errSpoiled
}

// errSpoiled: the server got other bytes than were sent; send them again.
var errSpoiled = errors.New("other bytes arrived than were sent")

// settle makes the completion agree with what the server took: a success whose
// files were refused is none (I3).
func (u *uploads) settle(end *completion) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name := range u.refused {
		delete(end.Artifacts, name)
	}
	if len(u.refused) > 0 && end.Outcome == berth.OutcomeSucceeded {
		end.Outcome, end.Reason = berth.OutcomeInfraFailed, reasonArtifactLost
	}
	if u.logOver {
		end.LogBytes = u.logSent
	}
}

// flush sends everything that is there and not sent. An error is passing; what
// the server refuses for good is noted instead.
func (u *uploads) flush(ctx context.Context) error {
	u.sending.Lock()
	defer u.sending.Unlock()
	return errors.Join(u.flushLog(ctx), u.flushArtifacts(ctx))
}

func (u *uploads) flushLog(ctx context.Context) error {
	buf := make([]byte, 0)
	for {
		u.mu.Lock()
		from, to, over := u.logSent, u.logSize, u.logOver
		u.mu.Unlock()
		if over || from >= to {
			return nil
		}
		n := min(to-from, max(u.a.conf().MaxLogChunk, 1))
		if int64(cap(buf)) < n {
			buf = make([]byte, n)
		}
		chunk := buf[:n]
		if err := readAt(filepath.Join(u.h.dir, "log"), chunk, from); err != nil {
			u.giveUpLog()
			u.a.log.Error("the log of an attempt cannot be read", u.a.fields(u.h, zap.Error(err))...)
			return nil
		}
		next, err := u.putLog(ctx, from, chunk)
		err = u.onceMore("the log", err)
		if isCode(err, protocol.CodeMismatch) {
			// A chunk that starts here is stored already, cut otherwise: its answer
			// was lost, or an earlier process sent it. Go on behind it.
			if next, err = u.logEnd(ctx); err == nil && next <= from {
				err = &apiError{Problem: protocol.Problem{Status: http.StatusConflict, Code: protocol.CodeMismatch}}
			}
		}
		switch {
		case err == nil:
			u.setLogSent(next)
		case permanent(err):
			u.a.log.Warn("the server takes no more of the log", u.a.fields(u.h, zap.Error(err))...)
			u.giveUpLog()
			return nil
		default:
			return err
		}
	}
}

// putLog sends one chunk and returns where the server wants to go on.
func (u *uploads) putLog(ctx context.Context, offset int64, chunk []byte) (int64, error) {
	sum := sha256.Sum256(chunk)
	var res protocol.LogResponse
	path := fill(protocol.PathLog, "id", string(u.h.Attempt), "offset", strconv.FormatInt(offset, 10))
	err := u.a.call(ctx, http.MethodPut, path, nil, &res, callOptions{
		timeout: chunkTimeout, header: u.header(hex.EncodeToString(sum[:])), body: bytesBody(chunk),
	})
	var e *apiError
	if errors.As(err, &e) && e.Code == protocol.CodeLogGap && e.NextOffset != nil && *e.NextOffset < offset {
		return *e.NextOffset, nil
	}
	return res.NextOffset, err
}

// logEnd asks where the stored log ends: a byte far behind the end is refused
// with that offset and changes nothing.
func (u *uploads) logEnd(ctx context.Context) (int64, error) {
	u.mu.Lock()
	beyond := u.logSize + 1
	u.mu.Unlock()
	return u.putLog(ctx, beyond, []byte{'\n'})
}

func (u *uploads) header(digest string) map[string]string {
	return map[string]string{
		protocol.HeaderFence:       strconv.FormatInt(int64(u.h.Fence), 10),
		protocol.HeaderDigest:      "sha-256=" + digest,
		protocol.HeaderCorrelation: u.h.CorrelationID,
	}
}

func (u *uploads) setLogSent(n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.logSent = n
}

func (u *uploads) giveUpLog() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.logOver = true
}

func (u *uploads) flushArtifacts(ctx context.Context) error {
	for {
		u.mu.Lock()
		if len(u.queue) == 0 {
			u.mu.Unlock()
			return nil
		}
		f := u.queue[0]
		_, again := u.sent[f.Name]
		u.mu.Unlock()
		err := u.onceMore(f.Name, u.putArtifact(ctx, f))
		if err != nil && !permanent(err) {
			return err
		}
		u.mu.Lock()
		u.queue = u.queue[1:]
		u.sent[f.Name] = f
		if err != nil {
			u.refused[f.Name] = true
		}
		u.mu.Unlock()
		if err != nil {
			u.a.log.Warn("the server refused an artifact", u.a.fields(u.h, zap.Bool("repeated", again), zap.Error(err))...)
		}
	}
}

func (u *uploads) putArtifact(ctx context.Context, f runtime.Artifact) error {
	path := fill(protocol.PathArtifact, "id", string(u.h.Attempt), "name", f.Name)
	header := u.header(f.SHA256)
	header[protocol.HeaderArtifactClass] = string(f.Class)
	header["Content-Type"] = f.ContentType
	err := u.a.call(ctx, http.MethodPut, path, nil, nil, callOptions{
		timeout: artifactTimeout, header: header, body: fileBody(f.Path),
	})
	if errors.Is(err, os.ErrNotExist) {
		return &apiError{Problem: protocol.Problem{Status: http.StatusNotFound, Code: "file_missing"}}
	}
	return err
}

// bytesBody and fileBody make a request's body anew for each try.
func bytesBody(b []byte) func() (io.ReadCloser, int64, error) {
	return func() (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	}
}

func fileBody(path string) func() (io.ReadCloser, int64, error) {
	return func() (io.ReadCloser, int64, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, 0, err
		}
		return f, info.Size(), nil
	}
}

func readAt(path string, p []byte, at int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = f.ReadAt(p, at)
	return err
}
