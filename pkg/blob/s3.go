package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/minio/minio-go/v7"

	"github.com/berth-dev/berth/pkg/berth"
)

// S3 is a Store in a bucket of an S3-compatible object store. Any number of
// processes may share it. Objects are named prefix + key.
//
// A blob is written by one conditional PUT, or in parts that one call completes:
// there is no moment at which half a blob can be read. Where the answer of such
// a call is lost for good, Put fails although the blob may be there, whole; the
// orphan sweep removes it.
type S3 struct {
	core   minio.Core
	bucket string
	prefix string
}

const (
	// partSize is how much of a blob is in memory while it is sent. 10,000 parts
	// of it, which is as many as S3 takes, are far more than any blob has.
	partSize = 8 << 20
	// putMark is the metadata by which a Put knows its own object again, after an
	// answer that was lost and a repeat that was refused.
	putMark = "Berth-Put"
	// listPage is how many keys one request lists.
	listPage = 1000
)

func (s *S3) object(key Key) string { return s.prefix + string(key) }

// Put implements Store.
func (s *S3) Put(ctx context.Context, key Key, r io.Reader, limit int64) (int64, string, error) {
	if err := key.Valid(); err != nil {
		return 0, "", err
	}
	p := put{s3: s, ctx: ctx, call: begin(ctx), key: key, mark: uuid.NewString(), digest: sha256.New(), limit: limit, source: &contextReader{ctx: ctx, r: r}}
	err := p.run()
	p.call.end()
	switch {
	case errors.Is(err, berth.ErrNotFound) && p.source.err == nil:
		// Somebody tidied its parts away, or its end was answered and the answer lost.
		return 0, "", fmt.Errorf("write a blob: its parts are gone from the object store: %w", berth.ErrStorageUnavailable)
	case err != nil:
		return 0, "", err
	}
	return p.size, hex.EncodeToString(p.digest.Sum(nil)), nil
}

// put is one Put.
type put struct {
	s3     *S3
	ctx    context.Context // of the one call that the put is
	call   *call           // of the request that is under way
	key    Key
	mark   string
	source *contextReader
	digest hash.Hash
	size   int64
	limit  int64
	buf    bytes.Buffer
}

// fill reads the next part into buf; last says that the source has ended.
func (p *put) fill() (last bool, err error) {
	p.buf.Reset()
	n, err := io.Copy(&p.buf, io.LimitReader(p.source, partSize))
	if err != nil {
		return false, err // the source's: a buffer has none
	}
	p.size += n
	if p.size > p.limit {
		return false, fmt.Errorf("more than %d bytes: %w", p.limit, berth.ErrTooLarge)
	}
	p.digest.Write(p.buf.Bytes())
	return n < partSize, nil
}

func (p *put) run() error {
	last, err := p.fill()
	if err != nil {
		return err
	}
	if !last {
		return p.inParts()
	}
	_, err = p.s3.core.PutObject(p.call.ctx, p.s3.bucket, p.s3.object(p.key), bytes.NewReader(p.buf.Bytes()), p.size, "", sumOf(p.buf.Bytes()), p.options())
	return p.judge("write a blob", err)
}

// options make the write fail when the key is taken.
func (p *put) options() minio.PutObjectOptions {
	o := minio.PutObjectOptions{
		ContentType: "application/octet-stream", UserMetadata: map[string]string{putMark: p.mark},
		// The whole body's SHA-256 is signed, which every server checks; the
		// chunked signature that this turns off is not known to all.
		DisableContentSha256: true,
	}
	o.SetMatchETagExcept("*")
	return o
}

// judge looks at a refusal because the key is taken, or the parts are gone: it may
// be this very put that did it, and its first answer was lost.
func (p *put) judge(doing string, err error) error {
	err = p.call.judge(doing, err)
	if !errors.Is(err, berth.ErrExists) && !errors.Is(err, berth.ErrNotFound) {
		return err
	}
	p.next()
	info, statErr := p.s3.core.StatObject(p.call.ctx, p.s3.bucket, p.s3.object(p.key), minio.StatObjectOptions{})
	if statErr == nil && info.Metadata.Get("X-Amz-Meta-"+putMark) == p.mark {
		return nil
	}
	return err
}

