package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"time"
)

// Fault is a connection that failed for a certificate, in words for those who run
// the two ends.
type Fault struct {
	// What is wrong and Remedy, each a sentence without its end.
	What, Remedy string
	// Err is what the connection said.
	Err error
}

func (f *Fault) Error() string { return f.What + "; " + f.Remedy }

func (f *Fault) Unwrap() error { return f.Err }

// FaultOf tells which certificate a client's connection failed for; nil when it was
// none.
func FaultOf(err error) *Fault {
	var bad *tls.CertificateVerificationError
	var told *net.OpError
	switch {
	case errors.As(err, &bad):
		what, remedy := serverFault(bad.Err)
		return &Fault{What: "the server's certificate is not trusted: " + what, Remedy: remedy, Err: err}
	case errors.As(err, &told) && told.Op == "remote error":
		// An alert, which has no type outside of crypto/tls. Servers say no more.
		for alert, what := range map[string]string{
			"unknown certificate authority": "it is of an authority that the server does not trust",
			"expired certificate":           "it is over, or not valid yet",
			"bad certificate":               "the server does not say why",
			"unsupported certificate":       "it is not for this use",
			"certificate required":          "none was shown",
		} {
			if strings.HasSuffix(told.Err.Error(), alert) {
				return &Fault{
					What:   "the server refuses the client certificate: " + what,
					Remedy: "have one issued by the authority that the server trusts for clients, valid today and with the usage clientAuth", Err: err,
				}
			}
		}
	}
	return nil
}

// maxNames bounds the names of a certificate in an error.
const maxNames = 200

func serverFault(err error) (what, remedy string) {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	switch {
	case errors.As(err, &unknown):
		return "it is of an authority that is not trusted here", "name that authority's certificate (PEM) in BERTH_CA_FILE"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return "it is valid from " + day(invalid.Cert.NotBefore) + " to " + day(invalid.Cert.NotAfter), "have it renewed, or set this machine's clock"
	case errors.As(err, &name):
		text := strings.TrimPrefix(name.Error(), "x509: ")
		if len(text) > maxNames {
			text = text[:maxNames] + "..."
		}
		return text, "use an address that is in the certificate"
	}
	return strings.TrimPrefix(err.Error(), "x509: "), "have another one issued"
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }
