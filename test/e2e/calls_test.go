package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/test/harness"
)

func newUUID() string { return uuid.NewString() }

// userCall posts once as the administrator, at any of the cluster's APIs.
func userCall(ctx context.Context, c *harness.Cluster, url, path string, in any, key string) (int, []byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, body)
	if err != nil {
		return 0, nil, err
	}
	return do(c, req, key)
}

// do sends a request as the administrator, on a connection of its own.
func do(c *harness.Cluster, req *http.Request, key string) (int, []byte, error) {
	req.Header.Set("Authorization", "Bearer "+c.Tokens.AccessToken)
	if req.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, b, errors.Join(err, res.Body.Close())
}
