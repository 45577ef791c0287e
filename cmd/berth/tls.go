package main

import (
	"crypto/tls"
	"errors"
	"net/http"

	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// trustRemedy is what to do about a server whose certificate is not trusted.
const trustRemedy = "name the authority's certificate (PEM) in BERTH_CA_FILE, and the server by a name in its certificate"

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

// untrusted reports whether a request failed because of the server's certificate.
func untrusted(err error) bool {
	var bad *tls.CertificateVerificationError
	return errors.As(err, &bad)
}

// certFault is the fault of the certificate.
func certFault(err error) string {
	var bad *tls.CertificateVerificationError
	if errors.As(err, &bad) {
		return bad.Err.Error()
	}
	return err.Error()
}
