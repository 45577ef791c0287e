package main

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pb33f/go-yaml"

	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/environment"
)

// service is what the test reads of one in docker-compose.yml.
type service struct {
	Image         string            `yaml:"image"`
	Build         map[string]any    `yaml:"build"`
	User          string            `yaml:"user"`
	Restart       string            `yaml:"restart"`
	ReadOnly      bool              `yaml:"read_only"`
	Init          bool              `yaml:"init"`
	Privileged    bool              `yaml:"privileged"`
	ContainerName string            `yaml:"container_name"`
	CapDrop       []string          `yaml:"cap_drop"`
	CapAdd        []string          `yaml:"cap_add"`
	SecurityOpt   []string          `yaml:"security_opt"`
	Environment   map[string]string `yaml:"environment"`
	Secrets       []string          `yaml:"secrets"`
	Networks      []string          `yaml:"networks"`
	Ports         []string          `yaml:"ports"`
	Volumes       []string          `yaml:"volumes"`
	Healthcheck   struct {
		Test    []string `yaml:"test"`
		Disable bool     `yaml:"disable"`
	} `yaml:"healthcheck"`
	MemLimit  string `yaml:"mem_limit"`
	CPUs      string `yaml:"cpus"`
	PidsLimit int    `yaml:"pids_limit"`
}

// file is docker-compose.yml.
type file struct {
	Services map[string]service           `yaml:"services"`
	Volumes  map[string]map[string]any    `yaml:"volumes"`
	Secrets  map[string]map[string]string `yaml:"secrets"`
}

