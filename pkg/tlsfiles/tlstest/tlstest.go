// Package tlstest gives tests authorities that sign real certificates into files.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates into files of a folder.
type Authority struct {
	// File has its own certificate.
	File string

	tb   testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority with a folder of its own.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, dir: tb.TempDir()}
	a.File, _ = a.Sign("ca", func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	})
	return a
}

// Sign makes a key and a certificate, changed by change, and returns their files;
// those of an earlier one of that name it replaces. Unless changed it is a client's,
// from an hour ago until in an hour, for 127.0.0.1.
func (a *Authority) Sign(name string, change ...func(*x509.Certificate)) (certFile, keyFile string) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	a.must(err)
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	for _, f := range change {
		f(c)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	a.must(err)
	if a.cert == nil {
		a.cert, err = x509.ParseCertificate(der)
		a.must(err)
		a.key = key
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	a.must(err)
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	a.write(keyFile, "PRIVATE KEY", keyDER)
	a.write(certFile, "CERTIFICATE", der)
	return certFile, keyFile
}

func (a *Authority) write(path, kind string, der []byte) {
	a.tb.Helper()
	a.must(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func (a *Authority) must(err error) {
	a.tb.Helper()
	if err != nil {
		a.tb.Fatal(err)
	}
}

// Server makes a certificate one of a server.
func Server(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }

// Over makes a certificate one that is over.
func Over(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
}

// Until makes a certificate end at a time.
func Until(end time.Time) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotAfter = end }
}

// Elsewhere makes a certificate one for another address.
func Elsewhere(c *x509.Certificate) {
	c.IPAddresses, c.DNSNames = nil, []string{"berth.example.com"}
}
