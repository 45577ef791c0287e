package hostagent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// api speaks pkg/protocol with the server as one host.
type api struct {
	base string
	http *http.Client
	// bulk is for uploads: on a connection of their own they cannot hold up
	// renewals.
	bulk    *http.Client
	own     bool // the clients are this api's
	clock   Clock
	wall    func() time.Time
	log     *zap.Logger
	metrics *Metrics
	id      *hostIdentity // nil before enrolment

	mu     sync.Mutex
	token  string
	expiry time.Duration // by clock
	epoch  berth.Epoch
	// skew is the server's clock less this machine's, where that matters.
	skew time.Duration
}

func newAPI(cfg Config) *api {
	a := &api{base: cfg.Server, http: cfg.HTTP, bulk: cfg.HTTP, clock: cfg.Clock, wall: cfg.Wall, log: cfg.Logger, metrics: cfg.Metrics}
	if cfg.HTTP == nil {
		a.own = true
		a.http, a.bulk = newClient(cfg.TLS), newClient(cfg.TLS)
	}
	return a
}

func newClient(secure *tls.Config) *http.Client {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return &http.Client{}
	}
	t = t.Clone()
	if secure != nil {
		t.TLSClientConfig = secure.Clone()
	}
	return &http.Client{Transport: t}
}

// close lets go of idle connections.
func (a *api) close() {
	if a.own {
		a.http.CloseIdleConnections()
		a.bulk.CloseIdleConnections()
	}
}

// apiError is the server's answer that something was not done. Its text has
// the server's words, which hold no content.
type apiError struct {
	protocol.Problem
	retryAfter time.Duration
}

// Error says what happened and what to do.
func (e *apiError) Error() string {
	s := fmt.Sprintf("the server answered %d %s", e.Status, e.Code)
	if len(e.Errors) > 0 { // each says more than the detail
		return s + ": " + (&berth.InvalidError{Fields: e.Errors}).Error()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

// isCode reports whether err is the server's answer with that code.
func isCode(err error, code string) bool {
	var e *apiError
	return errors.As(err, &e) && e.Code == code
}

// isStatus reports whether err is the server's answer with that status.
func isStatus(err error, status int) bool {
	var e *apiError
	return errors.As(err, &e) && e.Status == status
}

// outcast reports whether an error of a call says that the server takes nothing of
// this host any more: no key of its, or, where the call names nothing else, "not
// found".
func outcast(path string, err error) bool {
	switch path {
	case protocol.PathSync, protocol.PathHeartbeat, protocol.PathClaims, protocol.PathStart, protocol.PathRenew, protocol.PathComplete, protocol.PathRelease:
		return errors.Is(err, errOutcast) || isCode(err, protocol.CodeNotFound)
	}
	return errors.Is(err, errOutcast)
}

// unwanted is the error of a call that names nothing but the host itself: in it
// "not found" means the host.
func unwanted(err error) error {
	if isCode(err, protocol.CodeNotFound) || errors.Is(err, errOutcast) {
		return &berth.SetupError{
			What:   "the server knows this host no more: it was revoked, or the database is older than its enrolment",
			Remedy: "stop the agent, remove host.json from its state directory, start it with a new enrolment token",
		}
	}
	return err
}

// permanent reports whether repeating the call cannot help.
func permanent(err error) bool {
	if errors.Is(err, errProtocol) || errors.Is(err, errOutcast) {
		return true
	}
	var e *apiError
	if !errors.As(err, &e) {
		return false // no answer: the network, or a time-out
	}
	return e.Status < 500 && e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout && e.Status != http.StatusUnauthorized
}

type callOptions struct {
	anonymous bool
	timeout   time.Duration // 0: defaultRequestTimeout; below 0: the caller's context alone
	header    map[string]string
	body      func() (io.ReadCloser, int64, error) // instead of JSON
	date      *string                              // gets the answer's Date
	answer    func(io.Reader) error                // reads the answer's body, instead of JSON
	status    int                                  // the answer's, where it must be one
}

// defaultRequestTimeout bounds a request until sync tells the server's value.
const defaultRequestTimeout = 5 * time.Second

// call does one request once (twice when the token was refused). in is sent as
// JSON unless opt.body is set; out, when not nil, gets the JSON answer.
func (a *api) call(ctx context.Context, method, path string, in, out any, opt callOptions) error {
	if opt.timeout == 0 {
		opt.timeout = defaultRequestTimeout
	}
	if opt.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, opt.timeout)
		defer stop()
	}
	err := a.once(ctx, method, path, in, out, opt)
	var e *apiError
	if errors.As(err, &e) && e.Status == http.StatusUnauthorized && !opt.anonymous {
		a.dropToken()
		err = a.once(ctx, method, path, in, out, opt)
	}
	return err
}

