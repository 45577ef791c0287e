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
	p := put{s3: s, ctx: ctx, key: key, mark: uuid.NewString(), digest: sha256.New(), limit: limit, source: &contextReader{ctx: ctx, r: r}}
	if err := p.run(); err != nil {
		return 0, "", err
	}
	return p.size, hex.EncodeToString(p.digest.Sum(nil)), nil
}

// put is one Put.
type put struct {
	s3     *S3
	ctx    context.Context // of the one call that the put is
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
	_, err = p.s3.core.PutObject(p.ctx, p.s3.bucket, p.s3.object(p.key), bytes.NewReader(p.buf.Bytes()), p.size, "", sumOf(p.buf.Bytes()), p.options())
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

// judge looks at a refusal because the key is taken: it may be taken by this
// very put, whose first answer was lost.
func (p *put) judge(doing string, err error) error {
	err = s3Error(p.ctx, doing, err)
	if !errors.Is(err, berth.ErrExists) {
		return err
	}
	info, statErr := p.s3.core.StatObject(p.ctx, p.s3.bucket, p.s3.object(p.key), minio.StatObjectOptions{})
	if statErr == nil && info.Metadata.Get("X-Amz-Meta-"+putMark) == p.mark {
		return nil
	}
	return err
}

// inParts sends what is in buf and all that follows.
func (p *put) inParts() (err error) {
	object := p.s3.object(p.key)
	// Not every server knows conditions on parts, so look first. Keys are never
	// used twice; this is for whoever would try.
	if _, err := p.s3.core.StatObject(p.ctx, p.s3.bucket, object, minio.StatObjectOptions{}); err == nil {
		return fmt.Errorf("blob: %w", berth.ErrExists)
	}
	opts := p.options()
	upload, err := p.s3.core.NewMultipartUpload(p.ctx, p.s3.bucket, object, minio.PutObjectOptions{ContentType: opts.ContentType, UserMetadata: opts.UserMetadata})
	if err != nil {
		return s3Error(p.ctx, "begin a blob", err)
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
	_, err = p.s3.core.CompleteMultipartUpload(p.ctx, p.s3.bucket, object, upload, parts, opts)
	return p.judge("complete a blob", err)
}

func (p *put) sendParts(upload string) (parts []minio.CompletePart, err error) {
	for number, last := 1, false; ; number++ {
		part, err := p.s3.core.PutObjectPart(p.ctx, p.s3.bucket, p.s3.object(p.key), upload, number, bytes.NewReader(p.buf.Bytes()), int64(p.buf.Len()),
			minio.PutObjectPartOptions{Sha256Hex: sumOf(p.buf.Bytes()), DisableContentSha256: true})
		if err != nil {
			return nil, s3Error(p.ctx, "write a part of a blob", err)
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
	r, info, header, err := s.core.GetObject(ctx, s.bucket, s.object(key), opts)
	if minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return s.atEnd(ctx, key, offset)
	}
	if err != nil {
		return nil, 0, s3Error(ctx, "open a blob", err)
	}
	if offset == 0 {
		return s3Reader{r, ctx}, info.Size, nil
	}
	size, err := wholeSize(header.Get("Content-Range"))
	if err != nil {
		_ = r.Close()
		return nil, 0, err
	}
	return s3Reader{r, ctx}, size, nil
}

// atEnd answers an offset that has no byte behind it.
func (s *S3) atEnd(ctx context.Context, key Key, offset int64) (io.ReadCloser, int64, error) {
	info, err := s.core.StatObject(ctx, s.bucket, s.object(key), minio.StatObjectOptions{})
	if err != nil {
		return nil, 0, s3Error(ctx, "open a blob", err)
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
	ctx context.Context // of the one request that is read
}

// Read implements io.Reader.
func (r s3Reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = s3Error(r.ctx, "read a blob", err)
	}
	return n, err
}

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, key Key) error {
	if err := key.Valid(); err != nil {
		return err
	}
	err := s3Error(ctx, "delete a blob", s.core.RemoveObject(ctx, s.bucket, s.object(key), minio.RemoveObjectOptions{}))
	if errors.Is(err, berth.ErrNotFound) {
		return nil
	}
	return err
}

// List implements Store. Its order is the keys'.
func (s *S3) List(ctx context.Context, prefix string, after Key, limit int) ([]Info, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, MaxKeys: min(limit, listPage)}
	if after != "" {
		opts.StartAfter = s.object(after)
	}
	var blobs []Info
	for o := range s.core.ListObjectsIter(ctx, s.bucket, opts) {
		if o.Err != nil {
			return nil, s3Error(ctx, "list blobs", o.Err)
		}
		key := Key(strings.TrimPrefix(o.Key, s.prefix))
		if key.Valid() != nil {
			continue // not ours
		}
		if blobs = append(blobs, Info{Key: key, Size: o.Size, ModTime: o.LastModified}); len(blobs) >= limit {
			break
		}
	}
	return blobs, ctx.Err()
}

// Tidy implements Store.
func (s *S3) Tidy(ctx context.Context, olderThan time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for u := range s.core.ListIncompleteUploads(ctx, s.bucket, s.prefix, true) {
		if err := s3Error(ctx, "list broken-off blobs", u.Err); errors.Is(err, berth.ErrNotFound) {
			return nil // some servers say so of an empty list
		} else if err != nil {
			return err
		}
		if !u.Initiated.Before(olderThan) || !Key(strings.TrimPrefix(u.Key, s.prefix)).Made() {
			continue
		}
		if err := s3Error(ctx, "remove a broken-off blob", s.core.AbortMultipartUpload(ctx, s.bucket, u.Key, u.UploadID)); err != nil && !errors.Is(err, berth.ErrNotFound) {
			return err
		}
	}
	return nil
}
