package controlplane_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/pgtest"
)

// says waits until a line of the process holds text.
func (p *process) says(text string) {
	p.t.Helper()
	deadline, ticker := time.After(30*time.Second), time.NewTicker(50*time.Millisecond)
	defer ticker.Stop()
	for !strings.Contains(p.said(), text) {
		select {
		case <-deadline:
			p.t.Fatalf("it never said %q", text)
		case <-ticker.C:
		}
	}
}

func TestTheLogSaysWhyTheDatabaseLetsNobodyIn(t *testing.T) {
	u, err := url.Parse(pgtest.AdminDSN(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/berth_nowhere"
	for dsn, says := range map[string]string{
		u.String(): "there is no such database: create it, or check its name in BERTH_DATABASE_URL",
		"postgres://berth:hunter2@127.0.0.1:1/berth": "nothing listens at the database's address",
	} {
		p := start(t, "scheduler", "BERTH_DATABASE_URL="+dsn, "BERTH_LEASE_TLL=90s")
		p.says(`"variables":["BERTH_LEASE_TLL"]`)
		becomes(t, p.url("admin")+"/readyz", 503, "database_unreachable")
		p.says(says)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		said := p.said()
		if n := strings.Count(said, `"message":"`+says); n != 1 {
			t.Errorf("said %d times %q", n, says)
		}
		if strings.Contains(said, "hunter2") || strings.Contains(said, "127.0.0.1:1/") {
			t.Error("the URL is in the log")
		}
	}
}
