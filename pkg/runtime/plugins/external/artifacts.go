package external

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/pkg/runtime"
)

// keeper keeps files of the artifacts directory as artifacts. It is for one
// goroutine at a time. After a fault it goes on with the other files.
type keeper struct {
	ctx    context.Context // once it ended nothing is kept: the run has no time left
	dir    string
	limits limits
	out    runtime.Out
	kept   int
	taken  map[string]bool // paths that a line named
	fault  error           // the first
}

// keep keeps one file.
func (k *keeper) keep(l artifactLine) {
	k.taken[filepath.Clean(l.Path)] = true
	err := k.copy(l)
	if err == nil {
		k.kept++
		return
	}
	_, _ = fmt.Fprintf(k.out.Log(), "[artifact %q is not kept: %s]\n", l.Name, runtime.MessageOf(err, "it could not be copied"))
	if k.fault == nil {
		k.fault = err
	}
}

func (k *keeper) copy(l artifactLine) error {
	missing := &runtime.ActionError{Code: runtime.CodeArtifactMissing, Message: "an artifact is no regular file inside the artifacts directory"}
	if k.ctx.Err() != nil {
		return &runtime.ActionError{Code: runtime.CodeArtifactMissing, Message: "the run was stopped before"}
	}
	if k.limits.Artifacts > 0 && k.kept >= k.limits.Artifacts {
		return &runtime.ActionError{Code: runtime.CodeArtifactLimit, Message: fmt.Sprintf("the plugin may leave at most %d artifacts", k.limits.Artifacts)}
	}
	if !filepath.IsLocal(l.Path) {
		return missing
	}
	root, err := os.OpenRoot(k.dir) // a symbolic link on the way cannot lead out of it
	if err != nil {
		return missing
	}
	defer func() { _ = root.Close() }()
	// Before opening: a fifo would wait for its writer.
	fi, err := root.Lstat(l.Path)
	if err != nil || !fi.Mode().IsRegular() {
		return missing
	}
	if most := k.limits.ArtifactBytes; most > 0 && fi.Size() > most {
		return &runtime.ActionError{Code: runtime.CodeArtifactLimit, Message: fmt.Sprintf("an artifact of the plugin may have at most %d bytes", most)}
	}
	f, err := root.Open(l.Path)
	if err != nil {
		return missing
	}
	defer func() { _ = f.Close() }()
	w, err := k.out.Artifact(l.Name, runtime.ArtifactClass(l.Class), l.ContentType)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, io.LimitReader(f, fi.Size())) // it may be growing
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// rest keeps the regular files of the directory that no line named.
func (k *keeper) rest() {
	entries, err := os.ReadDir(k.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) && k.fault == nil {
		k.fault = &runtime.ActionError{Code: runtime.CodeArtifactMissing, Message: "the artifacts directory cannot be read", Err: err}
	}
	for _, e := range entries {
		if k.taken[e.Name()] {
			continue
		}
		if !e.Type().IsRegular() {
			_, _ = fmt.Fprintf(k.out.Log(), "[%q in the artifacts directory is no regular file and is not kept]\n", e.Name())
			continue
		}
		l := artifactLine{Name: e.Name()}
		_ = l.complete()
		k.keep(l)
		if runtime.CodeOf(k.fault) == runtime.CodeArtifactLimit {
			return // the same for all that follow; a directory may be large
		}
	}
}

// contentType is by extension from a short fixed list: that of the host's MIME
// database would differ from host to host.
func contentType(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".txt", ".log", ".md":
		return "text/plain; charset=utf-8"
	case ".csv":
		return "text/csv"
	case ".json":
		return "application/json"
	case ".xml":
		return "application/xml"
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".webp":
		return "image/webp"
	case ".mp4":
		return "video/mp4"
	case ".webm":
		return "video/webm"
	case ".zip":
		return "application/zip"
	case ".gz":
		return "application/gzip"
	}
	return "application/octet-stream"
}
