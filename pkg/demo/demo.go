// Package demo is the page that ships with Berth for the first task of a new
// user: a small order form that needs nothing from any network.
package demo

import (
	_ "embed"
	"encoding/json"
	"net/http"
)

// What a test can check on the page and in the artifacts of [FirstTask].
const (
	// Title is the page's title and heading.
	Title = "Harbour berth order"
	// BannerRed is the red part of the colour (#0B6E99) of the banner, which fills the full width of the page from its top edge.
	BannerRed = 0x0B
	// BannerGreen is its green part.
	BannerGreen = 0x6E
	// BannerBlue is its blue part.
	BannerBlue = 0x99
	// BannerHeight is the height of the solid part of the banner in CSS pixels.
	BannerHeight = 24
	// VesselName is what FirstTask types.
	VesselName = "Aurora"
	// ResultText is what the page shows after FirstTask ordered a berth.
	ResultText = "Berth 7 is reserved for Aurora"
	// ScreenshotName and UITreeName are the artifacts of FirstTask.
	ScreenshotName = "page.png"
	UITreeName     = "page.json"
)

//go:embed page.html
var page []byte

// Handler serves the page at "/" and answers everything else with 404. The
// page loads nothing from elsewhere and its policy forbids it to.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(page)
	})
	return mux
}

// FirstTask returns the payload (JSON) of a browser.script that orders a berth
// on the page at pageURL and keeps a screenshot and a UI tree of the answer.
func FirstTask(pageURL string) []byte {
	type object = map[string]any
	b, err := json.MarshalIndent(object{
		"viewport": object{"width": 1280, "height": 800},
		"steps": []object{
			{"goto": object{"url": pageURL}},
			{"wait": object{"visible": "#vessel"}},
			{"type": object{"selector": "#vessel", "text": VesselName}},
			{"select": object{"selector": "#length", "option": "12 to 18 m"}},
			{"click": object{"selector": "#order"}},
			{"wait": object{"text": ResultText}},
			{"assert": object{"selector": "#result", "visible": true, "text": ResultText}},
			{"read": object{"name": "confirmation", "selector": "#result"}},
			{"screenshot": object{"name": ScreenshotName}},
			{"ui_tree": object{"name": UITreeName}},
		},
	}, "", "  ")
	if err != nil {
		panic("demo: " + err.Error()) // strings and numbers always encode
	}
	return b
}
