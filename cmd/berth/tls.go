package main

import (
	"errors"
	"net/http"

	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// http is the client for all requests. BERTH_CA_FILE names the only authorities that
// are trusted.
func (c *cli) http() (*http.Client, error) {
	secure, err := tlsfiles.Client{CAFile: c.env["BERTH_CA_FILE"]}.Config(nil)
	if err != nil {
		return nil, &usageError{what: "BERTH_CA_FILE: " + err.Error(), remedy: "name a PEM file with the certificate of the authority that signed the server's"}
	}
	if secure == nil {
		return &http.Client{}, nil
	}
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("the transport is another one")
	}
	t = t.Clone()
	t.TLSClientConfig = secure
	return &http.Client{Transport: t}, nil
}
