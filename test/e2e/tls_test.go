package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/tlsfiles"
	"github.com/berth-dev/berth/pkg/tlsfiles/tlstest"
	"github.com/berth-dev/berth/test/harness"
)

// secured is a cluster whose public address speaks TLS.
type secured struct {
	*harness.Cluster
	t *testing.T
	// servers signs the API's certificate; agents signs those of hosts, nil where
	// none is asked for.
	servers, agents *tlstest.Authority
}

func secure(t *testing.T, engine harness.Engine, mutual bool) *secured {
	t.Helper()
	s := &secured{t: t, servers: tlstest.New(t)}
	cert, key := s.servers.Sign("api", tlstest.Server)
	env := map[string]string{"BERTH_TLS_CERT_FILE": cert, "BERTH_TLS_KEY_FILE": key}
	if mutual {
		s.agents = tlstest.New(t)
		env["BERTH_AGENT_CLIENT_CA_FILE"] = s.agents.File
	}
	own, err := tlsfiles.Client{CAFile: s.servers.File}.Config(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Cluster = harness.Prepare(t, harness.Options{Engine: engine, TLS: own})
	for _, d := range s.APIs {
		maps.Copy(d.Env, env)
	}
	s.Migrate(t, "up")
	s.Start(t)
	s.Login(t)
	return s
}

// agent is one that trusts the API, with a certificate of its own where it is given.
func (s *secured) agent(name string, cert ...string) harness.AgentOptions {
	env := map[string]string{"BERTH_CA_FILE": s.servers.File}
	if len(cert) == 2 {
		env["BERTH_CLIENT_CERT_FILE"], env["BERTH_CLIENT_KEY_FILE"] = cert[0], cert[1]
	}
	return harness.AgentOptions{Name: name, Processes: 1, Env: env}
}

// runs asserts that a task runs to its end, with its log.
func (s *secured) runs(what string) {
	s.t.Helper()
	task := s.Submit(s.t, harness.Shell(s.t, "echo over TLS"))
	if done := harness.Finished(s.t, s.Client, task.ID, harness.Patience); done.State != "succeeded" {
		s.t.Fatalf("%s: the task is %s (%s)", what, done.State, done.Reason)
	}
	if out := s.cli(0, "task", "logs", task.ID); out != "over TLS\n" {
		s.t.Errorf("%s: its log is %q", what, out)
	}
}

// cli runs the command line, logged in, with the authority of the API's certificate.
func (s *secured) cli(code int, args ...string) (stdout string) {
	s.t.Helper()
	out, _ := s.berth(map[string]string{"BERTH_CA_FILE": s.servers.File}, code, args...)
	return out
}

func (s *secured) berth(env map[string]string, code int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	all := map[string]string{"BERTH_URL": s.APIs[0].URL(), "BERTH_CONFIG_DIR": filepath.Join(s.Folder, "cli")}
	maps.Copy(all, env)
	p := harness.Run(s.t, s.Folder, harness.Command{Name: "berth", Path: harness.Program(s.t, "berth"), Args: args, Env: all})
	p.MustExit(s.t, harness.Patience, code)
	return p.Output(s.t)
}

// login logs the command line in.
func (s *secured) login() {
	s.t.Helper()
	s.cli(0, "login", "--name", harness.Admin, "--password-file", filepath.Join(s.Folder, "admin-password"))
}

// warned waits until an agent that is not let in says why, in one sentence.
func (s *secured) warned(a *harness.Agent, sentence string) {
	s.t.Helper()
	a.AwaitLine(s.t, harness.Patience, sentence, func(l harness.Line) bool { return strings.HasSuffix(l.Text("error"), sentence) })
}

// refused launches an agent that must end with a sentence.
func (s *secured) refused(o harness.AgentOptions, sentence string) {
	s.t.Helper()
	a := s.NewAgent(s.t, o)
	a.Launch(s.t)
	a.MustExit(s.t, harness.Patience, 1)
	if _, stderr := a.Output(s.t); stderr != "hostagent: "+sentence+"\n" {
		s.t.Errorf("%s says\n%s\nwant\n%s", o.Name, stderr, sentence)
	}
}

const (
	unknownServer = "the server's certificate is not trusted: it is of an authority that is not trusted here; name that authority's certificate (PEM) in BERTH_CA_FILE"
	refusedClient = "have one issued by the authority that the server trusts for clients, valid today and with the usage clientAuth"
)

// TestTLS: the API with a certificate of files, an agent and the command line that
// trust its authority alone, and the words of those who do not.
func TestTLS(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			s := secure(t, engine, false)
			s.login()
			s.AddAgent(t, s.agent("good"))
			s.runs("over TLS")

			stranger := s.agent("stranger")
			stranger.Env = map[string]string{"BERTH_CA_FILE": tlstest.New(t).File}
			a := s.NewAgent(t, stranger)
			a.Launch(t)
			s.warned(a, unknownServer)
			a.Process.Stop(t)
			s.commandLine()
			s.healthcheck()
			s.CheckHistory(t)
		})
	}
}

