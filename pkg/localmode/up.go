package localmode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/controlplane"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
	"github.com/berth-dev/berth/pkg/schema"
)

// Defaults of Options.
const (
	DefaultDataDir    = ".berth"
	DefaultListen     = config.DefaultListen
	DefaultDemoListen = "127.0.0.1:7780"
	DefaultBrowsers   = 2
	DefaultProcesses  = 2

	adminName = "admin"
	// shutdownWithin leaves the agent its time to hand in what it holds.
	shutdownWithin = 30 * time.Second
)

// Options of Up. Zero values work, but for the counts of devices.
type Options struct {
	// DataDir keeps everything; "": DefaultDataDir.
	DataDir string
	// Listen and DemoListen are the addresses of the API and of the demo page;
	// "": the defaults. Port 0 picks a free one.
	Listen, DemoListen string
	// Browsers and Processes count the devices. Browsers need a Chromium; where
	// none is found Up says so and goes on without.
	Browsers, Processes int
	// ChromiumPath; "": the first one found in PATH.
	ChromiumPath string
	// AllowLoopback lets tasks open pages on this machine; the API itself stays
	// refused.
	AllowLoopback bool
	// InputCacheMiB is how many MiB of inputs the agent keeps; 0: its default.
	InputCacheMiB int
	// PluginDir holds plugins that are programs of their own; "": none.
	PluginDir string
	// NoAgent leaves out the Host Agent.
	NoAgent bool
	// LogLevel; "": info.
	LogLevel string
	// Version of the program.
	Version string
	// Ready, if set, is called once a task can be submitted and run.
	Ready func(Running)
}

// Running says where a local Berth is.
type Running struct {
	// URL of the API, and of the demo page.
	URL, DemoURL string
	// AdminName and the file with the password.
	AdminName, PasswordFile string
	// TaskFile is the first task, as POST /api/v1/tasks takes it.
	TaskFile string
	// LogFile has the log of all parts.
	LogFile string
	// Browsers counts the browser devices that there are.
	Browsers int
}

