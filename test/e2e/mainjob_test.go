package e2e

import (
	"bytes"
	"encoding/json"
	"image/png"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/test/harness"
)

// TestFirstTaskOfBerthUp: `berth up`, then the task that it wrote for a new
// user, gives a screenshot and a UI tree of the page that ships with Berth.
func TestFirstTaskOfBerthUp(t *testing.T) {
	t.Parallel()
	l := harness.Up(t, 1, 1)
	first, err := os.ReadFile(filepath.Join(l.DataDir, "first-task.json"))
	if err != nil {
		t.Fatal(err)
	}
	task, err := l.Client.SubmitTaskJSON(t.Context(), first, client.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkDemoTask(t, l.Client, task.ID)
	l.Stop(t)
	log, err := os.ReadFile(l.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	where := &places{}
	where.add("berth.log", log)
	where.mustNotHold(t, map[string]string{
		"password": l.Password, "access token": l.Tokens.AccessToken, "refresh token": l.Tokens.RefreshToken,
		"typed text and page": demo.ResultText, "page title": demo.Title,
	}, nil)
}

// TestMainJobOnPostgres: the same work with migrate, api, scheduler,
// leasekeeper and hostagent as processes of their own.
func TestMainJobOnPostgres(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(demo.Handler())
	defer page.Close()
	c := harness.NewCluster(t, harness.Options{})
	agent := c.AddAgent(t, harness.AgentOptions{Name: "browsers", Browsers: 1, Loopback: true})
	task := c.Submit(t, client.TaskSpec{
		Name: "order a berth", Plugin: "browser.script", PluginVersion: "^1", Selector: "browser=chromium",
		Payload: demo.FirstTask(page.URL + "/"),
	})
	checkDemoTask(t, c.Client, task.ID)
	agent.Stop(t)
	c.Stop(t)
	for _, l := range c.ControlLines(t) {
		if strings.Contains(l.Text("message"), "may change tables") {
			t.Errorf("%s has more rights on the database than daemons need: %v", l["process"], l)
		}
	}
}

// checkDemoTask waits for demo.FirstTask and looks at what it left.
func checkDemoTask(t *testing.T, cl *client.Client, id string) {
	t.Helper()
	task := harness.Finished(t, cl, id, 2*harness.Patience)
	if task.State != client.TaskStateSucceeded {
		t.Fatalf("the task is %s (%s): %+v", task.State, task.Reason, harness.Attempts(t, cl, id))
	}
	if !strings.Contains(string(task.Result), demo.ResultText) {
		t.Errorf("the result does not hold what was read from the page: %s", task.Result)
	}
	checkBanner(t, harness.Artifact(t, cl, id, 1, demo.ScreenshotName))
	tree := harness.Artifact(t, cl, id, 1, demo.UITreeName)
	if !json.Valid(tree) {
		t.Error("the UI tree is no JSON")
	}
	for _, text := range []string{demo.Title, demo.ResultText} {
		if !bytes.Contains(tree, []byte(text)) {
			t.Errorf("the UI tree does not hold %q", text)
		}
	}
}

// checkBanner looks at the pixels: the banner fills the top of the page.
func checkBanner(t *testing.T, b []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("the screenshot is no PNG: %v", err)
	}
	size := img.Bounds()
	if size.Dx() != 1280 || size.Dy() < 200 {
		t.Fatalf("the screenshot is %v", size)
	}
	wrong := 0
	for y := range demo.BannerHeight {
		for x := size.Min.X; x < size.Max.X; x += 16 {
			r, g, b, _ := img.At(x, y).RGBA()
			if r>>8 != demo.BannerRed || g>>8 != demo.BannerGreen || b>>8 != demo.BannerBlue {
				wrong++
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d pixels of the banner have another colour", wrong)
	}
	if r, g, b, _ := img.At(size.Max.X/2, size.Max.Y-20).RGBA(); r>>8 == demo.BannerRed && g>>8 == demo.BannerGreen && b>>8 == demo.BannerBlue {
		t.Error("all of the page has the banner's colour")
	}
}
