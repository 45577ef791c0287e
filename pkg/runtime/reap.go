package runtime

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/pkg/runtime/procs"
)

// Reap kills what an earlier process left behind in a state directory (commands
// and their descendants, the browser) and removes its temporary directories.
// ErrStateDirInUse when a living process holds the directory. Composing a
// Runtime with package builtin does the same, so it is for tools that do not.
func Reap(ctx context.Context, stateDir string) (procs.Report, error) {
	report, err := procs.Reap(ctx, stateDir)
	if errors.Is(err, procs.ErrInUse) {
		return report, fmt.Errorf("%w: %s", ErrStateDirInUse, stateDir)
	}
	return report, err
}
