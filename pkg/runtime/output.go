package runtime

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/redact"
)

// artifactPattern is what a control plane takes as an artifact's name.
var artifactPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$`)

// output is the Out of a run: files in its directory, and the caller's Sink.
type output struct {
	limits Limits
	sink   Sink
	dir    string
	masker redact.Masker

	mu       sync.Mutex
	closed   bool
	logFile  *os.File
	logSize  int64
	dropped  int64
	full     bool // some of it was dropped because the disk is full
	mask     io.WriteCloser
	names    map[string]bool
	finished []Artifact
}

func newOutput(req RunRequest, limits Limits) (*output, error) {
	if err := os.MkdirAll(filepath.Join(req.Dir, "artifacts"), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(req.Dir, "log"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	o := &output{limits: limits, sink: req.Sink, dir: req.Dir, masker: req.Secrets.Masker(), logFile: f, names: map[string]bool{}}
	if o.sink == nil {
		o.sink = Discard{}
	}
	o.mask = o.masker.Writer(logTail{o})
	return o, nil
}

// Progress implements Out.
func (o *output) Progress(fraction float64, message string) {
	fraction = min(max(fraction, 0), 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.sink.Progress(fraction, o.masker.Mask(message))
	}
}

// Log implements Out.
func (o *output) Log() io.Writer { return logHead{o} }

// logHead takes the plugin's writes, before masking.
type logHead struct{ o *output }

func (l logHead) Write(p []byte) (int, error) {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if !l.o.closed {
		_, _ = l.o.mask.Write(p)
	}
	return len(p), nil
}

// logTail takes what is masked; o.mu is held.
type logTail struct{ o *output }

func (l logTail) Write(p []byte) (int, error) {
	o := l.o
	keep := p
	if room := o.limits.LogBytes - o.logSize; int64(len(keep)) > room {
		keep = keep[:max(room, 0)]
	}
	o.dropped += int64(len(p) - len(keep))
	o.append(keep)
	return len(p), nil
}

func (o *output) append(p []byte) {
	if len(p) == 0 {
		return
	}
	n, err := o.logFile.Write(p)
	if n > 0 {
		o.sink.Log(o.logSize, redact.NewBytes(bytes.Clone(p[:n])))
		o.logSize += int64(n)
	}
	if err != nil {
		o.dropped += int64(len(p) - n)
		o.full = o.full || isFull(err)
	}
}

// Artifact implements Out.
func (o *output) Artifact(name string, class ArtifactClass, contentType string) (io.WriteCloser, error) {
	refuse := func(why string) (io.WriteCloser, error) {
		return nil, &ActionError{Code: CodeArtifactLimit, Message: why}
	}
	if !artifactPattern.MatchString(name) {
		return refuse("an artifact's name must be 1 to 120 letters, digits, '.', '_' or '-', beginning with a letter or digit")
	}
	// Names are in lists, logs and the audit trail.
	if o.masker.Mask(name) != name {
		return refuse("an artifact's name must not hold the value of a secret")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return refuse("the run has ended")
	case o.names[name]:
		return refuse("the run has an artifact of that name already")
	case len(o.names) >= o.limits.Artifacts:
		return refuse(fmt.Sprintf("a run may leave at most %d artifacts", o.limits.Artifacts))
	}
	a := Artifact{Name: name, Class: class, ContentType: contentType, Path: filepath.Join(o.dir, "artifacts", name)}
	f, err := os.OpenFile(a.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, storing(err, "the artifact's file could not be created")
	}
	o.names[name] = true
	return &artifactWriter{o: o, a: a, f: f, sum: sha256.New()}, nil
}

// artifactWriter masks secrets in artifacts that are texts: whether one is tells
// its first write.
type artifactWriter struct {
	o      *output
	a      Artifact
	f      *os.File
	sum    hash.Hash
	masked io.WriteCloser // nil: not a text, or nothing written yet
	begun  bool
	failed error
	closed bool
}

func (w *artifactWriter) Write(p []byte) (int, error) {
	if !w.begun && len(p) > 0 {
		w.begun = true
		if !w.o.masker.IsZero() && isText(w.a.ContentType, p) {
			w.masked = w.o.masker.Writer(artifactTail{w})
		}
	}
	if w.masked == nil {
		return w.store(p)
	}
	if _, err := w.masked.Write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// artifactTail takes what is masked.
type artifactTail struct{ w *artifactWriter }

func (t artifactTail) Write(p []byte) (int, error) { return t.w.store(p) }

// isText reports whether secrets may be masked in an artifact without breaking
// it: it says that it is a text, or it begins like one.
func isText(contentType string, begin []byte) bool {
	kind, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	kind = strings.TrimSpace(kind)
	if strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "/xml") ||
		strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") {
		return true
	}
	const look = 1024
	cut := begin[:min(len(begin), look)]
	if bytes.IndexByte(cut, 0) >= 0 {
		return false
	}
	for len(cut) > 0 {
		r, size := utf8.DecodeRune(cut)
		if r == utf8.RuneError && size == 1 && len(cut) >= utf8.UTFMax {
			return false // a rune that the end cuts is no fault
		}
		cut = cut[size:]
	}
	return true
}

func (w *artifactWriter) store(p []byte) (int, error) {
	if w.failed != nil {
		return 0, w.failed
	}
	if w.a.Size+int64(len(p)) > w.o.limits.ArtifactBytes {
		w.failed = &ActionError{Code: CodeArtifactLimit, Message: fmt.Sprintf("an artifact may have at most %d bytes", w.o.limits.ArtifactBytes)}
		return 0, w.failed
	}
	n, err := w.f.Write(p)
	w.sum.Write(p[:n])
	w.a.Size += int64(n)
	if err != nil {
		w.failed = storing(err, "the artifact's file could not be written")
		return n, w.failed
	}
	return n, nil
}

// Close completes the artifact, or removes it when a write failed.
func (w *artifactWriter) Close() error {
	if w.closed {
		return w.failed
	}
	w.closed = true
	if w.masked != nil {
		_ = w.masked.Close() // a fault is kept in failed
	}
	if err := w.f.Close(); err != nil && w.failed == nil {
		w.failed = storing(err, "the artifact's file could not be written")
	}
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	if w.failed == nil && w.o.closed {
		w.failed = &ActionError{Code: CodeArtifactLimit, Message: "the run has ended"}
	}
	if w.failed != nil {
		delete(w.o.names, w.a.Name)
		_ = os.Remove(w.a.Path)
		return w.failed
	}
	w.a.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	w.o.finished = append(w.o.finished, w.a)
	w.o.sink.Artifact(w.a)
	return nil
}

// storing is the failure to keep something that the work left.
func storing(err error, what string) error {
	if full := DiskFull(err); full != nil {
		return full
	}
	return &ActionError{Code: CodeInternal, Message: what, Err: err}
}

// close ends the output without a result.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	_ = o.logFile.Close()
}

// finish completes the log and fills in what the Runtime knows.
func (o *output) finish(res *Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.mask.Close()
	switch {
	case o.full:
		o.append([]byte(fmt.Sprintf("\n[the host's disk is full: %d bytes dropped]\n", o.dropped)))
	case o.dropped > 0:
		o.append([]byte(fmt.Sprintf("\n[log limit reached: %d bytes dropped]\n", o.dropped)))
	}
	o.closed = true
	if err := o.logFile.Close(); err != nil && res.Outcome == OutcomeSucceeded {
		res.Outcome, res.Reason, res.Message = OutcomeInfraFailed, CodeInternal, "the log could not be stored"
	}
	res.Artifacts = o.finished
	res.LogPath, res.LogSize = o.logFile.Name(), o.logSize
	res.JSON = maskJSON(res.JSON, o.masker)
	res.Message = o.masker.Mask(res.Message)
	if reason := string(res.Reason); o.masker.Mask(reason) != reason {
		res.Reason = CodeInternal // it is logged, counted and put on record
	}
}

// maskJSON masks secrets in every text and number of a JSON document, names
// included. Masking the encoded form would miss values that JSON escapes.
func maskJSON(doc redact.Bytes, m redact.Masker) redact.Bytes {
	if doc.IsZero() || m.IsZero() {
		return doc
	}
	dec := json.NewDecoder(bytes.NewReader(doc.Reveal()))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return redact.Bytes{}
	}
	return Object(maskValue(v, m))
}

func maskValue(v any, m redact.Masker) any {
	switch v := v.(type) {
	case string:
		return m.Mask(v)
	case json.Number: // a PIN that a page shows, read as a number
		if text := m.Mask(v.String()); text != v.String() {
			return text
		}
	case []any:
		for i := range v {
			v[i] = maskValue(v[i], m)
		}
		return v
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[m.Mask(k)] = maskValue(e, m)
		}
		return out
	}
	return v
}

// Mask replaces secrets in the texts of the tree, in place.
func (n *UINode) Mask(secrets redact.Strings) { n.mask(secrets.Masker()) }

func (n *UINode) mask(m redact.Masker) {
	if n == nil || m.IsZero() {
		return
	}
	n.Role, n.Name, n.Value = m.Mask(n.Role), m.Mask(n.Name), m.Mask(n.Value)
	for _, c := range n.Children {
		c.mask(m)
	}
}

// framesOnly keeps the places of a stack trace and drops the first line and the
// arguments, which may hold content.
func framesOnly(stack []byte) []byte {
	var out []byte
	for _, line := range bytes.Split(stack, []byte("\n")) {
		if bytes.HasPrefix(line, []byte("\t")) {
			out = append(append(out, bytes.TrimSpace(line)...), '\n')
		}
	}
	return out
}
