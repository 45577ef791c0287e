// Package config is what the control plane's daemons are told: by their
// environment (BERTH_...), and for the main things by flags, which win. Each
// daemon has a struct of its own. Zero values work; whatever is wrong is named
// at once, by the name of its variable.
//
// A secret is given in its variable, or in the file that <variable>_FILE names
// (the newline at its end is dropped). Secrets are types that print as
// [redacted].
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/environment"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
)

const (
	defaultLogLevel       = "info"
	defaultShutdownWithin = 15 * time.Second
)

// ErrHelp is returned when -h or --help was asked for and printed.
var ErrHelp = flag.ErrHelp

// Common is what every daemon of the control plane is told.
type Common struct {
	// DatabaseURL: postgres://... or sqlite:///path.
	DatabaseURL redact.String `env:"BERTH_DATABASE_URL" about:"postgres://... or sqlite:///path"`
	// AdminListen is where /livez, /readyz and /metrics are.
	AdminListen string `env:"BERTH_ADMIN_LISTEN" about:"address of /livez, /readyz and /metrics"`
	LogLevel    string `env:"BERTH_LOG_LEVEL" about:"debug, info, warn or error"`
	// ShutdownWithin bounds the stopping.
	ShutdownWithin time.Duration `env:"BERTH_SHUTDOWN_WITHIN" about:"bound of the stopping"`
	Timings        Timings

	// Unknown are BERTH_ variables that no program of Berth reads: most likely
	// misspelt. Warn of them.
	Unknown []string `env:"-"`
}

// Timings of leases; zero fields are berth.DefaultTimings. All processes of an
// installation must have the same.
type Timings struct {
	LeaseTTL         time.Duration `env:"BERTH_LEASE_TTL" about:"length of a lease"`
	RenewEvery       time.Duration `env:"BERTH_RENEW_EVERY" about:"how often an agent renews"`
	RequestTimeout   time.Duration `env:"BERTH_REQUEST_TIMEOUT" about:"bound of one request of an agent"`
	FenceMargin      time.Duration `env:"BERTH_FENCE_MARGIN" about:"the agent stops this long before its lease ends"`
	KillMargin       time.Duration `env:"BERTH_KILL_MARGIN" about:"the work is dead this long before the lease ends"`
	ReapGrace        time.Duration `env:"BERTH_REAP_GRACE" about:"the keeper acts this long after the end of a lease"`
	ClaimWithin      time.Duration `env:"BERTH_CLAIM_WITHIN" about:"bound from assigned to claimed"`
	HostOfflineAfter time.Duration `env:"BERTH_HOST_OFFLINE_AFTER" about:"how long a host may be silent"`
	HeartbeatEvery   time.Duration `env:"BERTH_HEARTBEAT_EVERY" about:"how often an agent reports"`
	CancelWithin     time.Duration `env:"BERTH_CANCEL_WITHIN" about:"bound of stopping a cancelled attempt"`
}

// Berth gives the timings with defaults filled in.
func (t Timings) Berth() berth.Timings {
	d := berth.DefaultTimings()
	or := func(v, standard time.Duration) time.Duration {
		if v == 0 {
			return standard
		}
		return v
	}
	return berth.Timings{
		LeaseTTL: or(t.LeaseTTL, d.LeaseTTL), RenewEvery: or(t.RenewEvery, d.RenewEvery),
		RequestTimeout: or(t.RequestTimeout, d.RequestTimeout), FenceMargin: or(t.FenceMargin, d.FenceMargin),
		KillMargin: or(t.KillMargin, d.KillMargin), ReapGrace: or(t.ReapGrace, d.ReapGrace),
		ClaimWithin: or(t.ClaimWithin, d.ClaimWithin), HostOfflineAfter: or(t.HostOfflineAfter, d.HostOfflineAfter),
		HeartbeatEvery: or(t.HeartbeatEvery, d.HeartbeatEvery), CancelWithin: or(t.CancelWithin, d.CancelWithin),
	}
}

// Loop says how often a loop runs and whether it does at all.
type Loop struct {
	// Interval; 0: the loop's own default.
	Interval time.Duration `env:"INTERVAL" about:"how often this loop runs"`
	Disabled bool          `env:"DISABLED" about:"true: this loop does not run here"`
}

