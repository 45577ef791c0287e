package hostagent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
)

// skewMatters is from where on the server's clock is followed: it takes an
// assertion whose times are up to 30 s off, and tells whole seconds only.
const skewMatters = 10 * time.Second

// errOutcast: the server takes nothing of this host any more.
var errOutcast = errors.New("the server does not know this host's key")

// tries is how often the keys are tried before they count as refused: what lies
// between may have sent an assertion twice, of which the second is refused.
const tries = 2

// fetchToken gets an access token under the first of the host's keys that the
// server takes. An error that is errOutcast says that it takes none, and that no
// clock is to blame.
func (a *api) fetchToken(ctx context.Context) (protocol.TokenResponse, error) {
	var refused error
	for range tries {
		for _, key := range a.id.keys.keys() {
			res, err := a.tokenUnder(ctx, key)
			if err == nil || !isStatus(err, http.StatusUnauthorized) {
				return res, err
			}
			if refused == nil || errors.Is(refused, errOutcast) {
				refused = err // where a clock may be to blame, that is said
			}
		}
	}
	return protocol.TokenResponse{}, refused
}

// renewToken gets a token under one key and uses it from now on.
func (a *api) renewToken(ctx context.Context, key ed25519.PrivateKey) error {
	res, err := a.tokenUnder(ctx, key)
	if err != nil {
		return err
	}
	a.keepToken(res)
	return nil
}

// now is the server's time, where it is known to differ.
func (a *api) now() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wall().Add(a.skew)
}

// tokenUnder gets an access token. A wrong clock of this machine is no hindrance:
// where the server does not take an assertion and its Date says that the clocks
// differ, the next one is signed by the server's clock. (Nothing else here
// depends on the time of day.) The server alone could profit from an assertion
// of another moment, and it has the key's public half anyway.
func (a *api) tokenUnder(ctx context.Context, key ed25519.PrivateKey) (protocol.TokenResponse, error) {
	for again := false; ; again = true {
		a.mu.Lock()
		skew := a.skew
		a.mu.Unlock()
		var res protocol.TokenResponse
		assertion, err := identity.NewAssertion(key, a.id.HostID, a.id.Audience, a.wall().Add(skew))
		if err != nil {
			return res, err
		}
		sent := a.wall()
		date, err := a.askToken(ctx, assertion.Reveal(), &res)
		measured, known := skewOf(date, sent, a.wall())
		if known {
			a.metrics.clock(measured.Seconds())
		}
		if err == nil {
			a.noteUse(key)
		}
		if !isCode(err, protocol.CodeUnauthorised) {
			return res, err
		}
		if known && (measured-skew).Abs() > skewMatters && !again {
			a.follow(measured)
			continue
		}
		if known && measured.Abs() > skewMatters {
			return res, fmt.Errorf("this host's clock is %s the server's and its assertion was refused: set the clock, for example with `timedatectl set-ntp true`: %w", offBy(measured), err)
		}
		return res, fmt.Errorf("%w: was the host revoked, or its state directory copied from another? %w", errOutcast, err)
	}
}

// noteUse has a new key take the old one's place when the server has given a token
// under it.
func (a *api) noteUse(key ed25519.PrivateKey) {
	changed, err := a.id.keys.used(key)
	if changed {
		a.log.Info("the host's key was changed; the old one counts no more", zap.String("key", fingerprint(key)))
	}
	if err != nil {
		a.log.Error("the host's new key lies beside the old one's file still; free space in the state directory or mend its rights", zap.Error(err))
	}
}

// follow has assertions signed by the server's clock from now on. Several calls
// may learn of one jump at once; it is told once.
func (a *api) follow(skew time.Duration) {
	if skew.Abs() <= skewMatters {
		skew = 0
	}
	a.mu.Lock()
	known := (a.skew-skew).Abs() <= skewMatters && (a.skew == 0) == (skew == 0)
	a.skew = skew
	a.mu.Unlock()
	if known {
		return
	}
	if skew == 0 {
		a.log.Info("this host's clock is right again")
		return
	}
	a.log.Warn("this host's clock is "+offBy(skew)+" the server's: signing by the server's; set the clock, for example with `timedatectl set-ntp true`",
		zap.Float64("skew_seconds", skew.Seconds()))
}

// askToken sends an assertion and returns the answer's Date.
func (a *api) askToken(ctx context.Context, assertion string, out *protocol.TokenResponse) (date string, err error) {
	opt := callOptions{anonymous: true, date: &date}
	err = a.once(ctx, http.MethodPost, protocol.PathToken, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: assertion}, out, opt)
	return date, err
}

// skewOf is the server's clock less this machine's, from the Date of an answer
// to a request that went out and came back at these times of this machine's
// clock.
func skewOf(date string, sent, came time.Time) (skew time.Duration, known bool) {
	at, err := http.ParseTime(date)
	if err != nil {
		return 0, false
	}
	return at.Sub(sent.Add(came.Sub(sent) / 2)).Round(time.Second), true
}

// offBy says where this machine's clock is, for people. A Date has seconds, and
// was made somewhere between request and answer.
func offBy(skew time.Duration) string {
	if skew.Abs() >= time.Minute {
		skew = skew.Round(10 * time.Second)
	}
	if skew > 0 {
		return skew.String() + " behind"
	}
	return (-skew).String() + " ahead of"
}
