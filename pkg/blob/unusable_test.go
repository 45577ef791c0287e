package blob

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestADirectoryThatCannotBeMadeIsASentence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenDirectory(filepath.Join(file, "blobs"))
	var setup *berth.SetupError
	if !errors.As(err, &setup) || !strings.Contains(setup.What, "(not a directory)") || !strings.Contains(setup.Remedy, "BERTH_BLOB_DIR") {
		t.Errorf("%v", err)
	}
}
