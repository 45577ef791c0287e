package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/environment"
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
		"BERTH_CORS_ORIGINS=https://console.example,http://localhost:5173", "BERTH_SERVER_NAMES=berth.example", "BERTH_ADDRESS_RATE=0",
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
	case len(c.CORSOrigins) != 2 || len(c.ServerNames) != 1 || c.AddressRate != 0 || c.PrincipalRate != 500 || c.MaxStreams != 500 || c.MaxConns != 0:
		t.Errorf("HTTP: %+v", c.HTTP)
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
		"BERTH_LOG_LEVEL=loud", "BERTH_LOOP_PLACE_INTERVAL=5", "BERTH_PROCESS_SLOTS=many", "BERTH_WORKERS=cook,agent", "BERTH_MASTER_KEY_FILE=/does/not/exist", "BERTH_ADMIN_NAME=A B",
		"BERTH_LOOP_REAP_INTERVAL=1us", "BERTH_TRUSTED_PROXIES=here", "BERTH_SHUTDOWN_WITHIN=1ms",
		"BERTH_CORS_ORIGINS=*,https://a.example/,https://*.example,null", "BERTH_SERVER_NAMES=a:80", "BERTH_PRINCIPAL_RATE=-1", "BERTH_MAX_CONNECTIONS=3",
	}, io.Discard)
	if !errors.Is(err, berth.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{
		"BERTH_DATABASE_URL", `BERTH_LEASE_TTL: "fast" is no duration (use a duration such as 15s)`, "BERTH_LOOP_PLACE_INTERVAL", "BERTH_PROCESS_SLOTS", "BERTH_RENEW_EVERY", "BERTH_LISTEN", "BERTH_LOG_LEVEL", "cook", "BERTH_MASTER_KEY_FILE",
		"BERTH_ADMIN_NAME", "BERTH_LOOP_REAP_INTERVAL", "BERTH_TRUSTED_PROXIES", "BERTH_SHUTDOWN_WITHIN", "BERTH_BLOB_DIR", "stray", "BERTH_STATE_DIR",
		`"*" is no origin`, `"https://a.example/" is no origin`, `"https://*.example" is no origin`, `"null" is no origin`, "BERTH_SERVER_NAMES", "BERTH_PRINCIPAL_RATE", "BERTH_MAX_CONNECTIONS",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the password is in the error: %v", err)
	}
}

// A keeper that sweeps more rarely than agents fence themselves would grant an
// amnesty to one dead host.
func TestTheSweepFitsTheLeases(t *testing.T) {
	for _, tc := range []struct {
		environ []string
		ok      bool
	}{
		{nil, true},
		{[]string{"BERTH_LOOP_REAP_INTERVAL=22s"}, true},
		{[]string{"BERTH_LOOP_REAP_INTERVAL=23s"}, false},
		{[]string{"BERTH_LOOP_REAP_INTERVAL=1m", "BERTH_LOOP_REAP_DISABLED=true"}, true},
		{[]string{"BERTH_LEASE_TTL=12s", "BERTH_RENEW_EVERY=2s", "BERTH_FENCE_MARGIN=3s", "BERTH_KILL_MARGIN=1s"}, false}, // the default sweep
		{[]string{"BERTH_LEASE_TTL=12s", "BERTH_RENEW_EVERY=2s", "BERTH_FENCE_MARGIN=3s", "BERTH_KILL_MARGIN=1s", "BERTH_LOOP_REAP_INTERVAL=2s"}, true},
	} {
		environ := append(slices.Clone(tc.environ), "BERTH_DATABASE_URL=postgres://h/d", "BERTH_BLOB_DIR=/b", "BERTH_MASTER_KEY=00ff")
		_, keeper := LoadLeasekeeper(nil, environ, io.Discard)
		_, worker := LoadAPI([]string{"--workers", "leasekeeper"}, environ, io.Discard)
		for _, err := range []error{keeper, worker} {
			if (err == nil) != tc.ok || err != nil && !strings.Contains(err.Error(), "BERTH_LOOP_REAP_INTERVAL") {
				t.Errorf("%v: %v", tc.environ, err)
			}
		}
		if _, err := LoadAPI(nil, environ, io.Discard); err != nil {
			t.Errorf("%v, without a keeper: %v", tc.environ, err)
		}
	}
}

func TestASecretIsGivenOnce(t *testing.T) {
	_, err := LoadLeasekeeper(nil, []string{"BERTH_DATABASE_URL=b.db", "BERTH_DATABASE_URL_FILE=/x"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "BERTH_DATABASE_URL_FILE") {
		t.Fatalf("%v", err)
	}
}

func TestHelpListsFlagsAndVariables(t *testing.T) {
	load := map[string]func(out io.Writer) error{
		"api":         func(out io.Writer) error { _, err := LoadAPI([]string{"-h"}, nil, out); return err },
		"scheduler":   func(out io.Writer) error { _, err := LoadScheduler([]string{"-h"}, nil, out); return err },
		"leasekeeper": func(out io.Writer) error { _, err := LoadLeasekeeper([]string{"-h"}, nil, out); return err },
	}
	wants := map[string][]string{
		"api":         {"-blob-dir", "BERTH_BLOB_DIR", "BERTH_MASTER_KEY_FILE", "BERTH_ADMIN_PASSWORD_FILE", "BERTH_LOOP_REAP_INTERVAL", "127.0.0.1:7711"},
		"scheduler":   {"-log-level", "BERTH_LOOP_PLACE_DISABLED", "(default 500ms)", "127.0.0.1:7712"},
		"leasekeeper": {"BERTH_LOOP_SILENT_HOSTS_INTERVAL", "(default 5s)", "127.0.0.1:7713"},
	}
	for name, help := range load {
		var out strings.Builder
		if err := help(&out); !errors.Is(err, ErrHelp) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range append(wants[name], "BERTH_DATABASE_URL_FILE", "BERTH_LEASE_TTL", "(default 1m0s)") {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s -h does not say %s:\n%s", name, want, out.String())
			}
		}
	}
}

func TestEveryVariableIsExplainedAndKnown(t *testing.T) {
	for _, of := range []any{&API{}, &Scheduler{}, &Leasekeeper{}} {
		for _, v := range environment.Variables(of) {
			names := []string{v.Name + "="}
			if v.Secret {
				names = append(names, v.Name+"_FILE=")
			}
			if unknown := environment.Unknown(names); len(unknown) > 0 || v.About == "" {
				t.Errorf("%s: unknown %v, about %q", v.Name, unknown, v.About)
			}
		}
	}
}

func TestMisspeltVariablesAreTold(t *testing.T) {
	c, err := LoadScheduler(nil, []string{"BERTH_DATABASE_URL=sqlite:///b.db", "BERTH_LEASE_TLL=90s", "BERTH_SERVER=http://x"}, io.Discard)
	if err != nil || !slices.Equal(c.Unknown, []string{"BERTH_LEASE_TLL"}) {
		t.Errorf("%v, %q", err, c.Unknown)
	}
}

func TestAnEmptySecretFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := LoadAPI(nil, []string{"BERTH_ADMIN_PASSWORD_FILE=" + path}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "BERTH_ADMIN_PASSWORD_FILE: the file is empty") {
		t.Fatalf("%v", err)
	}
}
