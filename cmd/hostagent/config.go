package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/environment"
	"github.com/berth-dev/berth/pkg/redact"
)

// config is what the agent is told by its environment and its flags; flags win.
type config struct {
	Server        string        `env:"BERTH_SERVER" about:"as --server"`
	StateDir      string        `env:"BERTH_STATE_DIR" envDefault:"/var/lib/berth/hostagent" about:"as --state-dir"`
	StateRoot     string        `env:"BERTH_STATE_ROOT" about:"as --state-root"`
	Name          string        `env:"BERTH_HOST_NAME" about:"as --name"`
	TokenFile     string        `env:"BERTH_ENROLMENT_TOKEN_FILE" about:"as --enrolment-token-file; or BERTH_ENROLMENT_TOKEN, the token itself"`
	EnrolmentDir  string        `env:"BERTH_ENROLMENT_DIR" about:"as --enrolment-dir"`
	AdminListen   string        `env:"BERTH_ADMIN_LISTEN" envDefault:"127.0.0.1:7714" about:"as --admin-listen"`
	LogLevel      string        `env:"BERTH_LOG_LEVEL" envDefault:"info" about:"as --log-level"`
	Processes     int           `env:"BERTH_PROCESS_SLOTS" envDefault:"2" about:"as --process-slots"`
	Browsers      int           `env:"BERTH_BROWSER_CONTEXTS" envDefault:"2" about:"as --browser-contexts"`
	ChromiumPath  string        `env:"BERTH_CHROMIUM_PATH" about:"as --chromium"`
	Commands      []string      `env:"BERTH_COMMANDS" about:"as --command, joined by commas"`
	PluginDir     string        `env:"BERTH_PLUGIN_DIR" about:"as --plugin-dir"`
	Labels        []string      `env:"BERTH_LABELS" about:"as --label, joined by commas"`
	InputCacheMiB int           `env:"BERTH_INPUT_CACHE_MIB" envDefault:"10240" about:"as --input-cache-mib"`
	KeyMaxAge     time.Duration `env:"BERTH_KEY_MAX_AGE" envDefault:"720h" about:"as --key-max-age"`
	CAFile        string        `env:"BERTH_CA_FILE" about:"as --ca-file"`
	CertFile      string        `env:"BERTH_CLIENT_CERT_FILE" about:"as --client-cert-file"`
	ClientKeyFile string        `env:"BERTH_CLIENT_KEY_FILE" about:"as --client-key-file"`
	AllowLoopback bool          `env:"BERTH_ALLOW_LOOPBACK" about:"true: as --allow-loopback"`
	AllowHosts    []string      `env:"BERTH_ALLOW_HOSTS" about:"as --allow-host, joined by commas"`

	token  redact.String
	labels map[string]string
	// unknown are BERTH_ variables that no program of Berth reads.
	unknown []string
}

// parse reads environment and flags and names every fault at once.
func parse(args, environ []string, stderr io.Writer) (config, error) {
	var c config
	vars := env.ToMap(environ)
	var f berth.Faults
	environment.Read(&c, vars, &f)
	c.unknown = environment.Unknown(environ)
	fs := flag.NewFlagSet("hostagent", flag.ContinueOnError)
	if err := c.bind(fs, args, stderr); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		f.Add("arguments", fmt.Sprintf("%q is no flag", berth.Clip(fs.Arg(0), 60)), "hostagent takes flags only, see hostagent -h")
	}
	if c.Server == "" {
		f.Add("server", "missing", "pass --server https://berth.example.com or set BERTH_SERVER")
	}
	if c.Name == "" {
		if h, err := os.Hostname(); err == nil {
			c.Name = strings.ToLower(h)
		}
	}
	if !berth.ValidName(c.Name) {
		f.Add("name", fmt.Sprintf("%q cannot name a host", berth.Clip(c.Name, 63)), "pass --name with lower-case letters, digits, dots, hyphens and underscores")
	}
	if c.Processes < 0 || c.Browsers < 0 || c.Processes+c.Browsers == 0 || c.Processes+c.Browsers > berth.MaxDevicesPerHost {
		f.Add("process-slots, browser-contexts", "a host needs 1 to 512 devices", "pass for example --process-slots 2 --browser-contexts 2")
	}
	if c.InputCacheMiB < 1 {
		f.Add("input-cache-mib", "a cache of inputs needs room", "pass the MiB of disk that it may take, for example --input-cache-mib 10240")
	}
	if c.KeyMaxAge < 0 || c.KeyMaxAge > 0 && c.KeyMaxAge < time.Hour {
		f.Add("key-max-age", fmt.Sprintf("%v is out of range", c.KeyMaxAge), "pass at least 1h, for example --key-max-age 720h, or 0 to change the key when an administrator asks alone")
	}
	c.labels = map[string]string{}
	for _, l := range c.Labels {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			f.Add("label", fmt.Sprintf("%q is no label", berth.Clip(l, 60)), "write --label name=value")
			continue
		}
		c.labels[k] = v
	}
	c.readToken(vars, &f)
	return c, f.Err()
}

