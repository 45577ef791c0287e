package blob

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
)

// The errors are what package os returns from a full disk and from a spent
// quota.
func TestAFullDiskIsNamed(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		err := fullOr("write a blob", &fs.PathError{Op: "write", Path: "x", Err: errno})
		if !errors.Is(err, ErrFull) || !errors.Is(err, berth.ErrStorageFull) || !errors.Is(err, berth.ErrUnavailable) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := fullOr("write a blob", &fs.PathError{Op: "write", Path: "x", Err: syscall.EIO}); errors.Is(err, ErrFull) {
		t.Errorf("EIO: %v", err)
	}
}
