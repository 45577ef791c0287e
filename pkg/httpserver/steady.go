package httpserver

import (
	"io"
	"time"

	"github.com/labstack/echo/v4"
)

// steadyBytes must come in each span of a steady body: slower ones hold a
// connection and a file for nothing.
const steadyBytes = 16 << 10

// Steady reads a body for as long as it comes on: the client may take span for
// each 16 KiB, so that a large upload may take long, and one that trickles ends.
// What the server does with the bytes, between two reads and after the last, is no
// time of the client's: until within has passed since, its answer can be written.
// within is to be no less than the handler's own bound.
func Steady(c echo.Context, body io.Reader, span, within time.Duration) io.Reader {
	return &steady{c: c, body: body, span: span, within: within}
}

type steady struct {
	c            echo.Context
	body         io.Reader
	span, within time.Duration
	left         int           // bytes until the client has a whole span again
	spent        time.Duration // of the span, waiting for the client
}

func (s *steady) Read(b []byte) (int, error) {
	if s.left <= 0 {
		s.left, s.spent = steadyBytes, 0
	}
	began := time.Now()
	Extend(s.c, s.span-s.spent)
	n, err := s.body.Read(b)
	s.spent += time.Since(began)
	s.left -= n
	Extend(s.c, s.within)
	return n, err
}