func (c *config) bind(fs *flag.FlagSet, args []string, stderr io.Writer) error {
	fs.StringVar(&c.Server, "server", c.Server, "address of Berth's API")
	fs.StringVar(&c.StateDir, "state-dir", c.StateDir, "directory for key, journal and runs; one agent at a time uses it")
	fs.StringVar(&c.StateRoot, "state-root", c.StateRoot, "directory that agents which are started alike share, instead of --state-dir: each takes a free numbered directory in it and puts its number behind its name")
	fs.StringVar(&c.Name, "name", c.Name, "name of this host, for its enrolment (default: the machine's)")
	fs.StringVar(&c.TokenFile, "enrolment-token-file", c.TokenFile, "file with the one-time token that berth host enrol prints; needed once")
	fs.StringVar(&c.EnrolmentDir, "enrolment-dir", c.EnrolmentDir, "directory in which to ask for the token, where berth host admit answers")
	fs.StringVar(&c.AdminListen, "admin-listen", c.AdminListen, "address for /livez, /readyz and /metrics")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.IntVar(&c.Processes, "process-slots", c.Processes, "number of process devices")
	fs.IntVar(&c.Browsers, "browser-contexts", c.Browsers, "number of browser devices")
	fs.StringVar(&c.ChromiumPath, "chromium", c.ChromiumPath, "the browser (default: the first one found in PATH)")
	fs.StringVar(&c.PluginDir, "plugin-dir", c.PluginDir, "directory with plugins that are programs of their own, a folder each; read at the start")
	fs.IntVar(&c.InputCacheMiB, "input-cache-mib", c.InputCacheMiB, "MiB in the state directory for inputs of tasks, kept for the next task that brings the same")
	fs.BoolVar(&c.AllowLoopback, "allow-loopback", c.AllowLoopback, "let pages on loopback addresses be opened")
	fs.DurationVar(&c.KeyMaxAge, "key-max-age", c.KeyMaxAge, "age from which the host's key is changed unasked; 0: never")
	fs.StringVar(&c.CAFile, "ca-file", c.CAFile, "PEM file with the only authorities whose certificates the API may show (default: the system's)")
	fs.StringVar(&c.CertFile, "client-cert-file", c.CertFile, "PEM file with the certificate that this host shows to the API, where it asks for one")
	fs.StringVar(&c.ClientKeyFile, "client-key-file", c.ClientKeyFile, "PEM file with the private key of that certificate")
	list(fs, "command", &c.Commands, "a program that tasks may run, by name or absolute path; may be repeated (default: a list of shell tools)")
	list(fs, "label", &c.Labels, "name=value for every device; may be repeated")
	list(fs, "allow-host", &c.AllowHosts, "host, address or network that pages may be opened from beyond the default; may be repeated")
	return environment.ParseFlags(fs, args, stderr, "Usage of hostagent: flags win over the environment.", func() { environment.PrintHelp(stderr, c, nil) })
}

// list is a flag that may be repeated; the first use replaces what the
// environment said.
func list(fs *flag.FlagSet, name string, into *[]string, usage string) {
	first := true
	fs.Func(name, usage, func(s string) error {
		if first {
			*into, first = nil, false
		}
		*into = append(*into, s)
		return nil
	})
}

// readToken takes the enrolment token from its file, or from
// BERTH_ENROLMENT_TOKEN. A missing file is no fault: the token is needed once.
func (c *config) readToken(vars map[string]string, f *berth.Faults) {
	if c.TokenFile == "" {
		c.token = redact.NewString(strings.TrimSpace(vars["BERTH_ENROLMENT_TOKEN"]))
		return
	}
	b, err := os.ReadFile(c.TokenFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		f.Add("enrolment-token-file", "cannot be read", "check its path and rights")
	default:
		c.token = redact.NewString(strings.TrimSpace(string(b)))
	}
}
