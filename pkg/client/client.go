package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Client calls one Berth server. Its methods may be called by several
// goroutines. Every method returns a *Problem for what the server refuses and
// an *UnreachableError when there is no answer.
type Client struct {
	raw    *RawClient
	server string
}

// Option changes a Client.
type Option func(*transport)

// WithHTTP uses another http.Client. It should have no time-out of its own:
// long polls take up to 25 seconds.
func WithHTTP(c *http.Client) Option { return func(t *transport) { t.http = c } }

// WithUserAgent names the program to the server.
func WithUserAgent(name string) Option { return func(t *transport) { t.agent = name } }

// WithRetryFor sets how long a call that may be repeated is repeated while the
// server does not answer; 0: it is sent once.
func WithRetryFor(d time.Duration) Option {
	return func(t *transport) { t.retries = max(d, time.Nanosecond) }
}

// DefaultRetryFor is how long calls are repeated unless WithRetryFor is given.
const DefaultRetryFor = 15 * time.Second

// New makes a client of the server at address, such as
// http://127.0.0.1:8080; auth may be nil for the public operations.
func New(address string, auth TokenSource, options ...Option) (*Client, error) {
	u, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the server's address must look like http://host:port or https://host")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the server's address must hold no user, query or fragment")
	}
	t := &transport{http: &http.Client{}, server: u.String(), auth: auth, retries: DefaultRetryFor}
	for _, o := range options {
		o(t)
	}
	raw, err := NewClient(u.String()+"/api/v1", WithHTTPClient(t), WithRequestEditorFn(leaveOut))
	if err != nil {
		return nil, err
	}
	return &Client{raw: raw, server: u.String()}, nil
}

// leaveOut drops parameters that were not given: the generated code sends their
// zero values.
func leaveOut(_ context.Context, r *http.Request) error {
	q := r.URL.Query()
	for name, values := range q {
		if len(values) == 1 && (values[0] == "" || values[0] == "0" || values[0] == "false" || values[0] == zeroTime) {
			q.Del(name)
		}
	}
	r.URL.RawQuery = q.Encode()
	for name, values := range r.Header {
		if len(values) == 1 && values[0] == "" {
			r.Header.Del(name)
		}
	}
	return nil
}

// zeroTime is time.Time's zero value on the wire.
const zeroTime = "0001-01-01T00:00:00Z"

// Server is the address that is called.
func (c *Client) Server() string { return c.server }

// decode reads an answer into a T, or returns its problem.
func decode[T any](res *http.Response, err error) (T, error) {
	var out T
	if err != nil {
		return out, err
	}
	defer drain(res)
	if res.StatusCode >= 300 {
		return out, problemOf(res)
	}
	if res.StatusCode == http.StatusNoContent {
		return out, nil
	}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		return out, fmt.Errorf("the answer of %s is not what Berth sends; check the address: %w", res.Request.URL.Host, shortened(err))
	}
	return out, nil
}

// shortened keeps an answer's content out of an error.
func shortened(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("not JSON")
	}
	return errors.New("unexpected JSON")
}

// none is the answer without a body.
type none struct{}

// Health asks whether the server and its database answer.
func (c *Client) Health(ctx context.Context) (Health, error) {
	return decode[Health](c.raw.GetHealth(ctx))
}

// Login exchanges a name and a password for tokens. It is repeated when the
// answer is lost: the tokens that nobody got end by themselves.
func (c *Client) Login(ctx context.Context, name, password string) (Tokens, error) {
	return decode[Tokens](c.raw.Login(mayRepeat(ctx), LoginRequest{Name: name, Password: password}))
}

// Refresh exchanges a refresh token for new tokens. It is repeated when the
// answer is lost: the server forgives the immediate predecessor for a while.
func (c *Client) Refresh(ctx context.Context, token string) (Tokens, error) {
	return decode[Tokens](c.raw.Refresh(mayRepeat(ctx), RefreshRequest{RefreshToken: token}))
}

// Logout ends the login that a refresh token belongs to.
func (c *Client) Logout(ctx context.Context, token string) error {
	_, err := decode[none](c.raw.Logout(mayRepeat(ctx), RefreshRequest{RefreshToken: token}))
	return err
}

// Me tells who the token belongs to.
func (c *Client) Me(ctx context.Context) (Me, error) { return decode[Me](c.raw.GetMe(ctx)) }

// SubmitOptions of SubmitTask and SubmitTasks.
type SubmitOptions struct {
	// IdempotencyKey makes repeats by other calls give the same tasks; "": a
	// random one, so that this call may be repeated when its answer is lost.
	IdempotencyKey string
	// CorrelationID is kept with the tasks; "": the server's choice.
	CorrelationID string
	// Wait until the task is finished, at most about 25 seconds; SubmitTask only.
	Wait time.Duration
}

