package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func sessionChecks() []check {
	return []check{
		in("refresh tokens rotate", refreshRotates),
		in("the immediate predecessor is answered within the grace", refreshGrace),
		in("the lines of siblings do not disturb each other", refreshSiblings),
		in("reuse ends the session", refreshReuse),
		in("refresh at once through two handles", refreshAtOnce),
		in("an old, unknown, revoked or disabled one is refused", refreshRefused),
		in("a session lives until it ends", sessionLives),
		in("nothing outlives the end of a session beside it", sessionEndsAtOnce),
	}
}

// person is a user with a session whose first refresh token is named token.
func (w *world) person(name, token string) berth.User {
	w.t.Helper()
	u := w.account(name, berth.RoleViewer)
	w.begin(u, token)
	return u
}

func (w *world) account(name string, roles ...berth.Role) berth.User {
	w.t.Helper()
	u := berth.User{ID: newID[berth.UserID](w.Env), Name: name, Roles: roles}
	w.must("create user", w.Store.CreateUser(bg(), w.operator, u, redact.NewString("hash")))
	u.HasPassword, u.Version, u.CreatedAt = true, 1, w.Clock.Now()
	return u
}

// begin starts a session and returns its id.
func (w *world) begin(u berth.User, token string) string {
	w.t.Helper()
	session := newID[string](w.Env)
	w.must("login", w.Store.AddRefreshToken(bg(), store.RefreshToken{Hash: hashOf(token), Family: session, User: u.ID, TTL: time.Hour}))
	return session
}

func (w *world) rotate(old, next string) error {
	_, _, err := w.Store.RotateRefreshToken(bg(), rotation(old, next))
	return err
}

func rotation(old, next string) store.RotateParams {
	return store.RotateParams{
		Actor: berth.Actor{RequestID: "r-" + old, Client: "192.0.2.1"}, Old: hashOf(old), Next: hashOf(next), TTL: time.Hour,
	}
}

// alive asserts whether a session of a user lives.
func (w *world) alive(what, session string, u berth.User, want bool) {
	w.t.Helper()
	got, err := w.Store.SessionUser(bg(), session, u.ID)
	switch {
	case want && (err != nil || diff(u, got) != ""):
		w.t.Errorf("%s: the session is over: %v %s", what, err, diff(u, got))
	case !want && !errors.Is(err, berth.ErrNotFound):
		w.t.Errorf("%s: the session lives: %v", what, err)
	}
}

func refreshRotates(w *world) {
	u := w.account("ann", berth.RoleViewer)
	session := w.begin(u, "t0")
	for i, next := range []string{"t1", "t2", "t3"} {
		w.Clock.Advance(40 * time.Minute) // each successor has a time of its own
		got, in, err := w.Store.RotateRefreshToken(bg(), rotation([]string{"t0", "t1", "t2"}[i], next))
		if err != nil || diff(u, got) != "" || in != session {
			w.t.Fatalf("rotation to %s: %+v, %s, %v", next, got, in, err)
		}
		w.alive("after a rotation", session, u, true)
	}
}

func refreshGrace(w *world) {
	w.person("ann", "t0")
	w.must("rotate", w.rotate("t0", "t1"))
	w.Clock.Advance(berth.RefreshGrace)
	w.must("the predecessor within the grace", w.rotate("t0", "t1b"))
	w.must("the first successor", w.rotate("t1", "t2"))
	w.Clock.Advance(berth.RefreshGrace + time.Microsecond)
	w.fails("the predecessor after the grace", w.rotate("t1", "t2b"), berth.ErrUsed)
	w.fails("its family", w.rotate("t2", "t3"), berth.ErrExpired)
	w.fails("the sibling's line", w.rotate("t1b", "t2c"), berth.ErrExpired)
}

