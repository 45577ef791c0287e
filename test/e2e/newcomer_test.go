package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// TestNewcomerMistakes: whatever a newcomer is likely to do wrong, the real
// programs say in one clear sentence what it is and what to do about it, with
// the exit code that docs/cli.md gives it. With -v the test prints what the user
// sees, for a person to read.
func TestNewcomerMistakes(t *testing.T) {
	t.Parallel()
	n := newNewcomer(t)
	for _, m := range newcomerMistakes() {
		t.Run(m.what, func(t *testing.T) {
			n.t = t
			got := m.do(n)
			t.Logf("%s\n%s", m.what, indent(got.text))
			if got.code != m.code {
				t.Errorf("exit code %d, want %d", got.code, m.code)
			}
			n.checkSentence(got)
			for _, want := range m.says {
				if !strings.Contains(got.text, want) {
					t.Errorf("it does not say %q:\n%s", want, got.text)
				}
			}
		})
	}
}

// mistake is a row of the table.
type mistake struct {
	what string
	do   func(n *newcomer) said
	code int
	// says are the thing that is wrong, and the remedy.
	says []string
}

// said is what a program told its user.
type said struct {
	text string
	code int
	cli  bool
}

func newcomerMistakes() []mistake {
	var all []mistake
	all = append(all, mistakesOfTyping()...)
	all = append(all, mistakesOfLogin()...)
	all = append(all, mistakesOfTasks()...)
	all = append(all, mistakesOfDatabases()...)
	return append(all, mistakesOfMachines()...)
}

func mistakesOfTyping() []mistake {
	return []mistake{
		{"a misspelt command", cli("tsak", "list"), 2, []string{`unknown command "tsak"`, "berth --help"}},
		{"a misspelt subcommand", cli("task", "lst"), 2, []string{`no command "lst"`, "berth task --help"}},
		{"a misspelt flag", cli("task", "list", "--stat", "queued"), 2, []string{"--stat", "berth task list --help"}},
		{"a flag without its value", cli("task", "list", "--state"), 2, []string{"--state", "needs a value"}},
		{"a bad duration", cli("task", "submit", "--plugin", "process.run", "--run-timeout", "soon"), 2, []string{`--run-timeout: "soon" is no duration`, "10m"}},
		{"a number that is none", cli("task", "submit", "--plugin", "process.run", "--priority", "high"), 2, []string{`--priority: "high" is no number`}},
		{"a time that is none", cli("task", "submit", "--plugin", "process.run", "--not-before", "tomorrow"), 2, []string{`"tomorrow" is no time`, "10m"}},
		{"an output format that is none", cli("task", "list", "-o", "yaml"), 2, []string{`"yaml"`, "table"}},
		{"an argument that is missing", cli("task", "get"), 2, []string{"it takes", "berth task get --help"}},
		{"a flag that a daemon does not have", daemon("scheduler", nil, "--databse-url", "x"), 1, []string{"databse-url", "scheduler -h"}},
		{"a flag that the agent does not have", daemon("hostagent", nil, "--sever", "x"), 1, []string{"sever", "hostagent -h"}},
		{"a flag that the runtime does not have", daemon("runtime", nil, "--lisen", "x"), 1, []string{"lisen", "runtime -h"}},
	}
}

