package agentapi

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/inputs"
)

// sendIdle bounds the wait until a host took the next bytes of an input.
const sendIdle = 30 * time.Second

// getInput sends an input of an attempt that the host holds, or the range of it
// that the host asks for: a broken-off download goes on where it ended.
func (a *API) getInput(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	service := inputs.New(a.Store, a.Blobs, a.Logger)
	input, content, err := service.OpenForAttempt(c.Request().Context(), call, c.Param("digest"))
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	// Opens the part that is asked for first, so that what is lost is said before
	// the answer begins: of any part, once the download has come to it.
	if _, err := content.Seek(firstByte(c.Request()), io.SeekStart); err != nil {
		return err
	}
	if _, err := content.Read(nil); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, echo.MIMEOctetStream)
	h.Set("ETag", inputs.ETag(input.Digest))
	http.ServeContent(c.Response(), c.Request(), "", time.Time{}, &sent{Content: content, c: c, log: a.Logger, digest: input.Digest})
	return nil
}

// firstByte that a request for the rest of an input asks for; 0 for every other.
func firstByte(r *http.Request) int64 {
	from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if !ok {
		return 0
	}
	if n, ok := number(strings.TrimSuffix(from, "-")); ok {
		return n
	}
	return 0
}

// sent moves the connection's deadline on with each piece, and tells the log
// what the host can no longer be told: its answer has begun.
type sent struct {
	*inputs.Content
	c      echo.Context
	log    *zap.Logger
	digest string
}

// Read implements io.Reader.
func (s *sent) Read(p []byte) (int, error) {
	httpserver.Extend(s.c, sendIdle)
	n, err := s.Content.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && s.c.Request().Context().Err() == nil {
		s.log.Error("an input could not be read to its end", zap.String("digest", s.digest), zap.String("error", err.Error()))
	}
	return n, err
}