// next request: each may stand still for as long as any other.
func (p *put) next() {
	p.call.end()
	p.call = begin(p.ctx)
}

// inParts sends what is in buf and all that follows.
func (p *put) inParts() (err error) {
	object := p.s3.object(p.key)
	// Not every server knows conditions on parts, so look first. Keys are never
	// used twice; this is for whoever would try.
	if _, err := p.s3.core.StatObject(p.call.ctx, p.s3.bucket, object, minio.StatObjectOptions{}); err == nil {
		return fmt.Errorf("blob: %w", berth.ErrExists)
	}
	opts := p.options()
	upload, err := p.s3.core.NewMultipartUpload(p.call.ctx, p.s3.bucket, object, minio.PutObjectOptions{ContentType: opts.ContentType, UserMetadata: opts.UserMetadata})
	if err != nil {
		return p.call.judge("begin a blob", err)
	}
	defer func() {
		if err != nil {
			p.abort(upload)
		}
	}()
	parts, err := p.sendParts(upload)
	if err != nil {
		return err
	}
	p.next()
	_, err = p.s3.core.CompleteMultipartUpload(p.call.ctx, p.s3.bucket, object, upload, parts, opts)
	return p.judge("complete a blob", err)
}

func (p *put) sendParts(upload string) (parts []minio.CompletePart, err error) {
	for number, last := 1, false; ; number++ {
		p.next()
		part, err := p.s3.core.PutObjectPart(p.call.ctx, p.s3.bucket, p.s3.object(p.key), upload, number, bytes.NewReader(p.buf.Bytes()), int64(p.buf.Len()),
			minio.PutObjectPartOptions{Sha256Hex: sumOf(p.buf.Bytes()), DisableContentSha256: true})
		if err != nil {
			return nil, p.call.judge("write a part of a blob", err)
		}
		parts = append(parts, minio.CompletePart{PartNumber: number, ETag: part.ETag})
		if last {
			return parts, nil
		}
		if last, err = p.fill(); err != nil {
			return nil, err
		}
		if p.buf.Len() == 0 {
			return parts, nil
		}
	}
}

// abortWithin bounds the removal of a broken-off Put's parts.
const abortWithin = 10 * time.Second

// abort removes the parts; what it cannot remove is left to Tidy.
func (p *put) abort(upload string) {
	if errors.Is(context.Cause(p.call.ctx), errStalled) {
		return // it would stall, too
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), abortWithin)
	defer cancel()
	_ = p.s3.core.AbortMultipartUpload(ctx, p.s3.bucket, p.s3.object(p.key), upload)
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Get implements Store.
func (s *S3) Get(ctx context.Context, key Key) (io.ReadCloser, int64, error) {
	return s.GetFrom(ctx, key, 0)
}

