package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
)

// Server serves one handler until it is told to stop.
type Server struct {
	// Handler to serve.
	Handler http.Handler
	// Drain is begun when the stopping begins; may be nil.
	Drain *Drain
	// Grace bounds the stopping; 0: 20 s.
	Grace time.Duration
	// Logger may be nil.
	Logger *zap.Logger
}

// Serve accepts on ln until ctx ends. Then it closes ln, begins the drain, and
// waits for the requests that run, within Grace; those that are not done by then
// have their contexts ended and their connections closed, which is an error.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if s.Logger == nil {
		s.Logger = zap.NewNop()
	}
	if s.Grace == 0 {
		s.Grace = 20 * time.Second
	}
	// Requests outlive ctx: running transactions end by themselves.
	base, breakOff := context.WithCancel(context.WithoutCancel(ctx))
	defer breakOff()
	server := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second, // above the longest long poll
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	// net/http's own lines quote what clients sent.
	server.ErrorLog = zap.NewStdLog(zap.NewNop())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	if s.Drain != nil {
		s.Drain.Begin()
	}
	bound, cancel := context.WithTimeout(base, s.Grace)
	defer cancel()
	err := server.Shutdown(bound)
	if err != nil {
		s.Logger.Warn("requests were broken off at shutdown", zap.Duration("grace", s.Grace))
		breakOff()
		_ = server.Close()
		err = fmt.Errorf("requests did not end within %v: %w", s.Grace, err)
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
