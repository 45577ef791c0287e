package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/hostagent"
	"github.com/berth-dev/berth/pkg/localmode"
)

// newUpCommand makes `berth up`.
func newUpCommand(c *cli) *cobra.Command {
	o := localmode.Options{Version: version}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run Berth on this machine, in one process, on SQLite",
		Long: "Runs everything on this machine until Ctrl-C: the API, the scheduler, the leasekeeper, one Host Agent with\n" +
			"process devices (and browser devices where a Chromium is found) and a demo page. What it keeps lies in the\n" +
			"data directory; its SQLite file is migrated without being asked. Only one may use a data directory.",
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The first Ctrl-C stops in order; the second ends the process.
			restore := context.AfterFunc(cmd.Context(), func() { signal.Reset(syscall.SIGINT, syscall.SIGTERM) })
			defer restore()
			return localmode.Up(cmd.Context(), o, c.stdout)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.DataDir, "data-dir", localmode.DefaultDataDir, "where everything is kept")
	flags.StringVar(&o.Listen, "listen", localmode.DefaultListen, "address of the API; port 0 picks a free one")
	flags.StringVar(&o.DemoListen, "demo-listen", localmode.DefaultDemoListen, "address of the demo page; port 0 picks a free one")
	flags.IntVar(&o.Browsers, "chromium", localmode.DefaultBrowsers, "number of browser devices")
	flags.IntVar(&o.Processes, "process", localmode.DefaultProcesses, "number of process devices")
	flags.StringVar(&o.ChromiumPath, "chromium-path", "", "the browser (default: the first one found in PATH)")
	flags.BoolVar(&o.AllowLoopback, "allow-loopback", false, "let tasks open pages on this machine, such as your own on localhost; the API itself stays refused")
	flags.IntVar(&o.InputCacheMiB, "input-cache-mib", hostagent.DefaultInputCache>>20, "MiB for inputs of tasks, kept for the next task that brings the same")
	flags.StringVar(&o.PluginDir, "plugin-dir", c.env["BERTH_PLUGIN_DIR"], "directory with plugins that are programs of their own, a folder each (BERTH_PLUGIN_DIR)")
	flags.BoolVar(&o.NoAgent, "no-agent", false, "run no Host Agent here")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error, for the log in the data directory")
	return cmd
}
