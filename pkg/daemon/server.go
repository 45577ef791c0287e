package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Server is an HTTP server as a component.
type Server struct {
	name    string
	listen  string
	server  *http.Server
	log     *zap.Logger
	failed  chan error
	mu      sync.Mutex // guards addr and served
	addr    net.Addr
	served  chan struct{}
	bound   func(net.Addr)
	closing func()
}

// ServerConfig describes a Server. Name, Listen and Handler are required.
type ServerConfig struct {
	Name string
	// Listen is host:port; port 0 picks a free one.
	Listen  string
	Handler http.Handler
	// WriteTimeout bounds an answer; 0: none (streams).
	WriteTimeout time.Duration
	Log          *zap.Logger
	// Bound, if set, is told the address once the server listens.
	Bound func(net.Addr)
	// Closing, if set, is called when the server begins to stop, to wake long
	// polls and streams.
	Closing func()
}

// NewServer makes a server that does not listen yet.
func NewServer(c ServerConfig) *Server {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return &Server{
		name: c.Name, listen: c.Listen, log: c.Log.With(zap.String("server", c.Name)),
		failed: make(chan error, 1), bound: c.Bound, closing: c.Closing,
		server: &http.Server{
			Handler:           c.Handler,
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			WriteTimeout:      c.WriteTimeout,
			MaxHeaderBytes:    64 << 10,
			ErrorLog:          zap.NewStdLog(zap.NewNop()), // net/http's lines quote what clients sent
		},
	}
}

// Component lets Run start and stop the server.
func (s *Server) Component() Component {
	return Component{Name: s.name, Start: s.Start, Stop: s.Stop, Failed: s.failed}
}

// Start listens. A port that is taken is told in one sentence.
func (s *Server) Start(ctx context.Context) error {
	listener, err := Listen(ctx, s.listen)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.addr, s.served = listener.Addr(), make(chan struct{})
	s.mu.Unlock()
	s.log.Info("listening", zap.Stringer("address", listener.Addr()))
	go func() {
		defer close(s.served)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	}()
	if s.bound != nil {
		s.bound(listener.Addr())
	}
	return nil
}

// ErrAddressTaken is wrapped when another process listens on the address.
var ErrAddressTaken = errors.New("is taken by another process; stop that one or choose another address")

// Listen listens on host:port over TCP; port 0 picks a free one.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	var form *net.AddrError
	var name *net.DNSError
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %w", address, ErrAddressTaken)
	case errors.As(err, &form), errors.As(err, &name):
		return nil, fmt.Errorf("%q is no address to listen at; write host:port, for example 127.0.0.1:7700", address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine; listen at 127.0.0.1, at 0.0.0.0 for all, or at one that it has", address)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s may not be listened at by this user; choose a port above 1023", address)
	}
	return nil, err
}

// Addr is where the server listens; nil before Start.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Stop takes no new request, wakes streams (Closing) and waits for the requests
// in progress until ctx ends; then it cuts them off and returns ctx's error.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	served := s.served
	s.mu.Unlock()
	if s.closing != nil {
		s.closing()
	}
	err := s.server.Shutdown(ctx)
	if err != nil {
		_ = s.server.Close()
	}
	if served != nil {
		<-served
	}
	return err
}

// AdminHandler serves /livez, /readyz and /metrics.
func AdminHandler(ready *Readiness, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", Livez)
	mux.Handle("GET /readyz", ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

// NewAdmin makes the admin server. It should be the first component: it then
// answers while the others start and stop.
func NewAdmin(listen string, ready *Readiness, metrics prometheus.Gatherer, log *zap.Logger, bound func(net.Addr)) *Server {
	return NewServer(ServerConfig{
		Name: "admin", Listen: listen, Handler: AdminHandler(ready, metrics),
		WriteTimeout: 30 * time.Second, Log: log, Bound: bound,
	})
}
