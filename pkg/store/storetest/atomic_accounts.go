package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// accountOperations are those on users, sessions and API keys, to be broken off.
func accountOperations() []operation {
	return append(userOperations(), append(sessionOperations(), apiKeyOperations()...)...)
}

func userOperations() []operation {
	no := false
	return []operation{
		{name: "BootstrapAdmin", prepare: func(w *world) callFunc {
			id := newID[berth.UserID](w.Env)
			return func(ctx context.Context, s store.Store) error {
				return err2(s.BootstrapAdmin(ctx, id, "admin", redact.NewString("hash")))
			}
		}},
		{name: "CreateUser", prepare: func(w *world) callFunc {
			u := berth.User{ID: newID[berth.UserID](w.Env), Name: "ann", Roles: []berth.Role{berth.RoleViewer}}
			return func(ctx context.Context, s store.Store) error {
				return s.CreateUser(ctx, w.operator, u, redact.NewString("hash"))
			}
		}},
		{name: "AddUser", about: "with a key", prepare: func(w *world) callFunc {
			p := store.AddUserParams{
				Actor: w.operator, User: berth.User{ID: newID[berth.UserID](w.Env), Name: "ci", Roles: []berth.Role{berth.RoleSubmitter}},
				Once: onceOf("k", "body"),
			}
			return func(ctx context.Context, s store.Store) error { return err2(s.AddUser(ctx, p)) }
		}},
		{name: "ProvisionUser", about: "first seen", prepare: func(w *world) callFunc {
			p := w.provision("https://id.example", "subject", "ann")
			return func(ctx context.Context, s store.Store) error { return err2(s.ProvisionUser(ctx, p)) }
		}},
		{name: "ChangeUser", about: "disabled, with sessions", prepare: func(w *world) callFunc {
			u, yes := w.person("ann", "t0"), true
			p := store.ChangeUserParams{Actor: w.operator, User: u.ID, Roles: []berth.Role{berth.RoleOperator}, Disabled: &yes}
			return func(ctx context.Context, s store.Store) error { return err2(s.ChangeUser(ctx, p)) }
		}},
		{name: "ChangeUser", about: "enabled", prepare: func(w *world) callFunc {
			u := w.account("ann", berth.RoleViewer)
			w.disable(u, true)
			p := store.ChangeUserParams{Actor: w.operator, User: u.ID, Disabled: &no}
			return func(ctx context.Context, s store.Store) error { return err2(s.ChangeUser(ctx, p)) }
		}},
		{name: "SetPassword", about: "with sessions", prepare: func(w *world) callFunc {
			u := w.person("ann", "t0")
			p := store.SetPasswordParams{Actor: w.operator, User: u.ID, Hash: redact.NewString("another hash"), KeepSession: w.begin(u, "kept")}
			return func(ctx context.Context, s store.Store) error { return err2(s.SetPassword(ctx, p)) }
		}},
		{name: "RefuseLogin", prepare: func(w *world) callFunc {
			return func(ctx context.Context, s store.Store) error { return s.RefuseLogin(ctx, w.operator, "nobody") }
		}},
	}
}

func sessionOperations() []operation {
	rotating := func(p store.RotateParams) callFunc {
		return func(ctx context.Context, s store.Store) error { return err3(s.RotateRefreshToken(ctx, p)) }
	}
	return []operation{
		{name: "AddRefreshToken", prepare: func(w *world) callFunc {
			u := w.account("ann", berth.RoleViewer)
			t := store.RefreshToken{Hash: hashOf("t0"), Family: newID[string](w.Env), User: u.ID, TTL: time.Hour}
			return func(ctx context.Context, s store.Store) error { return s.AddRefreshToken(ctx, t) }
		}},
		{name: "RotateRefreshToken", about: "the newest", prepare: func(w *world) callFunc {
			w.person("ann", "t0")
			w.must("rotate", w.rotate("t0", "t1"))
			return rotating(rotation("t1", "t2"))
		}},
		{name: "RotateRefreshToken", about: "the predecessor", prepare: func(w *world) callFunc {
			w.person("ann", "t0")
			w.must("rotate", w.rotate("t0", "t1"))
			return rotating(rotation("t0", "t1b"))
		}},
		// The session ends, and the thief is told: an error that is committed.
		{name: "RotateRefreshToken", about: "a stolen one", prepare: func(w *world) callFunc {
			w.person("ann", "t0")
			w.must("rotate", w.rotate("t0", "t1"))
			w.must("rotate", w.rotate("t1", "t2"))
			p := rotation("t0", "x")
			return func(ctx context.Context, s store.Store) error {
				_, _, err := s.RotateRefreshToken(ctx, p)
				if errors.Is(err, berth.ErrUsed) {
					return nil
				}
				return err
			}
		}},
		{name: "RevokeRefreshFamily", prepare: func(w *world) callFunc {
			u := w.person("ann", "t0")
			by := berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: string(u.ID)}, RequestID: "r"}
			return func(ctx context.Context, s store.Store) error { return s.RevokeRefreshFamily(ctx, by, hashOf("t0")) }
		}},
	}
}

