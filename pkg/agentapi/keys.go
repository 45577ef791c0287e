package agentapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// offerKey notes the key that is to follow the host's. Like every call after a
// sync it carries the epoch: of two processes that have one host's state directory
// (a copy), the one that was superseded must not put a key in place that the other
// does not have.
func (a *API) offerKey(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.KeyRequest](c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	under, err := a.Identity.VerifyKeyOffer(ctx, call.Host, identity.KeyOffer{
		Key: req.PublicKey, Consent: redact.NewString(req.Consent), Proof: redact.NewString(req.Proof),
	})
	if err != nil {
		return err
	}
	if err := a.Store.OfferHostKey(ctx, store.OfferHostKeyParams{AgentCall: call, Key: req.PublicKey, Under: under}); err != nil {
		return err
	}
	a.Logger.Info("host offered a new key", zap.String("host_id", string(call.Host)), zap.String("key", berth.KeyFingerprint(req.PublicKey)))
	return c.JSON(http.StatusOK, struct{}{})
}
