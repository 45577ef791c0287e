package builtin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"image/color"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

func TestFirstTaskLeavesThePagesPixelsAndText(t *testing.T) {
	res := run(t, t.Context(), runtime.RunRequest{
		DeviceID: "chromium-0", Plugin: "browser.script", Version: "^1.0.0",
		Payload: redact.NewBytes(demo.FirstTask(site.URL + "/")),
	})
	want(t, res, runtime.OutcomeSucceeded, "")
	if got := reads(t, res)["confirmation"]; got != demo.ResultText {
		t.Errorf("read %q, want %q", got, demo.ResultText)
	}
	a, b := artifact(t, res, demo.ScreenshotName)
	if a.Class != runtime.ClassScreenshot || a.ContentType != "image/png" || a.Size != int64(len(b)) {
		t.Errorf("artifact is %+v", a)
	}
	img := picture(t, b)
	if s := img.Bounds().Size(); s.X != 1280 || s.Y != 800 {
		t.Errorf("screenshot is %v", s)
	}
	banner := color.NRGBA{demo.BannerRed, demo.BannerGreen, demo.BannerBlue, 255}
	for _, x := range []int{2, 640, 1277} {
		if got := color.NRGBAModel.Convert(img.At(x, demo.BannerHeight/2)); got != banner {
			t.Errorf("pixel at %d is %v, want the banner's %v", x, got, banner)
		}
	}
	if got := color.NRGBAModel.Convert(img.At(640, demo.BannerHeight+20)); got == banner {
		t.Error("the banner's colour goes on below the banner")
	}
	_, b = artifact(t, res, demo.UITreeName)
	var tree runtime.UINode
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	heading := findNode(&tree, func(n *runtime.UINode) bool { return n.Role == "heading" && n.Name == demo.Title })
	if heading == nil || heading.Bounds == nil || heading.Bounds.Width <= 0 || heading.Bounds.Y < demo.BannerHeight {
		t.Errorf("heading is %+v", heading)
	}
	if findNode(&tree, func(n *runtime.UINode) bool { return n.Role == "textbox" && n.Value == demo.VesselName }) == nil {
		t.Errorf("no text box with the typed name in %s", b)
	}
	if !strings.Contains(string(b), demo.ResultText) {
		t.Errorf("the tree does not hold the result: %s", b)
	}
}

func findNode(n *runtime.UINode, fits func(*runtime.UINode) bool) *runtime.UINode {
	if fits(n) {
		return n
	}
	for _, c := range n.Children {
		if found := findNode(c, fits); found != nil {
			return found
		}
	}
	return nil
}