func apiKeyOperations() []operation {
	made := func(w *world) (berth.User, berth.APIKey) {
		u := w.account("ci", berth.RoleOperator)
		k, err := w.Store.CreateAPIKey(bg(), w.apiKey(u, "secret"))
		w.must("create", err)
		return u, k
	}
	return []operation{
		{name: "CreateAPIKey", about: "with a key", prepare: func(w *world) callFunc {
			p := w.apiKey(w.account("ci", berth.RoleOperator), "secret")
			p.Once = onceOf("k", "body")
			return func(ctx context.Context, s store.Store) error { return err2(s.CreateAPIKey(ctx, p)) }
		}},
		{name: "RevokeAPIKey", prepare: func(w *world) callFunc {
			u, k := made(w)
			return func(ctx context.Context, s store.Store) error { return s.RevokeAPIKey(ctx, w.operator, u.ID, k.ID) }
		}},
		{name: "UseAPIKey", prepare: func(w *world) callFunc {
			made(w)
			w.Clock.Advance(berth.APIKeyUseStep)
			return func(ctx context.Context, s store.Store) error { return err3(s.UseAPIKey(ctx, hashOf("secret"))) }
		}},
	}
}

// fleetOperations are those on pools, plugins, tokens of enrolment, keys of hosts
// and priorities, to be broken off.
func fleetOperations() []operation {
	return []operation{
		{name: "CreatePool", about: "with a key", prepare: func(w *world) callFunc {
			p := store.CreatePoolParams{
				Actor: w.operator, Pool: berth.Pool{ID: newID[berth.PoolID](w.Env), Name: "other", AgeingStep: time.Minute}, Once: onceOf("k", "body"),
			}
			return func(ctx context.Context, s store.Store) error { return err2(s.CreatePool(ctx, p)) }
		}},
		{name: "SetPoolPaused", prepare: func(w *world) callFunc {
			return func(ctx context.Context, s store.Store) error {
				return err2(s.SetPoolPaused(ctx, w.operator, w.pool.Name, true))
			}
		}},
		{name: "ChangePlugin", prepare: func(w *world) callFunc {
			p := berth.PluginVersion{Name: pluginName, Version: pluginVersion}
			return func(ctx context.Context, s store.Store) error {
				return err2(s.ChangePlugin(ctx, enabling(w.operator, p, false)))
			}
		}},
		{name: "SetTaskPriority", prepare: func(w *world) callFunc {
			p := w.params(w.submit().ID)
			return func(ctx context.Context, s store.Store) error { return err3(s.SetTaskPriority(ctx, p, 7)) }
		}},
		{name: "CreateEnrolment", about: "with a key", prepare: func(w *world) callFunc {
			p := store.CreateEnrolmentParams{
				Actor: w.operator, ID: newID[berth.EnrolmentID](w.Env), Pool: w.pool.ID, Pattern: "*", TokenHash: hashOf("secret"), TTL: time.Hour,
				Once: onceOf("k", "body"),
			}
			return func(ctx context.Context, s store.Store) error { return err2(s.CreateEnrolment(ctx, p)) }
		}},
		{name: "RevokeEnrolment", prepare: func(w *world) callFunc {
			id := w.token("secret", "*", w.pool.ID).ID
			return func(ctx context.Context, s store.Store) error { return s.RevokeEnrolment(ctx, w.operator, id) }
		}},
		{name: "OfferHostKey", prepare: func(w *world) callFunc {
			p := store.OfferHostKeyParams{AgentCall: w.host("h1", 1).call(), Key: keyOf("next"), Under: keyOf("h1")}
			return func(ctx context.Context, s store.Store) error { return s.OfferHostKey(ctx, p) }
		}},
		{name: "PromoteHostKey", prepare: func(w *world) callFunc {
			a := w.host("h1", 1)
			w.must("offer", a.offer("next", "h1"))
			return func(ctx context.Context, s store.Store) error {
				return s.PromoteHostKey(ctx, a.actor, a.id, keyOf("next"))
			}
		}},
		{name: "RequestKeyRotation", prepare: func(w *world) callFunc {
			a := w.host("h1", 1)
			return func(ctx context.Context, s store.Store) error {
				return err2(s.RequestKeyRotation(ctx, w.operator, a.id))
			}
		}},
		{name: "SweepTasks", about: "a lost one", prepare: func(w *world) callFunc {
			w.exec("DELETE FROM queue WHERE task_id = '%s'", w.submit().ID)
			return func(ctx context.Context, s store.Store) error { return err2(s.SweepTasks(ctx, w.keeper, "", 10)) }
		}},
		{name: "RecordRead", prepare: func(w *world) callFunc {
			e := berth.AuditEvent{Action: berth.AuditArtifactRead, TargetKind: "artifact", TargetID: newID[string](w.Env), After: berth.Fact("name", "page.png")}
			return func(ctx context.Context, s store.Store) error { return s.RecordRead(ctx, w.user, e) }
		}},
	}
}