// refreshSiblings: a client that refreshed many times at once goes on with any
// of the answers, however far another line has gone, and each line has its grace.
func refreshSiblings(w *world) {
	u := w.account("ann", berth.RoleViewer)
	session := w.begin(u, "t0")
	for i := range 5 {
		w.must("at once", w.rotate("t0", fmt.Sprintf("%d.1", i)))
	}
	for n := 1; n < 5; n++ {
		w.must("one line", w.rotate(fmt.Sprintf("0.%d", n), fmt.Sprintf("0.%d", n+1)))
	}
	w.Clock.Advance(30 * time.Minute)
	for i := 1; i < 5; i++ {
		w.must("another line", w.rotate(fmt.Sprintf("%d.1", i), fmt.Sprintf("%d.2", i)))
		w.must("whose answer was lost", w.rotate(fmt.Sprintf("%d.1", i), fmt.Sprintf("%d.2b", i)))
		w.must("goes on", w.rotate(fmt.Sprintf("%d.2b", i), fmt.Sprintf("%d.3", i)))
	}
	w.alive("with many lines", session, u, true)
	w.fails("what all of them came from", w.rotate("t0", "x"), berth.ErrUsed)
	w.alive("after a reuse", session, u, false)
	for i := 1; i < 5; i++ {
		w.fails("every line", w.rotate(fmt.Sprintf("%d.3", i), fmt.Sprintf("%d.4", i)), berth.ErrExpired)
	}
}

func refreshReuse(w *world) {
	u := w.account("ann", berth.RoleViewer)
	session := w.begin(u, "t0")
	other := w.begin(u, "u0")
	w.person("bob", "b0")
	w.must("rotate", w.rotate("t0", "t1"))
	w.must("rotate", w.rotate("t1", "t2"))
	w.fails("a predecessor that is not the immediate one", w.rotate("t0", "x"), berth.ErrUsed)
	w.fails("the family's newest", w.rotate("t2", "t3"), berth.ErrExpired)
	w.fails("the refused successor", w.rotate("x", "y"), berth.ErrNotFound)
	w.fails("again", w.rotate("t0", "x"), berth.ErrExpired)
	w.must("another family", w.rotate("b0", "b1"))
	w.alive("reuse", session, u, false)
	w.alive("another session of the user", other, u, true)
	if n := w.acted(berth.AuditSessionRevoked, "user", string(u.ID)); n != 1 {
		w.t.Errorf("%d rows of the reuse", n)
	}
	row := w.lastOf(berth.AuditSessionRevoked, "user", string(u.ID))
	if row.Actor.ID != string(u.ID) || row.Actor.Credential != berth.SessionCredential(session) || row.Actor.RequestID != "r-t0" || row.Actor.Client != "192.0.2.1" {
		w.t.Errorf("who reused: %+v", row.Actor)
	}
}

func refreshAtOnce(w *world) {
	other := w.second()
	w.person("ann", "t0")
	const n = 10
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s := []store.Store{w.Store, other}[i%2]
			_, _, errs[i] = s.RotateRefreshToken(bg(), rotation("t0", fmt.Sprintf("t1.%d", i)))
		}()
	}
	wg.Wait()
	for i, err := range errs {
		w.must("rotate", err)
		w.must("a successor", w.rotate(fmt.Sprintf("t1.%d", i), fmt.Sprintf("t2.%d", i)))
	}
}

func refreshRefused(w *world) {
	w.person("ann", "a0")
	bob := w.person("bob", "b0")
	w.person("cat", "c0")
	w.fails("unknown", w.rotate("nobody's", "x"), berth.ErrNotFound)
	w.disable(bob, true)
	w.fails("disabled user", w.rotate("b0", "b1"), berth.ErrNotFound)
	w.disable(bob, false)
	w.fails("a session from before", w.rotate("b0", "b1"), berth.ErrExpired)
	from := berth.Actor{RequestID: "r9"}
	w.must("logout", w.Store.RevokeRefreshFamily(bg(), from, hashOf("a0")))
	w.must("logout again", w.Store.RevokeRefreshFamily(bg(), from, hashOf("a0")))
	w.must("logout of an unknown token", w.Store.RevokeRefreshFamily(bg(), from, hashOf("nobody's")))
	w.fails("after logout", w.rotate("a0", "a1"), berth.ErrExpired)
	w.Clock.Advance(time.Hour + time.Microsecond)
	w.fails("after its time", w.rotate("c0", "c1"), berth.ErrExpired)
}

func (w *world) disable(u berth.User, disabled bool) berth.User {
	w.t.Helper()
	got, err := w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: u.ID, Disabled: &disabled})
	w.must("disable or enable", err)
	return got
}

