package agentapi_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const secretMark = "v4lue-of-a-secret"

// putSecret seals a value as the public API does; damaged makes it one that no
// master key opens.
func (w *world) putSecret(name string, damaged bool, grants ...berth.SecretGrant) {
	w.t.Helper()
	_, err := w.store.PutSecret(w.t.Context(), store.PutSecretParams{Name: name, Grants: berth.GrantChange{Set: &grants}, Seal: func(version int) (redact.Bytes, error) {
		if damaged {
			version++ // a value is bound to its version
		}
		return w.ident.SealSecret(name, version, redact.NewString(secretMark+" "+name))
	}})
	must(w.t, err)
}

// submitter makes a user and returns how it submits a task with secrets.
func (w *world) submitter() (grant berth.SecretGrant, submit func(secrets ...string)) {
	w.t.Helper()
	user := berth.User{ID: berth.UserID(uuid.NewString()), Name: "ann", Roles: []berth.Role{berth.RoleSubmitter}}
	must(w.t, w.store.CreateUser(w.t.Context(), berth.Daemon(berth.ActorSystem, "test"), user, redact.String{}))
	return berth.SecretGrant{Kind: berth.GrantUser, Grantee: string(user.ID)}, func(secrets ...string) {
		w.t.Helper()
		requirement, err := eligibility.Canonical("", berth.Requirement{Plugin: "process.run"})
		must(w.t, err)
		task := berth.NewTask{
			ID: berth.TaskID(uuid.Must(uuid.NewV7()).String()), Pool: w.pool, Requirement: requirement, Retry: berth.DefaultRetryPolicy(), Secrets: secrets,
		}
		var f berth.Faults
		task.Normalise("", time.Now(), &f)
		must(w.t, f.Err())
		_, err = w.store.SubmitTasks(w.t.Context(), store.SubmitParams{
			Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: string(user.ID)}}, Roles: user.Roles, Tasks: []berth.NewTask{task},
		})
		must(w.t, err)
	}
}

func (w *world) silentAbout(marks ...string) {
	w.t.Helper()
	for _, mark := range marks {
		if strings.Contains(w.log.String(), mark) {
			w.t.Errorf("the log holds %q", mark)
		}
	}
}

func TestAClaimBringsSecretsToItsHostAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		grant, submit := w.submitter()
		w.putSecret("one", false, grant)
		w.putSecret("two", false, grant)
		a := w.newAgent("h1")
		a.sync(2)
		submit("two", "one")
		submit()
		if n := w.place(w.store); n != 2 {
			t.Fatalf("placed %d", n)
		}
		req := protocol.ClaimRequest{ClaimID: uuid.NewString(), Max: 10}
		for range 2 { // its answer was lost
			var res protocol.ClaimResponse
			a.ok(&res, "POST", protocol.PathClaims, req)
			if len(res.Attempts) != 2 || len(res.Attempts[1].Secrets)+len(res.Attempts[1].MissingSecrets) != 0 {
				t.Fatalf("claimed %+v", res)
			}
			got := res.Attempts[0]
			if len(got.Secrets) != 2 || got.Secrets["one"].Reveal() != secretMark+" one" || got.Secrets["two"].Reveal() != secretMark+" two" || got.MissingSecrets != nil {
				t.Errorf("secrets %v, missing %v", got.Secrets, got.MissingSecrets)
			}
			if again, err := json.Marshal(res); err != nil || strings.Contains(string(again), secretMark) {
				t.Errorf("an assignment writes its secrets: %s, %v", again, err)
			}
		}
		must(t, w.store.DeleteSecret(t.Context(), berth.Actor{}, "one"))
		w.putSecret("two", false)
		var res protocol.ClaimResponse
		a.ok(&res, "POST", protocol.PathClaims, req)
		if got := res.Attempts[0]; len(got.Secrets) != 0 || strings.Join(got.MissingSecrets, " ") != "one two" {
			t.Errorf("secrets %v, missing %v", got.Secrets, got.MissingSecrets)
		}
		w.silentAbout(secretMark)
	})
}

func TestSecretsThatCannotBeOpenedLoseNoAttempt(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		grant, submit := w.submitter()
		w.putSecret("good", false, grant)
		w.putSecret("bad", true, grant)
		a := w.newAgent("h1")
		a.sync(2)
		submit("bad", "good")
		if n := w.place(w.store); n != 1 {
			t.Fatalf("placed %d", n)
		}
		req := protocol.ClaimRequest{ClaimID: uuid.NewString(), Max: 10}
		for range 2 {
			res := a.call("POST", protocol.PathClaims, req)
			if res.status != 503 || res.header.Get("Retry-After") == "" || strings.Contains(string(res.body), "bad") {
				t.Fatalf("answered %d %s", res.status, res.body)
			}
		}
		// What can be handed over does not wait for it.
		submit("good")
		if n := w.place(w.store); n != 1 {
			t.Fatalf("placed %d", n)
		}
		got := a.claim()
		if len(got) != 1 || got[0].Secrets["good"].Reveal() != secretMark+" good" {
			t.Fatalf("claimed %+v", got)
		}
		if !strings.Contains(w.log.String(), "secrets of an attempt cannot be opened") || !strings.Contains(w.log.String(), "secret bad") {
			t.Error("the log does not tell the operator")
		}
		// Mended, the same claim brings it.
		w.putSecret("bad", false, grant)
		var res protocol.ClaimResponse
		a.ok(&res, "POST", protocol.PathClaims, req)
		if len(res.Attempts) != 1 || len(res.Attempts[0].Secrets) != 2 || res.Attempts[0].MissingSecrets != nil {
			t.Errorf("claimed %+v", res)
		}
		w.silentAbout(secretMark)
	})
}

// TestASecretThatCannotBeRecordedIsNotHandedOver: without its audit row no value
// leaves, and the claim, which stays the host's, brings it when the trail takes rows
// again.
func TestASecretThatCannotBeRecordedIsNotHandedOver(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		grant, submit := w.submitter()
		w.putSecret("one", false, grant)
		a := w.newAgent("h1")
		a.sync(1)
		submit("one")
		if n := w.place(w.store); n != 1 {
			t.Fatalf("placed %d", n)
		}
		// The claim itself is on record, its answer was lost.
		req := protocol.ClaimRequest{ClaimID: uuid.NewString(), Max: 10}
		a.ok(&protocol.ClaimResponse{}, "POST", protocol.PathClaims, req)
		mend := w.db.RefuseAudit(t)
		for range 2 {
			res := a.call("POST", protocol.PathClaims, req)
			if res.status != 503 || res.header.Get("Retry-After") == "" || strings.Contains(string(res.body), secretMark) {
				t.Fatalf("answered %d %s", res.status, res.body)
			}
		}
		if !strings.Contains(w.log.String(), "secrets are not handed over") {
			t.Errorf("the log does not tell the operator:\n%s", w.log.String())
		}
		mend()
		var res protocol.ClaimResponse
		a.ok(&res, "POST", protocol.PathClaims, req)
		if len(res.Attempts) != 1 || res.Attempts[0].Secrets["one"].Reveal() != secretMark+" one" {
			t.Errorf("claimed %+v", res)
		}
		w.silentAbout(secretMark)
	})
}
