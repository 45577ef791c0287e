// Package tlsfiles makes TLS configurations of files: certificates, keys and the
// certificates of authorities in PEM. Where the files change (a renewed certificate),
// what is new counts for the next connection; where they cannot be read any more,
// what was read last goes on to count.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// lookEvery is how often files are looked at, at most.
const lookEvery = time.Second

// Server is what a server is secured with.
type Server struct {
	// CertFile has its certificate and those between it and the authority's, KeyFile
	// its private key.
	CertFile, KeyFile string
	// ClientCAFile has the authorities whose certificates clients may show; "": none is
	// asked for. A client that shows one must show a good one; whether it has to
	// is for the handler to say.
	ClientCAFile string
}

// Config reads the files. OnError, which may be nil, is told once of each reason for
// which a change of them could not be read.
func (s Server) Config(onError func(error)) (*tls.Config, error) {
	pair, err := watch(onError, func() (*tls.Certificate, error) { return loadPair(s.CertFile, s.KeyFile) }, s.CertFile, s.KeyFile)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get(), nil },
	}
	if s.ClientCAFile == "" {
		return c, nil
	}
	pool, err := watch(onError, func() (*x509.CertPool, error) { return loadPool(s.ClientCAFile) }, s.ClientCAFile)
	if err != nil {
		return nil, err
	}
	c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, pool.get()
	// A session that is resumed would be one under authorities that may have changed.
	c.SessionTicketsDisabled = true
	fixed := c.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := fixed.Clone()
		now.ClientCAs = pool.get()
		return now, nil
	}
	return c, nil
}

// Client is what a client is secured with.
type Client struct {
	// CAFile has the only authorities that are trusted; "": the system's.
	CAFile string
	// CertFile and KeyFile are the client's own; "": it has none.
	CertFile, KeyFile string
}

// Config reads the files; nil when none is named.
func (c Client) Config(onError func(error)) (*tls.Config, error) {
	if c == (Client{}) {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pool, err := loadPool(c.CAFile)
		if err != nil {
			return nil, err
		}
		out.RootCAs = pool
	}
	switch {
	case c.CertFile == "" && c.KeyFile == "":
		return out, nil
	case c.CertFile == "" || c.KeyFile == "":
		return nil, errors.New("a certificate and its key belong together: name both files")
	}
	pair, err := watch(onError, func() (*tls.Certificate, error) { return loadPair(c.CertFile, c.KeyFile) }, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.get(), nil }
	return out, nil
}

func loadPair(certFile, keyFile string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s and key %s: %w", certFile, keyFile, withoutPath(err))
	}
	return &pair, nil
}

func loadPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("authorities %s: %w", file, withoutPath(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authorities %s: there is no certificate in PEM in it", file)
	}
	return pool, nil
}

// withoutPath leaves out a path that is named already.
func withoutPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// watched is what was read of files, read again when they change.
type watched[T any] struct {
	files   []string
	load    func() (T, error)
	onError func(error)

	mu     sync.Mutex
	value  T
	stamp  string
	looked time.Time
	failed string
}

func watch[T any](onError func(error), load func() (T, error), files ...string) (*watched[T], error) {
	w := &watched[T]{files: files, load: load, onError: onError, stamp: stampOf(files), looked: time.Now()}
	var err error
	w.value, err = load()
	return w, err
}

func (w *watched[T]) get() T {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.looked) < lookEvery {
		return w.value
	}
	w.looked = time.Now()
	stamp := stampOf(w.files)
	if stamp == w.stamp {
		return w.value
	}
	value, err := w.load()
	if err != nil { // half written, say: the next look may find it whole
		if w.onError != nil && err.Error() != w.failed {
			w.failed = err.Error()
			w.onError(err)
		}
		return w.value
	}
	w.value, w.stamp, w.failed = value, stamp, ""
	return w.value
}

// stampOf tells whether files changed.
func stampOf(files []string) string {
	s := ""
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			s += fmt.Sprintf("%d %d\n", st.ModTime().UnixNano(), st.Size())
		} else {
			s += "none\n"
		}
	}
	return s
}
