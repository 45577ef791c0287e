package config

import (
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/redact"
)

// The default addresses.
const (
	DefaultListen            = "127.0.0.1:7700"
	DefaultAPIAdmin          = "127.0.0.1:7711"
	DefaultSchedulerAdmin    = "127.0.0.1:7712"
	DefaultLeasekeeperAdmin  = "127.0.0.1:7713"
	DefaultAdminName         = "admin"
	prefixPlace, prefixGive  = "BERTH_LOOP_PLACE", "BERTH_LOOP_GIVE_UP"
	prefixPromote            = "BERTH_LOOP_PROMOTE"
	prefixSchedules          = "BERTH_LOOP_SCHEDULES"
	prefixReap, prefixSilent = "BERTH_LOOP_REAP", "BERTH_LOOP_SILENT_HOSTS"
	prefixLostTasks          = "BERTH_LOOP_LOST_TASKS"
	prefixGuesses            = "BERTH_LOOP_GUESSES"
	prefixBulkJobs           = "BERTH_LOOP_BULK_JOBS"
)

// SchedulerLoops of a process that schedules.
type SchedulerLoops struct {
	Place     Loop `envPrefix:"BERTH_LOOP_PLACE_"`
	Promote   Loop `envPrefix:"BERTH_LOOP_PROMOTE_"`
	GiveUp    Loop `envPrefix:"BERTH_LOOP_GIVE_UP_"`
	Schedules Loop `envPrefix:"BERTH_LOOP_SCHEDULES_"`
}

func (l SchedulerLoops) validate(f *berth.Faults) {
	l.Place.validate(prefixPlace, f)
	l.Promote.validate(prefixPromote, f)
	l.GiveUp.validate(prefixGive, f)
	l.Schedules.validate(prefixSchedules, f)
}

// KeeperLoops of a process that keeps leases.
type KeeperLoops struct {
	Reap        Loop `envPrefix:"BERTH_LOOP_REAP_"`
	SilentHosts Loop `envPrefix:"BERTH_LOOP_SILENT_HOSTS_"`
	LostTasks   Loop `envPrefix:"BERTH_LOOP_LOST_TASKS_"`
	Guesses     Loop `envPrefix:"BERTH_LOOP_GUESSES_"`
	BulkJobs    Loop `envPrefix:"BERTH_LOOP_BULK_JOBS_"`
}

func (l KeeperLoops) validate(f *berth.Faults) {
	l.Reap.validate(prefixReap, f)
	l.SilentHosts.validate(prefixSilent, f)
	l.LostTasks.validate(prefixLostTasks, f)
	l.Guesses.validate(prefixGuesses, f)
	l.BulkJobs.validate(prefixBulkJobs, f)
}

// validateReap holds the sweep against the leases: one that may come later than
// BlindAfter would take every silence of agents for an outage (an amnesty), and
// never a silent host for one.
func (l KeeperLoops) validateReap(t berth.Timings, f *berth.Faults) {
	every := l.Reap.Interval
	if every == 0 {
		every = leasekeeper.DefaultReapInterval
	}
	if t.Validate() == nil && !l.Reap.Disabled && 2*every > t.BlindAfter() {
		f.Add(prefixReap+"_INTERVAL", fmt.Sprintf("%v is too long for these leases", every),
			fmt.Sprintf("use at most %v, half of BERTH_LEASE_TTL less BERTH_FENCE_MARGIN", t.BlindAfter()/2))
	}
}

// Scheduler configures cmd/scheduler.
type Scheduler struct {
	Common
	Loops SchedulerLoops
}

// LoadScheduler reads the scheduler's configuration. The error names every
// fault; it is ErrHelp when help was printed to usage.
func LoadScheduler(args, environ []string, usage io.Writer) (Scheduler, error) {
	var c Scheduler
	f, err := source{"scheduler", args, environ, usage}.load(&c, DefaultSchedulerAdmin, c.flags)
	if err != nil {
		return c, err
	}
	c.normalise(DefaultSchedulerAdmin, environ, &f)
	c.Loops.validate(&f)
	return c, f.Err()
}

