package chromium

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/runtime"
)

// The size of a page that nobody gave a viewport.
const (
	defaultWidth  = 1280
	defaultHeight = 800
)

// session is the exclusive use of one browser context with one page.
type session struct {
	driver  *Driver
	browser *browser
	device  runtime.Device

	contextID string // browser context
	targetID  string // page; also the id of its main frame
	id        string // protocol session attached to the page

	life context.Context // ends with Close
	stop context.CancelFunc
	lost chan struct{}
	work sync.WaitGroup // goroutines of the session

	mu       sync.Mutex
	children []string      // protocol sessions of frames in other processes
	queue    []event       // not handled yet
	wake     chan struct{} // 1 slot: the queue is not empty
	crashed  bool
	traffic  traffic
	loaders  []string             // of the main frame's documents, oldest first
	loads    map[string]bool      // loaders whose load event fired
	loaded   chan struct{}        // closed and replaced with each load event
	refused  *runtime.ActionError // why the guard last stopped a document
	asked    string               // the address of the main frame's last document

	closeMu  sync.Mutex
	closed   bool
	closeErr error
}

// openSession makes a fresh context with an empty page.
func openSession(ctx context.Context, d *Driver, b *browser, dev runtime.Device) (*session, error) {
	life, stop := context.WithCancel(context.Background())
	s := &session{
		driver: d, browser: b, device: dev, life: life, stop: stop,
		lost: make(chan struct{}), wake: make(chan struct{}, 1),
		loads: map[string]bool{}, loaded: make(chan struct{}), traffic: traffic{last: time.Now()},
	}
	s.work.Add(2)
	go s.watchBrowser()
	go s.handleEvents()
	prepareCtx, prepared := context.WithTimeout(ctx, startBound)
	defer prepared()
	if err := s.prepare(prepareCtx); err != nil {
		closeCtx, done := context.WithTimeout(context.Background(), 5*time.Second)
		defer done()
		_ = s.Close(closeCtx)
		if errors.Is(err, runtime.ErrDeviceLost) || ctx.Err() != nil {
			return nil, err
		}
		return nil, &runtime.ActionError{Code: runtime.CodeDeviceOpen, Message: "the browser gave no fresh context", Err: err}
	}
	return s, nil
}

// object is the parameters of a protocol command.
type object = map[string]any

func (s *session) prepare(ctx context.Context) error {
	c := s.browser.conn
	var made struct {
		ContextID string `json:"browserContextId"`
	}
	if err := c.call(ctx, "", "Target.createBrowserContext", object{}, &made); err != nil {
		return err
	}
	s.contextID = made.ContextID
	var target struct {
		ID string `json:"targetId"`
	}
	if err := c.call(ctx, "", "Target.createTarget", object{
		"url": "about:blank", "browserContextId": s.contextID, "width": defaultWidth, "height": defaultHeight,
	}, &target); err != nil {
		return err
	}
	s.targetID = target.ID
	var attached struct {
		ID string `json:"sessionId"`
	}
	if err := c.call(ctx, "", "Target.attachToTarget", object{"targetId": target.ID, "flatten": true}, &attached); err != nil {
		return err
	}
	s.id = attached.ID
	c.subscribe(s.id, s.enqueue)
	for _, cmd := range []struct {
		method string
		params object
	}{
		{"Page.enable", nil},
		{"Page.setLifecycleEventsEnabled", object{"enabled": true}},
		{"Network.enable", nil},
		{"Inspector.enable", nil},
		// Documents only: each paused request costs a round trip.
		{"Fetch.enable", documentsOnly()},
		{"Target.setAutoAttach", attachPaused()},
		{"Emulation.setDeviceMetricsOverride", metrics(defaultWidth, defaultHeight, 1)},
		{"Emulation.setFocusEmulationEnabled", object{"enabled": true}},
	} {
		if err := s.call(ctx, cmd.method, cmd.params, nil); err != nil {
			return err
		}
	}
	return c.call(ctx, "", "Browser.setDownloadBehavior", object{"behavior": "deny", "browserContextId": s.contextID}, nil)
}

func documentsOnly() object {
	return object{"patterns": []object{{"urlPattern": "*", "resourceType": "Document"}}}
}

// attachPaused has frames in other processes wait for adopt before they ask for
// anything.
func attachPaused() object {
	return object{"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true}
}

func metrics(width, height int, scale float64) object {
	return object{"width": width, "height": height, "deviceScaleFactor": scale, "mobile": false}
}

// call sends a command to the page. It ends with ctx, with the session, and
// with runtime.ErrDeviceLost when the page or the browser is gone.
func (s *session) call(ctx context.Context, method string, params object, out any) error {
	return s.callOn(ctx, s.id, method, params, out)
}

func (s *session) callOn(ctx context.Context, id, method string, params object, out any) error {
	var p any
	if params != nil {
		p = params
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	done := make(chan error, 1)
	go func() { done <- s.browser.conn.call(ctx, id, method, p, out) }()
	select {
	case err := <-done:
		return s.explain(err)
	case <-s.lost:
		cancel()
		<-done // it writes to out
		return runtime.ErrDeviceLost
	}
}

// explain turns the end of the session into what the caller should know.
func (s *session) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-s.lost:
		return runtime.ErrDeviceLost
	default:
	}
	if s.life.Err() != nil {
		return runtime.ErrClosed
	}
	return err
}

// Device implements runtime.Session.
func (s *session) Device() runtime.Device { return s.device }