// commandLine: one sentence and what to do about it.
func (s *secured) commandLine() {
	t := s.t
	t.Helper()
	url, elsewhere := s.APIs[0].URL(), tlstest.New(t)
	for name, c := range map[string]struct {
		env  map[string]string
		code int
		want string
	}{
		"an authority that is not named": {nil, 6, "error: cannot reach Berth at " + url + ": the server's certificate is not trusted: it is of an authority that is not trusted here\n" +
			"  try: name that authority's certificate (PEM) in BERTH_CA_FILE\n"},
		"another authority": {map[string]string{"BERTH_CA_FILE": elsewhere.File}, 6, "error: cannot reach Berth at " + url +
			": the server's certificate is not trusted: it is of an authority that is not trusted here\n  try: name that authority's certificate (PEM) in BERTH_CA_FILE\n"},
		"a file that is missing": {map[string]string{"BERTH_CA_FILE": "/no/such.pem"}, 2, "error: BERTH_CA_FILE: authorities /no/such.pem: no such file or directory\n" +
			"  try: name a PEM file with the certificate of the authority that signed the server's\n"},
		"a file without a certificate": {map[string]string{"BERTH_CA_FILE": s.passwordFile()}, 2, "error: BERTH_CA_FILE: authorities " + s.passwordFile() +
			": there is no certificate in PEM in it\n  try: name a PEM file with the certificate of the authority that signed the server's\n"},
		"plain HTTP": {map[string]string{"BERTH_URL": strings.Replace(url, "https", "http", 1)}, 1, "error: the server speaks https, not http\n  try: write https:// in the address\n  (code no_problem_document)\n"},
	} {
		if _, stderr := s.berth(c.env, c.code, "login", "--name", harness.Admin, "--password-file", s.passwordFile()); stderr != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, stderr, c.want)
		}
	}
}

func (s *secured) passwordFile() string { return filepath.Join(s.Folder, "admin-password") }

// healthcheck: the command of the images, at the address that speaks TLS and at the
// admin address, which never does.
func (s *secured) healthcheck() {
	t := s.t
	t.Helper()
	url := s.APIs[0].URL() + "/livez"
	s.cli(0, "healthcheck", url)
	s.cli(0, "healthcheck", s.APIs[0].Admin()+"/readyz")
	want := "error: the server's certificate is not trusted: it is of an authority that is not trusted here\n  try: name that authority's certificate (PEM) in BERTH_CA_FILE\n"
	if _, stderr := s.berth(nil, 1, "healthcheck", url); stderr != want {
		t.Errorf("a healthcheck without the authority: %s", stderr)
	}
}

