package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fullDisk is a file system of its own without a byte of room. To mount it takes
// root or `sudo -n`, as CI does.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const options = "size=1m,mode=0777"
	if err := unix.Mount("berth-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err == nil {
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	} else {
		if out, err := exec.Command("sudo", "-n", "mount", "-t", "tmpfs", "-o", "nosuid,nodev,"+options, "berth-test", dir).CombinedOutput(); err != nil {
			t.Fatalf("a file system must be mounted, as root or with sudo -n: %v: %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("sudo", "-n", "umount", "-l", dir).Run() })
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{64 << 10, 1 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	_ = f.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return dir
}
