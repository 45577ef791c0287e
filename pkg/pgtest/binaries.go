package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// ErrNoServer means that this machine has no PostgreSQL server binaries; the
// wrapping error says where they were looked for and how to install them.
var ErrNoServer = errors.New("no PostgreSQL server binaries on this machine")

// serverPrograms are what a folder must hold to be taken.
func serverPrograms() []string { return []string{"initdb", "pg_ctl", "postgres"} }

// findBinaries returns the folder of the newest PostgreSQL server among
// pg_config's answer, Debian's versioned folders and the PATH, in that order.
func findBinaries(ctx context.Context, debianRoot string) (string, error) {
	var candidates []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(out)))
	}
	candidates = append(candidates, versionedFolders(debianRoot)...)
	if path, err := exec.LookPath("pg_ctl"); err == nil {
		candidates = append(candidates, filepath.Dir(path))
	}
	for _, dir := range candidates {
		if holdsServer(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w (looked at pg_config --bindir, %s/*/bin and the PATH)\n"+
		"  remedy: install the package postgresql: make deps-postgres, or: sudo apt-get install postgresql\n"+
		"  or set %s to the DSN of a server whose role may create databases",
		ErrNoServer, debianRoot, EnvURL)
}

// versionedFolders lists root/<version>/bin, the newest version first. A glob's
// own order is of strings, where 9.6 comes after 15.
func versionedFolders(root string) []string {
	dirs, err := filepath.Glob(filepath.Join(root, "*", "bin"))
	if err != nil {
		return nil
	}
	version := func(dir string) float64 {
		v, err := strconv.ParseFloat(filepath.Base(filepath.Dir(dir)), 64)
		if err != nil {
			return -1
		}
		return v
	}
	sort.SliceStable(dirs, func(i, j int) bool { return version(dirs[i]) > version(dirs[j]) })
	return dirs
}

func holdsServer(dir string) bool {
	if dir == "" {
		return false
	}
	for _, name := range serverPrograms() {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}
