package config

import (
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// TLS secures the API's public address. Without files it speaks plain HTTP, for
// behind a proxy or on one machine.
type TLS struct {
	CertFile string `env:"BERTH_TLS_CERT_FILE" about:"PEM file with the certificate of the public address, and those up to its authority"`
	KeyFile  string `env:"BERTH_TLS_KEY_FILE" about:"PEM file with its private key"`
	// AgentClientCA: Host Agents must show a certificate of these authorities.
	AgentClientCA string `env:"BERTH_AGENT_CLIENT_CA_FILE" about:"PEM file with the authorities of Host Agents' client certificates; set, agents must show one"`
}

// On reports whether the public address speaks TLS.
func (t TLS) On() bool { return t.CertFile != "" }

// Files are what pkg/tlsfiles reads.
func (t TLS) Files() tlsfiles.Server {
	return tlsfiles.Server{CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.AgentClientCA}
}

func (t TLS) validate(agent bool, f *berth.Faults) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		f.Add("BERTH_TLS_CERT_FILE, BERTH_TLS_KEY_FILE", "a certificate and its key belong together", "set both, or none for plain HTTP")
		return
	}
	if !t.On() {
		if t.AgentClientCA != "" {
			f.Add("BERTH_AGENT_CLIENT_CA_FILE", "client certificates need TLS", "set BERTH_TLS_CERT_FILE and BERTH_TLS_KEY_FILE, or have the proxy that speaks TLS ask for them")
		}
		return
	}
	if agent {
		f.Add("BERTH_WORKERS", "the worker agent speaks plain HTTP to its own process", "leave it out, and run a hostagent beside the API")
	}
	if _, err := t.Files().Config(nil); err != nil {
		f.Add("BERTH_TLS_CERT_FILE", err.Error(), "check the files' paths, rights and contents")
	}
}
