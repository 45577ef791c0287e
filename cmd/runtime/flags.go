package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/pkg/environment"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
)

var errHelp = errors.New("help was asked for")

// config is what the flags say.
type config struct {
	listen      string
	allowRemote bool
	logLevel    zapcore.Level
	devices     builtin.Config
}

// parseFlags reads the flags and reports every fault at once.
func parseFlags(args []string, env func(string) string, stdout io.Writer) (config, error) {
	cfg := config{logLevel: zapcore.InfoLevel}
	cfg.devices.Labels = map[string]string{}
	fs := flag.NewFlagSet("runtime", flag.ContinueOnError)
	fs.StringVar(&cfg.listen, "listen", "127.0.0.1:7720", "address to serve on; a loopback address unless --allow-remote")
	fs.BoolVar(&cfg.allowRemote, "allow-remote", false, "serve other machines too: whoever reaches the port may use the devices")
	fs.StringVar(&cfg.devices.StateDir, "state-dir", defaultStateDir(env), "directory for records of started processes and temporary files")
	fs.IntVar(&cfg.devices.BrowserContexts, "browsers", 2, "number of browser devices")
	fs.IntVar(&cfg.devices.ProcessSlots, "slots", 2, "number of process devices")
	fs.StringVar(&cfg.devices.Chromium.Path, "chromium", "", "path of the browser; else chromium, chromium-browser or google-chrome in PATH")
	fs.StringVar(&cfg.devices.PluginDir, "plugin-dir", env("BERTH_PLUGIN_DIR"), "directory with plugins that are programs of their own, a folder each; or BERTH_PLUGIN_DIR")
	fs.BoolVar(&cfg.devices.Chromium.Policy.AllowLoopback, "allow-loopback", false, "let browsers open loopback addresses")
	list(fs, "allow-address", "host, address, network or host:port that browsers may open besides (repeatable)", &cfg.devices.Chromium.Policy.Allow)
	list(fs, "deny-address", "host, address, network or host:port that browsers may never open (repeatable)", &cfg.devices.Chromium.Policy.Deny)
	list(fs, "allow-command", "command that process devices may run, a base name or an absolute path (repeatable); replaces the default list", &cfg.devices.Process.Allow)
	fs.TextVar(&cfg.logLevel, "log-level", zapcore.InfoLevel, "debug, info, warn or error")
	fs.Func("label", "label of all devices, key=value (repeatable)", func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" || strings.HasPrefix(k, "berth.dev/") {
			return errors.New("write it as key=value; keys do not begin with berth.dev/")
		}
		cfg.devices.Labels[k] = v
		return nil
	})
	err := environment.ParseFlags(fs, args, stdout, "Usage of runtime:", func() {})
	if errors.Is(err, flag.ErrHelp) {
		return cfg, errHelp
	}
	if err != nil {
		return cfg, err
	}
	return cfg, cfg.validate(fs.Args())
}

func list(fs *flag.FlagSet, name, usage string, to *[]string) {
	fs.Func(name, usage, func(s string) error {
		if s == "" {
			return errors.New("empty")
		}
		*to = append(*to, s)
		return nil
	})
}

func (c config) validate(rest []string) error {
	var faults []error
	if len(rest) > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", rest[0]))
	}
	if c.devices.BrowserContexts < 0 || c.devices.ProcessSlots < 0 {
		faults = append(faults, errors.New("--browsers and --slots must not be negative"))
	}
	if c.devices.StateDir == "" {
		faults = append(faults, errors.New("--state-dir is empty"))
	}
	host, _, err := net.SplitHostPort(c.listen)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("--listen %q: write it as host:port", c.listen))
	case !c.allowRemote && !loopback(host):
		faults = append(faults, fmt.Errorf("--listen %q is no loopback address; there are no credentials, so add --allow-remote only in a network you trust", c.listen))
	}
	return errors.Join(faults...)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// defaultStateDir is per user, so that two users do not meet.
func defaultStateDir(env func(string) string) string {
	if dir := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "berth", "runtime")
	}
	if home := env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "berth", "runtime")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("berth-runtime-%d", os.Getuid()))
}
