package chromium

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

const (
	startBound = 30 * time.Second
	killBound  = 15 * time.Second
)

// browser is one running Chromium.
type browser struct {
	conn *conn
	proc *procs.Proc
	gate *gate
	// dead is closed as soon as the browser is gone, before its remains are
	// swept; ended when nothing of it is left.
	dead  chan struct{}
	ended chan struct{}

	killOnce sync.Once
	kill     chan struct{}
	endErr   error // set before ended is closed
}

// launch starts a browser with a fresh profile and waits until it answers.
func launch(ctx context.Context, table *procs.Table, path string, cfg Config) (*browser, error) {
	profile, err := table.TempDir("chromium")
	if err != nil {
		return nil, startError("no directory for its profile", err)
	}
	// The browser puts a socket there, whose path must be short.
	temp, err := table.ShortTempDir()
	if err != nil {
		_ = os.RemoveAll(profile)
		return nil, startError("no temporary directory", err)
	}
	drop := func() { _, _ = os.RemoveAll(profile), os.RemoveAll(temp) }
	to, from, err := pipes()
	if err != nil {
		drop()
		return nil, startError("no pipes", err)
	}
	way, err := openGate(ctx, cfg.Policy)
	if err != nil {
		closeAll(to[0], to[1], from[0], from[1])
		drop()
		return nil, startError("no way to the network", err)
	}
	stderr := &tail{max: 8 << 10}
	cmd := &exec.Cmd{
		Path: path, Args: append([]string{path}, slices.Concat(flags(profile), way.flags(), cfg.Flags, []string{"about:blank"})...), Dir: profile,
		Env: []string{
			"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + profile, "TMPDIR=" + temp,
			"XDG_CONFIG_HOME=" + profile, "XDG_CACHE_HOME=" + profile,
			"DBUS_SESSION_BUS_ADDRESS=disabled:", "DBUS_SYSTEM_BUS_ADDRESS=disabled:",
		},
		Stderr: stderr, ExtraFiles: []*os.File{to[0], from[0]}, // its descriptors 3 and 4
	}
	proc, err := table.Start(cmd, "browser", profile, temp)
	closeAll(to[0], from[0])
	if err != nil {
		closeAll(to[1], from[1])
		way.close()
		drop()
		return nil, startError("it could not be executed", err)
	}
	b := &browser{
		conn: newConn(from[1], to[1]), proc: proc, gate: way,
		dead: make(chan struct{}), ended: make(chan struct{}), kill: make(chan struct{}),
	}
	go b.watch()
	ctx, stop := context.WithTimeout(ctx, startBound)
	defer stop()
	b.conn.subscribe("", b.onWindow)
	windows := object{"discover": true, "filter": []object{{"type": "page"}, {"exclude": true}}}
	if err := b.conn.call(ctx, "", "Target.setDiscoverTargets", windows, nil); err != nil {
		_ = b.close()
		return nil, startError(stderr.hint(), err)
	}
	return b, nil
}

func startError(why string, err error) error {
	return &runtime.ActionError{Code: runtime.CodeBrowserStart, Message: "the browser did not start: " + why + "; start it by hand to see more", Err: err}
}

// flags are the command line. As root Chromium refuses to run with its sandbox.
func flags(profile string) []string {
	fs := []string{
		"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + profile,
		"--disable-gpu", "--disable-quic", "--no-first-run", "--no-default-browser-check",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-breakpad", "--disable-client-side-phishing-detection", "--disable-default-apps",
		"--disable-extensions", "--disable-hang-monitor", "--disable-popup-blocking", "--disable-prompt-on-repost",
		"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
		"--disable-dev-shm-usage", "--disable-ipc-flooding-protection", "--no-pings", "--mute-audio", "--hide-scrollbars",
		"--force-color-profile=srgb", "--password-store=basic", "--use-mock-keychain", "--metrics-recording-only",
		"--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,AutofillServerCommunication,CertificateTransparencyComponentUpdater",
	}
	if os.Geteuid() == 0 {
		fs = append(fs, "--no-sandbox")
	}
	return fs
}

// watch sees the end of the browser, however it comes, and sweeps what is left.
func (b *browser) watch() {
	defer close(b.ended)
	select {
	case <-b.proc.Exited():
	case <-b.conn.done:
	case <-b.kill:
	}
	close(b.dead)
	// Closing the pipes first would let a stuck browser linger; End kills it.
	ctx, stop := context.WithTimeout(context.Background(), killBound)
	defer stop()
	b.endErr = b.proc.End(ctx, 0)
	b.gate.close()
	b.conn.close()
	<-b.conn.done
}

// close kills the browser and returns when nothing of it is left.
func (b *browser) close() error {
	b.killOnce.Do(func() { close(b.kill) })
	<-b.ended
	return b.endErr
}

// closeWithin is close; runtime.ErrUnclean when something of it lives on.
func (b *browser) closeWithin(ctx context.Context) error {
	b.killOnce.Do(func() { close(b.kill) })
	select {
	case <-b.ended:
	case <-ctx.Done():
		return fmt.Errorf("%w: the browser does not die: %w", runtime.ErrUnclean, ctx.Err())
	}
	if b.endErr == nil {
		return nil
	}
	if err := b.proc.End(ctx, 0); err != nil { // once more
		return fmt.Errorf("%w: the browser does not die: %w", runtime.ErrUnclean, err)
	}
	return nil
}

func (b *browser) isDead() bool {
	select {
	case <-b.dead:
		return true
	default:
		return false
	}
}

// tail keeps the last bytes of what the browser says, for a start that failed.
type tail struct {
	mu  sync.Mutex
	max int
	b   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - t.max; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// hint names known causes; the output itself is not repeated.
func (t *tail) hint() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for needle, hint := range map[string]string{
		"error while loading shared libraries": "a shared library is missing",
		"No usable sandbox":                    "the kernel allows it no sandbox",
		"No space left":                        "the disk is full",
	} {
		if bytes.Contains(t.b, []byte(needle)) {
			return hint
		}
	}
	return fmt.Sprintf("it did not answer within %v or exited", startBound)
}
