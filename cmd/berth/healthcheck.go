package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// newHealthcheckCommand makes `berth healthcheck`: what curl would do, for
// images that hold nothing but Berth.
func newHealthcheckCommand(c *cli) *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use: "healthcheck URL", Short: "Ask one address; exit code 0 when it answers 200", Args: exactly(1, "the address"),
		Example: "  berth healthcheck http://127.0.0.1:7711/readyz",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), within)
			defer cancel()
			return c.healthcheck(ctx, args[0])
		},
	}
	cmd.Flags().DurationVar(&within, "within", 3*time.Second, "bound of the answer")
	return cmd
}

// healthcheck says nothing about a good answer, and the code of a bad one.
func (c *cli) healthcheck(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil || req.URL.Host == "" {
		return &usageError{command: "berth healthcheck", what: "that is no address", remedy: "write for example http://127.0.0.1:7711/readyz"}
	}
	client, err := c.http()
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	fault := tlsfiles.FaultOf(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &remedyError{what: "no answer in time"}
	case fault != nil:
		return &remedyError{what: fault.What, remedy: fault.Remedy}
	case err != nil:
		return &remedyError{what: "nothing answers there"}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, 100))
	return &remedyError{what: "not ready: " + res.Status + ": " + berth.Clip(strings.TrimSpace(string(body)), 60)}
}
