package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// lostAgentCases are the calls of /agent/v1.
func lostAgentCases() map[string]lostCase {
	return map[string]lostCase{
		"POST " + protocol.PathEnrol:             lostEnrol,
		"POST " + protocol.PathToken:             lostToken,
		"POST " + protocol.PathSync:              lostSync,
		"POST " + protocol.PathHeartbeat:         lostHeartbeat,
		"POST " + protocol.PathKeys:              lostKey,
		"POST " + protocol.PathClaims:            lostClaim,
		"POST " + protocol.PathStart:             lostStart,
		"POST " + protocol.PathRenew:             lostRenew,
		"POST " + protocol.PathComplete:          lostComplete,
		"POST " + protocol.PathRelease:           lostRelease,
		"POST " + echoPath(protocol.PathClean):   lostClean,
		"PUT " + echoPath(protocol.PathLog):      lostLog,
		"PUT " + echoPath(protocol.PathArtifact): lostArtifact,
	}
}

func echoPath(path string) string { return strings.NewReplacer("{", ":", "}", "").Replace(path) }

func lostEnrol(w *lostWorld) lostCall {
	name := w.next("lost")
	token, err := w.Client.CreateEnrolmentToken(w.t.Context(), client.EnrolmentTokenSpec{HostNamePattern: name})
	if err != nil {
		w.t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	return lostCall{
		method: http.MethodPost, path: protocol.PathEnrol, header: map[string]string{},
		body:   harness.Payload(w.t, protocol.EnrolRequest{Token: token.Token, Name: name, PublicKey: public}),
		effect: "SELECT (SELECT count(*) FROM hosts WHERE name = '" + name + "'), (SELECT count(*) FROM audit_events WHERE action = '" + string(berth.AuditHostEnrolled) + "')",
	}
}

// lostToken: an assertion is used once, so the repeat brings a fresh one. Tokens
// are stored nowhere.
func lostToken(w *lostWorld) lostCall {
	host, _ := w.host()
	body := func() []byte {
		return harness.Payload(w.t, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: host.Assertion(w.t)})
	}
	return lostCall{
		method: http.MethodPost, path: protocol.PathToken, header: map[string]string{}, body: body(),
		again: func(c *lostCall) { c.body = body() }, nothingStored: true, differs: []string{"access_token"},
		effect: "SELECT count(*) FROM refresh_tokens",
	}
}

// lostSync: a new process of the host gets its epoch once.
func lostSync(w *lostWorld) lostCall {
	host, slot := w.host()
	req := harness.SyncRequest(map[string]string{"slot": slot}, map[string]string{"slot": slot + "b"})
	req.JournalEpoch = host.Epoch
	host.Epoch = 0
	c := w.wire(host, http.MethodPost, protocol.PathSync, req)
	delete(c.header, protocol.HeaderEpoch)
	c.effect = "SELECT h.epoch, h.instance, count(d.id) FROM hosts h LEFT JOIN devices d ON d.host_id = h.id WHERE h.id = '" + string(host.Host) + "' GROUP BY h.epoch, h.instance"
	return c
}

func lostHeartbeat(w *lostWorld) lostCall {
	host, _ := w.host()
	c := w.wire(host, http.MethodPost, protocol.PathHeartbeat, protocol.HeartbeatRequest{
		Draining: true, Health: map[berth.DeviceID]berth.Health{host.Devices[0]: berth.HealthSuspect},
	})
	c.effect = "SELECT h.draining, d.health, (SELECT count(*) FROM audit_events WHERE host_id = h.id OR target_id = '" + string(host.Devices[0]) + "') FROM hosts h JOIN devices d ON d.host_id = h.id WHERE h.id = '" + string(host.Host) + "'"
	return c
}

func lostKey(w *lostWorld) lostCall {
	host, _ := w.host()
	c := w.wire(host, http.MethodPost, protocol.PathKeys, host.KeyOffer(w.t))
	c.effect = "SELECT next_public_key, (SELECT count(*) FROM audit_events WHERE target_id = '" + string(host.Host) + "') FROM hosts WHERE id = '" + string(host.Host) + "'"
	return c
}

// claimed is a host with one claimed attempt, which may be started.
func (w *lostWorld) claimed() (*harness.Wire, protocol.Assignment) {
	w.t.Helper()
	host, slot := w.host()
	w.task(slot)
	return host, host.Claim(w.t, 1)[0]
}

// running is a host with one running attempt.
func (w *lostWorld) running() (*harness.Wire, protocol.Assignment) {
	w.t.Helper()
	host, a := w.claimed()
	host.StartAttempt(w.t, a)
	return host, a
}

// attemptRow is what an attempt says, with the rows of the audit about it.
func attemptRow(a berth.AttemptID) string {
	return "SELECT state, claim_id, outcome, started_at, ended_at, (SELECT count(*) FROM audit_events WHERE attempt_id = '" + string(a) + "') FROM attempts WHERE id = '" + string(a) + "'"
}

