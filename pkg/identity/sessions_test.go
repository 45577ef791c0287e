package identity_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// Whatever ends a session ends its access tokens at the same instant, in every
// process.
func TestTheEndOfASessionEndsItsAccessTokens(t *testing.T) {
	root := berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem}}
	yes := true
	for name, end := range map[string]func(t *testing.T, w *world, tokens identity.Tokens){
		"logout": func(t *testing.T, w *world, tokens identity.Tokens) {
			check(t, w.Logout(t.Context(), berth.Actor{}, tokens.Refresh))
		},
		"reuse": func(t *testing.T, w *world, tokens identity.Tokens) {
			second, err := w.Refresh(t.Context(), berth.Actor{}, tokens.Refresh)
			check(t, err)
			_, err = w.Refresh(t.Context(), berth.Actor{}, second.Refresh)
			check(t, err)
			if _, err = w.Refresh(t.Context(), berth.Actor{}, tokens.Refresh); !errors.Is(err, berth.ErrUnauthenticated) {
				t.Errorf("reuse: %v", err)
			}
		},
		"disabled": func(t *testing.T, w *world, tokens identity.Tokens) {
			w.person(t, "other", berth.RoleAdmin)
			_, err := w.store.ChangeUser(t.Context(), store.ChangeUserParams{Actor: root, User: tokens.User.ID, Disabled: &yes})
			check(t, err)
		},
		"other roles": func(t *testing.T, w *world, tokens identity.Tokens) {
			w.person(t, "other", berth.RoleAdmin)
			_, err := w.store.ChangeUser(t.Context(), store.ChangeUserParams{Actor: root, User: tokens.User.ID, Roles: []berth.Role{berth.RoleViewer}})
			check(t, err)
			fresh, err := w.Refresh(t.Context(), berth.Actor{}, tokens.Refresh)
			check(t, err)
			if caller, err := w.Verify(t.Context(), fresh.Access); err != nil || caller.Can(berth.RoleAdmin) || !caller.Can(berth.RoleViewer) {
				t.Errorf("after a refresh: %+v, %v", caller, err)
			}
		},
		"password": func(t *testing.T, w *world, tokens identity.Tokens) {
			mine := w.login(t)
			caller, err := w.Verify(t.Context(), mine.Access)
			check(t, err)
			check(t, w.ChangePassword(t.Context(), caller, caller.Actor("r1", "192.0.2.1"), redact.NewString(adminPassword), redact.NewString("another password")))
			if _, err := w.Verify(t.Context(), mine.Access); err != nil {
				t.Errorf("the session that changed it: %v", err)
			}
			_, err = w.Refresh(t.Context(), berth.Actor{}, mine.Refresh)
			check(t, err)
		},
		"reset": func(t *testing.T, w *world, tokens identity.Tokens) {
			check(t, w.ResetPassword(t.Context(), root, tokens.User.ID, redact.NewString("another password")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			elsewhere := w.service(t, w.master)
			check(t, elsewhere.Open(t.Context()))
			tokens := w.login(t)
			caller, err := elsewhere.Verify(t.Context(), tokens.Access)
			if err != nil || caller.Credential.Session() == "" {
				t.Fatalf("before: %+v, %v", caller, err)
			}
			end(t, w, tokens)
			if _, err := elsewhere.Verify(t.Context(), tokens.Access); !errors.Is(err, berth.ErrUnauthenticated) {
				t.Errorf("after it: %v", err)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAPasswordIsChangedByWhoKnowsIt(t *testing.T) {
	w := newWorld(t)
	tokens := w.login(t)
	caller, err := w.Verify(t.Context(), tokens.Access)
	check(t, err)
	change := func(current, next string) error {
		return w.ChangePassword(t.Context(), caller, caller.Actor("r1", "192.0.2.7"), redact.NewString(current), redact.NewString(next))
	}
	says := func(what string, err error, field string) {
		t.Helper()
		var invalid *berth.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Fields) != 1 || invalid.Fields[0].Path != field {
			t.Errorf("%s: %v", what, err)
		}
	}
	says("a short one", change(adminPassword, "short"), "new_password")
	says("a wrong one", change("wrong password", "another password"), "current_password")
	check(t, change(adminPassword, "another password"))
	check(t, change(adminPassword, "another password")) // a repeat, whose answer was lost
	if n := rows(t, w, berth.AuditPasswordChanged); n != 1 {
		t.Errorf("%d rows", n)
	}
	if _, err := w.Login(t.Context(), identity.Credentials{Name: adminName, Password: redact.NewString(adminPassword)}); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("the old password: %v", err)
	}
	// A stolen session is no place to guess from, nor is the field of the new one.
	for i := 0; ; i++ {
		err := change("a wrong password", "a guessed password")
		if errors.Is(err, berth.ErrTooMany) {
			break
		}
		if says("a guess", err, "current_password"); i > 20 {
			t.Fatal("guesses are not slowed down")
		}
	}
	if err := change("another password", "a third password"); !errors.Is(err, berth.ErrTooMany) {
		t.Errorf("while waiting: %v", err)
	}
}

func rows(t *testing.T, w *world, action berth.AuditAction) (n int) {
	t.Helper()
	events, err := w.store.ListAudit(t.Context(), "", "", 0, 1000)
	check(t, err)
	for _, e := range events {
		if e.Action == action {
			n++
		}
	}
	return n
}

func TestServicesAndUsersOfAnIssuerHaveNoPassword(t *testing.T) {
	w := newWorld(t)
	root := berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem}}
	robot, err := w.AddUser(t.Context(), root, berth.User{ID: berth.UserID(uuid.NewString()), Name: "robot", Roles: []berth.Role{berth.RoleAdmin}}, redact.String{}, store.Once{})
	check(t, err)
	ext, err := w.store.ProvisionUser(t.Context(), store.ProvisionParams{ID: berth.UserID(uuid.NewString()), Issuer: "https://i", Subject: "s", Names: []string{"ext"}, Actor: root})
	check(t, err)
	for _, name := range []string{robot.Name, ext.Name} {
		for _, password := range []string{"", "nobody's password"} {
			if _, err := w.Login(t.Context(), identity.Credentials{Name: name, Password: redact.NewString(password)}); !errors.Is(err, berth.ErrUnauthenticated) {
				t.Errorf("login as %s: %v", name, err)
			}
		}
	}
	if err := w.ResetPassword(t.Context(), root, ext.ID, redact.NewString("another password")); !errors.Is(err, berth.ErrWrongState) {
		t.Errorf("a password for a user of an issuer: %v", err)
	}
	// No login, no change of a password.
	if err := w.ChangePassword(t.Context(), identity.Caller{Principal: berth.Principal{Kind: berth.ActorUser, ID: string(ext.ID)}}, root, redact.String{}, redact.NewString("another password")); !errors.Is(err, berth.ErrForbidden) {
		t.Errorf("a change without a session: %v", err)
	}
}

func TestAPIKeysAreRecognisedAndBounded(t *testing.T) {
	w := newWorld(t)
	admin := w.login(t).User
	who := berth.Principal{Kind: berth.ActorUser, ID: string(admin.ID)}
	first, err := w.APIKeyFor(who, "k")
	check(t, err)
	again, err := w.APIKeyFor(who, "k")
	check(t, err)
	others, err := w.APIKeyFor(berth.Principal{Kind: berth.ActorUser, ID: uuid.NewString()}, "k")
	check(t, err)
	enrolment, _, err := w.EnrolmentTokenFor(who, "k")
	check(t, err)
	if first.Key.Reveal() != again.Key.Reveal() || first.Key.Reveal() == others.Key.Reveal() ||
		strings.HasSuffix(enrolment.Reveal(), first.Key.Reveal()[15:]) {
		t.Error("keys are not one a principal, idempotency key and purpose")
	}
	random, err := identity.NewAPIKey()
	check(t, err)
	for _, k := range []identity.MadeAPIKey{first, random} {
		if !regexp.MustCompile(`^berth_[a-z2-7]{8}_[A-Za-z0-9_-]{43}$`).MatchString(k.Key.Reveal()) || k.Prefix != k.Key.Reveal()[:14] {
			t.Errorf("prefix %s", k.Prefix)
		}
	}

	store1 := func(made identity.MadeAPIKey, roles ...berth.Role) {
		_, err := w.store.CreateAPIKey(t.Context(), store.CreateAPIKeyParams{Hash: made.Hash, TTL: time.Hour, Key: berth.APIKey{
			ID: berth.APIKeyID(uuid.NewString()), User: admin.ID, Name: "k", Prefix: made.Prefix, Roles: roles,
		}})
		check(t, err)
	}
	store1(first, berth.RoleSubmitter)
	store1(random, berth.RoleAdmin)
	caller, err := w.Verify(t.Context(), first.Key)
	if err != nil || caller.User() != admin.ID || !caller.Can(berth.RoleSubmitter) || caller.Can(berth.RoleOperator) || caller.Credential.APIKey() == "" {
		t.Errorf("a submitter's key of an administrator: %+v, %v", caller, err)
	}
	key := first.Key.Reveal()
	for name, wrong := range map[string]string{
		"unknown": others.Key.Reveal(), "start": "berth_", "cut": key[:57], "longer": key + "A", "spaces": key + " ", "another prefix": "berth_aaaaaaaa" + key[14:],
		"upper case": strings.ToUpper(key), "no text": "berth_\x00", "last letter": key[:57] + map[bool]string{true: "A", false: "B"}[key[57] != 'A'],
	} {
		if _, err := w.Verify(t.Context(), redact.NewString(wrong)); !errors.Is(err, berth.ErrUnauthenticated) || strings.Contains(err.Error(), key[14:30]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The user loses the role: the key may do nothing, and is still no unknown one.
	w.person(t, "other", berth.RoleAdmin)
	_, err = w.store.ChangeUser(t.Context(), store.ChangeUserParams{User: admin.ID, Roles: []berth.Role{berth.RoleViewer}})
	check(t, err)
	for _, k := range []identity.MadeAPIKey{first, random} {
		if caller, err := w.Verify(t.Context(), k.Key); err != nil || len(caller.Roles) != 0 || caller.Can(berth.RoleViewer) {
			t.Errorf("beyond its user: %+v, %v", caller, err)
		}
	}
}
