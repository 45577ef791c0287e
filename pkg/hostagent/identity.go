package hostagent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
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
// host.json, and in the files of a keyring.
type hostIdentity struct {
	HostID   berth.HostID `json:"host_id"`
	Name     string       `json:"name"`
	Server   string       `json:"server"`
	Audience string       `json:"token_audience"`

	keys *keyring
}

// ErrNotEnrolled is that the state directory has no identity and no enrolment
// token was given.
var ErrNotEnrolled = errors.New("this host is not enrolled")

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
	id.keys, err = openKeyring(dir)
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
	// The key is made before, so that a repeated enrolment carries the same one. It
	// never leaves the machine.
	keys, err := openKeyring(dir)
	if err != nil {
		return hostIdentity{}, err
	}
	public, _ := keys.current.Public().(ed25519.PublicKey)
	req := protocol.EnrolRequest{Token: token.Reveal(), Name: name, PublicKey: public}
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
	id := hostIdentity{HostID: res.HostID, Name: name, Server: a.base, Audience: res.TokenAudience, keys: keys}
	b, err := json.Marshal(id)
	if err != nil {
		return hostIdentity{}, err
	}
	return id, writeFile(filepath.Join(dir, "host.json"), b)
}
