// Command compose proves docker-compose.yml on the images that this machine has
// or can pull: up from nothing, the main job through Caddy, scaled, each
// container's process killed while tasks run, and down again with nothing left.
// It needs Docker and Compose (v2, or docker-compose 1.29), prints what it does,
// ends with one line of result, and removes what it made also when it fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options of a run.
type options struct {
	build    bool
	tasks    int
	seconds  int
	version  string
	patience time.Duration
}

func main() { os.Exit(realMain()) }

// realMain returns the exit code.
func realMain() int {
	var o options
	flag.BoolVar(&o.build, "build", true, "build the images first")
	flag.IntVar(&o.tasks, "tasks", 100, "tasks that run while processes are killed")
	flag.IntVar(&o.seconds, "seconds", 6, "how long each of them takes")
	flag.StringVar(&o.version, "version", "compose-test", "tag of the images")
	flag.DurationVar(&o.patience, "patience", 5*time.Minute, "bound of each wait")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begun := time.Now()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "compose-test: FAILED after %v: %v\n", time.Since(begun).Round(time.Second), err)
		return 1
	}
	fmt.Printf("compose-test: ok in %v\n", time.Since(begun).Round(time.Second))
	return 0
}

// say tells the operator what happens.
func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, o options) (err error) {
	s, err := newStack(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.tellWhy(context.WithoutCancel(ctx))
		}
		err = errors.Join(err, s.down(context.WithoutCancel(ctx)))
	}()
	if o.build {
		say("building the images")
		if err := s.compose(ctx, "build"); err != nil {
			return err
		}
	}
	say("starting everything from nothing, as project %s", s.project)
	if err := s.compose(ctx, "up", "-d"); err != nil {
		return err
	}
	if err := s.awaitHealthy(ctx, len(daemons)); err != nil {
		return err
	}
	w, err := newWork(ctx, s)
	if err != nil {
		return err
	}
	if err := w.mainJob(ctx); err != nil {
		return err
	}
	if err := scale(ctx, s, w); err != nil {
		return err
	}
	if err := killing(ctx, s, w, o); err != nil {
		return err
	}
	return w.judge(ctx)
}

// scaled are the services that run twice; the others are there once.
var scaled = []string{"api", "scheduler", "leasekeeper", "hostagent"}

// daemons are all services that stay; each has its process killed.
var daemons = []string{"postgres", "api", "scheduler", "leasekeeper", "hostagent", "admit", "caddy"}

func scale(ctx context.Context, s *stack, w *work) error {
	say("scaling to two of api, scheduler, leasekeeper and hostagent")
	args := []string{"up", "-d", "--no-recreate"}
	for _, service := range scaled {
		args = append(args, "--scale", service+"=2")
	}
	if err := s.compose(ctx, args...); err != nil {
		return err
	}
	if err := s.awaitHealthy(ctx, len(daemons)+len(scaled)); err != nil {
		return err
	}
	return w.awaitHosts(ctx, 2)
}

// killing kills the process in each container while tasks run; there is never a
// kill without work going on.
func killing(ctx context.Context, s *stack, w *work, o options) error {
	say("submitting %d tasks of %d s", o.tasks, o.seconds)
	if err := w.submit(ctx, o.tasks, o.seconds); err != nil {
		return err
	}
	for _, service := range daemons {
		containers, err := s.containers(ctx, service)
		if err != nil {
			return err
		}
		for _, c := range containers {
			if err := w.keepBusy(ctx, o.seconds); err != nil {
				return err
			}
			if err := s.kill(ctx, c); err != nil {
				return err
			}
		}
	}
	say("every process has been killed once; waiting for the tasks")
	return s.awaitHealthy(ctx, len(daemons)+len(scaled))
}
