package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// stack is one Compose project of this repository's docker-compose.yml.
type stack struct {
	command []string // docker compose, or docker-compose
	project string
	url     string
	// agentImage has a shell and kill; it is used to kill processes.
	agentImage string
	secrets    string
	env        []string
	patience   time.Duration
}

// newStack makes secrets and chooses a name and free ports; it starts nothing.
func newStack(ctx context.Context, o options) (*stack, error) {
	if _, err := os.Stat("docker-compose.yml"); err != nil {
		return nil, errors.New("run it in the folder of docker-compose.yml: make compose-test")
	}
	s := &stack{project: "berth-test-" + strings.ToLower(rand.Text()[:8]), patience: o.patience}
	var err error
	if s.command, err = composeCommand(ctx); err != nil {
		return nil, err
	}
	http, https, err := freePorts(ctx)
	if err != nil {
		return nil, err
	}
	if s.secrets, err = os.MkdirTemp("", s.project); err != nil {
		return nil, err
	}
	s.url = "http://" + http
	image := os.Getenv("BERTH_IMAGE")
	if image == "" {
		image = "berth"
	}
	s.agentImage = image + "-hostagent:" + o.version
	s.env = append(os.Environ(),
		"COMPOSE_PROJECT_NAME="+s.project, "COMPOSE_HTTP_TIMEOUT=600", "BERTH_VERSION="+o.version, "BERTH_SECRETS="+s.secrets, "BERTH_SITE=http://:8080",
		"BERTH_PUBLISH_HTTP="+http, "BERTH_PUBLISH_HTTPS="+https, "BERTH_PROCESS_SLOTS=4", "BERTH_BROWSER_CONTEXTS=1")
	say("making secrets in %s", s.secrets)
	if out, err := exec.CommandContext(ctx, "deploy/secrets.sh", s.secrets).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("deploy/secrets.sh: %w\n%s", err, out), os.RemoveAll(s.secrets))
	}
	return s, nil
}

// composeCommand is $COMPOSE, docker compose, or docker-compose.
func composeCommand(ctx context.Context) ([]string, error) {
	if words := strings.Fields(os.Getenv("COMPOSE")); len(words) > 0 {
		return words, nil
	}
	for _, words := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.CommandContext(ctx, words[0], append(words[1:], "version")...).Run() == nil {
			return words, nil
		}
	}
	return nil, errors.New("neither docker compose nor docker-compose is here: install one of them")
}

// freePorts are two addresses that nobody listens on.
func freePorts(ctx context.Context) (http, https string, err error) {
	var addresses [2]string
	for i := range addresses {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer func() { _ = l.Close() }()
		addresses[i] = l.Addr().String()
	}
	return addresses[0], addresses[1], nil
}

// compose runs a command of Compose; its output is told where it fails.
func (s *stack) compose(ctx context.Context, args ...string) error {
	_, err := s.exec(ctx, append(slices.Clone(s.command), args...)...)
	return err
}

func (s *stack) exec(ctx context.Context, words ...string) (string, error) {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = s.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		said := out.String() + errs.String()
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(words[:min(len(words), 4)], " "), err, said[max(0, len(said)-4000):])
	}
	return out.String(), nil
}

// container is what Docker says of one.
type container struct {
	ID     string
	Name   string
	Config struct {
		Labels      map[string]string
		Healthcheck *struct{ Test []string }
	}
	State struct {
		Running   bool
		Status    string
		ExitCode  int
		StartedAt string
		Health    *struct{ Status string }
	}
}

func (c container) service() string { return c.Config.Labels["com.docker.compose.service"] }