func TestEveryStepKind(t *testing.T) {
	res := run(t, t.Context(), runtime.RunRequest{
		DeviceID: "chromium-1", Plugin: "browser.script", Secrets: redact.Strings{"pw": redact.NewString("hunter-2-secret")},
		Payload: payload(t, map[string]any{"viewport": map[string]any{"width": 800, "height": 600, "scale": 2}, "steps": steps{
			{"goto": map[string]any{"url": site.URL + "/hop"}}, // sends itself to /steps
			{"wait": map[string]any{"visible": "#late"}},
			{"wait": map[string]any{"hidden": "#gone"}},
			{"wait": map[string]any{"text": "late text"}},
			{"wait": map[string]any{"idle_ms": 100}},
			{"type": map[string]any{"selector": "#name", "text": "new"}},
			{"read": map[string]any{"name": "replaced", "selector": "#name", "what": "value"}},
			{"type": map[string]any{"selector": "#name", "text": "er", "clear": false}},
			{"type": map[string]any{"selector": "#pass", "secret": "pw"}},
			{"read": map[string]any{"name": "secret", "selector": "#pass", "what": "value"}},
			{"type": map[string]any{"selector": "#area", "secret": "pw"}},
			{"press": map[string]any{"selector": "#name", "key": "Enter"}},
			{"assert": map[string]any{"selector": "#out", "text": "entered newer"}},
			{"press": map[string]any{"key": "Control+a"}},
			{"press": map[string]any{"key": "x"}},
			{"assert": map[string]any{"selector": "#name", "value": "x"}},
			{"select": map[string]any{"selector": "#sel", "option": "Beta"}},
			{"click": map[string]any{"selector": "#go"}},
			{"assert": map[string]any{"selector": "#out", "text": "x/b", "visible": true}},
			{"read": map[string]any{"name": "kind", "selector": "#out", "what": "attribute", "attribute": "data-kind"}},
			{"read": map[string]any{"name": "title", "what": "title"}},
			{"read": map[string]any{"name": "url", "what": "url"}},
			{"read": map[string]any{"name": "text"}},
			{"assert": map[string]any{"title": "Page /steps", "url": "/steps"}},
			{"screenshot": map[string]any{"name": "top.png"}},
			{"scroll": map[string]any{"dy": 500}},
			{"scroll": map[string]any{"selector": "#far"}},
			{"screenshot": map[string]any{"name": "bottom.png"}},
			{"click": map[string]any{"selector": "#far"}},
			{"assert": map[string]any{"selector": "#out", "text": "far clicked"}},
			{"ui_tree": map[string]any{"name": "tree.json"}},
		}}),
	})
	want(t, res, runtime.OutcomeSucceeded, "")
	got := reads(t, res)
	for name, value := range map[string]string{
		"replaced": "new", "secret": redact.Placeholder, "kind": "answer", "title": "Page /steps", "url": site.URL + "/steps",
	} {
		if got[name] != value {
			t.Errorf("read %s: got %q, want %q", name, got[name], value)
		}
	}
	if !strings.Contains(got["text"], "late text") {
		t.Errorf("page text is %q", got["text"])
	}
	_, top := artifact(t, res, "top.png")
	_, bottom := artifact(t, res, "bottom.png")
	if s := picture(t, top).Bounds().Size(); s.X != 1600 || s.Y != 1200 {
		t.Errorf("screenshot is %v, want twice 800 x 600", s)
	}
	if string(top) == string(bottom) {
		t.Error("scrolling changed nothing")
	}
	_, tree := artifact(t, res, "tree.json")
	if strings.Contains(string(tree), "hunter-2") || !strings.Contains(string(tree), redact.Placeholder) {
		t.Errorf("the typed secret is not masked in the tree: %s", tree)
	}
}

// TestIdleWaitsForThePagesOwnRequests: neither what the browser tells no end of
// nor what a page does not wait for keeps it from rest; its own requests do.
func TestIdleWaitsForThePagesOwnRequests(t *testing.T) {
	var pages steps
	for _, path := range []string{"hop", "unended", "workers", "aside", "streams"} {
		pages = append(pages, steps{
			{"goto": map[string]any{"url": site.URL + "/idle/" + path}}, {"wait": map[string]any{"idle_ms": 400}, "timeout_ms": 20000},
		}...)
	}
	want(t, browse(t, "chromium-1", pages), runtime.OutcomeSucceeded, "")
	for path, says := range map[string]string{"poll": "still under way at the end: Fetch", "refresh": "come to rest"} {
		res := browse(t, "chromium-1", steps{
			{"goto": map[string]any{"url": site.URL + "/idle/" + path}}, {"wait": map[string]any{"idle_ms": 1000}, "timeout_ms": 1500},
		})
		want(t, res, runtime.OutcomeFailed, runtime.CodeWaitTimeout)
		if !strings.Contains(res.Message, says) {
			t.Errorf("%s: %s", path, res.Message)
		}
	}
}

