package config

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpserver"
)

// HTTP says what one API process takes from its clients. Limits count by process.
type HTTP struct {
	// CORSOrigins are other sites whose pages may call the API.
	CORSOrigins []string `env:"BERTH_CORS_ORIGINS" about:"origins of other sites whose pages may call the API, joined by commas, each as https://host"`
	// ServerNames are names by which a proxy on this machine may ask for a server
	// that listens on loopback.
	ServerNames []string `env:"BERTH_SERVER_NAMES" about:"names beside localhost under which an API that listens on loopback may be asked"`
	// PrincipalRate and AddressRate are requests a second; 0: no limit.
	PrincipalRate int `env:"BERTH_PRINCIPAL_RATE" envDefault:"500" about:"requests a second that a user may send to a process, four times as many at once; 0: no limit"`
	AddressRate   int `env:"BERTH_ADDRESS_RATE" envDefault:"1000" about:"the same for a client's address"`
	// MaxStreams is how many waits, followed logs and downloads a user may have
	// open at a time; 0: no limit.
	MaxStreams int `env:"BERTH_MAX_STREAMS" envDefault:"500" about:"waits, followed logs and downloads that a user may have open in a process; 0: no limit"`
	// MaxConns bounds the open connections; 0: by the limit of open files.
	MaxConns int `env:"BERTH_MAX_CONNECTIONS" envDefault:"0" about:"open connections of a process; when there are more, idle ones are closed; 0: three quarters of the open files it may have, at most 16384"`
}

func (c HTTP) validate(f *berth.Faults) {
	for _, origin := range c.CORSOrigins {
		if !httpserver.ValidOrigin(origin) {
			f.Add("BERTH_CORS_ORIGINS", fmt.Sprintf("%q is no origin", berth.Clip(origin, 60)), "write each as https://host or https://host:port, in small letters, without a path and without *")
		}
	}
	for _, name := range c.ServerNames {
		if name == "" || name != strings.ToLower(name) || strings.ContainsAny(name, ":/*") {
			f.Add("BERTH_SERVER_NAMES", fmt.Sprintf("%q is no host name", berth.Clip(name, 60)), "write each as berth.example.com")
		}
	}
	for variable, n := range map[string]int{
		"BERTH_PRINCIPAL_RATE": c.PrincipalRate, "BERTH_ADDRESS_RATE": c.AddressRate, "BERTH_MAX_STREAMS": c.MaxStreams,
	} {
		if n < 0 {
			f.Add(variable, fmt.Sprintf("%d is no limit", n), "use a number above 0, or 0 for none")
		}
	}
	if c.MaxConns < 0 || c.MaxConns > 0 && c.MaxConns < minConns {
		f.Add("BERTH_MAX_CONNECTIONS", fmt.Sprintf("%d is out of range", c.MaxConns), fmt.Sprintf("use %d or more, or 0 for a limit by the open files", minConns))
	}
}

// minConns is enough for a few agents, a proxy and a person.
const minConns = 16
