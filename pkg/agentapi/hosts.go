package agentapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func newID[T ~string]() T { return T(uuid.Must(uuid.NewV7()).String()) }

// enrol lets a new host in with a one-time token.
func (a *API) enrol(c echo.Context) error {
	req, err := read[protocol.EnrolRequest](c)
	if err != nil {
		return err
	}
	var f berth.Faults
	if req.Token == "" || len(req.Token) > 256 {
		f.Add("token", "it is no enrolment token", "make one with: berth host enrol")
	}
	if !berth.ValidName(req.Name) {
		f.Add("name", "it is no name", "use lower-case letters, digits, dots, hyphens and underscores, at most 63")
	}
	if !identity.SoundHostKey(req.PublicKey) {
		f.Add("public_key", "it is no sound Ed25519 public key", "send the 32 bytes of a generated key in base64")
	}
	if err := f.Err(); err != nil {
		return err
	}
	id := newID[berth.HostID]()
	host, err := a.Store.Enrol(c.Request().Context(), store.EnrolParams{
		Actor:     enrolling(c, id),
		TokenHash: identity.HashEnrolmentToken(redact.NewString(req.Token)),
		Host:      id, Name: req.Name, PublicKey: req.PublicKey,
	})
	if errors.Is(err, berth.ErrNotFound) {
		return &problem.Error{
			Status: http.StatusNotFound, Code: protocol.CodeNotFound, Title: "Not found",
			Detail: "There is no such enrolment token.", Remedy: "Copy it whole, or make one with: berth host enrol", Err: err,
		}
	}
	if err != nil {
		return err
	}
	a.Logger.Info("host enrolled", zap.String("host_id", string(host.ID)), zap.String("pool_id", string(host.Pool)))
	return c.JSON(http.StatusOK, protocol.EnrolResponse{
		HostID: host.ID, Pool: host.PoolName, TokenAudience: a.Identity.TokenAudience(),
	})
}

// from is where a call came from whose caller is not known yet.
func from(c echo.Context) berth.Actor {
	return berth.Actor{RequestID: httpserver.RequestID(c), Client: c.RealIP()}
}

// enrolling is a host that is about to be one.
func enrolling(c echo.Context, id berth.HostID) berth.Actor {
	actor := from(c)
	actor.Principal, actor.Credential = berth.Principal{Kind: berth.ActorHost, ID: string(id)}, "enrolment-token"
	return actor
}

// token gives an access token for a signed assertion.
func (a *API) token(c echo.Context) error {
	req, err := read[protocol.TokenRequest](c)
	if err != nil {
		return err
	}
	if req.GrantType != protocol.GrantJWTBearer {
		return berth.Invalid("grant_type", "it is not understood", "use "+protocol.GrantJWTBearer)
	}
	t, err := a.Identity.HostToken(c.Request().Context(), from(c), redact.NewString(req.Assertion))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, protocol.TokenResponse{
		AccessToken: t.Access.Reveal(), TokenType: "Bearer", ExpiresIn: int(t.ExpiresIn.Seconds()),
	})
}

// sync settles what the agent and the server think of each other.
func (a *API) sync(c echo.Context) error {
	call, err := callerWithoutEpoch(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.SyncRequest](c)
	if err != nil {
		return err
	}
	version, err := negotiate(req.ProtocolVersions)
	if err != nil {
		return err
	}
	if err := checkSync(req); err != nil {
		return err
	}
	call.Epoch = reported(req.Epoch)
	res, err := a.Store.SyncHost(c.Request().Context(), a.syncParams(call, version, req))
	a.log(res.Transitions)
	if err != nil {
		return err
	}
	a.Logger.Info("host synced",
		zap.String("host_id", string(call.Host)), zap.Int64("epoch", int64(res.Epoch)), zap.Int("protocol", version), zap.Int("devices", len(res.Devices)),
		zap.Int("held", len(res.Verdicts)), zap.Int("undelivered", len(res.Undelivered)), zap.Int("conflicts", len(res.Conflicts)))
	return c.JSON(http.StatusOK, a.syncResponse(version, req, res))
}

// negotiate picks the highest version that both speak.
func negotiate(offered []int) (int, error) {
	for _, v := range protocol.Versions() {
		if slices.Contains(offered, v) {
			return v, nil
		}
	}
	return 0, &problem.Error{
		Status: http.StatusUnprocessableEntity, Code: protocol.CodeUnsupported, Title: "Protocol not supported",
		Detail: fmt.Sprintf("The agent offers protocol %s; this server speaks %s.", versions(offered), versions(protocol.Versions())),
		Remedy: "Bring agent and server to neighbouring releases.",
		Err:    berth.ErrInvalid,
	}
}