// TestMutualTLS: hosts show a certificate of the agents' authority or are refused, and
// a task runs to its end; certificates that are replaced under running processes
// count, on both sides.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			s := secure(t, engine, true)
			s.login() // people need no certificate
			end := time.Now().Add(45 * time.Second)
			cert, key := s.agents.Sign("good", tlstest.Until(end))
			good := s.AddAgent(t, s.agent("good", cert, key))
			s.runs("over mutual TLS")

			s.refused(s.agent("none"), "the server refused the enrolment: Host Agents must show a client certificate here, of an authority that this server trusts: "+
				"Start the agent with --client-cert-file and --client-key-file.")
			other, otherKey := tlstest.New(t).Sign("other")
			over, overKey := s.agents.Sign("over", tlstest.Over)
			use, useKey := s.agents.Sign("server", tlstest.Server)
			mended := map[string]*harness.Agent{}
			for name, c := range map[string]struct{ cert, key, says string }{
				"other": {other, otherKey, "it is of an authority that the server does not trust"},
				"over":  {over, overKey, "it is over, or not valid yet"},
				"use":   {use, useKey, "the server does not say why"},
			} {
				a := s.NewAgent(t, s.agent(name, c.cert, c.key))
				a.Launch(t)
				s.warned(a, "the server refuses the client certificate: "+c.says+"; "+refusedClient)
				mended[name] = a
			}
			if hosts := s.Query(t, "SELECT name FROM hosts"); len(hosts) != 1 {
				t.Errorf("hosts %v", hosts)
			}
			// A good certificate in its files lets the one that waits in, without a restart.
			s.agents.Sign("over")
			mended["over"].AwaitSynced(t)
			for _, name := range []string{"other", "use", "over"} {
				mended[name].Process.Stop(t)
			}

			// The good one's is renewed before it is over, and nothing breaks off.
			s.agents.Sign("good")
			harness.Eventually(t, harness.Patience, "the end of the first certificate", func() bool { return time.Now().After(end.Add(time.Second)) })
			s.runs("after the end of the first certificate")
			if len(good.Runs()) != 1 || good.Ended() {
				t.Error("the agent did not go on")
			}
			for _, l := range good.Lines(t) {
				if strings.Contains(l.Text("error"), "certificate") {
					t.Errorf("it says %v", l)
				}
			}
			s.serverReplaced()
			s.CheckHistory(t)
		})
	}
}

// serverReplaced: a new certificate of the API's is shown without a restart; files
// that cannot be read are logged, and the old one is shown on.
func (s *secured) serverReplaced() {
	t := s.t
	t.Helper()
	before := s.shown()
	cert, key := s.servers.Sign("api", tlstest.Server)
	harness.Eventually(t, harness.Patience, "the new certificate is shown", func() bool { return s.shown() != before })
	s.cli(0, "task", "list")
	now := s.shown()
	if err := os.WriteFile(key, []byte("half written"), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Patience, "a line about files that cannot be read", func() bool {
		s.shown()
		for _, l := range s.APIs[0].Lines(t) {
			if strings.HasPrefix(l.Text("message"), "the certificate's files changed and cannot be read") && strings.Contains(l.Text("error"), cert) {
				return true
			}
		}
		return false
	})
	if s.shown() != now {
		t.Error("another certificate is shown")
	}
	s.servers.Sign("api", tlstest.Server, tlstest.Elsewhere)
	harness.Eventually(t, harness.Patience, "a certificate for another address is shown", func() bool { return s.shown() != now })
	_, stderr := s.berth(map[string]string{"BERTH_CA_FILE": s.servers.File}, 6, "task", "list")
	for _, words := range []string{"the server's certificate is not trusted: ", "127.0.0.1", "\n  try: use an address that is in the certificate\n"} {
		if !strings.Contains(stderr, words) {
			t.Errorf("a server with a certificate for elsewhere: %s", stderr)
		}
	}
	s.servers.Sign("api", tlstest.Server, tlstest.Over)
	harness.Eventually(t, harness.Patience, "a certificate that is over is told of", func() bool {
		_, stderr = s.berth(map[string]string{"BERTH_CA_FILE": s.servers.File}, 6, "task", "list")
		return strings.Contains(stderr, "it is valid from ") && strings.Contains(stderr, "try: have it renewed, or set this machine's clock")
	})
	s.servers.Sign("api", tlstest.Server)
	harness.Eventually(t, harness.Patience, "a good certificate is shown", func() bool {
		c, err := tlsfiles.Client{CAFile: s.servers.File}.Config(nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", s.address(), c)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	s.runs("with the last certificate")
}

func (s *secured) address() string { return strings.TrimPrefix(s.APIs[0].URL(), "https://") }

// shown is the serial number of the certificate that the API shows just now.
func (s *secured) shown() string {
	s.t.Helper()
	var serial string
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: harness.Patience}, "tcp", s.address(), &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // whatever is shown is looked at
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			cert, err := x509.ParseCertificate(raw[0])
			if err == nil {
				serial = cert.SerialNumber.String()
			}
			return err
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		s.t.Fatal(err)
	}
	return serial
}
