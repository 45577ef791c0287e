package e2e

import (
	"net/http"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// lostPublicCases are the calls of /api/v1.
func lostPublicCases() map[string]lostCase {
	return map[string]lostCase{
		"POST /api/v1/auth/login":             lostLogin,
		"POST /api/v1/auth/refresh":           lostRefresh,
		"POST /api/v1/auth/logout":            lostLogout,
		"POST /api/v1/pools":                  lostCreatePool,
		"POST /api/v1/tasks":                  lostSubmit,
		"POST /api/v1/tasks/batch":            lostSubmitBatch,
		"POST /api/v1/tasks/:id/cancel":       lostCancel,
		"POST /api/v1/tasks/:id/retry":        lostRetry,
		"POST /api/v1/enrolment-tokens":       lostCreateToken,
		"DELETE /api/v1/enrolment-tokens/:id": lostRevokeToken,
		"POST /api/v1/signing-keys/rotate":    lostRotateSigningKey,
	}
}

var tokenMembers = []string{"access_token", "refresh_token", "expires_in_seconds", "refresh_expires_in_seconds"}

// lostLogin: each login has tokens of its own; those that were lost are nobody's
// and end by themselves. What counts once is the act: who is logged in.
func lostLogin(w *lostWorld) lostCall {
	return lostCall{
		method: http.MethodPost, path: "/api/v1/auth/login", header: map[string]string{},
		body:    harness.Payload(w.t, client.LoginRequest{Name: harness.Admin, Password: w.Password}),
		effect:  "SELECT count(*) > " + w.Query(w.t, "SELECT count(*) FROM refresh_tokens")[0][0] + " FROM refresh_tokens",
		differs: tokenMembers,
	}
}

// login is a login of its own.
func (w *lostWorld) login() client.Tokens {
	w.t.Helper()
	_, tokens := harness.Login(w.t, w.APIs[0].URL(), harness.Admin, w.Password, http.DefaultClient)
	return tokens
}

// lostRefresh: the token that was rotated is forgiven for a while. Its family
// goes on: one login, alive.
func lostRefresh(w *lostWorld) lostCall {
	before := w.Query(w.t, "SELECT count(*) FROM refresh_tokens WHERE rotated_at IS NOT NULL")[0][0]
	tokens := w.login()
	return lostCall{
		method: http.MethodPost, path: "/api/v1/auth/refresh", header: map[string]string{},
		body:    harness.Payload(w.t, client.RefreshRequest{RefreshToken: tokens.RefreshToken}),
		effect:  "SELECT count(*) > " + before + ", sum(CASE WHEN revoked_at IS NULL THEN 0 ELSE 1 END) FROM refresh_tokens WHERE rotated_at IS NOT NULL",
		differs: tokenMembers,
	}
}

func lostLogout(w *lostWorld) lostCall {
	tokens := w.login()
	return lostCall{
		method: http.MethodPost, path: "/api/v1/auth/logout", header: map[string]string{},
		body:   harness.Payload(w.t, client.RefreshRequest{RefreshToken: tokens.RefreshToken}),
		effect: "SELECT count(*) FROM refresh_tokens WHERE revoked_at IS NOT NULL",
	}
}

func lostCreatePool(w *lostWorld) lostCall {
	name := w.next("pool")
	c := w.admin(http.MethodPost, "/api/v1/pools", client.PoolSpec{Name: name}).keyed()
	c.effect = "SELECT (SELECT count(*) FROM pools WHERE name = '" + name + "'), (SELECT count(*) FROM audit_events WHERE action = '" + string(berth.AuditPoolCreated) + "')"
	return c
}

func lostSubmit(w *lostWorld) lostCall {
	spec := harness.Shell(w.t, "true")
	spec.Name, spec.Selector = w.next("task"), "slot=nowhere"
	c := w.admin(http.MethodPost, "/api/v1/tasks", spec).keyed()
	c.effect = "SELECT t.id, count(*) FROM tasks t LEFT JOIN queue q ON q.task_id = t.id WHERE t.name = '" + spec.Name + "' GROUP BY t.id"
	return c
}

func lostSubmitBatch(w *lostWorld) lostCall {
	spec := harness.Shell(w.t, "true")
	spec.Name, spec.Selector = w.next("task"), "slot=nowhere"
	c := w.admin(http.MethodPost, "/api/v1/tasks/batch", client.TaskBatch{Tasks: []client.TaskSpec{spec, spec, spec}}).keyed()
	c.effect = "SELECT t.id, count(*) FROM tasks t LEFT JOIN queue q ON q.task_id = t.id WHERE t.name = '" + spec.Name + "' GROUP BY t.id ORDER BY t.id"
	return c
}

func lostCancel(w *lostWorld) lostCall {
	task := w.task("nowhere")
	c := w.admin(http.MethodPost, "/api/v1/tasks/"+task.ID+"/cancel", nil)
	c.effect = audited("task.cancelled", task.ID)
	return c
}

// lostRetry: a task that was retried, ran and failed again before the repeat
// comes is not retried once more.
func lostRetry(w *lostWorld) lostCall {
	host, slot := w.host()
	task := w.task(slot)
	fail := func() {
		a := host.Claim(w.t, 1)[0]
		host.StartAttempt(w.t, a)
		host.Complete(w.t, a, berth.OutcomeFailed)
		harness.AwaitState(w.t, w.Client, task.ID, client.TaskStateDeadLetter, harness.Patience)
	}
	fail()
	c := w.admin(http.MethodPost, "/api/v1/tasks/"+task.ID+"/retry", client.RetryRequest{AddTries: 1}).keyed()
	c.effect = audited("task.retried_by_hand", task.ID)
	// The repeat answers with the task as it is now.
	c.again = func(*lostCall) { fail() }
	c.differs = []string{"state", "tries", "attempts", "finished_at", "reason", "cause", "attempt_id", "device_id", "host_id"}
	return c
}

func lostCreateToken(w *lostWorld) lostCall {
	pattern := w.next("lost")
	c := w.admin(http.MethodPost, "/api/v1/enrolment-tokens", client.EnrolmentTokenSpec{HostNamePattern: pattern}).keyed()
	c.effect = "SELECT count(*) FROM enrolment_tokens WHERE pattern = '" + pattern + "'"
	return c // the same token, too
}

func lostRotateSigningKey(w *lostWorld) lostCall {
	c := w.admin(http.MethodPost, "/api/v1/signing-keys/rotate", nil).keyed()
	c.effect = "SELECT count(*) FROM signing_keys"
	c.differs = []string{"signing_keys"} // as they are then: the new one may sign by now
	return c
}

func lostRevokeToken(w *lostWorld) lostCall {
	token, err := w.Client.CreateEnrolmentToken(w.t.Context(), client.EnrolmentTokenSpec{HostNamePattern: w.next("lost")})
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.admin(http.MethodDelete, "/api/v1/enrolment-tokens/"+token.ID, nil)
	c.effect = audited(string(berth.AuditEnrolmentRevoked), token.ID)
	return c
}
