// Command smoke does what a newcomer does: it starts what `make run` starts, in
// a temporary folder on free ports, runs the README's first task, word for
// word, looks at the picture and the UI tree that it left, and stops. It prints
// "smoke: ok" and leaves nothing.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/pkg/demo"
)

const (
	startWithin = 2 * time.Minute
	taskWithin  = 2 * time.Minute
	stopWithin  = time.Minute
	// readmeURL is the address in the README's commands.
	readmeURL = "http://127.0.0.1:7700"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "smoke:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	commands, err := firstTask("README.md")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-smoke-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if b, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "bin")+"/", "./cmd/berth").CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, b)
	}
	up, err := start(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "smoke: up at", up.url)
	taskErr := doTask(ctx, out, dir, strings.ReplaceAll(commands, readmeURL, up.url))
	if err := errors.Join(taskErr, up.stop(), nothingLeft(dir)); err != nil {
		return fmt.Errorf("%w\n--- what berth up said\n%s\n--- the end of its log\n%s", err, up.said.String(), tail(filepath.Join(dir, ".berth", "berth.log")))
	}
	fmt.Fprintln(out, "smoke: ok")
	return nil
}

// firstTask reads the commands between the markers of the README.
func firstTask(readme string) (string, error) {
	b, err := os.ReadFile(readme)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile("(?s)<!-- first task -->\\s*```sh\\n(.*?)```").FindSubmatch(b)
	if m == nil {
		return "", errors.New("README.md has no block of commands after <!-- first task -->")
	}
	if !bytes.Contains(m[1], []byte(readmeURL)) {
		return "", fmt.Errorf("the README's first task does not use %s", readmeURL)
	}
	return string(m[1]), nil
}

// process is a running `berth up`.
type process struct {
	cmd  *exec.Cmd
	url  string
	said bytes.Buffer
	done chan error
}

// start runs `berth up` as `make run` does, but on free ports, until it says
// that it is up.
func start(ctx context.Context, dir string) (*process, error) {
	p := &process{done: make(chan error, 1)}
	p.cmd = exec.CommandContext(ctx, filepath.Join(dir, "bin", "berth"), "up", "--listen", "127.0.0.1:0", "--demo-listen", "127.0.0.1:0")
	p.cmd.Dir, p.cmd.Env = dir, environment(dir)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			fmt.Fprintln(&p.said, lines.Text())
			if url, ok := strings.CutPrefix(lines.Text(), "Berth is up at "); ok {
				p.url = url
			}
			if strings.HasPrefix(lines.Text(), "Ctrl-C stops everything") {
				close(ready)
			}
		}
		p.done <- p.cmd.Wait()
	}()
	timer := time.NewTimer(startWithin)
	defer timer.Stop()
	select {
	case <-ready:
		return p, nil
	case err := <-p.done:
		return nil, fmt.Errorf("berth up ended before it was up: %w\n%s", err, p.said.String())
	case <-timer.C:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return nil, fmt.Errorf("berth up was not up within %v\n%s", startWithin, p.said.String())
	}
}

// stop asks for the end and checks that it is an orderly one.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case err := <-p.done:
		if err != nil {
			return fmt.Errorf("berth up did not end well: %w", err)
		}
		return nil
	case <-timer.C:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("berth up did not stop within %v", stopWithin)
	}
}

// environment is the caller's, with a home of its own: the login is kept there.
func environment(dir string) []string {
	home := filepath.Join(dir, "home")
	return append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, ".config"), "BERTH_URL=", "BERTH_TOKEN=", "NO_COLOR=1")
}

// doTask runs the README's commands and looks at what they left.
func doTask(ctx context.Context, out io.Writer, dir, commands string) error {
	ctx, cancel := context.WithTimeout(ctx, taskWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", commands)
	cmd.Dir, cmd.Env = dir, environment(dir)
	b, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("the README's first task: %w\n%s", err, b)
	}
	_, _ = out.Write(b)
	return errors.Join(checkPicture(filepath.Join(dir, "results", demo.ScreenshotName)), checkTree(filepath.Join(dir, "results", demo.UITreeName)))
}

// checkPicture checks that the PNG shows the page: the banner's colour along
// its top, and something else below.
func checkPicture(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	img, err := png.Decode(f)
	if err != nil {
		return fmt.Errorf("%s is no PNG: %w", filepath.Base(path), err)
	}
	banner := color.NRGBA{R: demo.BannerRed, G: demo.BannerGreen, B: demo.BannerBlue, A: 255}
	size := img.Bounds().Size()
	other := map[color.Color]bool{}
	for x := 2; x < size.X; x += 7 {
		if c := color.NRGBAModel.Convert(img.At(x, demo.BannerHeight/2)); c != banner {
			return fmt.Errorf("the picture does not show the page: pixel (%d, %d) is %v, not the banner's %v", x, demo.BannerHeight/2, c, banner)
		}
		for y := demo.BannerHeight * 2; y < size.Y; y += 7 {
			other[color.NRGBAModel.Convert(img.At(x, y))] = true
		}
	}
	if delete(other, banner); len(other) < 5 {
		return fmt.Errorf("the picture shows a banner and nothing else: %d colours below it", len(other))
	}
	return nil
}

func checkTree(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, text := range []string{demo.Title, demo.ResultText, demo.VesselName} {
		if !bytes.Contains(b, []byte(text)) {
			return fmt.Errorf("the UI tree does not hold %q", text)
		}
	}
	return nil
}

// nothingLeft looks for processes that still use the folder.
func nothingLeft(dir string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var left []error
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(b, []byte(dir)) {
			left = append(left, fmt.Errorf("process %s is left: %s", e.Name(), bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return errors.Join(left...)
}

func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}