// containers lists the project's, of one service or ("") of all, by name.
func (s *stack) containers(ctx context.Context, service string) ([]container, error) {
	args := []string{"docker", "ps", "-aq", "--no-trunc", "--filter", "label=com.docker.compose.project=" + s.project}
	if service != "" {
		args = append(args, "--filter", "label=com.docker.compose.service="+service)
	}
	ids, err := s.exec(ctx, args...)
	if err != nil || ids == "" {
		return nil, err
	}
	out, err := s.exec(ctx, append([]string{"docker", "inspect"}, strings.Fields(ids)...)...)
	if err != nil {
		return nil, err
	}
	var all []container
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("docker inspect: %w", err)
	}
	slices.SortFunc(all, func(a, b container) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// await asks until done says so.
func (s *stack) await(ctx context.Context, what string, done func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	why := ""
	for {
		ok, now, err := done(ctx)
		if err == nil && ok {
			return nil
		}
		if now != "" {
			why = now
		} else if err != nil && ctx.Err() == nil {
			why = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v: %s", what, s.patience, why)
		case <-ticker.C:
		}
	}
}

// awaitHealthy waits until n containers run and are healthy, and the others
// ended well.
func (s *stack) awaitHealthy(ctx context.Context, n int) error {
	say("waiting until %d containers are healthy", n)
	return s.await(ctx, "containers", func(ctx context.Context) (bool, string, error) {
		all, err := s.containers(ctx, "")
		healthy, not := 0, []string{}
		for _, c := range all {
			switch {
			case c.State.Health != nil && c.State.Health.Status == "healthy" && c.State.Running:
				healthy++
			case c.State.Health == nil && c.State.Status == "exited" && c.State.ExitCode == 0:
			default:
				not = append(not, c.Name+" is "+c.State.Status)
			}
		}
		return healthy == n && len(not) == 0, fmt.Sprintf("%d of %d are healthy; %s", healthy, n, strings.Join(not, ", ")), err
	})
}

// killer kills what process 1 of the container started, from beside it: images
// without a shell have no kill, and `docker kill` would be taken for an
// operator's stop.
const killer = `for s in /proc/[0-9]*/status; do
  if grep -qs '^PPid:[[:space:]]*1$' "$s"; then p=${s%/status}; kill -9 "${p#/proc/}"; fi
done`

// killed is how the killer itself may end: with the container whose process
// numbers it shares.
const killed = 128 + 9

// kill kills the process in a container and waits until it is started anew and
// says that it is ready.
func (s *stack) kill(ctx context.Context, c container) error {
	say("kill -9 in %s", strings.TrimPrefix(c.Name, "/"))
	begun := time.Now()
	_, err := s.exec(ctx, "docker", "run", "--rm", "--pid", "container:"+c.ID, "--network", "none", "--user", "0", "--entrypoint", "sh", s.agentImage, "-c", killer)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != killed) {
		return err
	}
	err = s.await(ctx, c.service()+" after kill -9", func(ctx context.Context) (bool, string, error) {
		all, err := s.containers(ctx, c.service())
		i := slices.IndexFunc(all, func(other container) bool { return other.ID == c.ID })
		if i < 0 {
			return false, "the container is gone", err
		}
		if !all[i].State.Running || all[i].State.StartedAt == c.State.StartedAt {
			return false, "it was not started anew", nil
		}
		test := c.Config.Healthcheck.Test
		if _, err := s.exec(ctx, append([]string{"docker", "exec", c.ID}, test[1:]...)...); err != nil {
			return false, "it runs and is not ready", nil
		}
		return true, "", nil
	})
	if err == nil {
		say("  it is back after %v", time.Since(begun).Round(time.Second/10))
	}
	return err
}

// tellWhy prints the ends of the logs, after a failure.
func (s *stack) tellWhy(ctx context.Context) {
	all, err := s.containers(ctx, "")
	if err != nil {
		return
	}
	for _, c := range all {
		cmd := exec.CommandContext(ctx, "docker", "logs", "--tail", "15", c.ID)
		out, _ := cmd.CombinedOutput()
		fmt.Fprintf(os.Stderr, "--- the end of the log of %s (%s)\n%s", c.Name, c.State.Status, out)
	}
}

// down removes the project and the secrets, and checks that nothing is left.
func (s *stack) down(ctx context.Context) error {
	say("stopping everything and removing its volumes")
	err := errors.Join(s.compose(ctx, "down", "-v", "--remove-orphans"), os.RemoveAll(s.secrets))
	label := "label=com.docker.compose.project=" + s.project
	for _, list := range [][]string{
		{"docker", "ps", "-aq", "--filter", label}, {"docker", "volume", "ls", "-q", "--filter", label}, {"docker", "network", "ls", "-q", "--filter", label},
	} {
		out, lsErr := s.exec(ctx, list...)
		if left := strings.Fields(out); lsErr != nil || len(left) > 0 {
			err = errors.Join(err, lsErr, fmt.Errorf("left after down -v: %s %s", list[1], strings.Join(left, " ")))
		}
	}
	return err
}

// adminPassword is the first administrator's.
func (s *stack) adminPassword() (string, error) {
	b, err := os.ReadFile(filepath.Join(s.secrets, "admin-password"))
	return string(b), err
}
