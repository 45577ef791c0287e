package httpapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func TestLoginRefreshLogout(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		id := s.User("ada", berth.RoleOperator)
		plain := s.Client("")
		tokens, err := plain.Login(t.Context(), "ada", apitest.Password)
		if err != nil {
			t.Fatal(err)
		}
		me, err := s.Client(tokens.AccessToken).Me(t.Context())
		if err != nil || me.ID != string(id) || me.Name != "ada" || len(me.Roles) != 1 || me.Roles[0] != "operator" {
			t.Errorf("me: %+v, %v", me, err)
		}
		next, err := plain.Refresh(t.Context(), tokens.RefreshToken)
		if err != nil || next.RefreshToken == tokens.RefreshToken {
			t.Fatalf("refresh: %v", err)
		}
		if err := plain.Logout(t.Context(), next.RefreshToken); err != nil {
			t.Fatal(err)
		}
		if err := plain.Logout(t.Context(), next.RefreshToken); err != nil {
			t.Errorf("logout again: %v", err)
		}
		if _, err := plain.Refresh(t.Context(), next.RefreshToken); !bclient.HasCode(err, "unauthenticated") {
			t.Errorf("refresh after logout: %v", err)
		}
		// A wrong name and a wrong password are not told apart.
		_, one := plain.Login(t.Context(), "ada", "wrong")
		_, two := plain.Login(t.Context(), "nobody", "wrong")
		var a, b *bclient.Problem
		if !errors.As(one, &a) || !errors.As(two, &b) {
			t.Fatalf("%v, %v", one, two)
		}
		a.RequestID, b.RequestID = "", ""
		if a.Error() != b.Error() || a.Status != http.StatusUnauthorized {
			t.Errorf("%v\n%v", a, b)
		}
		jwks := send(t, s, "GET", "/api/v1/auth/jwks", "", "")
		if jwks.StatusCode != 200 || !strings.Contains(jwks.body, `"kty":"OKP"`) || strings.Contains(jwks.body, `"d"`) {
			t.Errorf("jwks: %d %s", jwks.StatusCode, jwks.body)
		}
	})
}

func TestPools(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("root", berth.RoleAdmin)
		p, err := c.CreatePool(t.Context(), bclient.PoolSpec{Name: "phones", AgeingStepSeconds: 90})
		if err != nil || p.Name != "phones" || p.AgeingStepSeconds != 90 || p.Paused {
			t.Fatalf("create: %+v, %v", p, err)
		}
		if _, err := c.CreatePool(t.Context(), bclient.PoolSpec{Name: "phones"}); !bclient.HasCode(err, "exists") {
			t.Errorf("create again: %v", err)
		}
		if got, err := c.GetPool(t.Context(), "phones"); err != nil || got != p {
			t.Errorf("get: %+v, %v", got, err)
		}
		if _, err := c.GetPool(t.Context(), "none"); !bclient.HasCode(err, "not_found") {
			t.Errorf("get none: %v", err)
		}
		first, err := c.ListPools(t.Context(), bclient.ListPoolsParams{PageSize: 1})
		if err != nil || len(first.Pools) != 1 || first.Pools[0].Name != "default" || first.NextPageToken == "" {
			t.Fatalf("first page: %+v, %v", first, err)
		}
		second, err := c.ListPools(t.Context(), bclient.ListPoolsParams{PageSize: 1, PageToken: first.NextPageToken})
		if err != nil || len(second.Pools) != 1 || second.Pools[0].Name != "phones" || second.NextPageToken != "" {
			t.Errorf("second page: %+v, %v", second, err)
		}
	})
}