func mistakesOfLogin() []mistake {
	return []mistake{
		{"not logged in", func(n *newcomer) said {
			return n.berth(map[string]string{"BERTH_CONFIG_DIR": n.dir("nobody")}, "task", "list")
		}, 4, []string{"not logged in", "berth login http://"}},
		{"a wrong password", func(n *newcomer) said {
			return n.berth(nil, "login", "--password-file", n.file("wrong", "Not-the-passw0rd"))
		}, 4, []string{"name or the password is wrong", "check both"}},
		{"no password anywhere", cli("login"), 2, []string{"nobody is there to ask", "--password-stdin"}},
		{"a login that is over", (*newcomer).overLogin, 4, []string{"is over", "berth login http://"}},
		{"a token that is none", func(n *newcomer) said { return n.berth(map[string]string{"BERTH_TOKEN": "eyJ-secret"}, "task", "list") }, 4, []string{"BERTH_TOKEN", "berth login"}},
		{"the server does not run", cli("--url", "http://127.0.0.1:1", "task", "list"), 4, []string{"not logged in on http://127.0.0.1:1"}},
		{"logging in where no server runs", func(n *newcomer) said {
			return n.berth(nil, "login", "http://127.0.0.1:1", "--password-file", n.file("pw", "x"))
		}, 6, []string{"nothing listens there", "berth up"}},
		{"https where the server speaks http", func(n *newcomer) said {
			return n.berth(nil, "login", strings.Replace(n.APIs[0].URL(), "http://", "https://", 1), "--password-file", n.file("pw", "x"))
		}, 6, []string{"speaks http, not https", "http://"}},
		{"http where the server speaks https", (*newcomer).plainToTLS, 1, []string{"https"}},
		{"a server with a certificate of its own", (*newcomer).unknownCertificate, 6, []string{"certificate is not trusted", "BERTH_CA_FILE"}},
		{"an address of something else", (*newcomer).otherServer, 1, []string{"address is Berth's"}},
		{"an address that is none", cli("--url", "nonsense", "task", "list"), 2, []string{"address must look like http://", "--url http://"}},
	}
}

