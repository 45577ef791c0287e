package controlplane_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/enginetest"
)

func TestAnAPIWithoutAnAdministratorSaysSo(t *testing.T) {
	db, blobs := enginetest.SQLite(t), filepath.Join(t.TempDir(), "blobs")
	const warning = "there is no administrator of this name"
	for _, c := range []struct {
		password string
		warns    int
	}{{"", 1}, {"correct horse battery", 0}, {"", 0}} { // the last finds the one that the second made
		p := start(t, "api", "BERTH_DATABASE_URL="+db.Target, "BERTH_LISTEN=127.0.0.1:0", "BERTH_MASTER_KEY="+strings.Repeat("0f", 32),
			"BERTH_BLOB_DIR="+blobs, "BERTH_ADMIN_PASSWORD="+c.password)
		becomes(t, p.url("admin")+"/readyz", 200, "ready")
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(p.said(), warning); n != c.warns {
			t.Errorf("password %t: warned %d times, want %d", c.password != "", n, c.warns)
		}
	}
}
