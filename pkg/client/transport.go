package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// transport sends requests with a token, and again where that is safe.
type transport struct {
	http    *http.Client
	server  string
	auth    TokenSource
	agent   string
	retries time.Duration // how long to go on
}

// Do sends one request. The answer's body is the caller's to close.
func (t *transport) Do(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	if t.agent != "" {
		r.Header.Set("User-Agent", t.agent)
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 3*time.Second
	again := false
	res, err := backoff.Retry(ctx, func() (*http.Response, error) {
		if again {
			if err := rewind(r); err != nil {
				return nil, backoff.Permanent(err)
			}
		}
		again = true
		return t.once(r)
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(t.retries))
	var later *laterError
	if errors.As(err, &later) {
		return later.answer, nil // its document says what is the matter
	}
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return res, err
}

// laterError is an answer that asks to come back. It keeps the last answer.
type laterError struct{ answer *http.Response }

func (e *laterError) Error() string { return "the server asked to come back later" }

func (t *transport) once(r *http.Request) (*http.Response, error) {
	res, err := t.send(r)
	if err != nil {
		unreachable := &UnreachableError{Server: t.server, Err: err}
		if repeatable(r) || neverSent(err) {
			return nil, unreachable
		}
		return nil, backoff.Permanent(unreachable)
	}
	if !comeBack(res.StatusCode) || !repeatable(r) {
		return res, nil
	}
	later := &laterError{answer: buffered(res)}
	if after, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && after >= 0 {
		if time.Duration(after)*time.Second > t.retries {
			return nil, backoff.Permanent(later)
		}
		return nil, errors.Join(later, &backoff.RetryAfterError{Duration: spread(after)})
	}
	return nil, later
}

// spread is how long to stay away when the server asks for some seconds: a
// little longer, so that not everybody comes back at the same instant.
func spread(seconds int) time.Duration {
	return time.Duration(float64(seconds) * (1 + 0.2*rand.Float64()) * float64(time.Second))
}

// send adds the token, and a fresh one when the server does not take it.
func (t *transport) send(r *http.Request) (*http.Response, error) {
	if t.auth == nil {
		return t.http.Do(r)
	}
	token, err := t.auth.Token(r.Context())
	if err != nil {
		return nil, backoff.Permanent(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := t.http.Do(r)
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		return res, err
	}
	fresh, err := t.auth.Renew(r.Context(), token)
	if err != nil || fresh == token {
		return res, nil // the server's answer says it better
	}
	drain(res)
	if err := rewind(r); err != nil {
		return nil, backoff.Permanent(err)
	}
	r.Header.Set("Authorization", "Bearer "+fresh)
	return t.http.Do(r)
}

// repeatable reports whether sending r twice does no more than once.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != "" || r.Context().Value(repeatKey{}) != nil
}

// repeatKey marks the context of a call that is safe to repeat by its nature.
type repeatKey struct{}

func mayRepeat(ctx context.Context) context.Context { return context.WithValue(ctx, repeatKey{}, true) }

// neverSent reports whether no connection was made, so that any request may be
// sent again.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func comeBack(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return false
}

func rewind(r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.GetBody == nil {
		return errors.New("the request cannot be sent twice")
	}
	body, err := r.GetBody()
	r.Body = body
	return err
}

// buffered reads an answer's (small) body, so that its connection is free.
func buffered(res *http.Response) *http.Response {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	_ = res.Body.Close()
	res.Body = io.NopCloser(newReader(body))
	return res
}

func drain(res *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxProblem))
	_ = res.Body.Close()
}
