package controlplane

import (
	"context"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/leasekeeper"
)

// OpenBlobs opens the blob store that c names, or returns nil when it names
// none. An object store that does not answer yet is a line in the log.
func (p *Process) OpenBlobs(ctx context.Context, c config.Blobs) (blob.Store, error) {
	switch {
	case !c.Configured():
		return nil, nil
	case c.BlobURL == "":
		return blob.OpenDirectory(c.BlobDir)
	}
	s, unreachable, err := blob.OpenS3(ctx, c.S3())
	if err != nil {
		return nil, err
	}
	if unreachable != nil {
		p.Log.Warn("the object store does not answer; uploads and downloads are refused until it does", zap.Error(unreachable))
	}
	return s, nil
}

// BlobKeeper makes the keeper's loops that need the blob store. Without one
// there are none.
func (p *Process) BlobKeeper(c config.BlobLoops, blobs blob.Store) []daemon.Component {
	if blobs == nil {
		p.Log.Info("no blob store is configured here: inputs that nobody uses and bytes that nothing refers to are left to a leasekeeper that has one (BERTH_BLOB_DIR or BERTH_BLOBS)")
		return nil
	}
	k := leasekeeper.NewBlobKeeper(leasekeeper.BlobConfig{
		Store: p.Store, Blobs: blobs, Instance: p.Instance, OrphansAfter: c.OrphansAfter,
		Log: p.Log, Metrics: leasekeeper.NewBlobMetrics(p.Registry),
	})
	return k.Components(leasekeeper.BlobLoopsConfig{
		InputsInterval: c.Inputs.Interval, BlobsInterval: c.Blobs.Interval,
		InputsDisabled: c.Inputs.Disabled, BlobsDisabled: c.Blobs.Disabled,
		Gate: p.Gate, Metrics: p.Loops, RoundGrace: p.roundGrace(),
	})
}