func TestFailingStepSaysWhichAndWhyAndLeavesAScreenshot(t *testing.T) {
	const marker = "typed-marker-91"
	for name, c := range map[string]struct {
		step   map[string]any
		reason runtime.Code
		says   string
	}{
		"missing element": {map[string]any{"type": map[string]any{"selector": "#nowhere", "text": marker}, "timeout_ms": 2000}, runtime.CodeElementMissing, "(type): no element matches"},
		"covered element": {map[string]any{"click": map[string]any{"selector": "#under"}, "timeout_ms": 2000}, runtime.CodeElementHidden, "covered"},
		"wrong text":      {map[string]any{"assert": map[string]any{"selector": "#out", "text": marker}, "timeout_ms": 2000}, runtime.CodeAssertion, "(assert): text"},
		"wrong value":     {map[string]any{"assert": map[string]any{"selector": "#name", "value": marker}, "timeout_ms": 2000}, runtime.CodeAssertion, "another value"},
		"wait":            {map[string]any{"wait": map[string]any{"text": marker}, "timeout_ms": 2000}, runtime.CodeWaitTimeout, "does not show the text"},
		"option":          {map[string]any{"select": map[string]any{"selector": "#sel", "option": marker}, "timeout_ms": 2000}, runtime.CodeOptionMissing, "no such option"},
		"selector":        {map[string]any{"click": map[string]any{"selector": "##" + marker}}, runtime.CodeBadSelector, "CSS"},
		"key":             {map[string]any{"press": map[string]any{"key": marker}}, runtime.CodeUnknownKey, "unknown key"},
		"secret":          {map[string]any{"type": map[string]any{"selector": "#name", "secret": "none"}}, runtime.CodeSecretMissing, "not granted"},
		"scheme":          {map[string]any{"goto": map[string]any{"url": "file:///etc/passwd"}}, runtime.CodeURLRefused, "http"},
		"metadata":        {map[string]any{"goto": map[string]any{"url": "http://169.254.169.254/" + marker}}, runtime.CodeURLRefused, "metadata"},
		"denied":          {map[string]any{"goto": map[string]any{"url": "http://0x7f.9/" + marker}}, runtime.CodeURLRefused, "denies"},
		"redirect":        {map[string]any{"goto": map[string]any{"url": site.URL + "/redirect-out"}}, runtime.CodeURLRefused, "metadata"},
		"refused port":    {map[string]any{"goto": map[string]any{"url": "http://127.0.0.3:40001/"}}, runtime.CodeNavigation, "net::ERR_CONNECTION_REFUSED"},
		"no such name":    {map[string]any{"goto": map[string]any{"url": site.URL + "/bounce?http://" + marker + ".invalid/"}}, runtime.CodeNavigation, "does not resolve"},
		"no answer":       {map[string]any{"goto": map[string]any{"url": site.URL + "/never"}, "timeout_ms": 400}, runtime.CodeNavigation, "in time"},
	} {
		t.Run(name, func(t *testing.T) {
			res := browse(t, "chromium-2", steps{{"goto": map[string]any{"url": site.URL + "/steps"}}, c.step})
			want(t, res, runtime.OutcomeFailed, c.reason)
			if !strings.HasPrefix(res.Message, "step 1 (") || !strings.Contains(res.Message, c.says) {
				t.Errorf("message is %q, want step 1 and %q", res.Message, c.says)
			}
			_, shot := artifact(t, res, "failure.png")
			picture(t, shot)
			for where, text := range map[string]string{"message": res.Message, "result": string(res.JSON.Reveal()), "log": logOf(t, res)} {
				if strings.Contains(text, marker) {
					t.Errorf("the %s reveals the payload: %s", where, text)
				}
			}
			var r struct {
				Failed struct {
					Index  int
					Action string
				} `json:"failed_step"`
			}
			if err := json.Unmarshal(res.JSON.Reveal(), &r); err != nil || r.Failed.Index != 1 || r.Failed.Action == "" {
				t.Errorf("result is %s", res.JSON.Reveal())
			}
		})
	}
}

