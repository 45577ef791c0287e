package demo_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/demo"
)

func get(t *testing.T, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	demo.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w
}

func TestPageIsWhatTheConstantsSayAndLoadsNothing(t *testing.T) {
	w := get(t, "/")
	body := w.Body.String()
	colour := fmt.Sprintf("#%02x%02x%02x", demo.BannerRed, demo.BannerGreen, demo.BannerBlue)
	for _, part := range []string{"<title>" + demo.Title + "</title>", colour, fmt.Sprintf("height: %dpx", demo.BannerHeight), `id="order"`} {
		if !strings.Contains(body, part) {
			t.Errorf("the page has no %s", part)
		}
	}
	if w.Code != 200 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if found := regexp.MustCompile(`(src|href)="[^d]|https?://|@import`).FindString(body); found != "" {
		t.Errorf("the page loads something: %s", found)
	}
	if w := get(t, "/other"); w.Code != 404 {
		t.Errorf("another path: %d", w.Code)
	}
}

func TestFirstTaskGoesToThePage(t *testing.T) {
	var task struct {
		Steps []map[string]map[string]any
	}
	if err := json.Unmarshal(demo.FirstTask("http://127.0.0.1:1/x"), &task); err != nil {
		t.Fatal(err)
	}
	if got := task.Steps[0]["goto"]["url"]; got != "http://127.0.0.1:1/x" {
		t.Errorf("first step goes to %v", got)
	}
}