func (l Loop) validate(variable string, f *berth.Faults) {
	if l.Interval < 0 || l.Interval > time.Hour || (l.Interval > 0 && l.Interval < 10*time.Millisecond) {
		f.Add(variable+"_INTERVAL", fmt.Sprintf("%v is out of range", l.Interval), "use 10ms to 1h")
	}
}

// normalise fills defaults and notes what is wrong.
func (c *Common) normalise(adminListen string, environ []string, f *berth.Faults) {
	c.Unknown = environment.Unknown(environ)
	if c.AdminListen == "" {
		c.AdminListen = adminListen
	}
	if c.LogLevel == "" {
		c.LogLevel = defaultLogLevel
	}
	if c.ShutdownWithin == 0 {
		c.ShutdownWithin = defaultShutdownWithin
	}
	if _, err := zapcore.ParseLevel(c.LogLevel); err != nil {
		f.Add("BERTH_LOG_LEVEL", fmt.Sprintf("%q is no level", berth.Clip(c.LogLevel, 20)), "use debug, info, warn or error")
	}
	if c.ShutdownWithin < time.Second {
		f.Add("BERTH_SHUTDOWN_WITHIN", "too short to end what runs", "use at least 1s")
	}
	if _, _, err := schema.ParseTarget(c.DatabaseURL.Reveal()); err != nil {
		f.Add("BERTH_DATABASE_URL", err.Error(), "")
	}
	validAddress("BERTH_ADMIN_LISTEN", c.AdminListen, f)
	var invalid *berth.InvalidError
	if err := c.Timings.Berth().Validate(); errors.As(err, &invalid) {
		for _, fault := range invalid.Fields {
			f.Add("BERTH_"+strings.ToUpper(fault.Path), fault.Message, fault.Remedy)
		}
	}
}

func validAddress(variable, address string, f *berth.Faults) {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		f.Add(variable, fmt.Sprintf("%q is no address", berth.Clip(address, 60)), "write host:port, for example 127.0.0.1:7700")
	}
}

func (c *Common) flags(fs *flag.FlagSet) {
	fs.Func("database-url", "postgres://user@host:5432/berth or sqlite:///path/to/berth.db (BERTH_DATABASE_URL; with a password use the variable or BERTH_DATABASE_URL_FILE)", func(s string) error {
		c.DatabaseURL = redact.NewString(s)
		return nil
	})
	fs.StringVar(&c.AdminListen, "admin-listen", c.AdminListen, "address of /livez, /readyz and /metrics (BERTH_ADMIN_LISTEN)")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error (BERTH_LOG_LEVEL)")
}

// source is where a daemon's configuration comes from.
type source struct {
	name    string
	args    []string
	environ []string
	usage   io.Writer
}

// load fills into (a pointer to a struct) from the environment, then from the
// flags that bind adds (adminListen is for the help), and returns what was wrong with their form.
func (s source) load(into any, adminListen string, bind func(*flag.FlagSet)) (berth.Faults, error) {
	var f berth.Faults
	vars := env.ToMap(s.environ)
	for _, v := range environment.Variables(into) {
		if v.Secret {
			fromFile(vars, v.Name, &f)
		}
	}
	environment.Read(into, vars, &f)
	fs := flag.NewFlagSet(s.name, flag.ContinueOnError)
	bind(fs)
	help := func() { environment.PrintHelp(s.usage, into, defaults(adminListen)) }
	if err := environment.ParseFlags(fs, s.args, s.usage, "Usage of "+s.name+": flags win over the environment.", help); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		f.Add("arguments", fmt.Sprintf("%q is no flag", berth.Clip(fs.Arg(0), 60)), s.name+" -h lists the flags")
	}
	return f, nil
}

// fromFile puts the content of the file that <name>_FILE names into <name>.
func fromFile(vars map[string]string, name string, f *berth.Faults) {
	path := vars[name+"_FILE"]
	switch {
	case path == "":
		return
	case vars[name] != "":
		f.Add(name+"_FILE", "both this and "+name+" are set", "set one of them")
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		why := "cannot be read"
		if errors.Is(err, os.ErrNotExist) {
			why = "there is no such file"
		}
		f.Add(name+"_FILE", why, "check its path and rights")
		return
	}
	vars[name] = strings.TrimRight(string(b), "\r\n")
	if vars[name] == "" {
		f.Add(name+"_FILE", "the file is empty", "write the secret into it, or unset the variable")
	}
}
