package agentapi_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within bounds every wait of these tests.
const within = 20 * time.Second

// lockedBuffer is the log that a server writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// world is a server on a real database, with real blobs.
type world struct {
	t   *testing.T
	url string
	// db is the database, for tests that break it.
	db enginetest.DB
	// open opens another handle on the database: another process.
	open  func(store.Options) store.Store
	store store.Store
	blobs string
	drain *httpserver.Drain
	api   *agentapi.API
	ident *identity.Service
	log   *lockedBuffer
	http  *http.Client
	pool  berth.PoolID
	// secure is the TLS of the next server; nil: plain HTTP.
	secure *tls.Config
	// before is called before each statement of a transaction.
	before atomic.Pointer[func(op string, n int) error]
	// stop ends the server and returns what Serve returned.
	stop func() error
}

type option func(*agentapi.Config)

func pollEvery(d time.Duration) option { return func(c *agentapi.Config) { c.PollEvery = d } }

// onBoth runs a test on a database of each engine.
func onBoth(t *testing.T, test func(t *testing.T, w *world), options ...option) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { onSQLite(t, test, options...) })
	t.Run("postgres", func(t *testing.T) {
		db := enginetest.Postgres(t)
		test(t, newWorld(t, db, func(o store.Options) (store.Store, error) { return postgres.Open(context.Background(), db.Target, o) }, options))
	})
}

// onSQLite runs a test that asks nothing of the database.
func onSQLite(t *testing.T, test func(t *testing.T, w *world), options ...option) {
	t.Helper()
	db := enginetest.SQLite(t)
	path := strings.TrimPrefix(db.Target, "sqlite://")
	test(t, newWorld(t, db, func(o store.Options) (store.Store, error) { return sqlite.Open(context.Background(), path, o) }, options))
}

func newWorld(t *testing.T, db enginetest.DB, open func(store.Options) (store.Store, error), options []option) *world {
	t.Helper()
	w := &world{
		t: t, db: db, blobs: t.TempDir(), drain: httpserver.NewDrain(), log: &lockedBuffer{},
		http: &http.Client{Transport: &http.Transport{}},
	}
	w.open = func(o store.Options) store.Store {
		s, err := open(o)
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	}
	w.store = w.open(store.Options{BeforeStatement: func(_ context.Context, op string, n int) error {
		if f := w.before.Load(); f != nil {
			return (*f)(op, n)
		}
		return nil
	}})
	pool, err := w.store.GetPool(t.Context(), berth.DefaultPool)
	must(t, err)
	w.pool = pool.ID
	w.serve(options...)
	return w
}

func (w *world) serve(options ...option) {
	t := w.t
	logger, err := logging.New(w.log, "debug", "api")
	must(t, err)
	master, err := identity.ParseMasterKey(strings.Repeat("ab", 32))
	must(t, err)
	w.ident, err = identity.New(w.store, w.store, identity.Config{MasterKey: master, Logger: logger})
	must(t, err)
	must(t, w.ident.Open(t.Context()))
	blobs, err := blob.OpenDirectory(w.blobs)
	must(t, err)
	c := agentapi.Config{
		Store: w.store, Blobs: blobs, Identity: w.ident, Logger: logger, ApprovePlugins: true, Drain: w.drain, PollEvery: 20 * time.Millisecond,
	}
	for _, o := range options {
		o(&c)
	}
	c.ClientCertificates = w.secure != nil
	api, err := agentapi.New(c)
	must(t, err)
	e := httpserver.New(httpserver.Options{Logger: logger, Kinds: api.Kinds()})
	must(t, api.Register(e))
	w.api = api
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w.url = "http://" + ln.Addr().String()
	if w.secure != nil {
		w.url = "https://" + ln.Addr().String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- (&httpserver.Server{Handler: e, Drain: w.drain, Logger: logger, TLS: w.secure}).Serve(ctx, ln)
	}()
	w.stop = sync.OnceValue(func() error {
		cancel()
		w.http.CloseIdleConnections()
		return <-served
	})
	t.Cleanup(func() { must(t, w.stop()) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answer of a call.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	problem protocol.Problem
}

// send does one request. body is sent as it is when it is []byte or a Reader,
// otherwise as JSON.
func (w *world) send(ctx context.Context, method, path string, body any, header map[string]string) (answer, error) {
	var r io.Reader
	kind := "application/json"
	switch b := body.(type) {
	case nil:
	case []byte:
		r, kind = bytes.NewReader(b), "application/octet-stream"
	case string:
		r = strings.NewReader(b)
	case io.Reader:
		r, kind = b, "application/octet-stream"
	default:
		j, err := json.Marshal(body)
		if err != nil {
			return answer{}, err
		}
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, r)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", kind)
	for k, v := range header {
		if v == "" {
			req.Header.Del(k)
		} else {
			req.Header.Set(k, v)
		}
	}
	res, err := w.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		return answer{}, err
	}
	if res.StatusCode >= 400 {
		if res.Header.Get("Content-Type") != "application/problem+json" {
			w.t.Errorf("%s %s: %d without a problem document", method, path, res.StatusCode)
		}
		err = json.Unmarshal(a.body, &a.problem)
	}
	return a, err
}

// agent is a Host Agent's end of the wire.
type agent struct {
	w       *world
	host    berth.HostID
	key     ed25519.PrivateKey
	token   string
	epoch   berth.Epoch
	devices []berth.DeviceID
}

// enrolmentToken makes a token for hosts of a name.
func (w *world) enrolmentToken(pattern string) string {
	w.t.Helper()
	token, hash, err := identity.NewEnrolmentToken()
	must(w.t, err)
	_, err = w.store.CreateEnrolment(w.t.Context(), store.CreateEnrolmentParams{
		ID: berth.EnrolmentID(uuid.NewString()), Pool: w.pool, Pattern: pattern, TokenHash: hash, TTL: time.Hour,
	})
	must(w.t, err)
	return token.Reveal()
}

// newAgent enrols a host and fetches its token, all over HTTP.
func (w *world) newAgent(name string) *agent {
	w.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(w.t, err)
	var enrolled protocol.EnrolResponse
	a := &agent{w: w, key: private}
	a.ok(&enrolled, "POST", protocol.PathEnrol, protocol.EnrolRequest{Token: w.enrolmentToken("*"), Name: name, PublicKey: public})
	a.host = enrolled.HostID
	assertion, err := identity.NewAssertion(private, a.host, enrolled.TokenAudience, time.Now())
	must(w.t, err)
	var token protocol.TokenResponse
	a.ok(&token, "POST", protocol.PathToken, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: assertion.Reveal()})
	a.token = token.AccessToken
	return a
}