func (o SubmitOptions) key() string {
	if o.IdempotencyKey == "" {
		return uuid.NewString()
	}
	return o.IdempotencyKey
}

// SubmitTask submits one task.
func (c *Client) SubmitTask(ctx context.Context, spec TaskSpec, o SubmitOptions) (Task, error) {
	return decode[Task](c.raw.SubmitTask(ctx, o.params(), spec))
}

// SubmitTaskJSON submits one task as it is written, so that the server judges
// also what this client does not know.
func (c *Client) SubmitTaskJSON(ctx context.Context, spec json.RawMessage, o SubmitOptions) (Task, error) {
	return decode[Task](c.raw.SubmitTaskWithBody(ctx, o.params(), "application/json", newReader(spec)))
}

func (o SubmitOptions) params() *SubmitTaskParams {
	return &SubmitTaskParams{IdempotencyKey: o.key(), BerthCorrelationID: o.CorrelationID, Wait: o.Wait.Seconds()}
}

// SubmitTasks submits 1 to 1,000 tasks, all or none.
func (c *Client) SubmitTasks(ctx context.Context, specs []TaskSpec, o SubmitOptions) ([]Task, error) {
	p := &SubmitTasksParams{IdempotencyKey: o.key(), BerthCorrelationID: o.CorrelationID}
	out, err := decode[SubmittedTasks](c.raw.SubmitTasks(ctx, p, TaskBatch{Tasks: specs}))
	return out.Tasks, err
}

// SubmitTasksJSON submits a batch ({"tasks": [...]}) as it is written.
func (c *Client) SubmitTasksJSON(ctx context.Context, batch json.RawMessage, o SubmitOptions) ([]Task, error) {
	p := &SubmitTasksParams{IdempotencyKey: o.key(), BerthCorrelationID: o.CorrelationID}
	out, err := decode[SubmittedTasks](c.raw.SubmitTasksWithBody(ctx, p, "application/json", newReader(batch)))
	return out.Tasks, err
}

// GetTask returns a task, once it is finished or wait (about 25 seconds at
// most) is over.
func (c *Client) GetTask(ctx context.Context, id string, wait time.Duration) (Task, error) {
	return decode[Task](c.raw.GetTask(ctx, id, &GetTaskParams{Wait: wait.Seconds()}))
}

// ListTasks returns one page, newest first.
func (c *Client) ListTasks(ctx context.Context, p ListTasksParams) (TaskList, error) {
	return decode[TaskList](c.raw.ListTasks(ctx, &p))
}

// CancelTask asks for a task's end.
func (c *Client) CancelTask(ctx context.Context, id string) (Task, error) {
	return decode[Task](c.raw.CancelTask(mayRepeat(ctx), id))
}

// RetryTask queues a dead-lettered or waiting task again; addTries 0 means 1.
func (c *Client) RetryTask(ctx context.Context, id string, addTries int) (Task, error) {
	return c.RetryTaskWith(ctx, id, RetryRequest{AddTries: addTries})
}

// RetryTaskWith is RetryTask, with another payload where there is one.
func (c *Client) RetryTaskWith(ctx context.Context, id string, r RetryRequest) (Task, error) {
	return decode[Task](c.raw.RetryTask(ctx, id, &RetryTaskParams{IdempotencyKey: uuid.NewString()}, r))
}

// ListAttempts returns all attempts of a task by number.
func (c *Client) ListAttempts(ctx context.Context, id string) ([]Attempt, error) {
	out, err := decode[AttemptList](c.raw.ListAttempts(ctx, id))
	return out.Attempts, err
}

// ListArtifacts returns all artifacts of a task.
func (c *Client) ListArtifacts(ctx context.Context, id string) ([]Artifact, error) {
	out, err := decode[ArtifactList](c.raw.ListArtifacts(ctx, id))
	return out.Artifacts, err
}

// ListTaskEvents returns one page of what happened to a task, oldest first.
func (c *Client) ListTaskEvents(ctx context.Context, id string, p ListTaskEventsParams) (EventList, error) {
	return decode[EventList](c.raw.ListTaskEvents(ctx, id, &p))
}

// Artifact opens an artifact's bytes; the caller closes them.
func (c *Client) Artifact(ctx context.Context, id string, number int, name string) (io.ReadCloser, error) {
	res, err := c.raw.GetArtifact(ctx, id, number, name)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer drain(res)
		return nil, problemOf(res)
	}
	return res.Body, nil
}