// Leasekeeper configures cmd/leasekeeper.
type Leasekeeper struct {
	Common
	Blobs
	Loops     KeeperLoops
	BlobLoops BlobLoops
}

// LoadLeasekeeper reads the leasekeeper's configuration, as LoadScheduler.
func LoadLeasekeeper(args, environ []string, usage io.Writer) (Leasekeeper, error) {
	var c Leasekeeper
	f, err := source{"leasekeeper", args, environ, usage}.load(&c, DefaultLeasekeeperAdmin, func(fs *flag.FlagSet) {
		c.Common.flags(fs)
		c.Blobs.flags(fs)
	})
	if err != nil {
		return c, err
	}
	c.normalise(DefaultLeasekeeperAdmin, environ, &f)
	c.Loops.validate(&f)
	c.Loops.validateReap(c.Timings.Berth(), &f)
	c.Blobs.validate(&f)
	c.BlobLoops.validate(&f)
	return c, f.Err()
}

// Worker is a duty that the API process can take over in local mode.
type Worker string

// The workers.
const (
	WorkerScheduler   Worker = "scheduler"
	WorkerLeasekeeper Worker = "leasekeeper"
	WorkerAgent       Worker = "agent"
)

// Agent configures the Host Agent inside the API process (local mode).
type Agent struct {
	// StateDir keeps its key, journal and runs.
	StateDir string `env:"BERTH_STATE_DIR" about:"the worker agent's own directory"`
	// Processes and Browsers count its devices. Browsers need a Chromium.
	Processes int    `env:"BERTH_PROCESS_SLOTS" envDefault:"2" about:"the worker agent's process devices"`
	Browsers  int    `env:"BERTH_BROWSER_CONTEXTS" envDefault:"0" about:"the worker agent's browser devices"`
	Chromium  string `env:"BERTH_CHROMIUM_PATH" about:"the worker agent's browser"`
}

// API configures cmd/api.
type API struct {
	Common
	// Listen is the public address.
	Listen string `env:"BERTH_LISTEN" about:"public address"`
	// MasterKey seals what is secret in the database.
	MasterKey redact.String `env:"BERTH_MASTER_KEY" about:"32 bytes in hex that seal what is secret in the database"`
	// OldMasterKeys open what is still sealed under them: a list.
	OldMasterKeys redact.String `env:"BERTH_MASTER_KEY_OLD" about:"master keys that open what is still sealed under them, one a line or joined by commas"`
	// SigningKeyMaxAge is the age from which a new signing key is made.
	SigningKeyMaxAge time.Duration `env:"BERTH_SIGNING_KEY_MAX_AGE" about:"age from which a new signing key is made (default 2160h)"`
	// IssuersFile names the external issuers whose tokens are taken.
	IssuersFile string `env:"BERTH_ISSUERS_FILE" about:"JSON file with the external OIDC issuers whose tokens are taken"`
	// AdminName and AdminPassword make the first user; without a password none
	// is made.
	AdminName     string        `env:"BERTH_ADMIN_NAME" about:"name of the first administrator"`
	AdminPassword redact.String `env:"BERTH_ADMIN_PASSWORD" about:"password of the first administrator"`
	Blobs
	// Workers run in this process.
	Workers []Worker `env:"BERTH_WORKERS" about:"scheduler,leasekeeper,agent: what else runs in this process"`
	// ApprovePlugins registers what hosts report (local mode).
	ApprovePlugins bool `env:"BERTH_APPROVE_PLUGINS" about:"register the plugins that hosts report"`
	// TrustedProxies (CIDR) may say who the client is.
	TrustedProxies []string `env:"BERTH_TRUSTED_PROXIES" about:"networks (CIDR) whose proxies may say who the client is"`
	HTTP
	TLS

	Scheduler SchedulerLoops
	Keeper    KeeperLoops
	BlobLoops BlobLoops
	// Agent configures the worker agent.
	Agent Agent

	// Proxies are TrustedProxies, parsed.
	Proxies []*net.IPNet `env:"-"`
}

