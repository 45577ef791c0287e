package identity_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
)

func TestBootstrapIsIdempotentAndRefusesWeakPasswords(t *testing.T) {
	w := newWorld(t)
	created, err := w.BootstrapAdmin(t.Context(), adminName, redact.NewString("another password"))
	if err != nil || created {
		t.Errorf("again: %v %v", created, err)
	}
	w.login(t) // with the first password
	for _, password := range []string{"", "1234567", strings.Repeat("x", 257), "\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		if _, err := w.BootstrapAdmin(t.Context(), "other", redact.NewString(password)); !errors.Is(err, berth.ErrInvalid) {
			t.Errorf("%d bytes: %v", len(password), err)
		}
	}
	if _, err := w.BootstrapAdmin(t.Context(), "No Name", redact.NewString(adminPassword)); !errors.Is(err, berth.ErrInvalid) {
		t.Errorf("name: %v", err)
	}
}

func TestWhoMayNotLogInHearsOneThing(t *testing.T) {
	w := newWorld(t)
	hash, err := identity.HashPassword("password", redact.NewString(adminPassword))
	if err != nil {
		t.Fatal(err)
	}
	err = w.store.CreateUser(t.Context(), berth.Actor{}, berth.User{
		ID: berth.UserID(uuid.NewString()), Name: "disabled", Roles: []berth.Role{berth.RoleAdmin}, Disabled: true,
	}, hash)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []identity.Credentials{
		{Name: adminName, Password: redact.NewString("wrong password")},
		{Name: adminName},
		{Name: adminName, Password: redact.NewString(strings.Repeat("x", 100_000))},
		{Name: "nobody", Password: redact.NewString(adminPassword)},
		{Name: "nobody", Password: redact.NewString("nobody's password")},
		{Name: "disabled", Password: redact.NewString(adminPassword)},
		{Name: "", Password: redact.NewString(adminPassword)},
		{Name: "a\x00b", Password: redact.NewString(adminPassword)},
	} {
		c.Client = "192.0.2.7"
		tokens, err := w.Login(t.Context(), c)
		if !errors.Is(err, berth.ErrUnauthenticated) || err.Error() != berth.ErrUnauthenticated.Error() || !tokens.Access.IsZero() {
			t.Errorf("%q: %v", c.Name, err)
		}
	}
}

func TestGuessingIsSlowedDown(t *testing.T) {
	w := newWorld(t)
	try := func(client, password string) error {
		_, err := w.Login(t.Context(), identity.Credentials{Name: adminName, Password: redact.NewString(password), Client: client})
		return err
	}
	for i := range 5 {
		if err := try("a", "wrong password"); !errors.Is(err, berth.ErrUnauthenticated) {
			t.Fatalf("try %d: %v", i, err)
		}
	}
	var many *berth.TooManyError
	if err := try("a", adminPassword); !errors.As(err, &many) || many.RetryAfter <= 0 {
		t.Fatalf("the right password while waiting: %v", err)
	}
	if err := try("b", adminPassword); err != nil {
		t.Errorf("another client: %v", err)
	}
	w.clock.add(many.RetryAfter)
	if err := try("a", adminPassword); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	if err := try("a", "wrong password"); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("the count was not taken back: %v", err)
	}
}

func TestRefreshTokensRotateAndReuseEndsTheFamily(t *testing.T) {
	w := newWorld(t)
	first := w.login(t)
	second, err := w.Refresh(t.Context(), berth.Actor{}, first.Refresh)
	if err != nil {
		t.Fatal(err)
	}
	if second.Refresh.Reveal() == first.Refresh.Reveal() || second.User.Name != adminName {
		t.Error("not rotated")
	}
	if _, err := w.Verify(t.Context(), second.Access); err != nil {
		t.Error(err)
	}
	// A lost answer: the predecessor is good for a moment more.
	if _, err := w.Refresh(t.Context(), berth.Actor{}, first.Refresh); err != nil {
		t.Errorf("within the grace: %v", err)
	}
	third, err := w.Refresh(t.Context(), berth.Actor{}, second.Refresh)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.add(berth.RefreshGrace + time.Second)
	if _, err := w.Refresh(t.Context(), berth.Actor{}, first.Refresh); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("reuse: %v", err)
	}
	if _, err := w.Refresh(t.Context(), berth.Actor{}, third.Refresh); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("the family lives on: %v", err)
	}
	if w.logs.FilterMessageSnippet("used twice").Len() == 0 {
		t.Error("the reuse was not logged")
	}
}

func TestLogoutEndsTheFamily(t *testing.T) {
	w := newWorld(t)
	tokens, other := w.login(t), w.login(t)
	for range 2 {
		if err := w.Logout(t.Context(), berth.Actor{}, tokens.Refresh); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Refresh(t.Context(), berth.Actor{}, tokens.Refresh); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("after logout: %v", err)
	}
	if _, err := w.Refresh(t.Context(), berth.Actor{}, other.Refresh); err != nil {
		t.Errorf("another session: %v", err)
	}
	for _, junk := range []string{"", "x", strings.Repeat("A", 43), strings.Repeat("x", 10_000)} {
		if _, err := w.Refresh(t.Context(), berth.Actor{}, redact.NewString(junk)); !errors.Is(err, berth.ErrUnauthenticated) {
			t.Errorf("junk: %v", err)
		}
		if err := w.Logout(t.Context(), berth.Actor{}, redact.NewString(junk)); err != nil {
			t.Errorf("junk: %v", err)
		}
	}
}

func TestARefreshTokenExpires(t *testing.T) {
	w := newWorld(t)
	tokens := w.login(t)
	w.clock.add(31 * 24 * time.Hour)
	if _, err := w.Refresh(t.Context(), berth.Actor{}, tokens.Refresh); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("got %v", err)
	}
}

func TestManyLoginsAtOnce(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := w.Login(t.Context(), identity.Credentials{
				Name: adminName, Password: redact.NewString(adminPassword), Client: fmt.Sprint(i),
			})
			if err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
}

func TestNothingSecretIsLoggedAudited(t *testing.T) {
	w := newWorld(t)
	tokens := w.login(t)
	_, _ = w.Login(t.Context(), identity.Credentials{Name: "typed-password-here", Password: redact.NewString("wrong password")})
	_, _ = w.Refresh(t.Context(), berth.Actor{}, tokens.Refresh)
	events, err := w.store.ListAudit(t.Context(), "", "", 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var logins int
	for _, e := range events {
		if e.Action == berth.AuditLogin || e.Action == berth.AuditLoginFailed {
			logins++
		}
	}
	if logins != 2 {
		t.Errorf("%d login rows", logins)
	}
	all := fmt.Sprintf("%+v %+v %+v", events, w.logs.All(), tokens)
	for _, secret := range []string{adminPassword, "wrong password", "typed-password-here", tokens.Access.Reveal(), tokens.Refresh.Reveal(), "argon2id"} {
		if strings.Contains(all, secret) {
			t.Errorf("printed: %.12s...", secret)
		}
	}
}
