package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"time"
)

const (
	// inputPart is how much UploadInput sends in one call: little enough to lose
	// at a broken connection.
	inputPart = 8 << 20
	// inputFailures is how often in a row it begins again without having got on.
	inputFailures = 6
	// inputPause is how long it waits before that, at first; then twice as long.
	inputPause = 200 * time.Millisecond
)

// DigestOf reads r to its end and returns its SHA-256 in hex and its size.
func DigestOf(r io.Reader) (digest string, size int64, err error) {
	sum := sha256.New()
	size, err = io.Copy(sum, r)
	return hex.EncodeToString(sum.Sum(nil)), size, err
}

// BeginInput begins or resumes the upload of an input and says how much of it is
// there.
func (c *Client) BeginInput(ctx context.Context, digest string, size int64) (InputUpload, error) {
	return decode[InputUpload](c.raw.BeginInput(mayRepeat(ctx), InputSpec{Digest: digest, Size: size}))
}

// AppendInput sends length bytes of file from offset on, once.
func (c *Client) AppendInput(ctx context.Context, file io.ReaderAt, digest string, offset, length int64) (InputUpload, error) {
	body := func() io.ReadCloser { return io.NopCloser(io.NewSectionReader(file, offset, length)) }
	sized := func(_ context.Context, r *http.Request) error {
		r.ContentLength = length
		r.GetBody = func() (io.ReadCloser, error) { return body(), nil }
		return nil
	}
	p := &AppendInputParams{Offset: offset}
	return decode[InputUpload](c.raw.AppendInputWithBody(ctx, digest, p, "application/octet-stream", body(), sized))
}

// UploadInput makes sure that the server has the file: it sends what is missing,
// part by part, and goes on where it was when the connection breaks. progress,
// if set, is told after each part. A file that changes meanwhile is refused by
// the server.
func (c *Client) UploadInput(ctx context.Context, file io.ReaderAt, digest string, size int64, progress func(InputUpload)) (InputUpload, error) {
	u, err := c.BeginInput(ctx, digest, size)
	for failures := 0; err == nil && !u.Stored; {
		next, failed := c.AppendInput(ctx, file, digest, u.Received, min(inputPart, size-u.Received))
		if failed == nil && (next.Stored || next.Received > u.Received) {
			if u, failures = next, 0; progress != nil {
				progress(u)
			}
			continue
		}
		if failed == nil {
			return u, errors.New("the server took no byte of the upload; is the address Berth's?")
		}
		if failures++; failures > inputFailures || !resumable(failed) {
			return u, failed
		}
		select {
		case <-time.After(inputPause << (failures - 1)):
		case <-ctx.Done():
			return u, ctx.Err()
		}
		before := u.Received
		// It says where to go on: the part may have come, and its answer not.
		if u, err = c.BeginInput(ctx, digest, size); u.Received > before {
			failures = 0
		}
	}
	return u, err
}

// resumable reports whether an upload may go on after err.
func resumable(err error) bool {
	var unreachable *UnreachableError
	var problem *Problem
	switch {
	case errors.As(err, &unreachable):
		return true
	case !errors.As(err, &problem):
		return false
	}
	switch problem.Status {
	case http.StatusRequestTimeout, http.StatusRequestedRangeNotSatisfiable, http.StatusNotFound:
		return true
	}
	return comeBack(problem.Status)
}

// ListInputs returns one page by digest.
func (c *Client) ListInputs(ctx context.Context, p ListInputsParams) (InputList, error) {
	return decode[InputList](c.raw.ListInputs(ctx, &p))
}

// GetInput returns a stored input.
func (c *Client) GetInput(ctx context.Context, digest string) (Input, error) {
	return decode[Input](c.raw.GetInput(ctx, digest))
}

// InputContent opens an input's bytes; the caller closes them.
func (c *Client) InputContent(ctx context.Context, digest string) (io.ReadCloser, error) {
	res, err := c.raw.GetInputContent(ctx, digest)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer drain(res)
		return nil, problemOf(res)
	}
	return res.Body, nil
}
