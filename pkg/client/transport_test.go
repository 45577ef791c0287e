package client

import (
	"context"
	"net/http"
	"testing"
)

func TestWhatMayNotBeRepeatedIsSentOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		ctx    context.Context
		method string
		key    string
		want   bool
	}{
		"a post":                {t.Context(), http.MethodPost, "", false},
		"a patch":               {t.Context(), http.MethodPatch, "", false},
		"a post with a key":     {t.Context(), http.MethodPost, "k", true},
		"a post marked as safe": {mayRepeat(t.Context()), http.MethodPost, "", true},
		"a get":                 {t.Context(), http.MethodGet, "", true},
		"a put":                 {t.Context(), http.MethodPut, "", true},
		"a delete":              {t.Context(), http.MethodDelete, "", true},
	} {
		r, err := http.NewRequestWithContext(tc.ctx, tc.method, "http://127.0.0.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.key != "" {
			r.Header.Set("Idempotency-Key", tc.key)
		}
		if got := repeatable(r); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
