package runtime

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
)

// Direct lets do use the device at once, outside of a run. The session stays
// open for the next Direct call, so that a page opened by one call is tapped by
// the next; a run, Clean or Close ends it. The errors are those of Run and of do.
func (r *Runtime) Direct(ctx context.Context, id DeviceID, do func(context.Context, Session) error) error {
	d, err := r.driverOf(ctx, id)
	if err != nil {
		return err
	}
	ctx, h, err := r.acquire(ctx, id, "")
	if err != nil {
		return err
	}
	clean := true
	defer func() { r.release(h, clean) }()
	if h.direct != nil && lost(h.direct) {
		if err := r.closeDirect(h); err != nil {
			clean = false
			return fmt.Errorf("%w: %q", ErrUnclean, id)
		}
	}
	if h.direct == nil {
		if err := r.openDirect(ctx, d, id, h); err != nil {
			return err
		}
	}
	return do(ctx, h.direct)
}

func (r *Runtime) openDirect(ctx context.Context, d Driver, id DeviceID, h *hold) error {
	dir, err := os.MkdirTemp(r.tempDir, "berth-direct-")
	if err != nil {
		return fmt.Errorf("no temporary directory: %w", err)
	}
	s, err := d.Open(ctx, id, OpenOptions{RunID: RunID("direct-" + strings.ToLower(rand.Text())), WorkDir: dir})
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	h.direct, h.directDir = s, dir
	return nil
}

// closeDirect ends the session between direct actions, if there is one. The
// device is held, or the Runtime closed.
func (r *Runtime) closeDirect(h *hold) error {
	if h.direct == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), r.closeTimeout)
	defer stop()
	err := h.direct.Close(ctx)
	_ = os.RemoveAll(h.directDir)
	h.direct, h.directDir = nil, ""
	return err
}