func TestDevicesHostsAndPlugins(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		agent := s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
		c := s.As("ops", berth.RoleOperator)
		devices, err := c.ListDevices(t.Context(), bclient.ListDevicesParams{Pool: "default"})
		if err != nil || len(devices.Devices) != 2 {
			t.Fatalf("devices: %+v, %v", devices, err)
		}
		d := devices.Devices[0]
		if d.HostName != "lab-1" || d.Pool != "default" || !d.Present || d.Health != "good" || d.Admin != "active" || d.Occupancy != "free" ||
			d.Labels["os"] == "" || d.Labels["berth.dev/device"] != d.ID {
			t.Errorf("device: %+v", d)
		}
		task := submit(t, c, work("x"))
		agent.Run(task.ID)
		held, err := c.GetDevice(t.Context(), string(agent.Devices[0]))
		if err != nil || held.Occupancy != "held" || held.TaskID != task.ID || held.AttemptID == "" {
			t.Errorf("held device: %+v, %v", held, err)
		}
		hosts, err := c.ListHosts(t.Context(), bclient.ListHostsParams{})
		if err != nil || len(hosts.Hosts) != 1 || hosts.Hosts[0].Name != "lab-1" || hosts.Hosts[0].Devices != 2 || hosts.Hosts[0].Held != 1 || hosts.Hosts[0].State != "online" {
			t.Fatalf("hosts: %+v, %v", hosts, err)
		}
		if h, err := c.GetHost(t.Context(), hosts.Hosts[0].ID); err != nil || h.AgentVersion != "0.1.0" || len(h.Plugins) != 1 {
			t.Errorf("host: %+v, %v", h, err)
		}
		plugins, err := c.ListPlugins(t.Context(), bclient.ListPluginsParams{})
		if err != nil || len(plugins.Plugins) != 1 || plugins.Plugins[0].Schema != nil {
			t.Errorf("plugins: %+v, %v", plugins, err)
		}
		p, err := c.GetPlugin(t.Context(), apitest.Plugin)
		if err != nil || len(p.Versions) != 1 || p.Versions[0].Version != apitest.Version || len(p.Versions[0].Schema) == 0 {
			t.Errorf("plugin: %+v, %v", p, err)
		}
		for what, err := range map[string]error{
			"device": second(c.GetDevice(t.Context(), task.ID)), "host": second(c.GetHost(t.Context(), task.ID)), "plugin": second(c.GetPlugin(t.Context(), "none")),
		} {
			if !bclient.HasCode(err, "not_found") {
				t.Errorf("unknown %s: %v", what, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestAnEnrolmentTokenIsShownOnce(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("root", berth.RoleAdmin)
		e, err := c.CreateEnrolmentToken(t.Context(), bclient.EnrolmentTokenSpec{HostNamePattern: "lab-*", TTLSeconds: 120})
		if err != nil || e.Token == "" || e.Pool != "default" || e.HostNamePattern != "lab-*" || e.ExpiresAt.Sub(e.CreatedAt).Seconds() != 120 {
			t.Fatalf("create: %+v, %v", e, err)
		}
		list := send(t, s, "GET", "/api/v1/enrolment-tokens", s.Token("root"), "")
		if !strings.Contains(list.body, e.ID) || strings.Contains(list.body, e.Token) {
			t.Errorf("list: %s", list.body)
		}
		// It is the token that lets a host in.
		_, err = s.Store.Enrol(t.Context(), store.EnrolParams{
			Actor: s.Admin, TokenHash: identity.HashEnrolmentToken(redact.NewString(e.Token)),
			Host: "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10", Name: "lab-7", PublicKey: make([]byte, 32),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.RevokeEnrolmentToken(t.Context(), e.ID); !bclient.HasCode(err, "wrong_state") {
			t.Errorf("revoke a used one: %v", err)
		}
		other, err := c.CreateEnrolmentToken(t.Context(), bclient.EnrolmentTokenSpec{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.RevokeEnrolmentToken(t.Context(), other.ID); err != nil {
				t.Errorf("revoke: %v", err)
			}
		}
		if _, err := c.CreateEnrolmentToken(t.Context(), bclient.EnrolmentTokenSpec{Pool: "none"}); !bclient.HasCode(err, "invalid") {
			t.Errorf("unknown pool: %v", err)
		}
		s.AssertSilentAbout(e.Token, other.Token)
	})
}

func TestHealthTellsAboutTheDatabase(t *testing.T) {
	s := apitest.OnSQLite(t)
	h, err := s.Client("").Health(t.Context())
	if err != nil || h.Status != "ok" || h.Version != "test" || h.Time.IsZero() {
		t.Errorf("health: %+v, %v", h, err)
	}
}
