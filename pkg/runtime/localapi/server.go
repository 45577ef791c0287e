// Package localapi serves a Runtime over HTTP on this machine: its devices,
// direct actions on them, and one-off plugin runs. Nothing is kept but the
// files of the last runs, and those only while the process lives.
//
// There are no credentials: who reaches the port may use the devices. So it is
// meant for a loopback address, and refuses what a web page in somebody's
// browser could send there (see guard).
package localapi

import (
	"context"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/runtime"
)

// Config configures the server.
type Config struct {
	// Runtime does the work; the caller closes it after the server's requests ended.
	Runtime *runtime.Runtime
	// RunsDir is a directory of the server's own for the files of runs. It is
	// emptied at the start.
	RunsDir string
	// KeepRuns is how many finished runs keep their files; default 50.
	KeepRuns int
	// AllowRemote accepts requests addressed to other than loopback names.
	AllowRemote bool
	// Logger may be nil.
	Logger *zap.Logger
}

// Server is the HTTP API; it is an http.Handler.
type Server struct {
	cfg  Config
	echo *echo.Echo

	mu       sync.Mutex
	draining bool
	runs     map[runtime.RunID]*storedRun
	order    []runtime.RunID // finished, oldest first
}

// New returns the server. It fails when RunsDir cannot be emptied.
func New(cfg Config) (*Server, error) {
	if cfg.KeepRuns <= 0 {
		cfg.KeepRuns = 50
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if err := os.RemoveAll(cfg.RunsDir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.RunsDir, 0o700); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, echo: echo.New(), runs: map[runtime.RunID]*storedRun{}}
	s.echo.HTTPErrorHandler = s.writeProblem
	s.echo.Use(s.logRequests, s.guard)
	s.routes()
	return s, nil
}

func (s *Server) routes() {
	e := s.echo
	e.GET("/livez", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) })
	e.GET("/readyz", s.readyz)
	e.GET("/v1/plugins", s.listPlugins)
	e.GET("/v1/devices", s.listDevices)
	e.GET("/v1/devices/:id", s.getDevice)
	e.POST("/v1/devices/:id/clean", s.cleanDevice)
	e.POST("/v1/devices/:id/kill", s.killDevice)
	for name, action := range actions() {
		e.POST("/v1/devices/:id/"+name, s.act(action))
	}
	e.GET("/v1/devices/:id/screenshot", s.screenshot)
	e.GET("/v1/devices/:id/ui-tree", s.uiTree)
	e.POST("/v1/runs", s.postRun)
	e.GET("/v1/runs/:run/log", s.getLog)
	e.GET("/v1/runs/:run/artifacts", s.listArtifacts)
	e.GET("/v1/runs/:run/artifacts/:name", s.getArtifact)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.echo.ServeHTTP(w, r) }

// Drain makes /readyz say that the server is going away.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

// Close removes the files of all runs. Call it after the last request ended.
func (s *Server) Close() error { return os.RemoveAll(s.cfg.RunsDir) }

func (s *Server) readyz(c echo.Context) error {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	if draining {
		return &problem{Status: http.StatusServiceUnavailable, Code: "shutting_down", Title: "the Runtime is shutting down"}
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) listPlugins(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]any{"plugins": s.cfg.Runtime.Plugins()})
}

// listDevices lists what there is; a driver that failed is in the log only.
func (s *Server) listDevices(c echo.Context) error {
	devices, err := s.cfg.Runtime.Devices(c.Request().Context())
	if err != nil && len(devices) == 0 {
		return err
	}
	if err != nil {
		s.cfg.Logger.Warn("a driver could not list its devices", zap.Error(err))
	}
	if devices == nil {
		devices = []runtime.Device{}
	}
	return c.JSON(http.StatusOK, map[string]any{"devices": devices})
}

// getDevice probes the device, so the health it shows is that of now.
func (s *Server) getDevice(c echo.Context) error {
	d, err := s.cfg.Runtime.Probe(c.Request().Context(), deviceID(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, d)
}

func (s *Server) cleanDevice(c echo.Context) error {
	if err := s.cfg.Runtime.Clean(c.Request().Context(), deviceID(c)); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *Server) killDevice(c echo.Context) error {
	ctx := c.Request().Context()
	if _, err := s.cfg.Runtime.Device(ctx, deviceID(c)); err != nil {
		return err
	}
	if err := s.cfg.Runtime.Kill(ctx, deviceID(c)); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func deviceID(c echo.Context) runtime.DeviceID { return runtime.DeviceID(c.Param("id")) }

// direct uses a device for one request, within the usual time.
func (s *Server) direct(c echo.Context, do func(context.Context, runtime.Session) error) error {
	ctx, stop := context.WithTimeout(c.Request().Context(), actionBound)
	defer stop()
	return s.cfg.Runtime.Direct(ctx, deviceID(c), do)
}

func (s *Server) screenshot(c echo.Context) error {
	var png []byte
	err := s.direct(c, func(ctx context.Context, session runtime.Session) error {
		screen, ok := session.(runtime.Screen)
		if !ok {
			return runtime.ErrUnsupported
		}
		shot, err := screen.Screenshot(ctx)
		png = shot.Reveal()
		return err
	})
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.Blob(http.StatusOK, "image/png", png)
}

func (s *Server) uiTree(c echo.Context) error {
	var tree *runtime.UINode
	err := s.direct(c, func(ctx context.Context, session runtime.Session) error {
		screen, ok := session.(runtime.Screen)
		if !ok {
			return runtime.ErrUnsupported
		}
		var err error
		tree, err = screen.UITree(ctx)
		return err
	})
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, tree)
}

// evict forgets the oldest finished runs beyond the limit; s.mu is held.
func (s *Server) evict() {
	for len(s.order) > s.cfg.KeepRuns {
		oldest := s.order[0]
		s.order = slices.Delete(s.order, 0, 1)
		if run := s.runs[oldest]; run != nil {
			_ = os.RemoveAll(run.dir)
			delete(s.runs, oldest)
		}
	}
}