var leaseLeft = []string{"lease_left_ms"}

// lostClaim: the same claim id gets the same attempts.
func lostClaim(w *lostWorld) lostCall {
	host, slot := w.host()
	task := w.task(slot)
	harness.AwaitState(w.t, w.Client, task.ID, client.TaskStateAssigned, harness.Patience)
	attempt := harness.Task(w.t, w.Client, task.ID).AttemptID
	c := w.wire(host, http.MethodPost, protocol.PathClaims, protocol.ClaimRequest{ClaimID: newUUID(), Wait: 5000, Max: 5})
	c.effect, c.differs = attemptRow(berth.AttemptID(attempt)), leaseLeft
	return c
}

func lostStart(w *lostWorld) lostCall {
	host, a := w.claimed()
	c := w.wire(host, http.MethodPost, protocol.PathStart, protocol.StartRequest{Items: []protocol.Holder{harness.Holder(a)}})
	c.effect, c.differs = attemptRow(a.Attempt), leaseLeft
	return c
}

// lostRenew: a renewal's effect is a longer lease, of the same attempt under the
// same fence.
func lostRenew(w *lostWorld) lostCall {
	host, a := w.running()
	c := w.wire(host, http.MethodPost, protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: harness.Holder(a)}}})
	was := w.Query(w.t, "SELECT expires_at FROM leases WHERE attempt_id = '"+string(a.Attempt)+"'")[0][0]
	c.effect = "SELECT expires_at > '" + was + "', fence, number FROM leases WHERE attempt_id = '" + string(a.Attempt) + "'"
	if w.Engine == harness.SQLite {
		c.effect = "SELECT expires_at > " + was + ", fence, number FROM leases WHERE attempt_id = '" + string(a.Attempt) + "'"
	}
	c.differs = leaseLeft
	return c
}

func lostComplete(w *lostWorld) lostCall {
	host, a := w.running()
	c := w.wire(host, http.MethodPost, protocol.PathComplete, harness.Completion(a, berth.OutcomeSucceeded))
	c.effect = attemptRow(a.Attempt)
	return c
}

// lostRelease: the task is queued again, and placed again perhaps, once.
func lostRelease(w *lostWorld) lostCall {
	host, a := w.claimed()
	c := w.wire(host, http.MethodPost, protocol.PathRelease, protocol.ReleaseRequest{Items: []protocol.Holder{harness.Holder(a)}, Reason: "test_reason"})
	c.effect = attemptRow(a.Attempt)
	return c
}

// lostClean: the attempt left the device unclean; the agent proves it clean.
func lostClean(w *lostWorld) lostCall {
	host, a := w.running()
	done := harness.Completion(a, berth.OutcomeFailed)
	done.Items[0].DeviceClean = false
	host.Must(w.t, http.MethodPost, protocol.PathComplete, done, nil)
	c := w.wire(host, http.MethodPost, strings.Replace(protocol.PathClean, "{id}", string(a.Device), 1), protocol.CleanRequest{Fence: a.Fence})
	c.effect = "SELECT unclean, (SELECT count(*) FROM audit_events WHERE target_id = '" + string(a.Device) + "') FROM devices WHERE id = '" + string(a.Device) + "'"
	return c
}

// upload makes the upload of bytes of an attempt.
func (w *lostWorld) upload(host *harness.Wire, a protocol.Assignment, path, content string) lostCall {
	digest := sha256.Sum256([]byte(content))
	c := w.wire(host, http.MethodPut, strings.Replace(path, "{id}", string(a.Attempt), 1), nil)
	c.body = []byte(content)
	c.header["Content-Type"] = "application/octet-stream"
	c.header[protocol.HeaderFence] = strconv.FormatInt(int64(a.Fence), 10)
	c.header[protocol.HeaderDigest] = "sha-256=" + hex.EncodeToString(digest[:])
	return c
}

func lostLog(w *lostWorld) lostCall {
	host, a := w.running()
	c := w.upload(host, a, strings.Replace(protocol.PathLog, "{offset}", "0", 1), "a line\n")
	c.effect = "SELECT count(*), sum(size), min(blob_key) FROM log_chunks WHERE attempt_id = '" + string(a.Attempt) + "'"
	return c
}

func lostArtifact(w *lostWorld) lostCall {
	host, a := w.running()
	c := w.upload(host, a, strings.Replace(protocol.PathArtifact, "{name}", "report.txt", 1), "a report")
	c.effect = "SELECT count(*), sum(size), min(blob_key) FROM artifacts WHERE attempt_id = '" + string(a.Attempt) + "'"
	c.header[protocol.HeaderArtifactClass] = "report"
	c.status = http.StatusOK // 201 is for the first
	return c
}