func composeFile(t *testing.T) file {
	t.Helper()
	b, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var f file
	if err := yaml.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// oneShots end by themselves.
var oneShots = []string{"migrate"}

func TestEveryServiceIsConfined(t *testing.T) {
	f := composeFile(t)
	if len(f.Services) != len(daemons)+len(oneShots) {
		t.Errorf("%d services; make compose-test knows %d", len(f.Services), len(daemons)+len(oneShots))
	}
	for name, s := range f.Services {
		check := func(ok bool, what string) {
			t.Helper()
			if !ok {
				t.Errorf("%s: %s", name, what)
			}
		}
		oneShot := slices.Contains(oneShots, name)
		check(oneShot || slices.Contains(daemons, name), "make compose-test kills no process of it")
		check(oneShot || len(s.Healthcheck.Test) > 1 && s.Healthcheck.Test[0] == "CMD", "no health check without a shell")
		check(!oneShot || s.Healthcheck.Disable && s.Restart == "no", "a one-shot service neither restarts nor has a health check")
		check(oneShot || s.Restart == "unless-stopped", "no restart policy")
		check(s.MemLimit != "" && s.CPUs != "" && s.PidsLimit > 0, "no limits of memory, processors and processes")
		check(regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(s.User), "its user is not a number other than root's: "+s.User)
		check(s.ReadOnly && s.Init && !s.Privileged, "its root file system is not read-only, or it has no init, or it is privileged")
		check(slices.Equal(s.CapDrop, []string{"ALL"}), "it keeps capabilities")
		check(len(s.CapAdd) == 0 || name == "caddy", "it adds capabilities")
		check(slices.Contains(s.SecurityOpt, "no-new-privileges:true"), "it may gain privileges")
		check(s.ContainerName == "", "a container_name cannot be scaled")
		check(len(s.Ports) == 0 || name == "caddy", "it publishes ports; only Caddy does")
		for _, p := range s.Ports {
			check(strings.HasPrefix(p, "${BERTH_PUBLISH_") && strings.Contains(p, ":-127.0.0.1:"), "a port is fixed, or open to all by default: "+p)
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			_, named := f.Volumes[source]
			check(named || strings.HasPrefix(source, "./") && strings.HasSuffix(v, ":ro"), "neither a named volume nor a read-only file: "+v)
		}
	}
}

func TestSecretsAreFilesOfThoseWhoNeedThem(t *testing.T) {
	f := composeFile(t)
	users := map[string][]string{}
	for name, s := range f.Services {
		for _, secret := range s.Secrets {
			users[secret] = append(users[secret], name)
			if f.Secrets[secret]["file"] != "${BERTH_SECRETS:-./deploy/secrets}/"+secret {
				t.Errorf("secret %s is the file %q", secret, f.Secrets[secret]["file"])
			}
		}
		for variable, value := range s.Environment {
			secret := regexp.MustCompile(`PASSWORD|TOKEN|KEY|SECRET|DATABASE_URL`).MatchString(variable)
			if secret && (!strings.HasSuffix(variable, "_FILE") || !strings.HasPrefix(value, "/run/secrets/")) {
				t.Errorf("%s: %s stands in the environment", name, variable)
			}
			if strings.Contains(value, "://") && strings.Contains(value, "@") {
				t.Errorf("%s: %s holds a user's part of an address", name, variable)
			}
			if unknown := environment.Unknown([]string{variable + "=" + value}); len(unknown) > 0 && variable != "BERTH_SITE" {
				t.Errorf("%s: no program of Berth reads %s", name, variable)
			}
		}
	}
	want := map[string][]string{
		"postgres-password": {"postgres"},
		"owner-url":         {"migrate"},
		"runtime-password":  {"migrate"},
		"database-url":      {"api", "leasekeeper", "scheduler"},
		"master-key":        {"api"},
		"admin-password":    {"admit", "api"},
	}
	for secret, who := range want {
		slices.Sort(users[secret])
		if !slices.Equal(users[secret], who) {
			t.Errorf("secret %s is mounted in %v, want %v", secret, users[secret], who)
		}
	}
	if len(users) != len(want) {
		t.Errorf("secrets %v, want %v", users, want)
	}
}

// Tasks run on hosts as the agent's user: what it can reach, they can.
func TestHostsReachTheProxyAlone(t *testing.T) {
	f := composeFile(t)
	for name, s := range f.Services {
		if slices.Contains(s.Networks, "agents") != (name == "hostagent" || name == "caddy") {
			t.Errorf("%s is on %v", name, s.Networks)
		}
	}
	host := f.Services["hostagent"]
	if len(host.Secrets) > 0 || !slices.Equal(host.Networks, []string{"agents"}) {
		t.Errorf("the host agent has the secrets %v and the networks %v", host.Secrets, host.Networks)
	}
	if !slices.Contains(host.SecurityOpt, "seccomp:deploy/seccomp-hostagent.json") {
		t.Error("the browser has no sandbox under Docker's own profile")
	}
	b, err := os.ReadFile("../../deploy/seccomp-hostagent.json")
	if err != nil {
		t.Fatal(err)
	}
	var profile struct {
		Syscalls []struct {
			Names  []string
			Action string
		}
	}
	if err := json.Unmarshal(b, &profile); err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, s := range profile.Syscalls {
		if s.Action != "SCMP_ACT_ERRNO" {
			t.Errorf("%v: %s", s.Names, s.Action)
		}
		refused = append(refused, s.Names...)
	}
	for _, call := range []string{"mount", "setns", "bpf", "ptrace", "keyctl", "io_uring_setup", "perf_event_open", "init_module", "socket"} {
		if !slices.Contains(refused, call) {
			t.Errorf("the profile of hosts allows %s", call)
		}
	}
	for _, call := range []string{"clone", "clone3", "unshare", "chroot"} {
		if slices.Contains(refused, call) {
			t.Errorf("the browser's sandbox needs %s", call)
		}
	}
}

// The README's first task is the demo's, on the page that Caddy serves.
func TestTheFirstTaskOpensTheDemoPage(t *testing.T) {
	b, err := os.ReadFile("../../deploy/first-task.json")
	if err != nil {
		t.Fatal(err)
	}
	var task struct {
		Plugin  string
		Payload json.RawMessage
	}
	if err := json.Unmarshal(b, &task); err != nil {
		t.Fatal(err)
	}
	var got, want any
	if json.Unmarshal(task.Payload, &got) != nil || json.Unmarshal(demo.FirstTask(demoURL), &want) != nil {
		t.Fatal("no JSON")
	}
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if task.Plugin != "browser.script" || string(g) != string(w) {
		t.Errorf("deploy/first-task.json is %s\nwant %s", g, w)
	}
}

// A device that is held twice is found.
func TestOverlappingHoldsAreFound(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	apart := []hold{{"a", "1", at(5), at(9)}, {"b", "2", at(0), at(5)}, {"c", "3", at(9), at(12)}}
	if faults := overlaps("d", apart); len(faults) > 0 {
		t.Errorf("%v", faults)
	}
	if faults := overlaps("d", append(apart, hold{"d", "4", at(11), at(13)})); len(faults) != 1 {
		t.Errorf("%v", faults)
	}
}

// TestSecretsAreMadeOnce: what is there stays; only where the daemons had the
// owner's URL it becomes the migrate service's, and they get one of their own.
func TestSecretsAreMadeOnce(t *testing.T) {
	make := func(dir string) map[string]string {
		t.Helper()
		if out, err := exec.Command("sh", "../../deploy/secrets.sh", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		made := map[string]string{}
		for name := range composeFile(t).Secrets {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || len(b) == 0 {
				t.Fatalf("secret %s: %d bytes, %v", name, len(b), err)
			}
			made[name] = string(b)
		}
		if !strings.Contains(made["database-url"], "//berth_runtime:"+made["runtime-password"]+"@") || !strings.Contains(made["owner-url"], "//berth:"+made["postgres-password"]+"@") {
			t.Error("a URL has another's password")
		}
		return made
	}
	dir := t.TempDir()
	first := make(dir)
	if !maps.Equal(first, make(dir)) {
		t.Error("a second run makes other secrets")
	}
	old := t.TempDir()
	for name, content := range map[string]string{"postgres-password": first["postgres-password"], "database-url": first["owner-url"]} {
		if err := os.WriteFile(filepath.Join(old, name), []byte(content), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if made := make(old); made["owner-url"] != first["owner-url"] || made["database-url"] == first["owner-url"] {
		t.Error("the owner's URL was not kept for the migrate service")
	}
}