// versions lists protocol versions for people.
func versions(vs []int) string {
	if len(vs) == 0 {
		return "no version"
	}
	words := make([]string, 0, len(vs))
	for _, v := range vs[:min(len(vs), 8)] {
		words = append(words, strconv.Itoa(v))
	}
	return strings.Join(words, " and ")
}

func (a *API) syncParams(call store.AgentCall, version int, req protocol.SyncRequest) store.SyncParams {
	p := store.SyncParams{
		AgentCall: call, Instance: req.Instance, JournalEpoch: reported(req.JournalEpoch), AgentVersion: req.AgentVersion,
		Protocol: version, Draining: req.Draining, ApprovePlugins: a.ApprovePlugins,
	}
	for _, plugin := range req.Plugins {
		p.Plugins = append(p.Plugins, berth.Plugin{
			PluginVersion: plugin.PluginVersion, Schema: plugin.Schema, ResultSchema: plugin.ResultSchema,
			Requires: plugin.Requires, Description: clean(plugin.Description),
		})
	}
	for _, d := range req.Devices {
		if d.Health == "" {
			d.Health = berth.HealthGood
		}
		p.Devices = append(p.Devices, store.ReportedDevice{
			ID: newID[berth.DeviceID](), Driver: d.Driver, HardwareID: d.HardwareID, HardwareUnique: d.HardwareUnique,
			Name: d.Name, Labels: d.Labels, Health: d.Health, HighestFence: reported(d.HighestFence), Clean: d.Clean,
		})
	}
	for _, h := range req.Held {
		p.Held = append(p.Held, store.HeldAttempt{Attempt: h.Attempt, Fence: h.Fence})
	}
	return p
}

func (a *API) syncResponse(version int, req protocol.SyncRequest, res store.SyncResult) protocol.SyncResponse {
	out := protocol.SyncResponse{
		ProtocolVersion: version, Epoch: res.Epoch, Settings: a.settings(),
		Devices: make([]protocol.SyncedDevice, len(res.Devices)), Attempts: make([]protocol.SyncedAttempt, len(res.Verdicts)),
		Undelivered: res.Undelivered, DisabledPlugins: res.DisabledPlugins, DifferingPlugins: res.DifferingPlugins,
	}
	if out.Undelivered == nil {
		out.Undelivered = []berth.AttemptID{}
	}
	for i, id := range res.Devices {
		out.Devices[i] = protocol.SyncedDevice{ID: id, Conflict: id == ""}
	}
	for i, v := range res.Verdicts {
		out.Attempts[i] = protocol.SyncedAttempt{Attempt: req.Held[i].Attempt, Verdict: string(v)}
	}
	return out
}

func (a *API) settings() protocol.Settings {
	t := a.Timings
	ms := protocol.MillisOf
	return protocol.Settings{
		LeaseTTL: ms(t.LeaseTTL), RenewEvery: ms(t.RenewEvery), RequestTimeout: ms(t.RequestTimeout),
		FenceMargin: ms(t.FenceMargin), KillMargin: ms(t.KillMargin), HeartbeatEvery: ms(t.HeartbeatEvery),
		CancelWithin: ms(t.CancelWithin), MaxLogChunk: store.MaxLogChunk, MaxLogBytes: store.MaxLogBytes,
		MaxArtifact: store.MaxArtifactBytes, MaxArtifacts: store.MaxArtifacts,
	}
}

// heartbeat is a sign of life. It never renews leases.
func (a *API) heartbeat(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.HeartbeatRequest](c)
	if err != nil {
		return err
	}
	if err := checkHeartbeat(req); err != nil {
		return err
	}
	res, err := a.Store.Heartbeat(c.Request().Context(), store.HeartbeatParams{
		AgentCall: call, Draining: req.Draining, Health: req.Health,
	})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, protocol.HeartbeatResponse{
		Interval: protocol.MillisOf(a.Timings.HeartbeatEvery), Drain: res.Drain, Resync: res.Resync, RotateKey: res.RotateKey,
	})
}

// clean ends the unclean mark of a device.
func (a *API) clean(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	device, err := pathID[berth.DeviceID](c)
	if err != nil {
		return err
	}
	req, err := read[protocol.CleanRequest](c)
	if err != nil {
		return err
	}
	if req.Fence < 0 || req.Fence > maxCounter {
		return berth.Invalid("fence", "it is not a fence", "send the highest fence that the agent knows of the device")
	}
	if err := a.Store.CleanDevice(c.Request().Context(), store.CleanParams{AgentCall: call, Device: device, Fence: req.Fence}); err != nil {
		return err
	}
	return c.JSON(http.StatusOK, struct{}{})
}