// GetFrom implements Store.
func (s *S3) GetFrom(ctx context.Context, key Key, offset int64) (io.ReadCloser, int64, error) {
	if err := key.Valid(); err != nil {
		return nil, 0, err
	}
	if offset < 0 {
		return nil, 0, fmt.Errorf("offset %d of a blob: %w", offset, berth.ErrInvalid)
	}
	var opts minio.GetObjectOptions
	if offset > 0 {
		opts.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	c := begin(ctx)
	r, info, header, err := s.core.GetObject(c.ctx, s.bucket, s.object(key), opts)
	size := info.Size
	switch {
	case minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable:
		c.end()
		return s.atEnd(ctx, key, offset)
	case err != nil:
		c.end()
		return nil, 0, c.judge("open a blob", err)
	case offset > 0:
		size, err = wholeSize(header.Get("Content-Range"))
	}
	if err != nil {
		_ = r.Close()
		c.end()
		return nil, 0, err
	}
	return s3Reader{r, c}, size, nil
}

// atEnd answers an offset that has no byte behind it.
func (s *S3) atEnd(ctx context.Context, key Key, offset int64) (io.ReadCloser, int64, error) {
	info, err := s.Stat(ctx, key)
	if err != nil {
		return nil, 0, err
	}
	if offset != info.Size {
		return nil, 0, fmt.Errorf("offset %d of a blob of %d bytes: %w", offset, info.Size, berth.ErrInvalid)
	}
	return io.NopCloser(strings.NewReader("")), info.Size, nil
}

// wholeSize is the size in "bytes 5-9/10".
func wholeSize(contentRange string) (int64, error) {
	_, total, _ := strings.Cut(contentRange, "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil || size < 0 {
		return 0, errors.New("open a blob: the object store does not answer ranges")
	}
	return size, nil
}

// s3Reader keeps the object store's own errors from the caller.
type s3Reader struct {
	io.ReadCloser
	call *call // that is read
}

// Read implements io.Reader.
func (r s3Reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.call.judge("read a blob", err)
	}
	return n, err
}

// Close implements io.Closer.
func (r s3Reader) Close() error {
	err := r.ReadCloser.Close()
	r.call.end()
	return err
}

// Stat implements Store.
func (s *S3) Stat(ctx context.Context, key Key) (Info, error) {
	if err := key.Valid(); err != nil {
		return Info{}, err
	}
	c := begin(ctx)
	defer c.end()
	info, err := s.core.StatObject(c.ctx, s.bucket, s.object(key), minio.StatObjectOptions{})
	if err != nil {
		return Info{}, c.judge("look at a blob", err)
	}
	return Info{Key: key, Size: info.Size, ModTime: info.LastModified}, nil
}

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, key Key) error {
	if err := key.Valid(); err != nil {
		return err
	}
	c := begin(ctx)
	defer c.end()
	err := c.judge("delete a blob", s.core.RemoveObject(c.ctx, s.bucket, s.object(key), minio.RemoveObjectOptions{}))
	if errors.Is(err, berth.ErrNotFound) {
		return nil
	}
	return err
}

// List implements Store. Its order is the keys'.
func (s *S3) List(ctx context.Context, prefix string, after Key, limit int) ([]Info, error) {
	c := begin(ctx)
	defer c.end()
	opts := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, MaxKeys: min(limit, listPage)}
	if after != "" {
		opts.StartAfter = s.object(after)
	}
	var blobs []Info
	for o := range s.core.ListObjectsIter(c.ctx, s.bucket, opts) {
		if o.Err != nil {
			return nil, c.judge("list blobs", o.Err)
		}
		key := Key(strings.TrimPrefix(o.Key, s.prefix))
		if key.Valid() != nil {
			continue // not ours
		}
		if blobs = append(blobs, Info{Key: key, Size: o.Size, ModTime: o.LastModified}); len(blobs) >= limit {
			break
		}
	}
	return blobs, c.judge("list blobs", c.ctx.Err())
}

// Tidy implements Store.
func (s *S3) Tidy(ctx context.Context, olderThan time.Time) error {
	c := begin(ctx)
	defer c.end()
	for u := range s.core.ListIncompleteUploads(c.ctx, s.bucket, s.prefix, true) {
		if err := c.judge("list broken-off blobs", u.Err); errors.Is(err, berth.ErrNotFound) {
			return nil // some servers say so of an empty list
		} else if err != nil {
			return err
		}
		if !u.Initiated.Before(olderThan) || !Key(strings.TrimPrefix(u.Key, s.prefix)).Made() {
			continue
		}
		if err := c.judge("remove a broken-off blob", s.core.AbortMultipartUpload(c.ctx, s.bucket, u.Key, u.UploadID)); err != nil && !errors.Is(err, berth.ErrNotFound) {
			return err
		}
	}
	return nil
}
