package hostagent

import (
	"time"

	"github.com/berth-dev/berth/pkg/identity"
)

// signAssertion makes the RFC 7523 assertion that proves who this host is.
func signAssertion(id hostIdentity) (string, error) {
	t, err := identity.NewAssertion(id.key, id.HostID, id.Audience, time.Now())
	if err != nil {
		return "", err
	}
	return t.Reveal(), nil
}