// Has reports whether a worker runs in this process.
func (c API) Has(w Worker) bool { return slices.Contains(c.Workers, w) }

// LoadAPI reads the API's configuration, as LoadScheduler.
func LoadAPI(args, environ []string, usage io.Writer) (API, error) {
	var c API
	f, err := source{"api", args, environ, usage}.load(&c, DefaultAPIAdmin, func(fs *flag.FlagSet) {
		c.Common.flags(fs)
		fs.StringVar(&c.Listen, "listen", c.Listen, "public address (BERTH_LISTEN)")
		c.Blobs.flags(fs)
		fs.Func("workers", "scheduler,leasekeeper,agent: what else runs in this process (BERTH_WORKERS)", func(s string) error {
			c.Workers = nil
			for w := range strings.SplitSeq(s, ",") {
				c.Workers = append(c.Workers, Worker(strings.TrimSpace(w)))
			}
			return nil
		})
	})
	if err != nil {
		return c, err
	}
	c.normaliseAPI(environ, &f)
	return c, f.Err()
}

func (c *API) normaliseAPI(environ []string, f *berth.Faults) {
	c.normalise(DefaultAPIAdmin, environ, f)
	c.Scheduler.validate(f)
	c.Keeper.validate(f)
	if c.Has(WorkerLeasekeeper) {
		c.Keeper.validateReap(c.Timings.Berth(), f)
	}
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.AdminName == "" {
		c.AdminName = DefaultAdminName
	}
	validAddress("BERTH_LISTEN", c.Listen, f)
	if c.MasterKey.IsZero() {
		f.Add("BERTH_MASTER_KEY", "missing", "put 32 random bytes in hex into a file (openssl rand -hex 32) and name it in BERTH_MASTER_KEY_FILE; every API process needs the same")
	}
	if c.SigningKeyMaxAge != 0 && c.SigningKeyMaxAge < time.Hour {
		f.Add("BERTH_SIGNING_KEY_MAX_AGE", fmt.Sprintf("%v is too short", c.SigningKeyMaxAge), "use at least 1h")
	}
	c.Blobs.validate(f)
	c.BlobLoops.validate(f)
	if !c.Blobs.Configured() {
		f.Add("BERTH_BLOB_DIR", "missing", "name a directory that every API process shares, or a bucket in BERTH_BLOBS")
	}
	if !berth.ValidName(c.AdminName) {
		f.Add("BERTH_ADMIN_NAME", fmt.Sprintf("%q is no user name", berth.Clip(c.AdminName, 63)), "use lower-case letters, digits, dots, hyphens and underscores")
	}
	if c.Has(WorkerAgent) && c.Agent.StateDir == "" {
		f.Add("BERTH_STATE_DIR", "missing", "name the agent's own directory, or leave the worker agent out")
	}
	if a := c.Agent; a.Processes < 0 || a.Browsers < 0 || a.Processes+a.Browsers > berth.MaxDevicesPerHost {
		f.Add("BERTH_PROCESS_SLOTS, BERTH_BROWSER_CONTEXTS", "out of range", fmt.Sprintf("use 0 to %d devices in all", berth.MaxDevicesPerHost))
	}
	for _, w := range c.Workers {
		if w != WorkerScheduler && w != WorkerLeasekeeper && w != WorkerAgent {
			f.Add("BERTH_WORKERS", fmt.Sprintf("%q is no worker", berth.Clip(string(w), 30)), "use scheduler, leasekeeper and agent, joined by commas")
		}
	}
	c.HTTP.validate(f)
	c.TLS.validate(c.Has(WorkerAgent), f)
	for _, cidr := range c.TrustedProxies {
		_, network, err := net.ParseCIDR(cidr)
		if err != nil {
			f.Add("BERTH_TRUSTED_PROXIES", fmt.Sprintf("%q is no network", berth.Clip(cidr, 50)), "write for example 10.0.0.0/8,127.0.0.1/32")
			continue
		}
		c.Proxies = append(c.Proxies, network)
	}
}