func (a *api) once(ctx context.Context, method, path string, in, out any, opt callOptions) error {
	req, err := a.request(ctx, method, path, in, opt)
	if err != nil {
		return err
	}
	if !opt.anonymous {
		token, err := a.bearer(ctx)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		if e := a.heldEpoch(); e > 0 {
			req.Header.Set(protocol.HeaderEpoch, strconv.FormatInt(int64(e), 10))
		}
	}
	client := a.http
	if opt.body != nil || opt.answer != nil {
		client = a.bulk
	}
	res, err := client.Do(req)
	if err != nil {
		if fault := tlsfiles.FaultOf(err); fault != nil {
			err = fault
		}
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
		_ = res.Body.Close()
	}()
	if opt.date != nil {
		*opt.date = res.Header.Get("Date")
	}
	if res.StatusCode >= 300 {
		return problemOf(res)
	}
	switch {
	case opt.status != 0 && res.StatusCode != opt.status:
		return fmt.Errorf("%s %s: the server answered %d where %d was asked for", method, path, res.StatusCode, opt.status)
	case opt.answer != nil:
		return opt.answer(res.Body)
	case out == nil:
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("%s %s: the answer cannot be read: %w", method, path, err)
	}
	return nil
}

func (a *api) request(ctx context.Context, method, path string, in any, opt callOptions) (*http.Request, error) {
	var body io.ReadCloser
	size := int64(0)
	contentType := "application/json"
	switch {
	case opt.body != nil:
		var err error
		if body, size, err = opt.body(); err != nil {
			return nil, err
		}
		contentType = "application/octet-stream"
	case in != nil:
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body, size = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", contentType)
	for k, v := range opt.header {
		req.Header.Set(k, v)
	}
	return req, nil
}

func problemOf(res *http.Response) error {
	e := &apiError{}
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if json.Unmarshal(b, &e.Problem) != nil || e.Code == "" {
		e.Problem = protocol.Problem{Code: "http_" + strconv.Itoa(res.StatusCode), Title: http.StatusText(res.StatusCode)}
	}
	e.Status = res.StatusCode
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s >= 0 {
		e.retryAfter = time.Duration(min(s, int(maxPause/time.Second))) * time.Second
	}
	return e
}

// maxPause bounds how long an answer may ask to stay away.
const maxPause = time.Minute

// pauseAfter is how long to wait before a call that failed with err is made
// again: what the server asked for in Retry-After, and a little more so that
// not everybody comes back at once, else usual; never more than limit.
func pauseAfter(err error, usual, limit time.Duration) time.Duration {
	wait := jitter(usual, 0.2)
	var e *apiError
	if errors.As(err, &e) && e.retryAfter > 0 {
		wait = max(wait, time.Duration(float64(e.retryAfter)*(1+0.2*rand.Float64())))
	}
	return min(wait, limit)
}

// bearer gives a token with at least half a minute to live.
func (a *api) bearer(ctx context.Context) (string, error) {
	a.mu.Lock()
	token, left := a.token, a.expiry-a.clock()
	a.mu.Unlock()
	if token != "" && left > 30*time.Second {
		return token, nil
	}
	res, err := a.fetchToken(ctx)
	if err != nil {
		return "", fmt.Errorf("access token: %w", err)
	}
	a.keepToken(res)
	return res.AccessToken, nil
}

func (a *api) keepToken(res protocol.TokenResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.expiry = res.AccessToken, a.clock()+time.Duration(res.ExpiresIn)*time.Second
}

func (a *api) dropToken() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = ""
}

func (a *api) heldEpoch() berth.Epoch {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.epoch
}

func (a *api) setEpoch(e berth.Epoch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch = e
}

// fill puts the values into a path template of pkg/protocol.
func fill(path string, pairs ...string) string {
	for i := 0; i+1 < len(pairs); i += 2 {
		path = strings.Replace(path, "{"+pairs[i]+"}", pairs[i+1], 1)
	}
	return path
}

// retry repeats do until it succeeds, cannot succeed any more, or ctx ends;
// then it returns the last error, joined with ctx's cause.
func retry(ctx context.Context, do func() error) error {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 200*time.Millisecond, 5*time.Second
	for {
		err := do()
		if err == nil || permanent(err) {
			return err
		}
		if !sleep(ctx, pauseAfter(err, b.NextBackOff(), maxPause)) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
