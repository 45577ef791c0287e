package environment

import (
	"errors"
	"flag"
	"io"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
)

// ParseFlags parses a program's flags. Asked for help it prints the lead, the
// flags, and what after prints, to out, and returns flag.ErrHelp. A fault is one
// sentence, a berth.InvalidError: the list of all flags would hide it.
func ParseFlags(fs *flag.FlagSet, args []string, out io.Writer, lead string, after func()) error {
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	err := fs.Parse(args)
	if err == nil {
		return nil
	}
	if !errors.Is(err, flag.ErrHelp) {
		return berth.Invalid("flags", flagFault(err), fs.Name()+" -h lists them")
	}
	fs.SetOutput(out)
	_, _ = io.WriteString(out, lead+"\n") // help that cannot be printed helps nobody
	fs.PrintDefaults()
	after()
	return err
}

// flagFault is package flag's text, as Berth says it.
func flagFault(err error) string {
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: "); ok {
		return berth.Clip(name, 60) + " is no flag"
	}
	return strings.TrimSuffix(err.Error(), ": parse error")
}