func (a *agent) header(more map[string]string) map[string]string {
	h := map[string]string{}
	if a.token != "" {
		h["Authorization"] = "Bearer " + a.token
	}
	if a.epoch > 0 {
		h[protocol.HeaderEpoch] = strconv.FormatInt(int64(a.epoch), 10)
	}
	for k, v := range more {
		h[k] = v
	}
	return h
}

// call does one call and fails the test when there is no answer.
func (a *agent) call(method, path string, body any, more ...map[string]string) answer {
	a.w.t.Helper()
	ctx, cancel := context.WithTimeout(a.w.t.Context(), within)
	defer cancel()
	var h map[string]string
	if len(more) > 0 {
		h = more[0]
	}
	res, err := a.w.send(ctx, method, path, body, a.header(h))
	if err != nil {
		a.w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res
}

// ok does one call that must succeed and decodes its answer.
func (a *agent) ok(out any, method, path string, body any) {
	a.w.t.Helper()
	res := a.call(method, path, body)
	if res.status != 200 {
		a.w.t.Fatalf("%s %s: %d %s", method, path, res.status, res.body)
	}
	if out != nil {
		must(a.w.t, json.Unmarshal(res.body, out))
	}
}

func syncRequest(devices int) protocol.SyncRequest {
	req := protocol.SyncRequest{
		ProtocolVersions: []int{protocol.Version}, Instance: uuid.NewString(), AgentVersion: "1.2.3",
		Plugins: []protocol.Plugin{{
			PluginVersion: berth.PluginVersion{Name: "process.run", Version: "1.0.0"}, Schema: json.RawMessage(`{"type":"object"}`),
		}},
	}
	for i := range devices {
		req.Devices = append(req.Devices, protocol.Device{
			Driver: "process", HardwareID: "slot-" + strconv.Itoa(i), Name: "slot " + strconv.Itoa(i),
			Labels: map[string]string{"os": "linux"}, Health: berth.HealthGood, Clean: true,
		})
	}
	return req
}

// sync starts a new agent process with n devices.
func (a *agent) sync(n int) protocol.SyncResponse {
	a.w.t.Helper()
	var res protocol.SyncResponse
	a.ok(&res, "POST", protocol.PathSync, syncRequest(n))
	a.epoch, a.devices = res.Epoch, nil
	for _, d := range res.Devices {
		a.devices = append(a.devices, d.ID)
	}
	return res
}

// submit stores tasks with a payload.
func (w *world) submit(n int, payload string) []berth.Task {
	w.t.Helper()
	requirement, err := eligibility.Canonical("", berth.Requirement{Plugin: "process.run"})
	must(w.t, err)
	p := store.SubmitParams{
		Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: uuid.NewString()}}, CorrelationID: "corr-1",
	}
	var f berth.Faults
	for range n {
		task := berth.NewTask{
			ID: berth.TaskID(uuid.Must(uuid.NewV7()).String()), Pool: w.pool, Name: "a task", Requirement: requirement,
			Payload: redact.NewBytes([]byte(payload)), Retry: berth.DefaultRetryPolicy(),
		}
		task.Normalise("", time.Now(), &f)
		p.Tasks = append(p.Tasks, task)
	}
	must(w.t, f.Err())
	res, err := w.store.SubmitTasks(w.t.Context(), p)
	must(w.t, err)
	return res.Tasks
}

