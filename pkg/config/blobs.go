package config

import (
	"flag"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/redact"
)

// Blobs say where the bytes of artifacts, logs and inputs are: in a directory or
// in a bucket.
type Blobs struct {
	BlobDir string `env:"BERTH_BLOB_DIR" about:"directory for artifacts, logs and inputs"`
	// BlobURL names a bucket, without keys.
	BlobURL string `env:"BERTH_BLOBS" about:"s3://bucket/prefix?endpoint=https://host:port&region=name, instead of a directory"`
	// BlobAccessKey and BlobSecretKey are the bucket's.
	BlobAccessKey redact.String `env:"BERTH_BLOBS_ACCESS_KEY" about:"access key of the bucket"`
	BlobSecretKey redact.String `env:"BERTH_BLOBS_SECRET_KEY" about:"secret key of the bucket"`
}

// Configured reports whether there is a place for blobs.
func (b Blobs) Configured() bool { return b.BlobDir != "" || b.BlobURL != "" }

// S3 is the bucket; its URL is "" where the blobs are in a directory.
func (b Blobs) S3() blob.S3Options {
	return blob.S3Options{URL: b.BlobURL, AccessKey: b.BlobAccessKey, SecretKey: b.BlobSecretKey}
}

func (b *Blobs) flags(fs *flag.FlagSet) {
	fs.StringVar(&b.BlobDir, "blob-dir", b.BlobDir, "directory for artifacts, logs and inputs (BERTH_BLOB_DIR)")
	fs.StringVar(&b.BlobURL, "blobs", b.BlobURL, "s3://bucket/prefix?endpoint=https://host:port&region=name, instead of a directory (BERTH_BLOBS; the keys are in BERTH_BLOBS_ACCESS_KEY_FILE and BERTH_BLOBS_SECRET_KEY_FILE)")
}

func (b Blobs) validate(f *berth.Faults) {
	keys := !b.BlobAccessKey.IsZero() || !b.BlobSecretKey.IsZero()
	switch {
	case b.BlobDir != "" && b.BlobURL != "":
		f.Add("BERTH_BLOBS", "both this and BERTH_BLOB_DIR are set", "set one of them")
	case b.BlobURL == "" && keys:
		f.Add("BERTH_BLOBS", "missing, but there are keys for it", "name the bucket: s3://bucket/prefix?endpoint=https://host:port&region=name")
	case b.BlobURL != "":
		if err := blob.ValidS3URL(b.BlobURL); err != nil {
			f.Add("BERTH_BLOBS", err.Error(), "for example s3://bucket/prefix?endpoint=https://host:port&region=name")
		}
		if b.BlobAccessKey.IsZero() {
			f.Add("BERTH_BLOBS_ACCESS_KEY", "missing", "put the bucket's access key into a file and name it in BERTH_BLOBS_ACCESS_KEY_FILE")
		}
		if b.BlobSecretKey.IsZero() {
			f.Add("BERTH_BLOBS_SECRET_KEY", "missing", "put the bucket's secret key into a file and name it in BERTH_BLOBS_SECRET_KEY_FILE")
		}
	}
}

// BlobLoops of a process that keeps leases. They run where blobs are configured.
type BlobLoops struct {
	// Inputs forgets inputs that nobody uses; Blobs removes bytes that nothing
	// refers to.
	Inputs Loop `envPrefix:"BERTH_LOOP_INPUTS_"`
	Blobs  Loop `envPrefix:"BERTH_LOOP_BLOBS_"`
	// OrphansAfter is the age below which nothing is removed; 0: a day.
	OrphansAfter time.Duration `env:"BERTH_ORPHANS_AFTER" about:"age at which bytes that nothing refers to are removed"`
}

const (
	prefixInputs, prefixBlobs = "BERTH_LOOP_INPUTS", "BERTH_LOOP_BLOBS"
	// minOrphansAfter is well above the longest upload, whose bytes nothing refers
	// to until it is recorded.
	minOrphansAfter = time.Hour
)

func (l BlobLoops) validate(f *berth.Faults) {
	l.Inputs.validate(prefixInputs, f)
	l.Blobs.validate(prefixBlobs, f)
	if l.OrphansAfter != 0 && l.OrphansAfter < minOrphansAfter {
		f.Add("BERTH_ORPHANS_AFTER", fmt.Sprintf("%v is too short: uploads that go on would lose their bytes", l.OrphansAfter), fmt.Sprintf("use at least %v", minOrphansAfter))
	}
}
