package hostagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/protocol"
)

const (
	// inputPatience is how long a download is tried again without a byte coming.
	inputPatience = 2 * time.Minute
	// inputIdle bounds the wait for a download's next bytes.
	inputIdle = 30 * time.Second
)

var (
	// errInputs: the inputs could not be had; the attempt is handed back.
	errInputs = errors.New("the inputs cannot be had")
	// errInputLost: the server says that it has an input's bytes no more.
	errInputLost = fmt.Errorf("the server has lost them: %w", errInputs)
	// errInputDigest: what came is not what was asked for.
	errInputDigest = errors.New("the input's bytes have another digest")
	// errInputWrite: the disk did not take the bytes.
	errInputWrite = errors.New("the input cannot be written")
)

// fetchInputs brings the attempt's inputs to this host, before its start is
// asked for: what cannot be had costs no try, the attempt is handed back. The
// lease is renewed meanwhile. false: the hold has ended and was answered.
// Otherwise release is to be called when the work is dead.
func (a *Agent) fetchInputs(h *hold) (release func(), ok bool) {
	paths, release, err := a.inputs.take(h.ctx, h.Inputs, a.download)
	if err == nil {
		h.inputs = paths
		return release, true
	}
	if h.cause() == nil {
		a.log.Error("the inputs of an attempt cannot be had; it is handed back", a.fields(h, zap.Error(err))...)
		if isCode(err, protocol.CodeInputLost) {
			h.end(errInputLost)
		}
		h.end(errInputs)
		if errors.Is(err, errInputWrite) {
			a.storageFailed(err)
		}
	}
	a.handBack(h)
	return nil, false
}

// download brings an input into a file: from where it broke off, for as long as
// bytes keep coming, and once more from the start when their digest is wrong.
func (a *Agent) download(ctx context.Context, in protocol.Input, into *os.File) error {
	err := a.downloadOnce(ctx, in, into)
	if !errors.Is(err, errInputDigest) {
		return err
	}
	a.log.Warn("an input came with another digest; it is fetched once more", zap.String("digest", in.Digest))
	if err := into.Truncate(0); err != nil {
		return fmt.Errorf("%w: %w", errInputWrite, err)
	}
	if _, err := into.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("%w: %w", errInputWrite, err)
	}
	return a.downloadOnce(ctx, in, into)
}

func (a *Agent) downloadOnce(ctx context.Context, in protocol.Input, into *os.File) error {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 200*time.Millisecond, 5*time.Second
	digest := sha256.New()
	d := &inputWriter{file: into, digest: digest.Write, left: in.Size}
	for last := a.clock(); d.left > 0; {
		before := d.left
		err := a.getInput(ctx, in, in.Size-d.left, d)
		if d.left < before {
			last = a.clock()
			b.Reset()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.err != nil:
			return d.err
		case err == nil && d.left > 0:
			err = io.ErrUnexpectedEOF
		case err == nil:
			continue
		}
		if permanent(err) || a.clock()-last > inputPatience {
			return err
		}
		if !sleep(ctx, pauseAfter(err, b.NextBackOff(), inputIdle)) {
			return context.Cause(ctx)
		}
	}
	if hex.EncodeToString(digest.Sum(nil)) != in.Digest {
		return errInputDigest
	}
	return nil
}

// inputWriter takes an input's bytes, and no more than it has.
type inputWriter struct {
	file   *os.File
	digest func([]byte) (int, error)
	left   int64
	err    error // of the disk, or that too much came
}

// Write implements io.Writer.
func (w *inputWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > w.left {
		w.err = fmt.Errorf("%w: more bytes came than it has", errInputDigest)
		return 0, w.err
	}
	n, err := w.file.Write(p)
	_, _ = w.digest(p[:n])
	w.left -= int64(n)
	if err != nil {
		w.err = fmt.Errorf("%w: %w", errInputWrite, err)
	}
	return n, w.err
}

// getInput asks for an input's bytes from offset on and writes what comes.
func (a *Agent) getInput(ctx context.Context, in protocol.Input, offset int64, into io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	idle := time.AfterFunc(inputIdle, stop) // a server that says nothing is left
	defer idle.Stop()
	body := func(r io.Reader) error {
		buf := make([]byte, 128<<10)
		for {
			n, err := r.Read(buf)
			idle.Reset(inputIdle)
			if n > 0 {
				if _, err := into.Write(buf[:n]); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	}
	opt := callOptions{answer: body, timeout: -1}
	if offset > 0 {
		opt.header = map[string]string{"Range": "bytes=" + strconv.FormatInt(offset, 10) + "-"}
		opt.status = http.StatusPartialContent
	}
	return a.call(ctx, http.MethodGet, fill(protocol.PathInput, "digest", in.Digest), nil, nil, opt)
}
