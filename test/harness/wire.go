package harness

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// Wire is a Host Agent of the test itself: it speaks the protocol and does
// nothing by itself, so that a test can fall silent wherever it likes.
type Wire struct {
	Host    berth.HostID
	Epoch   berth.Epoch
	Devices []berth.DeviceID // of the last sync, in its order
	// Token is the enrolment token, Access the last access token.
	Token, Access string

	url      string
	audience string
	key      ed25519.PrivateKey
	http     *http.Client
}

// Enrol lets a host in.
func (c *Cluster) Enrol(tb testing.TB, name string) *Wire {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	token, err := c.Client.CreateEnrolmentToken(ctx, client.EnrolmentTokenSpec{HostNamePattern: name})
	if err != nil {
		tb.Fatalf("enrolment token: %v", err)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	w := &Wire{url: c.APIs[0].URL(), key: key, http: c.http, Token: token.Token}
	var res protocol.EnrolResponse
	w.Must(tb, http.MethodPost, protocol.PathEnrol, protocol.EnrolRequest{Token: token.Token, Name: name, PublicKey: public}, &res)
	w.Host, w.audience = res.HostID, res.TokenAudience
	w.Authenticate(tb)
	return w
}

// Impersonate speaks as an agent's host, with its key and under the epoch of its
// journal.
func (c *Cluster) Impersonate(tb testing.TB, a *Agent) *Wire {
	tb.Helper()
	var id struct {
		Host     berth.HostID `json:"host_id"`
		Audience string       `json:"token_audience"`
	}
	b, err := os.ReadFile(filepath.Join(a.StateDir, "host.json"))
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	if err == nil {
		b, err = os.ReadFile(filepath.Join(a.StateDir, "host-key.pem"))
	}
	if err != nil {
		tb.Fatal(err)
	}
	block, _ := pem.Decode(b)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		tb.Fatal(err)
	}
	w := &Wire{url: c.APIs[0].URL(), key: key.(ed25519.PrivateKey), http: c.http, Host: id.Host, audience: id.Audience}
	w.Authenticate(tb)
	for _, r := range a.Journal(tb) {
		w.Epoch = max(w.Epoch, r.Epoch)
	}
	return w
}

// Authenticate gets a fresh access token.
func (w *Wire) Authenticate(tb testing.TB) {
	tb.Helper()
	var res protocol.TokenResponse
	w.Must(tb, http.MethodPost, protocol.PathToken, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: w.Assertion(tb)}, &res)
	w.Access = res.AccessToken
}