// LogPiece is a part of an attempt's log.
type LogPiece struct {
	Bytes []byte
	// Next is where the next call goes on.
	Next int64
	// Ended: the attempt is over and Next is the log's end.
	Ended bool
}

// ReadLog reads an attempt's log from offset on. With follow it waits for bytes
// of a live attempt, up to about 25 seconds.
func (c *Client) ReadLog(ctx context.Context, id string, number int, offset int64, follow bool) (LogPiece, error) {
	res, err := c.raw.ReadLog(ctx, id, number, &ReadLogParams{Offset: offset, Follow: follow})
	if err != nil {
		return LogPiece{}, err
	}
	defer drain(res)
	if res.StatusCode != http.StatusOK {
		return LogPiece{}, problemOf(res)
	}
	out, err := logPieceOf(res, offset)
	var off *offsetError
	if err != nil && !errors.As(err, &off) {
		err = &UnreachableError{Server: c.server, Err: err}
	}
	return out, err
}

// offsetError is an answer whose bytes and offset do not fit together.
type offsetError struct{}

func (*offsetError) Error() string {
	return "the server did not say where the log goes on; is the address Berth's?"
}

// logPieceOf reads the answer to a call for what begins at offset. Its bytes end
// where the next call is to begin: a log has no gaps.
func logPieceOf(res *http.Response, offset int64) (out LogPiece, err error) {
	if out.Bytes, err = io.ReadAll(res.Body); err != nil {
		return out, err
	}
	out.Next, err = strconv.ParseInt(res.Header.Get("Berth-Next-Offset"), 10, 64)
	if err != nil || out.Next != offset+int64(len(out.Bytes)) {
		return out, &offsetError{}
	}
	out.Ended = res.Header.Get("Berth-Log-Ended") == "true"
	return out, nil
}

// ListPools returns one page by name.
func (c *Client) ListPools(ctx context.Context, p ListPoolsParams) (PoolList, error) {
	return decode[PoolList](c.raw.ListPools(ctx, &p))
}

// GetPool returns a pool.
func (c *Client) GetPool(ctx context.Context, name string) (Pool, error) {
	return decode[Pool](c.raw.GetPool(ctx, name))
}

// CreatePool makes a pool.
func (c *Client) CreatePool(ctx context.Context, spec PoolSpec) (Pool, error) {
	return decode[Pool](c.raw.CreatePool(ctx, &CreatePoolParams{IdempotencyKey: uuid.NewString()}, spec))
}

// ListDevices returns one page.
func (c *Client) ListDevices(ctx context.Context, p ListDevicesParams) (DeviceList, error) {
	return decode[DeviceList](c.raw.ListDevices(ctx, &p))
}

// GetDevice returns a device.
func (c *Client) GetDevice(ctx context.Context, id string) (Device, error) {
	return decode[Device](c.raw.GetDevice(ctx, id))
}

// ListHosts returns one page.
func (c *Client) ListHosts(ctx context.Context, p ListHostsParams) (HostList, error) {
	return decode[HostList](c.raw.ListHosts(ctx, &p))
}

// GetHost returns a host.
func (c *Client) GetHost(ctx context.Context, id string) (Host, error) {
	return decode[Host](c.raw.GetHost(ctx, id))
}

// CreateEnrolmentToken makes a token that lets one host in, once.
func (c *Client) CreateEnrolmentToken(ctx context.Context, spec EnrolmentTokenSpec) (EnrolmentToken, error) {
	p := &CreateEnrolmentTokenParams{IdempotencyKey: uuid.NewString()}
	return decode[EnrolmentToken](c.raw.CreateEnrolmentToken(ctx, p, spec))
}

// ListEnrolmentTokens returns one page.
func (c *Client) ListEnrolmentTokens(ctx context.Context, p ListEnrolmentTokensParams) (EnrolmentTokenList, error) {
	return decode[EnrolmentTokenList](c.raw.ListEnrolmentTokens(ctx, &p))
}

// RevokeEnrolmentToken ends an unused token.
func (c *Client) RevokeEnrolmentToken(ctx context.Context, id string) error {
	_, err := decode[none](c.raw.RevokeEnrolmentToken(ctx, id))
	return err
}

// ListPlugins returns one page of versions, without schemas.
func (c *Client) ListPlugins(ctx context.Context, p ListPluginsParams) (PluginList, error) {
	return decode[PluginList](c.raw.ListPlugins(ctx, &p))
}

// GetPlugin returns all versions of a plugin with their schemas.
func (c *Client) GetPlugin(ctx context.Context, name string) (PluginVersions, error) {
	return decode[PluginVersions](c.raw.GetPlugin(ctx, name))
}