// place puts every waiting task on a free device, on the store s, and returns
// how many it placed.
func (w *world) place(s store.Store) int {
	w.t.Helper()
	placed := 0
	actor := berth.Daemon(berth.ActorScheduler, "test")
	_, err := s.PlacementRound(w.t.Context(), actor, w.pool, func(ctx context.Context, round store.Round) error {
		devices, err := round.FreeDevices(ctx, 0)
		if err != nil {
			return err
		}
		classes, err := round.WaitingClasses(ctx)
		if err != nil {
			return err
		}
		var asks []store.HeadsAsk
		for _, c := range classes {
			asks = append(asks, store.HeadsAsk{Class: c.ID, PerClass: len(devices)})
		}
		heads, err := round.Heads(ctx, asks)
		if err != nil {
			return err
		}
		var placements []store.Placement
		for i, h := range heads {
			if i == len(devices) {
				break
			}
			placements = append(placements, store.Placement{
				Head: h, Attempt: berth.AttemptID(uuid.Must(uuid.NewV7()).String()), Device: devices[i].ID, Host: devices[i].Host, Version: "1.0.0",
			})
		}
		done, err := round.Apply(ctx, placements)
		placed = len(done)
		return err
	})
	must(w.t, err)
	return placed
}

// claim takes what is assigned, without waiting.
func (a *agent) claim() []protocol.Assignment {
	a.w.t.Helper()
	var res protocol.ClaimResponse
	a.ok(&res, "POST", protocol.PathClaims, protocol.ClaimRequest{ClaimID: uuid.NewString(), Max: 100})
	return res.Attempts
}

// running submits a task and brings it to running on a host with one device.
func (a *agent) running(payload string) (berth.Task, protocol.Assignment) {
	a.w.t.Helper()
	task := a.w.submit(1, payload)[0]
	if n := a.w.place(a.w.store); n != 1 {
		a.w.t.Fatalf("placed %d", n)
	}
	got := a.claim()
	if len(got) != 1 {
		a.w.t.Fatalf("claimed %d", len(got))
	}
	a.start(got[0])
	return task, got[0]
}

func holder(as protocol.Assignment) protocol.Holder {
	return protocol.Holder{Attempt: as.Attempt, Fence: as.Fence}
}

func (a *agent) start(as protocol.Assignment) {
	a.w.t.Helper()
	var res protocol.LeaseResponse
	a.ok(&res, "POST", protocol.PathStart, protocol.StartRequest{Items: []protocol.Holder{holder(as)}})
	if len(res.Items) != 1 || res.Items[0].Status != "granted" || res.Items[0].LeaseLeft <= 0 {
		a.w.t.Fatalf("start: %+v", res)
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func uploadHeader(as protocol.Assignment, content []byte) map[string]string {
	return map[string]string{
		protocol.HeaderFence: strconv.FormatInt(int64(as.Fence), 10), protocol.HeaderDigest: "sha-256=" + digest(content),
	}
}

func logPath(as protocol.Assignment, offset int64) string {
	return "/agent/v1/attempts/" + string(as.Attempt) + "/log/" + strconv.FormatInt(offset, 10)
}

func artifactPath(as protocol.Assignment, name string) string {
	return "/agent/v1/attempts/" + string(as.Attempt) + "/artifacts/" + name
}

func (a *agent) putLog(as protocol.Assignment, offset int64, chunk []byte) answer {
	a.w.t.Helper()
	return a.call("PUT", logPath(as, offset), chunk, uploadHeader(as, chunk))
}

func (a *agent) putArtifact(as protocol.Assignment, name string, class berth.ArtifactClass, kind string, content []byte) answer {
	a.w.t.Helper()
	h := uploadHeader(as, content)
	h[protocol.HeaderArtifactClass], h["Content-Type"] = string(class), kind
	return a.call("PUT", artifactPath(as, name), content, h)
}

func (a *agent) complete(item protocol.CompleteItem) protocol.CompleteAnswer {
	a.w.t.Helper()
	var res protocol.CompleteResponse
	a.ok(&res, "POST", protocol.PathComplete, protocol.CompleteRequest{Items: []protocol.CompleteItem{item}})
	if len(res.Items) != 1 {
		a.w.t.Fatalf("complete: %+v", res)
	}
	return res.Items[0]
}

// blobCount counts all files of the blob store.
func (w *world) blobCount() (n int) {
	w.t.Helper()
	must(w.t, filepath.WalkDir(w.blobs, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	}))
	return n
}

// lines are the log's entries.
func (w *world) lines() (out []map[string]any) {
	w.t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(w.log.String()), "\n") {
		if line == "" {
			continue
		}
		var m map[string]any
		must(w.t, json.Unmarshal([]byte(line), &m))
		out = append(out, m)
	}
	return out
}
