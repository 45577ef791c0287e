package blob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// S3Options say which bucket, and who asks.
type S3Options struct {
	// URL: s3://bucket/prefix?endpoint=https://host:port&region=name. Without an
	// endpoint it is Amazon's. path_style=true or false overrules what is usual
	// with the endpoint.
	URL string
	// AccessKey and SecretKey sign the requests. They are never part of the URL.
	AccessKey, SecretKey redact.String
	// StallWithin bounds the wait for an answer, and for the next byte to go or to
	// come; 0: 7 s. A request that stalled is sent once more.
	StallWithin time.Duration
}

// s3Place is a parsed URL.
type s3Place struct {
	bucket, prefix, host, region string
	secure                       bool
	lookup                       minio.BucketLookupType
}

const (
	amazon        = "s3.amazonaws.com"
	defaultRegion = "us-east-1"
	// checkWithin bounds the look at the bucket when it is opened.
	checkWithin = 10 * time.Second
	// s3Tries of a request that failed for a passing reason.
	s3Tries = 3
	// stallWithin is the default of S3Options.StallWithin: an agent waits 20 s for
	// the answer to a chunk of a log, and two stalls come before it.
	stallWithin = 7 * time.Second
)

// ValidS3URL is nil or what is wrong with a URL of S3Options.
func ValidS3URL(s string) error {
	_, err := parseS3URL(s)
	return err
}

func parseS3URL(s string) (p s3Place, err error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "s3":
		return p, errors.New("it is no URL of the form s3://bucket/prefix?endpoint=https://host:port&region=name")
	case u.User != nil:
		return p, errors.New("it holds a user or password: give the keys in BERTH_BLOBS_ACCESS_KEY and BERTH_BLOBS_SECRET_KEY")
	}
	p = s3Place{bucket: u.Host, host: amazon, region: defaultRegion, secure: true}
	if err := s3utils.CheckValidBucketName(p.bucket); err != nil {
		return p, fmt.Errorf("%q is no bucket's name", berth.Clip(p.bucket, 63))
	}
	if prefix := strings.Trim(u.Path, "/"); prefix != "" {
		if Key(prefix).Valid() != nil {
			return p, fmt.Errorf("%q is no prefix: use letters, digits and . _ - / in it", berth.Clip(prefix, 60))
		}
		p.prefix = prefix + "/"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return p, errors.New("what follows the ? cannot be read")
	}
	for name, values := range query {
		if err := p.set(name, values[len(values)-1]); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *s3Place) set(name, value string) error {
	switch name {
	case "endpoint":
		e, err := url.Parse(value)
		if err != nil || (e.Scheme != "http" && e.Scheme != "https") || e.Host == "" || strings.Trim(e.Path, "/") != "" || e.User != nil {
			return errors.New("the endpoint is no URL of the form https://host:port")
		}
		p.host, p.secure = e.Host, e.Scheme == "https"
	case "region":
		p.region = value
	case "path_style":
		switch value {
		case "true":
			p.lookup = minio.BucketLookupPath
		case "false":
			p.lookup = minio.BucketLookupDNS
		default:
			return errors.New("path_style is neither true nor false")
		}
	default:
		return fmt.Errorf("%q is unknown: it takes endpoint, region and path_style", berth.Clip(name, 30))
	}
	return nil
}

