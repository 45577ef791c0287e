package hostagent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
)

// hostIdentity is who this host is to the server: kept in the state directory as
// host.json and host-key.pem, both mode 0600.
type hostIdentity struct {
	HostID   berth.HostID `json:"host_id"`
	Name     string       `json:"name"`
	Server   string       `json:"server"`
	Audience string       `json:"token_audience"`

	key ed25519.PrivateKey
}

// ErrNotEnrolled is that the state directory has no identity and no enrolment
// token was given.
var ErrNotEnrolled = errors.New("this host is not enrolled")

// loadKey reads the host's private key, making one on the first call. The key
// never leaves the machine; it is made before enrolment so that a repeated
// enrolment carries the same one.
func loadKey(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, "host-key.pem")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		return key, writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s is no PEM file: move it away and enrol again", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s holds no Ed25519 key: move it away and enrol again", path)
	}
	return key, nil
}

// loadIdentity reads who the host is; ErrNotEnrolled when it is nobody yet.
func loadIdentity(dir string) (hostIdentity, error) {
	b, err := os.ReadFile(filepath.Join(dir, "host.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return hostIdentity{}, ErrNotEnrolled
	}
	if err != nil {
		return hostIdentity{}, err
	}
	var id hostIdentity
	if err := json.Unmarshal(b, &id); err != nil || !berth.ValidID(string(id.HostID)) {
		return hostIdentity{}, fmt.Errorf("%s is broken: move it away and enrol again", filepath.Join(dir, "host.json"))
	}
	id.key, err = loadKey(dir)
	return id, err
}

// refusedEnrolment is an enrolment's error for who started the agent.
func refusedEnrolment(err error) error {
	var refused *apiError
	if !errors.As(err, &refused) || refused.Remedy == "" {
		return fmt.Errorf("enrolment: %w", err)
	}
	what, remedy := refused.Detail, refused.Remedy
	if len(refused.Errors) > 0 {
		f := refused.Errors[0]
		what, remedy = f.Path+": "+f.Message, f.Remedy
	}
	return &berth.SetupError{What: "the server refused the enrolment: " + strings.TrimRight(what, "."), Remedy: remedy}
}

// enrol makes this machine a host with a one-time token. Repeating it with the
// same key within ten minutes gives the same answer, so a lost one is asked for
// again. What keeps it from an answer is logged at each try: until then nothing
// else tells that the address is wrong.
func enrol(ctx context.Context, a *api, dir, name string, token redact.String, log *zap.Logger) (hostIdentity, error) {
	key, err := loadKey(dir)
	if err != nil {
		return hostIdentity{}, err
	}
	req := protocol.EnrolRequest{Token: token.Reveal(), Name: name, PublicKey: key.Public().(ed25519.PublicKey)}
	var res protocol.EnrolResponse
	err = retry(ctx, func() error {
		err := a.call(ctx, http.MethodPost, protocol.PathEnrol, req, &res, callOptions{anonymous: true})
		if err != nil && !permanent(err) && ctx.Err() == nil {
			log.Warn("enrolment got no answer, will be tried again", zap.Error(err))
		}
		return err
	})
	if err != nil {
		return hostIdentity{}, refusedEnrolment(err)
	}
	id := hostIdentity{HostID: res.HostID, Name: name, Server: a.base, Audience: res.TokenAudience, key: key}
	b, err := json.Marshal(id)
	if err != nil {
		return hostIdentity{}, err
	}
	return id, writeFile(filepath.Join(dir, "host.json"), b)
}
