package main

import (
	"io"
	"regexp"
	"unicode"
	"unicode/utf8"
)

// screen is where bytes go that others wrote and that are not made printable one
// by one: a log. On a terminal it shows text, line ends and colours, and '?' in
// the place of every other control sequence: those could fill the clipboard,
// rename the window, have the terminal answer, or draw over what was there. A
// pipe or a file gets every byte.
func (c *cli) screen() io.WriteCloser {
	if terminal(c.stdout) {
		return &screen{w: c.stdout}
	}
	return whole{c.stdout}
}

type whole struct{ io.Writer }

func (whole) Close() error { return nil }

type screen struct {
	w        io.Writer
	held     []byte // the beginning of a character or of a colour
	coloured bool
}

// maxColour bounds the sequences that are waited for.
const maxColour = 32

var (
	colourSequence = regexp.MustCompile(`^\x1b\[[0-9;:]*m`)
	colourBegin    = regexp.MustCompile(`^\x1b(\[[0-9;:]*)?$`)
)

// Write shows p and takes all of it.
func (s *screen) Write(p []byte) (int, error) {
	s.held = append(s.held, p...)
	return len(p), s.show(false)
}

// Close shows what is held and ends the colours.
func (s *screen) Close() error {
	err := s.show(true)
	if err == nil && s.coloured {
		_, err = io.WriteString(s.w, "\x1b[0m")
	}
	return err
}

func (s *screen) show(all bool) error {
	var out []byte
	in := s.held
	for len(in) > 0 {
		if in[0] == 0x1b {
			if colour := colourSequence.Find(in); colour != nil {
				s.coloured = true
				out, in = append(out, colour...), in[len(colour):]
				continue
			}
			if !all && len(in) < maxColour && colourBegin.Match(in) {
				break
			}
		}
		if !all && !utf8.FullRune(in) {
			break
		}
		r, n := utf8.DecodeRune(in)
		if moves(r) && r != '\n' && r != '\t' && r != '\r' || r == utf8.RuneError && n == 1 {
			r = '?'
		}
		out, in = utf8.AppendRune(out, r), in[n:]
	}
	s.held = append(s.held[:0], in...)
	if len(out) == 0 {
		return nil
	}
	_, err := s.w.Write(out)
	return err
}

// moves reports whether a character moves the cursor, begins a control sequence,
// or turns the direction of text round.
func moves(r rune) bool { return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Bidi_Control, r) }
