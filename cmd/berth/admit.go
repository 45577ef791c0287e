package main

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/enroldir"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/redact"
)

const (
	// admitEvery is how often `berth host admit` looks who asks.
	admitEvery = time.Second
	// admitTTL is how long a token that it hands out is good.
	admitTTL = 10 * time.Minute
)

// admitter lets in the hosts that ask in a directory.
type admitter struct {
	cli     *cli
	dir     string
	pool    string
	pattern string
	from    loginFlags
	log     *zap.Logger
	// api is nil before the first login, and when the last one is over.
	api *client.Client
}

func newHostAdmitCommand(c *cli) *cobra.Command {
	a := admitter{cli: c}
	var listen string
	cmd := &cobra.Command{
		Use: "admit DIRECTORY", Short: "Let in the hosts that ask in a directory, until stopped", Args: exactly(1, "the directory"),
		Long: "Hosts that were started with --enrolment-dir ask there; each whose name matches gets a one-time token of its own.\n" +
			"So replicas of an agent enrol by themselves and hold no credential that could make tokens.\n" +
			"Whoever can write into the directory can bring a host into the pool.",
		Example: "  berth host admit /run/berth/enrolment --name-pattern 'agent-*' --password-file admin-password",
		RunE: func(cmd *cobra.Command, args []string) error {
			a.dir = args[0]
			return a.run(cmd.Context(), listen)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&a.pool, "pool", berth.DefaultPool, "pool that the hosts join")
	flags.StringVar(&a.pattern, "name-pattern", "agent-*", "glob that a host's name must match")
	flags.StringVarP(&a.from.name, "name", "n", "admin", "user who makes the tokens")
	flags.StringVar(&a.from.file, "password-file", "", "read the user's password from this file (required)")
	flags.StringVar(&listen, "admin-listen", "127.0.0.1:7715", "address of /livez, /readyz and /metrics")
	_ = cmd.MarkFlagRequired("password-file")
	return cmd
}

func (a *admitter) run(ctx context.Context, listen string) error {
	if _, err := path.Match(a.pattern, ""); err != nil {
		return &usageError{command: "berth host admit", what: "--name-pattern is no glob", remedy: "use letters with * and ?, for example lab-*"}
	}
	log, err := logging.New(a.cli.stdout, "info", "admit")
	if err != nil {
		return err
	}
	a.log = log
	// It has nothing to be unready for: hosts wait in the directory.
	ready := daemon.NewReadiness(func(context.Context) string { return "" }, "starting")
	registry := daemon.NewRegistry()
	loop := daemon.NewLoop(daemon.LoopConfig{
		Name: "admit", Interval: admitEvery, MaxBackoff: 15 * time.Second, RunOnce: a.round, Log: log, Metrics: daemon.NewLoopMetrics(registry),
	})
	return daemon.Run(ctx, daemon.Config{Log: log, Components: []daemon.Component{
		daemon.NewAdmin(listen, ready, registry, log, nil).Component(), loop.Component(),
	}})
}

// round gives a token to each host that asks. It calls nobody when none does.
func (a *admitter) round(ctx context.Context) error {
	names, err := enroldir.Pending(a.dir, admitTTL, a.cli.now())
	if err != nil {
		return err
	}
	for _, name := range names {
		if !berth.HostNameMatches(a.pattern, name) {
			a.log.Warn("a host's name does not match; it is not let in", zap.String("name", name), zap.String("pattern", a.pattern))
			if err := enroldir.Refuse(a.dir, name); err != nil {
				return err
			}
			continue
		}
		if err := a.admit(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// admit makes a token that is good for this one name.
func (a *admitter) admit(ctx context.Context, name string) error {
	if err := a.login(ctx); err != nil {
		return err
	}
	t, err := a.api.CreateEnrolmentToken(ctx, client.EnrolmentTokenSpec{Pool: a.pool, HostNamePattern: name, TTLSeconds: admitTTL.Seconds()})
	if err != nil {
		if client.HasCode(err, "unauthenticated") {
			a.api = nil
		}
		return fmt.Errorf("make an enrolment token: %w", err)
	}
	if err := enroldir.Answer(a.dir, name, redact.NewString(t.Token)); err != nil {
		return err
	}
	a.log.Info("gave a host a token", zap.String("name", name), zap.String("pool", a.pool), zap.String("enrolment_id", t.ID))
	return nil
}

func (a *admitter) login(ctx context.Context) error {
	if a.api != nil {
		return nil
	}
	url, _, err := a.cli.server()
	if err != nil {
		return err
	}
	plain, err := a.cli.dial(url, nil)
	if err != nil {
		return err
	}
	password, err := a.cli.read(a.from.file)
	if err != nil {
		return err
	}
	tokens, err := plain.Login(ctx, a.from.name, strings.TrimRight(string(password), "\r\n"))
	if err != nil {
		return fmt.Errorf("log in as %s: %w", a.from.name, err)
	}
	session, err := client.NewSession(url, client.GrantOf(tokens, a.cli.now()), nil)
	if err != nil {
		return err
	}
	a.api, err = a.cli.dial(url, session)
	return err
}