// OpenS3 opens the store and looks at the bucket once. What an operator has to
// mend (no such bucket, wrong keys) is a *berth.SetupError. An object store that
// does not answer is none: it may come up later, and until then calls are
// berth.ErrStorageUnavailable, which unreachable is, too.
func OpenS3(ctx context.Context, o S3Options) (store *S3, unreachable, err error) {
	place, err := parseS3URL(o.URL)
	if err != nil {
		return nil, nil, &berth.SetupError{What: "the blob store's URL cannot be used", Remedy: "BERTH_BLOBS: " + err.Error()}
	}
	if o.StallWithin <= 0 {
		o.StallWithin = stallWithin
	}
	client, err := minio.New(place.host, &minio.Options{
		Creds:  credentials.NewStaticV4(o.AccessKey.Reveal(), o.SecretKey.Reveal(), ""),
		Secure: place.secure, Region: place.region, BucketLookup: place.lookup, MaxRetries: s3Tries, Transport: &watched{next: transport(), stall: o.StallWithin},
	})
	if err != nil {
		return nil, nil, &berth.SetupError{What: "the blob store's URL cannot be used", Remedy: "check the endpoint in BERTH_BLOBS"}
	}
	s := &S3{core: minio.Core{Client: client}, bucket: place.bucket, prefix: place.prefix}
	check := begin(ctx)
	defer check.end()
	defer time.AfterFunc(checkWithin, func() { check.cancel(errStalled) }).Stop()
	_, err = s.List(check.ctx, "", "", 1)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(check.ctx), errStalled) {
		err = s3Error(ctx, "look at the bucket", errStalled)
	}
	if setup := (*berth.SetupError)(nil); errors.As(err, &setup) {
		return nil, nil, setup
	}
	return s, err, nil
}

// transport of the requests; their waits are bounded by watched.
func transport() http.RoundTripper {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: 5 * time.Second,
		IdleConnTimeout:       time.Minute,
		MaxIdleConnsPerHost:   32,
		ForceAttemptHTTP2:     true,
		// A blob's bytes are its bytes.
		DisableCompression: true,
	}
}

// s3Error turns an error of the client into one of the domain's kinds. The
// client's own errors hold addresses and headers; they go no further.
func s3Error(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var refused minio.ErrorResponse
	if !errors.As(err, &refused) {
		return fmt.Errorf("%s: the object store does not answer (%s): %w", doing, cause(err), berth.ErrStorageUnavailable)
	}
	switch refused.Code {
	case minio.NoSuchKey, "NoSuchUpload":
		return fmt.Errorf("blob: %w", berth.ErrNotFound)
	case minio.PreconditionFailed, "ConditionalRequestConflict":
		return fmt.Errorf("blob: %w", berth.ErrExists)
	case minio.NoSuchBucket:
		return toMend("the object store has no bucket of this name", "make it, or name another in BERTH_BLOBS")
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", minio.AccessDenied, "AuthorizationHeaderMalformed":
		return toMend("the object store refuses the keys ("+berth.Clip(refused.Code, 40)+")",
			"check BERTH_BLOBS_ACCESS_KEY and BERTH_BLOBS_SECRET_KEY, the region in BERTH_BLOBS, and that the keys may list, read, write and delete in the bucket")
	case "XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage":
		return fmt.Errorf("%s: %w", doing, ErrFull)
	}
	switch {
	case refused.StatusCode == http.StatusInsufficientStorage:
		return fmt.Errorf("%s: %w", doing, ErrFull)
	case refused.StatusCode == http.StatusNotFound:
		return fmt.Errorf("blob: %w", berth.ErrNotFound)
	case refused.StatusCode == http.StatusPreconditionFailed:
		return fmt.Errorf("blob: %w", berth.ErrExists)
	case refused.StatusCode >= http.StatusInternalServerError || refused.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%s: the object store answers %d (%s): %w", doing, refused.StatusCode, berth.Clip(refused.Code, 40), berth.ErrStorageUnavailable)
	}
	return fmt.Errorf("%s: the object store answers %d (%s)", doing, refused.StatusCode, berth.Clip(refused.Code, 40))
}

// toMend is what an operator has to mend, at the start or while a process runs:
// until then the same call may be sent again.
func toMend(what, remedy string) error {
	return errors.Join(&berth.SetupError{What: what, Remedy: remedy}, berth.ErrStorageUnavailable)
}

// cause is what a connection failed of, without the request's URL.
func cause(err error) string {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return err.Error()
}
