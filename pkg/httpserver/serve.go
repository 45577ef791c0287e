package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
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
	// TLS, if set, is what connections are secured with; nil: they are not.
	TLS *tls.Config
	// MaxConns bounds the open connections; when there are more, idle ones make
	// room. 0: three quarters of the file descriptors, at most 16384.
	MaxConns int
}

// ErrBrokenOff is wrapped by Serve's error when requests outlasted the grace. It
// is no context.DeadlineExceeded, which would say that something still runs.
var ErrBrokenOff = errors.New("requests were broken off")

// Serve accepts on ln until ctx ends. Then it closes ln, begins the drain, and
// waits for the requests that run, within Grace; those that are not done by then
// have their contexts ended and their connections closed, which is an error. It
// waits for their handlers as long again, so that transactions are rolled back
// before the process ends; the error wraps context.DeadlineExceeded only where a
// handler still runs then.
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
	var running inFlight
	bounded := newConns(ln, s.MaxConns)
	ln = bounded
	server := &http.Server{
		Handler:           noteAnswered(running.counted(s.Handler)),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second, // above the longest long poll
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       withConn,
		ConnState:         bounded.watch,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100, MaxReadFrameSize: 1 << 20, SendPingTimeout: time.Minute},
	}
	// net/http's own lines quote what clients sent.
	server.ErrorLog = zap.NewStdLog(zap.NewNop())
	served := make(chan error, 1)
	go func() {
		if s.TLS == nil {
			served <- server.Serve(ln)
			return
		}
		server.TLSConfig = s.TLS
		served <- server.ServeTLS(ln, "", "")
	}()
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
		err = fmt.Errorf("%w: they did not end within %v", ErrBrokenOff, s.Grace)
		if werr := running.wait(s.Grace); werr != nil {
			err = fmt.Errorf("%w: %w", err, werr)
		}
	}
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

// inFlight counts the handlers that run.
type inFlight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when none runs; nil while nobody waits
}

func (f *inFlight) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.n++
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.n--; f.n == 0 && f.idle != nil {
				close(f.idle)
				f.idle = nil
			}
		}()
		h.ServeHTTP(w, r)
	})
}

// wait returns nil when no handler runs, context.DeadlineExceeded after d.
func (f *inFlight) wait(d time.Duration) error {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	f.idle = idle
	f.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
		return nil
	case <-timer.C:
		return context.DeadlineExceeded
	}
}