// KeyOffer makes an offer of a new key.
func (w *Wire) KeyOffer(tb testing.TB) protocol.KeyRequest {
	tb.Helper()
	_, next, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	o, err := identity.NewKeyOffer(w.key, next, w.Host, w.audience, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	return protocol.KeyRequest{PublicKey: o.Key, Consent: o.Consent.Reveal(), Proof: o.Proof.Reveal()}
}

// Assertion signs a fresh one.
func (w *Wire) Assertion(tb testing.TB) string {
	tb.Helper()
	assertion, err := identity.NewAssertion(w.key, w.Host, w.audience, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	return assertion.Reveal()
}

// Sync reports process devices with these labels as a new process of the host.
func (w *Wire) Sync(tb testing.TB, labels ...map[string]string) protocol.SyncResponse {
	tb.Helper()
	req := SyncRequest(labels...)
	req.JournalEpoch = w.Epoch
	var res protocol.SyncResponse
	w.Epoch = 0
	w.Must(tb, http.MethodPost, protocol.PathSync, req, &res)
	w.Epoch = res.Epoch
	w.Devices = nil
	for _, d := range res.Devices {
		w.Devices = append(w.Devices, d.ID)
	}
	return res
}

// Heartbeat is a sign of life.
func (w *Wire) Heartbeat(tb testing.TB) {
	tb.Helper()
	w.Must(tb, http.MethodPost, protocol.PathHeartbeat, protocol.HeartbeatRequest{}, nil)
}

// SyncRequest of a new process with these process devices.
func SyncRequest(labels ...map[string]string) protocol.SyncRequest {
	req := protocol.SyncRequest{
		ProtocolVersions: []int{protocol.Version}, Instance: random(), AgentVersion: "test",
		Plugins: []protocol.Plugin{{PluginVersion: berth.PluginVersion{Name: manifest.ProcessRunName, Version: manifest.ProcessRun().Version}}},
	}
	for i, l := range labels {
		l = maps.Clone(l)
		if l == nil {
			l = map[string]string{}
		}
		l["driver"] = "process" // process.run requires it
		req.Devices = append(req.Devices, protocol.Device{
			Driver: "process", HardwareID: strconv.Itoa(i), Name: fmt.Sprintf("slot %d", i), Labels: l, Health: berth.HealthGood, Clean: true,
		})
	}
	return req
}

// Claim polls until it holds the number of attempts that are wanted.
func (w *Wire) Claim(tb testing.TB, want int) []protocol.Assignment {
	tb.Helper()
	var all []protocol.Assignment
	ok := poll(Patience, func() bool {
		var res protocol.ClaimResponse
		w.Must(tb, http.MethodPost, protocol.PathClaims, protocol.ClaimRequest{ClaimID: uuid.NewString(), Wait: 1000, Max: want}, &res)
		all = append(all, res.Attempts...)
		return len(all) >= want
	})
	if !ok {
		tb.Fatalf("claimed %d of %d attempts", len(all), want)
	}
	return all
}

// Holder of an assignment.
func Holder(a protocol.Assignment) protocol.Holder {
	return protocol.Holder{Attempt: a.Attempt, Fence: a.Fence}
}

// StartAttempt starts an attempt, which must be granted.
func (w *Wire) StartAttempt(tb testing.TB, a protocol.Assignment) {
	tb.Helper()
	var res protocol.LeaseResponse
	w.Must(tb, http.MethodPost, protocol.PathStart, protocol.StartRequest{Items: []protocol.Holder{Holder(a)}}, &res)
	if len(res.Items) != 1 || res.Items[0].Status != "granted" {
		tb.Fatalf("start of %s: %+v", a.Attempt, res.Items)
	}
}

// Complete ends an attempt, which must be stored.
func (w *Wire) Complete(tb testing.TB, a protocol.Assignment, outcome berth.Outcome) {
	tb.Helper()
	var res protocol.CompleteResponse
	w.Must(tb, http.MethodPost, protocol.PathComplete, Completion(a, outcome), &res)
	if len(res.Items) != 1 || res.Items[0].Status != "stored" {
		tb.Fatalf("complete of %s: %+v", a.Attempt, res.Items)
	}
}

// Completion is the request of Complete.
func Completion(a protocol.Assignment, outcome berth.Outcome) protocol.CompleteRequest {
	item := protocol.CompleteItem{Holder: Holder(a), Outcome: outcome, DeviceClean: true}
	if outcome != berth.OutcomeSucceeded {
		item.Reason = "test_reason"
	}
	return protocol.CompleteRequest{Items: []protocol.CompleteItem{item}}
}

// Must calls and fails the test for any answer but success.
func (w *Wire) Must(tb testing.TB, method, path string, in, out any) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	status, body, err := w.Call(ctx, method, path, in)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(body, out)
	}
	if err != nil {
		tb.Fatalf("%s %s: %v", method, path, err)
	}
}

// Call sends one request, with the token and the epoch where there are some.
func (w *Wire) Call(ctx context.Context, method, path string, in any) (status int, body []byte, err error) {
	b, err := json.Marshal(in)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if w.Access != "" {
		req.Header.Set("Authorization", "Bearer "+w.Access)
	}
	if w.Epoch != 0 {
		req.Header.Set(protocol.HeaderEpoch, strconv.FormatInt(int64(w.Epoch), 10))
	}
	res, err := w.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, errors.Join(err, res.Body.Close())
}

// Upload sends bytes of an attempt, as a log chunk or an artifact.
func (w *Wire) Upload(ctx context.Context, path string, fence berth.Fence, content []byte) (status int, body []byte, err error) {
	digest := sha256.Sum256(content)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, w.url+path, bytes.NewReader(content))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	req.Header.Set("Authorization", "Bearer "+w.Access)
	req.Header.Set(protocol.HeaderEpoch, strconv.FormatInt(int64(w.Epoch), 10))
	req.Header.Set(protocol.HeaderFence, strconv.FormatInt(int64(fence), 10))
	req.Header.Set(protocol.HeaderArtifactClass, string(berth.ClassFile))
	req.Header.Set(protocol.HeaderDigest, "sha-256="+hex.EncodeToString(digest[:]))
	res, err := w.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, errors.Join(err, res.Body.Close())
}

// At is the same host speaking to the server at another URL.
func (w *Wire) At(url string) *Wire {
	other := *w
	other.url = url
	return &other
}