func TestContextsShareNothingAndStartPristine(t *testing.T) {
	visit := steps{{"goto": map[string]any{"url": site.URL + "/cookie"}}, {"read": map[string]any{"name": "c", "selector": "#c"}}}
	twice := append(append(steps{}, visit...), visit...)
	if got := reads(t, browse(t, "chromium-0", twice))["c"]; got != "cookies: who=mev" {
		t.Fatalf("within a run the cookie is lost: %q", got)
	}
	for _, device := range []string{"chromium-0", "chromium-1"} {
		if got := reads(t, browse(t, device, visit))["c"]; got != "cookies: null" {
			t.Errorf("%s sees what another use left: %q", device, got)
		}
	}
}

func TestDialogsDoNotStopThePage(t *testing.T) {
	res := browse(t, "chromium-0", steps{
		{"goto": map[string]any{"url": site.URL + "/alert"}}, {"assert": map[string]any{"selector": "#p", "text": "after"}},
	})
	want(t, res, runtime.OutcomeSucceeded, "")
}

func TestFourContextsAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for i := range contexts {
		all.Add(1)
		go func() {
			defer all.Done()
			res, err := shared.Run(t.Context(), fill(t, runtime.RunRequest{
				DeviceID: runtime.DeviceID(fmt.Sprintf("chromium-%d", i)),
				Plugin:   "browser.script", Payload: redact.NewBytes(demo.FirstTask(site.URL + "/")),
			}))
			if err != nil || res.Outcome != runtime.OutcomeSucceeded {
				t.Errorf("context %d: %v %s %s", i, err, res.Reason, res.Message)
			}
		}()
	}
	all.Wait()
}

// stuck is a script that waits for a minute after it logged its first step.
func stuck(t *testing.T, path string) redact.Bytes {
	return payload(t, map[string]any{"steps": steps{
		{"goto": map[string]any{"url": site.URL + path}}, {"wait": map[string]any{"text": "never there"}, "timeout_ms": 60000},
	}})
}