func mistakesOfTasks() []mistake {
	submit := func(args ...string) func(*newcomer) said {
		return cli(append([]string{"task", "submit"}, args...)...)
	}
	shell := `{"command":["true"]}`
	return []mistake{
		{"a task that does not exist", cli("task", "get", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10"), 3, []string{"does not exist", "id"}},
		{"an id that is none", cli("task", "get", "first"), 2, []string{`"first"`}},
		{"@last before any task", func(n *newcomer) said {
			return n.berth(map[string]string{"BERTH_CONFIG_DIR": n.freshLogin()}, "task", "get", "@last")
		}, 2, []string{"no task was submitted from here", "berth task list"}},
		{"an unknown plugin", submit("--plugin", "browser.scirpt"), 1, []string{"plugin: unknown plugin", "known"}},
		{"no plugin", submit("--payload", shell), 2, []string{"no plugin is named", "berth plugin list"}},
		{"a payload against the schema", submit("--plugin", "process.run", "--payload", `{"comand":["true"]}`), 1, []string{"payload"}},
		{"a payload of another type", submit("--plugin", "process.run", "--payload", `{"command":"true"}`), 1, []string{"payload.command", "must be an array"}},
		{"a payload that is no JSON", submit("--plugin", "process.run", "--payload", "{command: true}"), 2, []string{"--payload is not JSON", "write for example"}},
		{"a payload file that is missing", submit("--plugin", "process.run", "--payload", "@nowhere.json"), 1, []string{"nowhere.json", "check the path"}},
		{"a task file that is no JSON", func(n *newcomer) said {
			return n.berth(nil, "task", "submit", "-f", n.file("broken.json", "{\n\"plugin\":\n"))
		}, 1, []string{"not JSON, at line 3", "mend it"}},
		{"a task file with a misspelt field", func(n *newcomer) said {
			return n.berth(nil, "task", "submit", "-f", n.file("field.json", `{"plugin":"process.run","payload":{"command":["true"]},"prioritty":3}`))
		}, 1, []string{"prioritty"}},
		{"a payload that is too large", func(n *newcomer) said {
			return n.berth(nil, "task", "submit", "--plugin", "process.run", "--payload", "@"+n.file("large.json", `{"command":["true"`+strings.Repeat(`,"`+strings.Repeat("x", 60_000)+`"`, 5)+`]}`))
		}, 1, []string{"payload", "bytes", "keep it under"}},
		{"a selector that breaks off", submit("--plugin", "process.run", "--payload", shell, "--selector", "os in (linux"), 1, []string{"selector"}},
		{"a selector of words", submit("--plugin", "process.run", "--payload", shell, "--selector", "any phone"), 1, []string{"selector"}},
		{"an unknown pool", submit("--plugin", "process.run", "--payload", shell, "--pool", "phones"), 1, []string{`no pool "phones"`, "known"}},
		{"a bad tag", submit("--plugin", "process.run", "--payload", shell, "--tag", "two words\t"), 1, []string{"tags"}},
		{"a bad priority", submit("--plugin", "process.run", "--payload", shell, "--priority", "10"), 1, []string{"priority", "9"}},
		{"a version range that is none", submit("--plugin", "process.run", "--payload", shell, "--plugin-version", "newest"), 1, []string{"plugin_version"}},
		{"a version range that nothing satisfies", submit("--plugin", "process.run", "--payload", shell, "--plugin-version", "^9"), 1, []string{"plugin_version", "known"}},
		{"an idempotency key with another task", (*newcomer).keyTwice, 1, []string{"another body", "new key"}},
		{"retrying what has not failed", (*newcomer).retryWaiting, 1, []string{"task is queued", "dead"}},
		{"the log of an attempt that does not exist", (*newcomer).noAttempt, 3, []string{"does not exist", "check the id"}},
		{"a pool twice", cli("pool", "create", "default"), 1, []string{"a pool named default exists already", "choose another name"}},
		{"a pool that does not exist", cli("pool", "pause", "defalt"), 3, []string{`no pool "defalt"`, "berth pool list"}},
		{"a plugin that does not exist", cli("plugin", "get", "process.rn"), 3, []string{`no plugin "process.rn"`, "berth plugin list"}},
		{"a version that does not exist", cli("plugin", "disable", "process.run", "9.9.9"), 3, []string{`version "9.9.9"`, "berth plugin list"}},
		{"an input that does not exist", cli("input", "get", strings.Repeat("ab", 32)), 3, []string{"no input of that digest", "berth input put"}},
	}
}

func mistakesOfDatabases() []mistake {
	migrate := func(url func(n *newcomer) string, args ...string) func(*newcomer) said {
		return func(n *newcomer) said {
			return n.berth(map[string]string{"BERTH_DATABASE_URL": url(n)}, append([]string{"migrate"}, args...)...)
		}
	}
	always := func(s string) func(*newcomer) string { return func(*newcomer) string { return s } }
	return []mistake{
		{"no database URL", cli("migrate", "status"), 2, []string{"which database?", "BERTH_DATABASE_URL"}},
		{"a database URL of another kind", migrate(always("mysql://root:hunter2@db/berth"), "up"), 1, []string{"neither postgres nor sqlite", "postgres://user:password@host"}},
		{"a database that does not run", migrate(always("postgres://berth:hunter2@127.0.0.1:1/berth"), "up"), 1, []string{"nothing listens at the database's address", "start the database"}},
		{"a database host that does not exist", migrate(always("postgres://berth:hunter2@db.invalid/berth"), "up"), 1, []string{"host name is not known", "check the host"}},
		{"a database that does not exist", migrate(func(n *newcomer) string { return n.pg("no_such_database") }, "up"), 1, []string{"no such database", "create it"}},
		{"a database user that does not exist", migrate(func(n *newcomer) string {
			return regexp.MustCompile(`//[^@]*@`).ReplaceAllString(n.pg("postgres"), "//nobody_here:hunter2@")
		}, "up"), 1, []string{"refused the login", "check"}},
		{"a schema that is behind", migrate(func(n *newcomer) string { return "sqlite://" + filepath.Join(n.dir("behind"), "b.db") }, "status"), 1, []string{"behind", "berth migrate up"}},
		{"a schema that is ahead", migrate((*newcomer).aheadURL, "status"), 1, []string{"ahead", "at least as new"}},
		{"a second process on an SQLite file", func(n *newcomer) said {
			return n.daemon("scheduler", map[string]string{"BERTH_DATABASE_URL": n.DatabaseURL, "BERTH_ADMIN_LISTEN": "127.0.0.1:0"})
		}, 1, []string{"another Berth control plane", "use Postgres for more"}},
		{"an SQLite file in a directory that is missing", daemon("scheduler", map[string]string{"BERTH_DATABASE_URL": "sqlite:///nowhere/at/all/b.db"}), 1, []string{"directory of the SQLite file does not exist", "make it"}},
		{"an SQLite file that is none", func(n *newcomer) said {
			return n.berth(map[string]string{"BERTH_DATABASE_URL": "sqlite://" + n.file("notes.db", strings.Repeat("shopping list\n", 200))}, "migrate", "up")
		}, 1, []string{"no SQLite database"}},
	}
}

func mistakesOfMachines() []mistake {
	return []mistake{
		{"the API without anything", daemon("api", nil), 1, []string{"BERTH_DATABASE_URL", "BERTH_MASTER_KEY: missing", "openssl rand -hex 32", "BERTH_BLOB_DIR"}},
		{"a master key that is none", func(n *newcomer) said {
			return n.api(map[string]string{"BERTH_MASTER_KEY_FILE": "", "BERTH_MASTER_KEY": "hunter2"})
		}, 1, []string{"not 32 bytes", "openssl rand -hex 32"}},
		{"a master key file that is missing", func(n *newcomer) said { return n.api(map[string]string{"BERTH_MASTER_KEY_FILE": "/nowhere/key"}) }, 1, []string{"BERTH_MASTER_KEY_FILE", "no such file", "check its path"}},
		{"a master key of another installation", (*newcomer).otherMasterKey, 1, []string{"api: what is secret in the database is sealed under another master key", "configure the one"}},
		{"the API's port is taken", func(n *newcomer) said {
			return n.api(map[string]string{"BERTH_LISTEN": strings.TrimPrefix(n.APIs[0].URL(), "http://")})
		}, 1, []string{"is taken by another process", "choose another address"}},
		{"berth up on a port that is taken", func(n *newcomer) said {
			return n.berth(nil, "up", "--data-dir", n.dir("up"), "--listen", strings.TrimPrefix(n.APIs[0].URL(), "http://"), "--no-agent", "--demo-listen", "127.0.0.1:0")
		}, 1, []string{"is taken by another process", "--listen"}},
		{"an address to listen at that is none", func(n *newcomer) said {
			return n.berth(nil, "up", "--data-dir", n.dir("up2"), "--listen", "localhost", "--no-agent", "--demo-listen", "127.0.0.1:0")
		}, 1, []string{`"localhost" is no address`, "host:port"}},
		{"an address that this machine does not have", func(n *newcomer) said { return n.api(map[string]string{"BERTH_LISTEN": "203.0.113.7:7700"}) }, 1, []string{"203.0.113.7", "this machine"}},
		{"a data directory that cannot be made", cli("up", "--data-dir", "/dev/null/berth"), 1, []string{"/dev/null/berth", "--data-dir"}},
		{"a blob directory that cannot be made", func(n *newcomer) said { return n.api(map[string]string{"BERTH_BLOB_DIR": "/dev/null/blobs"}) }, 1, []string{"/dev/null/blobs", "BERTH_BLOB_DIR"}},
		{"an agent without a server", daemon("hostagent", map[string]string{"BERTH_STATE_DIR": "/dev/null/agent"}), 1, []string{"server: missing", "BERTH_SERVER"}},
		{"a state directory that cannot be written", func(n *newcomer) said {
			return n.agent("lab-1", "", map[string]string{"BERTH_STATE_DIR": "/dev/null/agent"})
		}, 1, []string{"/dev/null/agent", "--state-dir"}},
		{"a full disk under a new agent", func(n *newcomer) said {
			return n.agent("lab-9", n.token("*"), map[string]string{"BERTH_STATE_DIR": filepath.Join(fullDisk(n.t), "agent")})
		}, 1, []string{"the state directory", "is full", "free space there and start again"}},
		{"a full disk under berth up", func(n *newcomer) said {
			return n.berth(nil, "up", "--data-dir", filepath.Join(fullDisk(n.t), "berth"), "--no-agent", "--demo-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0")
		}, 1, []string{"no space left", "--data-dir"}},
		{"an agent that has no token", func(n *newcomer) said { return n.agent("lab-1", "", nil) }, 1, []string{"not enrolled", "make a token", "berth host enrol"}},
		{"an enrolment token that is used", (*newcomer).usedToken, 1, []string{"one host, once", "berth host enrol"}},
		{"an enrolment token that is none", func(n *newcomer) said { return n.agent("lab-2", "berth-enrol-nonsense", nil) }, 1, []string{"token", "berth host enrol"}},
		{"an enrolment token for another name", func(n *newcomer) said { return n.agent("other", n.token("lab-*"), nil) }, 1, []string{"refused the enrolment: name: the token is not for a host of that name: use a name"}},
		{"no Chromium where one is named", func(n *newcomer) said {
			return n.agent("lab-3", n.token("*"), map[string]string{"BERTH_BROWSER_CONTEXTS": "1", "BERTH_CHROMIUM_PATH": "/nowhere/chromium"})
		}, 1, []string{"hostagent: the configured browser /nowhere/chromium", "install Chromium", "configure its path"}},
		{"no Chromium anywhere", (*newcomer).noChromium, 0, []string{"cannot be used: no browser was found", "install Chromium", "--browser-contexts 0"}},
		{"a label that is none", func(n *newcomer) said { return n.agent("lab-5", "", map[string]string{"BERTH_LABELS": "fast"}) }, 1, []string{`"fast" is no label`, "name=value"}},
		{"a host name with capitals", func(n *newcomer) said { return n.agent("My Laptop", "", nil) }, 1, []string{`"My Laptop" cannot name a host`, "--name"}},
	}
}

// newcomer has a Berth that works, a login on it, and no experience.
type newcomer struct {
	*harness.Cluster
	t      *testing.T
	config string // of the login
	n      int
}

func newNewcomer(t *testing.T) *newcomer {
	n := &newcomer{Cluster: harness.NewCluster(t, harness.Options{Engine: harness.SQLite}), t: t}
	// What the plugins of a host without devices to spare would have brought.
	n.Enrol(t, "plugins").Must(t, http.MethodPost, protocol.PathSync, harness.SyncRequest(), nil)
	n.config = n.freshLogin()
	return n
}

// freshLogin logs in on a machine that was never used.
func (n *newcomer) freshLogin() string {
	n.t.Helper()
	dir := n.dir("config")
	got := n.berth(map[string]string{"BERTH_CONFIG_DIR": dir}, "login", "--password-file", n.file("password", n.Password))
	if got.code != 0 {
		n.t.Fatalf("login: %s", got.text)
	}
	return dir
}

func (n *newcomer) dir(name string) string {
	n.t.Helper()
	n.n++
	dir := filepath.Join(n.Folder, fmt.Sprintf("%s-%d", name, n.n))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

func (n *newcomer) file(name, content string) string {
	n.t.Helper()
	path := filepath.Join(n.dir("files"), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

func cli(args ...string) func(*newcomer) said {
	return func(n *newcomer) said { return n.berth(nil, args...) }
}

func daemon(program string, env map[string]string, args ...string) func(*newcomer) said {
	return func(n *newcomer) said { return n.daemon(program, env, args...) }
}

// berth runs the command line to its end.
func (n *newcomer) berth(env map[string]string, args ...string) said {
	n.t.Helper()
	all := map[string]string{"BERTH_CONFIG_DIR": n.config, "BERTH_URL": n.APIs[0].URL()}
	for k, v := range env {
		all[k] = v
	}
	p := harness.Run(n.t, n.dir("run"), harness.Command{Name: "berth", Path: harness.Program(n.t, "berth"), Args: args, Env: all})
	got := n.end(p)
	got.cli = true
	return got
}

// daemon runs a daemon that is expected to end by itself.
func (n *newcomer) daemon(program string, env map[string]string, args ...string) said {
	n.t.Helper()
	return n.end(harness.Run(n.t, n.dir("run"), harness.Command{Name: program, Path: harness.Program(n.t, program), Args: args, Env: env}))
}

func (n *newcomer) end(p *harness.Process) said {
	n.t.Helper()
	code, err := p.Exit(harness.Patience)
	out, text := p.Output(n.t)
	if err != nil {
		n.t.Fatalf("%v\n%s%s", err, out, text)
	}
	return said{text: strings.TrimRight(text, "\n"), code: code}
}

// api starts a second API, on a file of its own, with the mistake.
func (n *newcomer) api(env map[string]string) said {
	n.t.Helper()
	all := map[string]string{}
	for k, v := range n.APIs[0].Env {
		all[k] = v
	}
	all["BERTH_DATABASE_URL"] = "sqlite://" + filepath.Join(n.dir("second"), "b.db")
	all["BERTH_ADMIN_LISTEN"], all["BERTH_LISTEN"] = "127.0.0.1:0", "127.0.0.1:0"
	for k, v := range env {
		all[k] = v
	}
	return n.daemon("api", all)
}

// agent starts a Host Agent with the mistake.
func (n *newcomer) agent(name, token string, env map[string]string) said {
	n.t.Helper()
	all := map[string]string{
		"BERTH_SERVER": n.APIs[0].URL(), "BERTH_STATE_DIR": n.dir("state"), "BERTH_HOST_NAME": name, "BERTH_ENROLMENT_TOKEN": token,
		"BERTH_ADMIN_LISTEN": "127.0.0.1:0", "BERTH_PROCESS_SLOTS": "1", "BERTH_BROWSER_CONTEXTS": "0",
	}
	for k, v := range env {
		all[k] = v
	}
	return n.daemon("hostagent", all)
}

func (n *newcomer) token(pattern string) string {
	n.t.Helper()
	token, err := n.Client.CreateEnrolmentToken(n.t.Context(), client.EnrolmentTokenSpec{HostNamePattern: pattern})
	if err != nil {
		n.t.Fatal(err)
	}
	return token.Token
}

// noChromium: the agent goes on for its other devices, and says so in its log.
func (n *newcomer) noChromium() said {
	p := harness.Run(n.t, n.dir("run"), harness.Command{Name: "hostagent", Path: harness.Program(n.t, "hostagent"), Env: map[string]string{
		"BERTH_SERVER": n.APIs[0].URL(), "BERTH_STATE_DIR": n.dir("state"), "BERTH_HOST_NAME": "lab-4", "BERTH_ENROLMENT_TOKEN": n.token("*"),
		"BERTH_ADMIN_LISTEN": "127.0.0.1:0", "BERTH_BROWSER_CONTEXTS": "1", "PATH": "/nowhere",
	}})
	line := p.AwaitLine(n.t, harness.Patience, "that there is no browser", func(l harness.Line) bool { return l.Text("level") == "warn" })
	p.AwaitLine(n.t, harness.Patience, "that it goes on", func(l harness.Line) bool { return l.Text("message") == "synced" })
	p.Stop(n.t)
	return said{text: line.Text("message")}
}

func (n *newcomer) usedToken() said {
	token := n.Enrol(n.t, "first-host").Token
	return n.agent("first-host", token, nil)
}

// overLogin: the stored tokens are good for nothing any more.
func (n *newcomer) overLogin() said {
	dir := n.freshLogin()
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) == 0 {
		n.t.Fatalf("no login file in %s: %v", dir, err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, field := range []string{"access_token", "refresh_token"} {
			b = regexp.MustCompile(`("`+field+`": *")[^"]*`).ReplaceAll(b, []byte("${1}over"))
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	return n.berth(map[string]string{"BERTH_CONFIG_DIR": dir}, "task", "list")
}

func (n *newcomer) plainToTLS() said {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	return n.berth(nil, "login", strings.Replace(s.URL, "https://", "http://", 1), "--password-file", n.file("pw", "x"))
}

func (n *newcomer) unknownCertificate() said {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	return n.berth(nil, "login", s.URL, "--password-file", n.file("pw", "x"))
}

func (n *newcomer) otherServer() said {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	return n.berth(nil, "login", s.URL, "--password-file", n.file("pw", "x"))
}

func (n *newcomer) waiting() string {
	n.t.Helper()
	spec := harness.Shell(n.t, "true")
	spec.Selector = "slot=nowhere"
	return n.Submit(n.t, spec).ID
}

func (n *newcomer) retryWaiting() said { return n.berth(nil, "task", "retry", n.waiting()) }

func (n *newcomer) noAttempt() said {
	return n.berth(nil, "task", "logs", n.waiting(), "--attempt", "9")
}

func (n *newcomer) keyTwice() said {
	args := []string{"task", "submit", "--plugin", "process.run", "--selector", "slot=nowhere", "--idempotency-key", "monday"}
	if first := n.berth(nil, append(args, "--payload", `{"command":["true"]}`)...); first.code != 0 {
		n.t.Fatalf("the first: %s", first.text)
	}
	return n.berth(nil, append(args, "--payload", `{"command":["false"]}`)...)
}

// pg is the tests' server with another database.
func (n *newcomer) pg(database string) string {
	n.t.Helper()
	return regexp.MustCompile(`^(postgres(?:ql)?://[^/]*/)[^?]*`).ReplaceAllString(pgtest.AdminDSN(n.t), "${1}"+database)
}

// aheadURL is a database that a newer Berth migrated.
func (n *newcomer) aheadURL() string {
	n.t.Helper()
	url := "sqlite://" + filepath.Join(n.dir("ahead"), "b.db")
	for _, args := range [][]string{{"up"}, {"status"}} {
		if got := n.berth(map[string]string{"BERTH_DATABASE_URL": url}, append([]string{"migrate"}, args...)...); got.code != 0 {
			n.t.Fatalf("migrate: %s", got.text)
		}
	}
	if _, err := harness.Query(n.t.Context(), "sqlite3", "file:"+strings.TrimPrefix(url, "sqlite://"), "UPDATE schema_migrations SET version = 9999 RETURNING version"); err != nil {
		n.t.Fatal(err)
	}
	return url
}

// otherMasterKey starts an API on a database that was set up under another key.
func (n *newcomer) otherMasterKey() said {
	dir := n.dir("rekeyed")
	url := "sqlite://" + filepath.Join(dir, "b.db")
	if got := n.berth(map[string]string{"BERTH_DATABASE_URL": url}, "migrate", "up"); got.code != 0 {
		n.t.Fatalf("migrate: %s", got.text)
	}
	first := n.Daemon("api", "api-first", map[string]string{"BERTH_DATABASE_URL": url})
	for k, v := range n.APIs[0].Env {
		if _, own := first.Env[k]; !own {
			first.Env[k] = v
		}
	}
	first.Env["BERTH_ADMIN_LISTEN"], first.Env["BERTH_LISTEN"] = "127.0.0.1:0", "127.0.0.1:0"
	first.Server = "api"
	first.Start(n.t)
	first.AwaitReady(n.t)
	first.Stop(n.t)
	return n.api(map[string]string{"BERTH_DATABASE_URL": url, "BERTH_MASTER_KEY_FILE": n.file("key", strings.Repeat("0f", 32))})
}

// technical is what belongs into no sentence for a user.
var technical = regexp.MustCompile(`goroutine \d|panic:|\.go:\d|SQLSTATE|sqlite3|pgx|pgconn|dial tcp|listen tcp|lookup |syscall|0x[0-9a-f]{6}|%!|<nil>|\bEOF\b|json:|context deadline|\[\*?[a-z]+\.[A-Z]|x509:|strconv\.`)

// manyFaults leads a list of them, each with its remedy.
var manyFaults = regexp.MustCompile(`^error: \d+ faults:$`)

// checkSentence: few words, a remedy, no internals and no secrets.
func (n *newcomer) checkSentence(got said) {
	n.t.Helper()
	lines := strings.Split(got.text, "\n")
	switch {
	case got.cli && manyFaults.MatchString(lines[0]):
		for _, line := range lines[1 : len(lines)-1] {
			if !strings.HasPrefix(line, "  - ") || !strings.Contains(line, "(") {
				n.t.Errorf("a fault has no remedy: %s", line)
			}
		}
	case got.cli && (!strings.HasPrefix(lines[0], "error: ") || len(lines) < 2 || len(lines) > 3 || !strings.HasPrefix(lines[1], "  try: ")):
		n.t.Errorf("it is not an error with something to try, and perhaps its code:\n%s", got.text)
	case !got.cli && len(lines) != 1:
		n.t.Errorf("it is not one line:\n%s", got.text)
	}
	for _, line := range lines {
		if len(line) > 420 {
			n.t.Errorf("a line has %d characters: %s", len(line), line)
		}
	}
	if found := technical.FindString(got.text); found != "" {
		n.t.Errorf("it shows internals (%q):\n%s", found, got.text)
	}
	for _, secret := range []string{n.Password, n.MasterKey, "hunter2", "Not-the-passw0rd", "eyJ-secret", n.Tokens.AccessToken, n.Tokens.RefreshToken} {
		if strings.Contains(got.text, secret) {
			n.t.Errorf("it shows a secret:\n%s", got.text)
		}
	}
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }
