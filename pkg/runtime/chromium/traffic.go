package chromium

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// traffic is the page's requests under way: those that its document asked for
// and that decide what it shows. Not counted are
//
//   - streams, which may never end: EventSource, WebSocket, Media;
//   - what the page does not wait for: its icon, prefetches, beacons, reports;
//   - documents of frames, whose end nobody tells the page's session when the
//     frame moves to another process;
//   - what has no document: scripts of workers, whose end only the worker's own
//     session sees.
//
// A document that takes another's place ends all requests of that one: their
// end events are lost with the process or the frame that would have sent them.
type traffic struct {
	under []request // in the order in which they began
	last  time.Time // when one last began or ended
}

type request struct{ id, loader, kind string }

// kindDocument is the kind of a request for a document.
const kindDocument = "Document"

// counted are the kinds of requests that keep a page from rest.
var counted = []string{kindDocument, "Stylesheet", "Image", "Font", "Script", "TextTrack", "XHR", "Fetch"}

// handle takes an event of the page's session, whose main frame is main.
func (t *traffic) handle(e event, main string, now time.Time) {
	var p struct {
		ID       string `json:"requestId"`
		LoaderID string `json:"loaderId"`
		FrameID  string `json:"frameId"`
		Kind     string `json:"type"`
		Frame    struct {
			ID       string `json:"id"`
			LoaderID string `json:"loaderId"`
		} `json:"frame"`
	}
	if json.Unmarshal(e.params, &p) != nil {
		return
	}
	switch e.method {
	case "Network.requestWillBeSent":
		if !slices.Contains(counted, p.Kind) || p.LoaderID == "" || (p.Kind == kindDocument && p.FrameID != main) {
			return
		}
		t.last = now
		if t.index(p.ID) < 0 { // a redirect keeps the id
			t.under = append(t.under, request{p.ID, p.LoaderID, p.Kind})
		}
	case "Network.loadingFinished", "Network.loadingFailed":
		if i := t.index(p.ID); i >= 0 {
			t.last = now
			t.under = slices.Delete(t.under, i, i+1)
		}
	case "Page.frameNavigated":
		if p.Frame.ID == main {
			t.last = now
			t.keep(p.Frame.LoaderID)
		}
	}
}

// keep forgets all requests but those of the document that now is the page's,
// and that of a document which the page asked for later and still waits for.
func (t *traffic) keep(loader string) {
	began := slices.IndexFunc(t.under, func(r request) bool { return r.loader == loader })
	kept := t.under[:0]
	for i, r := range t.under {
		if r.loader == loader || (r.kind == kindDocument && began >= 0 && i > began) {
			kept = append(kept, r)
		}
	}
	t.under = kept
}

func (t *traffic) index(id string) int {
	return slices.IndexFunc(t.under, func(r request) bool { return r.id == id })
}

// kinds are the kinds of the requests under way, each once.
func (t *traffic) kinds() []string {
	var out []string
	for _, r := range t.under {
		out = append(out, r.kind)
	}
	slices.SortFunc(out, cmp.Compare[string])
	return slices.Compact(out)
}