// Up runs until ctx ends or a signal comes, then stops everything and returns
// nil. What a person should read goes to stdout, the log into the data
// directory. Errors are sentences with a remedy.
func Up(ctx context.Context, o Options, stdout io.Writer) (err error) {
	o.normalise()
	dir, err := openDataDir(o.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = dir.roomy(err) }()
	secrets, err := dir.secrets()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(dir.path("berth.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()

	say := &speaker{out: stdout}
	c := o.api(dir, secrets)
	p, err := controlplane.Open(ctx, "berth", c.Common, controlplane.Options{}, log)
	if err != nil {
		return err
	}
	if err := migrate(ctx, c.DatabaseURL, say); err != nil {
		return errors.Join(err, p.Close())
	}
	api, err := p.API(c, o.Version)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	u := &up{o: o, dir: dir, say: say, secrets: secrets, p: p, api: api}
	u.findBrowser()
	return explain(p.Run(ctx, api.Ready(), nil, u.parts(c)...))
}

func (o *Options) normalise() {
	or := func(s *string, standard string) {
		if *s == "" {
			*s = standard
		}
	}
	or(&o.DataDir, DefaultDataDir)
	or(&o.Listen, DefaultListen)
	or(&o.DemoListen, DefaultDemoListen)
	or(&o.LogLevel, "info")
	or(&o.Version, "dev")
}

// api is the configuration of the process.
func (o Options) api(dir dataDir, s secrets) config.API {
	return config.API{
		Common: config.Common{
			DatabaseURL: redact.NewString("sqlite://" + dir.path("berth.db")),
			AdminListen: "127.0.0.1:0", LogLevel: o.LogLevel, ShutdownWithin: shutdownWithin,
		},
		Listen: o.Listen, MasterKey: s.masterKey, AdminName: adminName, AdminPassword: s.password,
		Blobs: config.Blobs{BlobDir: dir.path("blobs")}, ApprovePlugins: true,
	}
}

// migrate brings the file to this program's schema and says so.
func migrate(ctx context.Context, url redact.String, say *speaker) error {
	before, err := schema.ReadStatus(ctx, url.Reveal())
	if err != nil {
		return err
	}
	if before.Code == schema.CodeOK {
		return nil
	}
	if err := schema.Up(ctx, url.Reveal()); err != nil {
		return err
	}
	if before.Version == 0 {
		say.line("Made a new database (SQLite, schema %d).", schema.Latest())
	} else {
		say.line("Migrated the database from schema %d to %d.", before.Version, schema.Latest())
	}
	return nil
}

// explain gives the errors of a start their remedies.
func explain(err error) error {
	if errors.Is(err, daemon.ErrAddressTaken) {
		return fmt.Errorf("%w (berth up --listen 127.0.0.1:PORT --demo-listen 127.0.0.1:PORT)", err)
	}
	return err
}

// up is one run.
type up struct {
	o       Options
	dir     dataDir
	say     *speaker
	secrets secrets
	p       *controlplane.Process
	api     *controlplane.API

	browsers     int
	url, demoURL atomic.Value
}

// findBrowser decides how many browser devices there are.
func (u *up) findBrowser() {
	if u.o.NoAgent || u.o.Browsers <= 0 {
		return
	}
	path, err := chromium.Find(u.o.ChromiumPath)
	if err != nil {
		u.say.line("No browser devices: %s.", runtime.Words(err))
		return
	}
	u.o.ChromiumPath, u.browsers = path, u.o.Browsers
}

// parts are all components, in the order of their start.
func (u *up) parts(c config.API) []daemon.Component {
	page := daemon.NewServer(daemon.ServerConfig{
		Name: "demo page", Listen: u.o.DemoListen, Handler: demo.Handler(), WriteTimeout: 10 * time.Second, Log: u.p.Log,
		Bound: func(a net.Addr) { u.demoURL.Store(BaseURL(a) + "/") },
	})
	parts := []daemon.Component{page.Component()}
	parts = append(parts, u.api.Components(func(a net.Addr) { u.url.Store(BaseURL(a)) })...)
	parts = append(parts, u.p.Scheduler(c.Scheduler)...)
	parts = append(parts, u.p.Leasekeeper(c.Keeper)...)
	parts = append(parts, u.p.BlobKeeper(c.BlobLoops, u.api.Blobs())...)
	if u.o.NoAgent {
		return append(parts, u.announcement())
	}
	return append(parts, u.agent())
}

// agent is the local host's agent. Its configuration needs the demo page's
// address, which is known only once that is bound, so it is made at its start.
func (u *up) agent() daemon.Component {
	var inner daemon.Component
	failed := make(chan error, 1)
	return daemon.Component{
		Name: "host agent",
		Start: func(ctx context.Context) error {
			page := u.demoURL.Load().(string)
			inner = Agent(AgentConfig{
				Store: u.p.Store, Server: func() string { return u.url.Load().(string) }, Ready: u.api.Ready().Known,
				StateDir: u.dir.path("agent"), Processes: u.o.Processes, Browsers: u.browsers, ChromiumPath: u.o.ChromiumPath,
				AllowPages: []string{hostPort(page)}, AllowLoopback: u.o.AllowLoopback, InputCache: int64(u.o.InputCacheMiB) << 20, PluginDir: u.o.PluginDir,
				Version: u.o.Version, Log: u.p.Log, Synced: u.announce, Failed: failed,
			})
			return inner.Start(ctx)
		},
		Stop:   func(ctx context.Context) error { return inner.Stop(ctx) },
		Failed: failed,
	}
}

// announcement waits in the place of an agent until the API is ready.
func (u *up) announcement() daemon.Component {
	return background("announcement", nil, func(ctx context.Context) error {
		if waitReady(ctx, u.api.Ready().Known) {
			u.announce()
		}
		return nil
	})
}

// announce writes the first task and tells the user what to do.
func (u *up) announce() {
	r := Running{
		URL: u.url.Load().(string), DemoURL: u.demoURL.Load().(string), AdminName: adminName,
		PasswordFile: u.dir.path(passwordFile), TaskFile: u.dir.path("first-task.json"), LogFile: u.dir.path("berth.log"), Browsers: u.browsers,
	}
	if err := os.WriteFile(r.TaskFile, firstTask(r), 0o600); err != nil {
		u.say.line("The first task could not be written: %v", err)
	}
	u.say.banner(r, u.secrets, u.o)
	if u.o.Ready != nil {
		u.o.Ready(r)
	}
}
