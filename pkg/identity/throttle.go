package identity

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// throttle slows down those who guess passwords, for all processes together;
// berth.LoginCounts has the rule.
type throttle struct {
	guesses store.Guesses
	master  MasterKey
}

// throttleKey is an attempt under a name from a client's address.
type throttleKey struct{ name, client string }

// begin counts the attempt as failed, and refuses it while waiting is asked
// (berth.TooManyError); a success takes the count back ([throttle.succeeded]).
func (t *throttle) begin(ctx context.Context, k throttleKey) error {
	name, err := t.hash(k.name)
	if err != nil {
		return err
	}
	return t.guesses.CountLogin(ctx, name, network(k.client))
}

// succeeded takes the failure back, and remembers that the client knows the
// password.
func (t *throttle) succeeded(ctx context.Context, k throttleKey) error {
	name, err := t.hash(k.name)
	if err != nil {
		return err
	}
	return t.guesses.ForgetLogins(ctx, name, network(k.client))
}

// hash is under a key: people type passwords into the field of the name. Under
// another master key the counts begin anew.
func (t *throttle) hash(name string) ([32]byte, error) { return t.master.derive("login name", name) }

// network is what stands for a client; never empty.
func network(client string) string {
	if n, ok := berth.ClientNetwork(client); ok {
		return n
	}
	return "client " + client
}