func sessionLives(w *world) {
	ann, bob := w.account("ann", berth.RoleViewer), w.account("bob", berth.RoleViewer)
	session := w.begin(ann, "t0")
	w.alive("at first", session, ann, true)
	w.alive("for somebody else", session, bob, false)
	w.alive("another one", newID[string](w.Env), ann, false)
	w.alive("no id", "'; --", ann, false)
	w.Clock.Advance(time.Hour)
	w.alive("after its time", session, ann, false)

	// Logout with a token that was rotated ends it, too; the row says who.
	session = w.begin(ann, "u0")
	w.must("rotate", w.rotate("u0", "u1"))
	w.must("logout", w.Store.RevokeRefreshFamily(bg(), berth.Actor{RequestID: "r9", Client: "192.0.2.9"}, hashOf("u0")))
	w.alive("after logout", session, ann, false)
	w.fails("the predecessor within its grace, after logout", w.rotate("u0", "u1b"), berth.ErrExpired)
	w.must("logout again", w.Store.RevokeRefreshFamily(bg(), berth.Actor{}, hashOf("u0")))
	if n := w.acted(berth.AuditLogout, "user", string(ann.ID)); n != 1 {
		w.t.Errorf("%d rows of the logout", n)
	}
	row := w.lastOf(berth.AuditLogout, "user", string(ann.ID))
	want := berth.Actor{
		Principal: berth.Principal{Kind: berth.ActorUser, ID: string(ann.ID)}, RequestID: "r9", Client: "192.0.2.9",
		Credential: berth.SessionCredential(session),
	}
	if d := diff(want, row.Actor); d != "" {
		w.t.Errorf("who logged out: %s", d)
	}

	// Disabling ends it; enabling does not bring it back.
	session = w.begin(ann, "v0")
	ann = w.disable(ann, true)
	w.alive("of a disabled user", session, ann, false)
	w.fails("login of a disabled user", w.Store.AddRefreshToken(bg(), store.RefreshToken{
		Hash: hashOf("w0"), Family: newID[string](w.Env), User: ann.ID, TTL: time.Hour,
	}), berth.ErrNotFound)
	ann = w.disable(ann, false)
	w.alive("of a user that was disabled", session, ann, false)

	// Other roles are told, so that the caller can compare.
	session = w.begin(ann, "x0")
	ann, err := w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: ann.ID, Roles: []berth.Role{berth.RoleOperator}})
	w.must("change roles", err)
	w.alive("with other roles", session, ann, true)
}

// sessionEndsAtOnce: a refresh, or a login, that runs beside a logout, a disabling
// or a new password leaves nothing alive behind it.
func sessionEndsAtOnce(w *world) {
	other := w.second()
	for i := range 12 {
		u := w.account(fmt.Sprintf("u%d", i), berth.RoleViewer)
		token := fmt.Sprintf("t%d", i)
		session := w.begin(u, token)
		late := newID[string](w.Env)
		yes := true
		ends := []func() error{
			func() error { return other.RevokeRefreshFamily(bg(), berth.Actor{}, hashOf(token)) },
			func() error {
				_, err := other.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: u.ID, Disabled: &yes})
				return err
			},
			func() error {
				_, err := other.SetPassword(bg(), store.SetPasswordParams{Actor: w.operator, User: u.ID, Hash: redact.NewString("new")})
				return err
			},
		}
		got := both(func() (bool, error) {
			_ = w.rotate(token, token+".1")
			_ = w.rotate(token, token+".1b")
			return true, nil
		}, func() (bool, error) { return true, ends[i%3]() })
		w.must("the end", got[1].err)
		if _, err := w.Store.SessionUser(bg(), session, u.ID); !errors.Is(err, berth.ErrNotFound) {
			w.t.Errorf("a refresh outlived the end of its session, kind %d: %v", i%3, err)
		}
		if i%3 == 0 {
			continue
		}
		w.fails("a login that was checked before", w.Store.AddRefreshToken(bg(), store.RefreshToken{
			Hash: hashOf(late), Family: late, User: u.ID, TTL: time.Hour, PasswordHash: redact.NewString("hash"),
		}), berth.ErrNotFound)
	}
}

// lastOf is the newest audit row of an act on a target.
func (w *world) lastOf(action berth.AuditAction, kind, id string) (last berth.AuditEvent) {
	w.t.Helper()
	for _, row := range w.audit(kind, id) {
		if row.Action == action {
			last = row
		}
	}
	return last
}
