package external

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

// Load reads the plugins of a directory: each folder in it, but those whose name
// begins with a dot, is one. All mistakes are told at once, by their place. The
// plugins' processes are started in table.
func Load(dir string, table *procs.Table) ([]runtime.Plugin, error) {
	var f berth.Faults
	root, err := filepath.Abs(dir)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(root)
	}
	if err != nil {
		f.Add(dir, "the directory of plugins cannot be read ("+cause(err)+")", "name a directory of plugin folders with --plugin-dir or BERTH_PLUGIN_DIR")
		return nil, f.Err()
	}
	checkOpen(root, dir, &f)
	var plugins []runtime.Plugin
	from := map[berth.PluginVersion]string{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."), e.Type().IsRegular():
			continue
		case !e.IsDir():
			f.Add(path, "it is a symbolic link or no folder", "copy the plugin's folder itself to here")
			continue
		}
		p := loadOne(filepath.Join(root, e.Name()), path, &f)
		version := berth.PluginVersion{Name: p.spec.Name, Version: p.spec.Version}
		if other, twice := from[version]; twice && version.Name != "" {
			f.Add(filepath.Join(path, ManifestName), fmt.Sprintf("%s %s is in %s, too", version.Name, version.Version, other), "remove one, or give it another version")
		}
		from[version] = path
		p.table = table
		plugins = append(plugins, p)
	}
	if most := berth.MaxPluginsPerHost - len(manifest.Builtins()); len(plugins) > most {
		f.Add(dir, fmt.Sprintf("it has %d plugins", len(plugins)), fmt.Sprintf("a host serves at most %d beside Berth's own", most))
	}
	return plugins, f.Err()
}

// loadOne reads the plugin of one folder, which people call by path.
func loadOne(folder, path string, f *berth.Faults) *Plugin {
	file := filepath.Join(path, ManifestName)
	p := &Plugin{home: folder}
	b, problem, remedy := readManifest(filepath.Join(folder, ManifestName))
	if problem != "" {
		f.Add(file, problem, remedy)
		return p
	}
	p.spec = parse(file, b, f)
	if len(p.spec.Command) > 0 && filepath.IsLocal(p.spec.Command[0]) {
		p.program = findProgram(folder, p.spec.Command[0], file+": command", f)
	}
	// Whoever may write to a file of the folder runs what they like as this user.
	err := filepath.WalkDir(folder, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeSymlink == 0 {
			rel, _ := filepath.Rel(folder, at)
			if !checkOpen(at, filepath.Join(path, rel), f) {
				return fs.SkipAll // one is enough to find the others by
			}
		}
		return nil
	})
	if err != nil {
		f.Add(path, "the folder cannot be read ("+cause(err)+")", "give its files to the user that runs this")
	}
	return p
}

func readManifest(file string) (b []byte, problem, remedy string) {
	fi, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "it is missing", "each folder of the plugin directory is a plugin; docs/plugins.md says what its manifest holds"
	case err == nil && !fi.Mode().IsRegular():
		return nil, "it is no regular file", "put the manifest itself there"
	case err == nil && fi.Size() > maxManifest:
		return nil, "it is too long", fmt.Sprintf("use at most %d bytes", maxManifest)
	}
	var r *os.File
	if err == nil {
		r, err = os.Open(file)
	}
	if err == nil {
		defer func() { _ = r.Close() }()
		b, err = io.ReadAll(io.LimitReader(r, maxManifest))
	}
	if err != nil {
		return nil, "it cannot be read (" + cause(err) + ")", "give it to the user that runs this"
	}
	return b, "", ""
}

// findProgram resolves the program of a folder.
func findProgram(folder, name, path string, f *berth.Faults) string {
	quoted := fmt.Sprintf("%q", berth.Clip(name, 80))
	program, err := filepath.EvalSymlinks(filepath.Join(folder, name))
	if err != nil {
		f.Add(path, quoted+" is not in the folder ("+cause(err)+")", "name a file of the folder")
		return ""
	}
	rel, err := filepath.Rel(folder, program)
	if err != nil || !filepath.IsLocal(rel) {
		f.Add(path, quoted+" is a symbolic link that leads out of the folder", "put the program itself into the folder, or a script that calls it")
		return ""
	}
	fi, err := os.Stat(program)
	switch {
	case err != nil:
		f.Add(path, quoted+" cannot be read ("+cause(err)+")", "give it to the user that runs this")
	case !fi.Mode().IsRegular():
		f.Add(path, quoted+" is no regular file", "name a file of the folder")
	case fi.Mode()&0o111 == 0 || unix.Access(program, unix.X_OK) != nil:
		f.Add(path, quoted+" cannot be executed", "chmod +x it")
	}
	return program
}

// checkOpen refuses what everybody on the machine may write to.
func checkOpen(file, path string, f *berth.Faults) (ok bool) {
	fi, err := os.Lstat(file)
	if err == nil && fi.Mode().Perm()&0o002 != 0 {
		f.Add(path, "everybody on this machine may write to it", "chmod o-w it, and look who did")
		return false
	}
	return true
}

// cause is what the system says, without the path.
func cause(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}