func TestBrowserKilledInMidRunIsInfraFailedAtOnceAndTheNextRunWorks(t *testing.T) {
	l := listen("step 0 goto: ok")
	done := start(t, t.Context(), runtime.RunRequest{DeviceID: "chromium-0", Plugin: "browser.script", Payload: stuck(t, "/"), Sink: l})
	l.wait(t)
	if err := syscall.Kill(browserPID(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	res := within(t, 30*time.Second, done) // its step would wait for a minute
	want(t, res, runtime.OutcomeInfraFailed, runtime.CodeDeviceLost)
	if d := time.Since(killed); d > 10*time.Second {
		t.Errorf("noticed after %v", d)
	}
	want(t, browse(t, "chromium-0", steps{{"goto": map[string]any{"url": site.URL + "/"}}}), runtime.OutcomeSucceeded, "")
}

func TestCancelTimeoutAndKillEndABrowserRun(t *testing.T) {
	for _, path := range []string{"/", "/busy"} { // the second one's script never yields
		t.Run("cancel "+path, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			l := listen("step 0 goto: ok")
			done := start(t, ctx, runtime.RunRequest{DeviceID: "chromium-3", Plugin: "browser.script", Payload: stuck(t, path), Sink: l})
			l.wait(t)
			cancel()
			want(t, within(t, 15*time.Second, done), runtime.OutcomeCancelled, runtime.CodeCancelled)
		})
	}
	t.Run("kill", func(t *testing.T) {
		l := listen("step 0 goto: ok")
		done := start(t, t.Context(), runtime.RunRequest{DeviceID: "chromium-3", Plugin: "browser.script", Payload: stuck(t, "/"), Sink: l})
		l.wait(t)
		if err := shared.Kill(t.Context(), "chromium-3"); err != nil {
			t.Fatal(err)
		}
		want(t, within(t, 10*time.Second, done), runtime.OutcomeCancelled, runtime.CodeKilled)
	})
	t.Run("timeout", func(t *testing.T) {
		res := run(t, t.Context(), runtime.RunRequest{DeviceID: "chromium-3", Plugin: "browser.script", Payload: stuck(t, "/"), Timeout: 500 * time.Millisecond})
		want(t, res, runtime.OutcomeTimedOut, runtime.CodeRunTimeout)
	})
	want(t, browse(t, "chromium-3", steps{{"goto": map[string]any{"url": site.URL + "/"}}}), runtime.OutcomeSucceeded, "")
}

// One page's renderer dies: that device is lost, the others go on.
func TestRendererKilledLosesOnlyItsOwnDevice(t *testing.T) {
	victim, other := listen("step 0 goto: ok"), listen("step 0 goto: ok")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	second := start(t, ctx, runtime.RunRequest{DeviceID: "chromium-1", Plugin: "browser.script", Payload: stuck(t, "/"), Sink: other})
	other.wait(t)
	before := ticksOfRenderers(t)
	first := start(t, t.Context(), runtime.RunRequest{DeviceID: "chromium-0", Plugin: "browser.script", Payload: stuck(t, "/busy"), Sink: victim})
	victim.wait(t)
	if err := syscall.Kill(busiest(t, before), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	want(t, within(t, 10*time.Second, first), runtime.OutcomeInfraFailed, runtime.CodeDeviceLost)
	select {
	case res := <-second:
		t.Errorf("the other run ended too: %+v", res)
	default:
	}
	cancel()
	want(t, within(t, 10*time.Second, second), runtime.OutcomeCancelled, runtime.CodeCancelled)
	want(t, browse(t, "chromium-0", steps{{"goto": map[string]any{"url": site.URL + "/"}}}), runtime.OutcomeSucceeded, "")
}

// lead is how much processor time tells a page that spins from others, in clock
// ticks: half a second.
const lead = 50

// busiest returns the renderer that began to spin since before: it has used far
// more processor time since then than any other. One that had spun before (a
// page of an earlier test that is just being killed) is not meant.
func busiest(t *testing.T, before map[int]int) int {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		best, bestTicks, next := 0, 0, 0
		for pid, ticks := range ticksOfRenderers(t) {
			if before[pid] > lead {
				continue
			}
			if ticks -= before[pid]; ticks > bestTicks {
				best, bestTicks, next = pid, ticks, bestTicks
			} else if ticks > next {
				next = ticks
			}
		}
		if bestTicks-next > lead {
			return best
		}
	}
	t.Fatal("no renderer spins")
	return 0
}

func ticksOfRenderers(t *testing.T) map[int]int {
	t.Helper()
	ticks := map[int]int{}
	for _, pid := range renderers(t) {
		ticks[pid] = userTicks(pid)
	}
	return ticks
}

func userTicks(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	if f := strings.Fields(rest); len(f) > 11 {
		n, _ := strconv.Atoi(f[11])
		return n
	}
	return 0
}

// renderers lists the browser's renderer processes.
func renderers(t *testing.T) []int {
	t.Helper()
	var pids []int
	var walk func(pid int)
	walk = func(pid int) {
		for _, c := range children(t, pid) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c))
			if strings.Contains(string(b), "--type=renderer") {
				pids = append(pids, c)
			}
			walk(c)
		}
	}
	walk(browserPID(t))
	return pids
}

func TestDeniedAddressesAreNotReachedThroughFrames(t *testing.T) {
	res := browse(t, "chromium-1", steps{
		{"goto": map[string]any{"url": site.URL + "/frames?popup"}},
		{"wait": map[string]any{"text": "frames"}},
		{"wait": map[string]any{"idle_ms": 800}},
		{"screenshot": map[string]any{"name": "after.png"}},
	}) // a window in front would keep the page from being drawn
	want(t, res, runtime.OutcomeSucceeded, "")
	deniedHits.Range(func(how, _ any) bool {
		t.Errorf("a denied address was reached by: %v", how)
		return true
	})
}
