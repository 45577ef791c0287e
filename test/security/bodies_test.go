package security

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// bodiesGrowth is what JSON bodies may cost the API's process at a time, however
// many come at once: docs/operations.md says so.
const bodiesGrowth = 512 << 20

// TestLargeBodiesAreBounded: a hundred bodies of 8 MiB at a time, of long text and
// of many small values, and five hundred small ones of the same kind. The real
// process's memory stays bounded, each body is refused or asked to come back, and
// another user's calls are answered, a batch of a thousand tasks among them.
func TestLargeBodiesAreBounded(t *testing.T) {
	c := harness.NewCluster(t, harness.Options{Engine: harness.SQLite, Env: map[string]string{"BERTH_PRINCIPAL_RATE": "0", "BERTH_ADDRESS_RATE": "0"}})
	task := c.Submit(t, harness.Shell(t, "true"))
	const secret = "a password of the bodies"
	if _, err := c.Client.CreateUser(t.Context(), client.UserSpec{Name: "honest", Password: secret, Roles: []client.Role{"operator"}}); err != nil {
		t.Fatal(err)
	}
	other, _ := harness.Login(t, c.APIs[0].URL(), "honest", secret, plain)
	pid := c.APIs[0].Pid()
	before := memory(t, pid)
	over, stop := context.WithCancel(t.Context())
	served := make(chan honest, 1)
	go func() { served <- beHonest(over, other, task.ID) }()
	submitted := make(chan error, 1)
	go func() {
		batch := make([]client.TaskSpec, 1000)
		for i := range batch {
			batch[i] = harness.Shell(t, "echo "+strings.Repeat("x", 200))
		}
		_, err := other.SubmitTasks(t.Context(), batch, client.SubmitOptions{})
		submitted <- err
	}()
	text := []byte(`{"tasks":[{"plugin":"process.run","payload":{"command":["` + strings.Repeat("x", 8<<20-100) + `"]}}]}`)
	values := []byte(`{"tasks":[` + strings.Repeat(`{"a":1},`, 200_000) + `{}]}`)
	nest := []byte(`{"tasks":[` + strings.Repeat(`{"a":{}},`, 7_000) + `{}]}`)
	var attacks sync.WaitGroup
	var mu sync.Mutex
	statuses := map[string]map[int]int{}
	for what, attack := range map[string]struct {
		path string
		body []byte
		n    int
	}{
		"text":         {"/api/v1/tasks/batch", text, 100},
		"many values":  {"/api/v1/tasks/batch", values, 100},
		"small values": {"/api/v1/auth/login", nest, 500},
	} {
		statuses[what] = map[int]int{}
		attacks.Add(attack.n)
		for range attack.n {
			go func() {
				defer attacks.Done()
				status := attackWith(t, c, attack.path, attack.body)
				mu.Lock()
				defer mu.Unlock()
				statuses[what][status]++
			}()
		}
	}
	attacks.Wait()
	peak := memory(t, pid)
	if err := <-submitted; err != nil {
		t.Errorf("the honest batch: %v", err)
	}
	stop()
	h := <-served
	t.Logf("%d MiB before, %d MiB at the peak; others: %d answers, the slowest in %v; attacks: %v", before>>20, peak>>20, h.answers, h.slowest, statuses)
	if peak > before+bodiesGrowth {
		t.Errorf("the API grew from %d to %d MiB", before>>20, peak>>20)
	}
	if h.err != nil || h.answers < 5 || h.slowest > servedWithin {
		t.Errorf("others were not served: %d answers, the slowest in %v, %v", h.answers, h.slowest, h.err)
	}
	for what, all := range statuses {
		for status, n := range all {
			if status != http.StatusUnprocessableEntity && status != http.StatusServiceUnavailable && status != 0 {
				t.Errorf("%s: %d answers of %d", what, n, status)
			}
		}
		if all[http.StatusUnprocessableEntity] == 0 {
			t.Errorf("%s: none was read: %v", what, all)
		}
	}
}

// attackWith returns the status of an answer; 0 where the connection ended first.
func attackWith(t *testing.T, c *harness.Cluster, path string, body []byte) int {
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.APIs[0].URL()+path, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.Tokens.AccessToken)
	res, err := plain.Do(req)
	if err != nil {
		return 0 // closed while it was sent
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, res.Body)
	if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	return res.StatusCode
}