// Lost implements runtime.Session.
func (s *session) Lost() <-chan struct{} { return s.lost }

// watchBrowser closes lost when the browser dies under the session.
func (s *session) watchBrowser() {
	defer s.work.Done()
	select {
	case <-s.browser.dead:
		s.lose()
	case <-s.life.Done():
	}
}

func (s *session) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.crashed {
		s.crashed = true
		close(s.lost)
	}
}

// Close implements runtime.Session. Where the context does not close in time the
// whole browser is killed: a device must not be left in use.
func (s *session) Close(ctx context.Context) error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return s.closeErr
	}
	s.closed = true
	s.stop()
	s.work.Wait()
	for _, id := range append(s.children, s.id) { // nobody adopts any more
		s.browser.conn.subscribe(id, nil)
	}
	s.closeErr = s.dispose(ctx)
	s.driver.mu.Lock()
	if s.driver.open[s.device.ID] == s {
		delete(s.driver.open, s.device.ID)
	}
	s.driver.mu.Unlock()
	return s.closeErr
}

// disposeBound is how long a context may take to close before its browser is killed.
const disposeBound = 5 * time.Second

func (s *session) dispose(ctx context.Context) error {
	if s.contextID != "" && !s.browser.isDead() {
		asked, stop := context.WithTimeout(ctx, disposeWithin(ctx))
		defer stop()
		err := s.browser.conn.call(asked, "", "Target.disposeBrowserContext", object{"browserContextId": s.contextID}, nil)
		if err == nil {
			return nil
		}
	}
	if s.contextID == "" && !s.browser.isDead() {
		return nil
	}
	return s.browser.closeWithin(ctx)
}

// disposeWithin leaves half of the time for killing.
func disposeWithin(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return min(disposeBound, time.Until(at)/2)
	}
	return disposeBound
}

// enqueue takes an event from the reading goroutine, which must not wait.
func (s *session) enqueue(e event) {
	s.mu.Lock()
	s.queue = append(s.queue, e)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) handleEvents() {
	defer s.work.Done()
	for {
		select {
		case <-s.wake:
		case <-s.life.Done():
			return
		}
		s.mu.Lock()
		events := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, e := range events {
			s.handle(e)
		}
	}
}

// handle acts on one event; nothing it does may wait for another event.
func (s *session) handle(e event) {
	switch e.method {
	case "Fetch.requestPaused":
		s.work.Add(1) // the handler's own count keeps Wait from passing
		go func() {
			defer s.work.Done()
			s.guard(e.session, e.params)
		}()
	case "Target.attachedToTarget":
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			s.adopt(e.params)
		}()
	case "Page.lifecycleEvent":
		s.lifecycle(e.params)
	case "Page.javascriptDialogOpening":
		// An open dialog stops the page and every command to it.
		ctx, stop := context.WithTimeout(s.life, 5*time.Second)
		defer stop()
		_ = s.call(ctx, "Page.handleJavaScriptDialog", object{"accept": true}, nil)
	case "Inspector.targetCrashed", "Inspector.detached":
		if e.session == s.id {
			s.lose()
		}
	case "Network.requestWillBeSent", "Network.loadingFinished", "Network.loadingFailed", "Page.frameNavigated":
		s.mu.Lock()
		s.traffic.handle(e, s.targetID, time.Now())
		s.mu.Unlock()
	}
}

func (s *session) lifecycle(raw json.RawMessage) {
	var p struct {
		FrameID  string `json:"frameId"`
		LoaderID string `json:"loaderId"`
		Name     string `json:"name"`
	}
	if json.Unmarshal(raw, &p) != nil || p.FrameID != s.targetID || (p.Name != "load" && p.Name != "init") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Name == "init" {
		const remembered = 32
		if s.loaders = append(s.loaders, p.LoaderID); len(s.loaders) > remembered {
			delete(s.loads, s.loaders[0])
			s.loaders = s.loaders[1:]
		}
		return
	}
	s.loads[p.LoaderID] = true
	close(s.loaded)
	s.loaded = make(chan struct{})
}

// hasLoaded reports whether the document of the loader fired its load event, or
// one that replaced it did: a page that sends itself elsewhere while it loads
// never fires its own. s.mu is held.
func (s *session) hasLoaded(loader string) bool {
	i := slices.Index(s.loaders, loader)
	return i >= 0 && slices.ContainsFunc(s.loaders[i:], func(l string) bool { return s.loads[l] })
}

// guard lets a document through or stops it.
func (s *session) guard(id string, raw json.RawMessage) {
	var p struct {
		ID      string `json:"requestId"`
		FrameID string `json:"frameId"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
	}
	if json.Unmarshal(raw, &p) != nil {
		return
	}
	ctx, stop := context.WithTimeout(s.life, 10*time.Second)
	defer stop()
	err := s.driver.cfg.Policy.check(ctx, p.Request.URL)
	var refused *runtime.ActionError
	if p.FrameID == s.targetID {
		s.mu.Lock()
		s.asked = p.Request.URL
		if errors.As(err, &refused) {
			s.refused = refused
		}
		s.mu.Unlock()
	}
	if err != nil {
		_ = s.callOn(ctx, id, "Fetch.failRequest", object{"requestId": p.ID, "errorReason": "BlockedByClient"}, nil)
		return
	}
	_ = s.callOn(ctx, id, "Fetch.continueRequest", object{"requestId": p.ID}, nil)
}
