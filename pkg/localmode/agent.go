package localmode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/hostagent"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
	"github.com/berth-dev/berth/pkg/store"
)

// Enroller makes enrolment tokens; the store does.
type Enroller interface {
	GetPool(ctx context.Context, name string) (berth.Pool, error)
	CreateEnrolment(ctx context.Context, p store.CreateEnrolmentParams) (berth.EnrolmentToken, error)
}

// AgentConfig describes the Host Agent inside the control plane's process. It
// speaks to the API over real HTTP, as every other agent does.
type AgentConfig struct {
	// Store lets it in, without an operator.
	Store Enroller
	// Server is asked for the API's base URL once Ready is "".
	Server func() string
	// Ready is the API's readiness; the agent waits for "".
	Ready func() string
	// StateDir keeps its key, journal and runs.
	StateDir string
	// Name of the host; "": local.
	Name                string
	Processes, Browsers int
	ChromiumPath        string
	// AllowPages lists host:port pairs beyond the default that pages may be
	// opened from.
	AllowPages []string
	// AllowLoopback lets all pages on loopback addresses be opened, but for the
	// API's own.
	AllowLoopback bool
	// InputCache is how many bytes of inputs it keeps; 0: the agent's default.
	InputCache int64
	// PluginDir holds plugins that are programs of their own; "": none.
	PluginDir string
	Version   string
	Log       *zap.Logger
	// Synced, if set, is called after the first sync.
	Synced func()
	// Failed, if set, is where the failure is told, with room for one.
	Failed chan error
}

const (
	readyPoll    = 50 * time.Millisecond
	enrolmentTTL = 10 * time.Minute
)

// Agent makes the component. Its Start does not wait for the API: the agent
// begins in the background as soon as the API is ready. One that cannot go on
// fails the daemon.
func Agent(c AgentConfig) daemon.Component {
	if c.Name == "" {
		c.Name = "local"
	}
	return background("host agent", c.Failed, c.run)
}

// background runs work from Start until it ends or Stop ends its context. An
// error that comes before is a failure, told on failed (nil: a channel of its
// own).
func background(name string, failed chan error, work func(context.Context) error) daemon.Component {
	if failed == nil {
		failed = make(chan error, 1)
	}
	done := make(chan struct{})
	var stop context.CancelFunc
	return daemon.Component{
		Name: name,
		Start: func(ctx context.Context) error {
			var running context.Context
			running, stop = context.WithCancel(context.WithoutCancel(ctx))
			go func() {
				defer close(done)
				if err := work(running); err != nil && running.Err() == nil {
					failed <- err
				}
			}()
			return nil
		},
		Stop: func(ctx context.Context) error {
			stop()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Failed: failed,
	}
}

func (c AgentConfig) run(ctx context.Context) (err error) {
	if !waitReady(ctx, c.Ready) {
		return nil
	}
	token, err := c.token(ctx)
	if err != nil {
		return err
	}
	// What an earlier agent left running here is dead when this returns.
	rt, err := builtin.New(ctx, builtin.Config{
		CloseTimeout: hostagent.CloseWithin,
		StateDir:     c.StateDir, ProcessSlots: c.Processes, BrowserContexts: c.Browsers, PluginDir: c.PluginDir, Logger: c.Log,
		Chromium: chromium.Config{Path: c.ChromiumPath, Policy: chromium.Policy{
			Allow: c.AllowPages, AllowLoopback: c.AllowLoopback, Deny: []string{hostPort(c.Server())}, ControlPlane: []string{chromium.Endpoint(c.Server())},
		}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	agent, err := hostagent.New(hostagent.Config{
		Server: c.Server(), StateDir: c.StateDir, Name: c.Name, EnrolmentToken: token,
		Runtime: rt.Runtime, Version: c.Version, Logger: c.Log, InputCache: c.InputCache,
	})
	if err != nil {
		return err
	}
	if c.Synced != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-agent.Synced():
				c.Synced()
			case <-over:
			}
		}()
	}
	return agent.Run(ctx)
}

// waitReady waits until ready says ""; false when ctx ended first.
func waitReady(ctx context.Context, ready func() string) bool {
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for ready() != "" {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// token makes an enrolment token for an agent that has no identity yet.
func (c AgentConfig) token(ctx context.Context) (redact.String, error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return redact.String{}, fmt.Errorf("agent's directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, "host.json")); err == nil {
		return redact.String{}, nil
	}
	pool, err := c.Store.GetPool(ctx, berth.DefaultPool)
	if err != nil {
		return redact.String{}, fmt.Errorf("pool %s: %w", berth.DefaultPool, err)
	}
	token, hash, err := identity.NewEnrolmentToken()
	if err != nil {
		return redact.String{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return redact.String{}, err
	}
	_, err = c.Store.CreateEnrolment(ctx, store.CreateEnrolmentParams{
		Actor: berth.Daemon(berth.ActorSystem, "local mode"), ID: berth.EnrolmentID(id.String()),
		Pool: pool.ID, Pattern: c.Name, TokenHash: hash, TTL: enrolmentTTL,
	})
	if err != nil {
		return redact.String{}, fmt.Errorf("enrol the local host: %w", err)
	}
	return token, nil
}
