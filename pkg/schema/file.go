package schema

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/berth-dev/berth/pkg/berth"
)

// FileError says why a file beside an SQLite database could not be opened; err
// is that of package os. It does not repeat the path: what was taken for one may
// be a mistyped URL with a password in it.
func FileError(err error) error {
	e := &berth.SetupError{What: "the SQLite file cannot be opened", Remedy: "check its path in BERTH_DATABASE_URL and the rights of its directory"}
	var errno syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		e.What, e.Remedy = "the directory of the SQLite file does not exist", "make it, or check the path in BERTH_DATABASE_URL"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.What, e.Remedy = "the directory of the SQLite file may not be written to", "give this user the right to, or name another in BERTH_DATABASE_URL"
	case errors.As(err, &errno):
		e.What += " (" + errno.Error() + ")"
	}
	return e
}
