package pgtest

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the operating system's user under which a server runs.
type account struct {
	uid, gid int
	// credential is nil where the server runs as the user of this process.
	credential *syscall.Credential
}

// serverAccount picks the user: PostgreSQL refuses to run as root, so root
// hands the server to postgres or, where that user is missing, to nobody.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s has the id %q: %w", name, found.Uid, err)
		}
		gid, err := strconv.ParseUint(found.Gid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s has the group %q: %w", name, found.Gid, err)
		}
		return account{
			uid: int(uid), gid: int(gid),
			credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		}, nil
	}
	return account{}, fmt.Errorf("PostgreSQL does not run as root and neither user postgres nor nobody exists")
}

// baseFolder is where a server's folder is made: the temporary folder, or /tmp
// where another user could not reach that, or where a Unix socket's path (107
// bytes at most) would not fit.
func (a account) baseFolder() string {
	dir := os.TempDir()
	if len(dir) > 60 || (a.credential != nil && !open(dir)) {
		return "/tmp"
	}
	return dir
}

// open reports whether everybody may pass through dir and all above it.
func open(dir string) bool {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}
