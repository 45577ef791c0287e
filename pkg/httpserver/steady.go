package httpserver

import (
	"errors"
	"io"
	"time"

	"github.com/labstack/echo/v4"
)

// steadyBytes must come in each span of a steady body: slower ones hold a
// connection and a file for nothing.
const steadyBytes = 16 << 10

// Steady reads a body for as long as it comes on: the server's time-outs are set
// anew whenever another 16 KiB have come, so that a large upload may take long,
// and one that trickles ends after the span.
func Steady(c echo.Context, body io.Reader, span time.Duration) io.Reader {
	return &steady{c: c, body: body, span: span}
}

type steady struct {
	c    echo.Context
	body io.Reader
	span time.Duration
	left int // bytes until the time-outs are set anew
}

func (s *steady) Read(b []byte) (int, error) {
	if s.left <= 0 {
		Extend(s.c, s.span)
		s.left = steadyBytes
	}
	n, err := s.body.Read(b)
	s.left -= n
	if errors.Is(err, io.EOF) {
		Extend(s.c, s.span) // for what is done with it, and the answer
	}
	return n, err
}
