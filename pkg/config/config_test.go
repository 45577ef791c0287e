package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestZeroValuesWork(t *testing.T) {
	c, err := LoadScheduler(nil, []string{"BERTH_DATABASE_URL=sqlite:///var/lib/berth/berth.db"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if c.Timings.Berth() != berth.DefaultTimings() || c.AdminListen != DefaultSchedulerAdmin || c.LogLevel != "info" || c.ShutdownWithin != 15*time.Second {
		t.Fatalf("%+v", c)
	}
}

func TestEverythingIsRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c, err := LoadAPI([]string{"--listen", "127.0.0.1:1", "--workers", "scheduler, agent", "--log-level=debug"}, []string{
		"BERTH_DATABASE_URL_FILE=" + write("url", "postgres://berth:hunter2@db:5432/berth\n"),
		"BERTH_MASTER_KEY_FILE=" + write("key", "00ff\r\n"),
		"BERTH_ADMIN_PASSWORD=pass word ", "BERTH_ADMIN_NAME=root", "BERTH_BLOB_DIR=/blobs", "BERTH_LISTEN=0.0.0.0:80",
		"BERTH_LEASE_TTL=90s", "BERTH_LOOP_PLACE_INTERVAL=50ms", "BERTH_LOOP_GIVE_UP_DISABLED=true", "BERTH_LOOP_REAP_INTERVAL=1s",
		"BERTH_TRUSTED_PROXIES=10.0.0.0/8,127.0.0.1/32", "BERTH_WORKERS=leasekeeper", "BERTH_APPROVE_PLUGINS=true", "UNRELATED=1", "BERTH_STATE_DIR=/s",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case c.DatabaseURL.Reveal() != "postgres://berth:hunter2@db:5432/berth", c.MasterKey.Reveal() != "00ff", c.AdminPassword.Reveal() != "pass word ":
		t.Error("a secret was read wrongly")
	case c.Listen != "127.0.0.1:1" || !c.Has(WorkerScheduler) || !c.Has(WorkerAgent) || c.Has(WorkerLeasekeeper) || c.LogLevel != "debug":
		t.Errorf("flags: %+v", c)
	case c.Timings.Berth().LeaseTTL != 90*time.Second || c.Scheduler.Place.Interval != 50*time.Millisecond || !c.Scheduler.GiveUp.Disabled || c.Keeper.Reap.Interval != time.Second:
		t.Errorf("timings and loops: %+v", c)
	case len(c.Proxies) != 2 || c.AdminName != "root" || !c.ApprovePlugins:
		t.Errorf("%+v", c)
	}
	if s := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(s, "hunter2") || strings.Contains(s, "pass word") || strings.Contains(s, "00ff") {
		t.Errorf("a secret prints: %s", s)
	}
}

func TestEveryFaultIsNamedAtOnce(t *testing.T) {
	_, err := LoadAPI([]string{"stray"}, []string{
		"BERTH_DATABASE_URL=mysql://u:hunter2@h/d", "BERTH_LEASE_TTL=fast", "BERTH_RENEW_EVERY=50s", "BERTH_LISTEN=nowhere",
		"BERTH_LOG_LEVEL=loud", "BERTH_WORKERS=cook,agent", "BERTH_MASTER_KEY_FILE=/does/not/exist", "BERTH_ADMIN_NAME=A B",
		"BERTH_LOOP_REAP_INTERVAL=1us", "BERTH_TRUSTED_PROXIES=here", "BERTH_SHUTDOWN_WITHIN=1ms",
	}, io.Discard)
	if !errors.Is(err, berth.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{
		"BERTH_DATABASE_URL", "LeaseTTL", "BERTH_RENEW_EVERY", "BERTH_LISTEN", "BERTH_LOG_LEVEL", "cook", "BERTH_MASTER_KEY_FILE",
		"BERTH_ADMIN_NAME", "BERTH_LOOP_REAP_INTERVAL", "BERTH_TRUSTED_PROXIES", "BERTH_SHUTDOWN_WITHIN", "BERTH_BLOB_DIR", "stray", "BERTH_STATE_DIR",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the password is in the error: %v", err)
	}
}

func TestASecretIsGivenOnce(t *testing.T) {
	_, err := LoadLeasekeeper(nil, []string{"BERTH_DATABASE_URL=b.db", "BERTH_DATABASE_URL_FILE=/x"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "BERTH_DATABASE_URL_FILE") {
		t.Fatalf("%v", err)
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	var out strings.Builder
	_, err := LoadAPI([]string{"-h"}, nil, &out)
	if !errors.Is(err, ErrHelp) || !strings.Contains(out.String(), "BERTH_BLOB_DIR") {
		t.Fatalf("%v\n%s", err, out.String())
	}
}
