package controlplane_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/enginetest"
)

// TestOneAPIProcessWithAllWorkersRunsATask is local mode by configuration:
// cmd/api on SQLite with scheduler, leasekeeper and agent inside.
func TestOneAPIProcessWithAllWorkersRunsATask(t *testing.T) {
	db, dir := enginetest.SQLite(t), t.TempDir()
	const password = "correct horse battery"
	p := start(t, "api", "BERTH_DATABASE_URL="+db.Target, "BERTH_LISTEN=127.0.0.1:0", "BERTH_MASTER_KEY="+strings.Repeat("0f", 32),
		"BERTH_ADMIN_NAME=ada", "BERTH_ADMIN_PASSWORD="+password, "BERTH_BLOB_DIR="+filepath.Join(dir, "blobs"),
		"BERTH_WORKERS=scheduler,leasekeeper,agent", "BERTH_STATE_DIR="+filepath.Join(dir, "agent"), "BERTH_PROCESS_SLOTS=1",
		"BERTH_APPROVE_PLUGINS=true", "PATH=/usr/bin:/bin")
	becomes(t, p.url("admin")+"/readyz", 200, "ready")

	var tokens struct {
		AccessToken string `json:"access_token"`
	}
	post(t, p.url("api")+"/api/v1/auth/login", "", map[string]any{"name": "ada", "password": password}, 200, &tokens)
	var task struct{ ID, State, Reason string }
	post(t, p.url("api")+"/api/v1/tasks?wait=25", tokens.AccessToken, map[string]any{
		"plugin": "process.run", "payload": map[string]any{"command": []string{"echo", "hello"}},
	}, 201, &task)
	if task.State != "succeeded" {
		t.Errorf("%+v", task)
	}

	second := start(t, "leasekeeper", "BERTH_DATABASE_URL="+db.Target)
	<-second.ended
	if second.err == nil || !strings.Contains(second.said(), "SQLite mode allows one; use Postgres for more") {
		t.Errorf("a second process on the file: %v, %s", second.err, second.said())
	}
	if err := p.stop(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if strings.Contains(p.said(), password) || strings.Contains(p.said(), tokens.AccessToken) {
		t.Error("a credential is in the log")
	}
}

func post(t *testing.T, url, token string, body any, status int, into any) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != status {
		t.Fatalf("%s gives %d %s", url, resp.StatusCode, got)
	}
	if err := json.Unmarshal(got, into); err != nil {
		t.Fatal(err)
	}
}
