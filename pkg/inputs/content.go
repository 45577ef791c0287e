package inputs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
)

// Content reads an input's bytes over its parts; it opens a part when its first
// byte is wanted, so that seeking costs nothing. It is for one goroutine, and
// lasts as long as the context it was opened with.
type Content struct {
	ctx   context.Context // io.Reader has no place for it
	blobs blob.Store
	parts []berth.InputPart
	// digest for errors.
	digest string
	size   int64
	at     int64
	r      io.ReadCloser // of the bytes at `at`; nil: to be opened
}

var _ io.ReadSeekCloser = (*Content)(nil)

// content checks that the parts are whole, one after the other.
func (s *Service) content(ctx context.Context, input berth.Input, parts []berth.InputPart) (berth.Input, *Content, error) {
	end := int64(0)
	for _, p := range parts {
		if p.Offset != end {
			return berth.Input{}, nil, fmt.Errorf("input %s: a part is missing at %d", input.Digest, end)
		}
		end += p.Size
	}
	if end != input.Size {
		return berth.Input{}, nil, fmt.Errorf("input %s: its parts end at %d of %d", input.Digest, end, input.Size)
	}
	return input, &Content{ctx: ctx, blobs: s.blobs, parts: parts, digest: input.Digest, size: input.Size}, nil
}

// Size in bytes.
func (c *Content) Size() int64 { return c.size }

// Read implements io.Reader.
func (c *Content) Read(p []byte) (int, error) {
	for {
		if c.r == nil {
			if c.at >= c.size {
				return 0, io.EOF
			}
			if err := c.open(); err != nil {
				return 0, err
			}
		}
		n, err := c.r.Read(p)
		c.at += int64(n)
		if err == nil || !errors.Is(err, io.EOF) {
			return n, err
		}
		if err := c.next(); err != nil {
			return n, err
		}
		if n > 0 {
			return n, nil
		}
	}
}

// part is the index of the part that holds the byte at c.at.
func (c *Content) part() int {
	return sort.Search(len(c.parts), func(i int) bool { return c.parts[i].Offset+c.parts[i].Size > c.at })
}

func (c *Content) open() error {
	part := c.parts[c.part()]
	r, size, err := c.blobs.GetFrom(c.ctx, blob.Key(part.BlobKey), c.at-part.Offset)
	switch {
	case errors.Is(err, berth.ErrNotFound):
		// The caller's input is known; that its bytes are gone is the server's fault.
		return fmt.Errorf("input %s: a part is not in the blob store: %w", c.digest, berth.ErrInputLost)
	case err != nil:
		return err
	case size != part.Size:
		_ = r.Close()
		return fmt.Errorf("input %s: a part has another size in the blob store: %w", c.digest, berth.ErrInputLost)
	}
	c.r = r
	return nil
}

// next closes the part that was read to its end.
func (c *Content) next() error {
	err := c.r.Close()
	c.r = nil
	if i := c.part(); i < len(c.parts) && c.parts[i].Offset != c.at {
		return io.ErrUnexpectedEOF // the blob ended early
	}
	return err
}

// Seek implements io.Seeker.
func (c *Content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.at
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return c.at, errors.New("seek before the start")
	}
	if offset == c.at {
		return offset, nil
	}
	err := c.Close()
	c.at = offset
	return offset, err
}

// Close implements io.Closer; it may be called twice.
func (c *Content) Close() error {
	if c.r == nil {
		return nil
	}
	r := c.r
	c.r = nil
	return r.Close()
}
