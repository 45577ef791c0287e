package httpapi_test

import (
	"encoding/json"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
)

// TestAPageTokenIsOfOneListAndItsFilters: elsewhere it would pass rows over
// without a word.
func TestAPageTokenIsOfOneListAndItsFilters(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("root", berth.RoleAdmin)
		for _, name := range []string{"n-1", "n-2", "n-3"} {
			spec := work("x")
			spec.Name = name
			submit(t, c, spec)
		}
		s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
		token := s.Token("root")
		page := func(path string) (int, string) {
			a := send(t, s, "GET", path, token, "")
			var p struct {
				Next string `json:"next_page_token"`
			}
			_ = json.Unmarshal([]byte(a.body), &p)
			return a.StatusCode, p.Next
		}
		_, tasks := page("/api/v1/tasks?page_size=1&name_prefix=n&pool=default")
		_, devices := page("/api/v1/devices?page_size=1")
		if tasks == "" || devices == "" {
			t.Fatalf("tokens: %q, %q", tasks, devices)
		}
		for path, want := range map[string]int{
			"/tasks?name_prefix=n&pool=default&page_token=" + tasks:             200,
			"/tasks?pool=default&page_size=2&name_prefix=n&page_token=" + tasks: 200,
			"/tasks?name_prefix=n-&pool=default&page_token=" + tasks:            422,
			"/tasks?page_token=" + tasks:                                        422,
			"/tasks?state=queued&name_prefix=n&page_token=" + tasks:             422,
			"/devices?page_token=" + tasks:                                      422,
			"/hosts?page_token=" + tasks:                                        422,
			"/tasks?page_token=" + devices:                                      422,
			"/hosts?page_token=" + devices:                                      422,
			"/devices?page_token=" + devices:                                    200,
		} {
			if got, _ := page("/api/v1" + path); got != want {
				t.Errorf("%s: %d, want %d", path, got, want)
			}
		}
	})
}
