package agentapi_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/tlsfiles"
	"github.com/berth-dev/berth/pkg/tlsfiles/tlstest"
)

// through is an HTTP client on these files.
func through(t *testing.T, files tlsfiles.Client, change ...func(*tls.Config)) *http.Client {
	t.Helper()
	c, err := files.Config(nil)
	must(t, err)
	for _, f := range change {
		f(c)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true, DisableKeepAlives: true}, Timeout: within}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func ask(t *testing.T, c *http.Client, url string) (status int, body string, serial *big.Int, err error) {
	t.Helper()
	res, err := c.Post(url, "application/json", strings.NewReader("{}")) //nolint:noctx // the client has a time-out
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(b), res.TLS.PeerCertificates[0].SerialNumber, nil
}

// The agents' routes take nobody without a good client certificate, the others ask
// for none; a server that the client's authority does not vouch for gets nothing; and
// a renewed certificate counts without a restart.
func TestMutualTLS(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		must(t, w.stop())
		servers, agents, strangers := tlstest.New(t), tlstest.New(t), tlstest.New(t)
		cert, key := servers.Sign("server", tlstest.Server)
		files := tlsfiles.Server{CertFile: cert, KeyFile: key, ClientCAFile: agents.File}
		var err error
		w.secure, err = files.Config(func(err error) { t.Error(err) })
		must(t, err)
		w.serve()
		good, goodKey := agents.Sign("agent")
		with := func(ca *tlstest.Authority, certFile, keyFile string, change ...func(*tls.Config)) *http.Client {
			return through(t, tlsfiles.Client{CAFile: ca.File, CertFile: certFile, KeyFile: keyFile}, change...)
		}
		// The handler of a call without a token refuses it: it was let through.
		if status, body, _, err := ask(t, with(servers, good, goodKey), w.url+protocol.PathSync); err != nil || status != 401 {
			t.Fatalf("a good certificate: %d %s %v", status, body, err)
		}
		without := with(servers, "", "")
		for _, path := range []string{protocol.PathSync, protocol.PathEnrol, protocol.PathToken, protocol.PathKeys} {
			if status, body, _, err := ask(t, without, w.url+path); err != nil || status != 403 || !strings.Contains(body, protocol.CodeClientCertificate) {
				t.Errorf("%s without a certificate: %d %s %v", path, status, body, err)
			}
		}
		if status, _, _, err := ask(t, without, w.url+"/api/v1/nothing"); err != nil || status != 404 {
			t.Errorf("a public route without a certificate: %d %v", status, err)
		}
		_, _, _, err = ask(t, with(strangers, good, goodKey), w.url+protocol.PathSync)
		if bad := (*tls.CertificateVerificationError)(nil); !errors.As(err, &bad) {
			t.Errorf("a server of another authority: %v", err)
		}
		for name, c := range map[string]func() (string, string){
			"of another authority": func() (string, string) { return strangers.Sign("agent") },
			"that is over":         func() (string, string) { return agents.Sign("late", tlstest.Over) },
			"of a server":          func() (string, string) { return agents.Sign("server", tlstest.Server) },
			"for any other use": func() (string, string) {
				return agents.Sign("mail", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection} })
			},
		} {
			certFile, keyFile := c()
			if status, body, _, err := ask(t, with(servers, certFile, keyFile), w.url+protocol.PathSync); err == nil {
				t.Errorf("a client certificate %s: %d %s", name, status, body)
			}
		}
		if _, _, _, err := ask(t, with(servers, good, goodKey, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }), w.url+protocol.PathSync); err == nil {
			t.Error("TLS 1.1 is spoken")
		}
		// A certificate that is renewed, and then one that is over.
		_, _, before, err := ask(t, without, w.url+protocol.PathSync)
		must(t, err)
		servers.Sign("server", tlstest.Server)
		await := time.Now().Add(within)
		for {
			_, _, now, err := ask(t, without, w.url+protocol.PathSync)
			must(t, err)
			if now.Cmp(before) != 0 {
				break
			}
			if time.Now().After(await) {
				t.Fatal("the renewed certificate is not shown")
			}
		}
		servers.Sign("server", tlstest.Server, tlstest.Over)
		for {
			if _, _, _, err := ask(t, without, w.url+protocol.PathSync); err != nil {
				if bad := (*tls.CertificateVerificationError)(nil); !errors.As(err, &bad) {
					t.Errorf("a server whose certificate is over: %v", err)
				}
				return
			}
			if time.Now().After(await) {
				t.Fatal("a certificate that is over is taken")
			}
		}
	})
}

func TestFilesThatAreNoneAreNamed(t *testing.T) {
	a := tlstest.New(t)
	cert, key := a.Sign("x", tlstest.Server)
	empty := filepath.Join(t.TempDir(), uuid.NewString())
	must(t, os.WriteFile(empty, nil, 0o600))
	for name, load := range map[string]func() error{
		"a missing key": func() error { _, err := tlsfiles.Server{CertFile: cert, KeyFile: empty + "x"}.Config(nil); return err },
		"a key of another": func() error {
			_, err := tlsfiles.Server{CertFile: cert, KeyFile: strings.Replace(key, "x.", "ca.", 1)}.Config(nil)
			return err
		},
		"no authority in it":   func() error { _, err := tlsfiles.Client{CAFile: empty}.Config(nil); return err },
		"a key without a cert": func() error { _, err := tlsfiles.Client{KeyFile: key}.Config(nil); return err },
	} {
		if err := load(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
