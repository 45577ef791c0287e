package chromium

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// heard makes an event from one line: what happened, then the request's id, the
// loader, the frame and the kind, or for a commit the loader and the frame.
func heard(line string) event {
	f := append(strings.Fields(line), "", "", "", "")
	method := map[string]string{
		"sent": "Network.requestWillBeSent", "finished": "Network.loadingFinished", "failed": "Network.loadingFailed", "commit": "Page.frameNavigated",
	}[f[0]]
	params := object{"requestId": f[1], "loaderId": strings.Trim(f[2], "-"), "frameId": f[3], "type": f[4]}
	if f[0] == "commit" {
		params = object{"type": "Navigation", "frame": object{"loaderId": f[1], "id": f[2]}}
	}
	raw, _ := json.Marshal(params)
	return event{method: method, params: raw}
}

// TestTraffic: orders of events as a browser sends them, and some that it could.
func TestTraffic(t *testing.T) {
	const page = "sent A A main Document|commit A main|finished A"
	for name, c := range map[string]struct {
		events string
		under  string
	}{
		"a page":                                   {page, ""},
		"what it loads":                            {page + "|sent 1 A main Image|sent 2 A main Fetch|finished 1", "2"},
		"what fails":                               {page + "|sent 1 A main Image|failed 1", ""},
		"a redirect":                               {page + "|sent 1 A main XHR|sent 1 A main XHR|finished 1", ""},
		"an end without a beginning":               {page + "|finished 9|failed 8", ""},
		"a document whose end is lost":             {"sent A A main Document|commit A main|sent B B main Document|commit B main|finished B", ""},
		"requests of a document that is gone":      {page + "|sent 1 A main Fetch|sent 2 A main Image|sent B B main Document|commit B main|finished B", ""},
		"the end of one that is gone":              {page + "|sent 1 A main Fetch|sent B B main Document|commit B main|failed 1|finished B", ""},
		"the next document's own":                  {page + "|sent B B main Document|commit B main|sent 1 B main Script|finished B", "1"},
		"the next document is awaited":             {page + "|sent B B main Document", "B"},
		"the next document is being read":          {page + "|sent B B main Document|commit B main", "B"},
		"a document that another overtook":         {page + "|sent B B main Document|sent C C main Document|commit C main|finished C", ""},
		"another is asked for before the commit":   {"sent A A main Document|sent B B main Document|commit A main|finished A", "B"},
		"the same, and the first's end comes late": {"sent A A main Document|sent B B main Document|finished A|commit A main", ""},
		"back to a kept document":                  {page + "|sent B B main Document|commit B main|finished B|sent 1 B main Fetch|commit A main", ""},
		"a frame's commit":                         {page + "|sent 1 A main Image|commit F frame", "1"},
		"a frame's document":                       {page + "|sent F F frame Document", ""},
		"what a frame loads":                       {page + "|commit F frame|sent 1 F frame Image", "1"},
		"a worker's script":                        {page + "|sent 1 - main Script", ""},
		"streams":                                  {page + "|sent 1 A main EventSource|sent 2 A main WebSocket|sent 3 A main Media", ""},
		"an icon, a beacon, a report, a preflight": {page + "|sent 1 A main Other|sent 2 A main Ping|sent 3 A main CSPViolationReport|sent 4 A main Preflight", ""},
		"no event":                                 {"sent", ""},
	} {
		var tr traffic
		for line := range strings.SplitSeq(c.events, "|") {
			tr.handle(heard(line), "main", time.Now())
		}
		var under []string
		for _, r := range tr.under {
			under = append(under, r.id)
		}
		if got := strings.Join(under, " "); got != c.under {
			t.Errorf("%s: under way is %q, should be %q", name, got, c.under)
		}
	}
}

// TestTrafficIsQuietUnderWhatIsNotCounted: a stream that keeps on reconnecting
// does not keep the page from rest.
func TestTrafficIsQuietUnderWhatIsNotCounted(t *testing.T) {
	start := time.Now()
	tr := traffic{last: start}
	for i, line := range []string{"sent 1 A main EventSource", "failed 1", "sent 2 A main Ping", "finished 2", "commit F frame"} {
		tr.handle(heard(line), "main", start.Add(time.Duration(i+1)*time.Second))
		if tr.last != start {
			t.Errorf("%q counts", line)
		}
	}
	for i, line := range []string{"sent 3 A main Image", "finished 3", "commit B main"} {
		at := start.Add(time.Duration(i+9) * time.Second)
		if tr.handle(heard(line), "main", at); tr.last != at {
			t.Errorf("%q does not count", line)
		}
	}
	tr.under = []request{{"1", "A", "Image"}, {"2", "A", "Fetch"}, {"3", "A", "Image"}}
	if got := tr.kinds(); !slices.Equal(got, []string{"Fetch", "Image"}) {
		t.Errorf("kinds are %v", got)
	}
}
