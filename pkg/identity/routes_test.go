package identity_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/problem"
)

func TestTheTableDecidesWhoMayCallWhat(t *testing.T) {
	w := newWorld(t)
	f := newForge(t, w)
	w.fresh(t)
	users := map[string][2]string{}
	for _, role := range berth.Roles() {
		user, session := w.person(t, "a-"+string(role), role)
		users[string(role)] = [2]string{string(user), session}
	}
	token := func(aud, role string) string {
		claims := map[string]any{"aud": aud, "roles": []string{role}}
		if who, ok := users[role]; ok {
			claims["sub"], claims["sid"] = who[0], who[1]
		}
		return craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, claims))
	}
	table := identity.Routes{
		{Method: "GET", Path: "/open"}:      identity.Public(),
		{Method: "GET", Path: "/tasks/:id"}: identity.AtLeast(berth.RoleSubmitter),
		{Method: "POST", Path: "/claims"}:   identity.AtLeast(berth.RoleHost),
	}
	e := echo.New()
	e.HTTPErrorHandler = problem.Handler(zap.NewNop())
	e.Use(w.Require(table))
	who := func(c echo.Context) error {
		caller, _ := identity.CallerOf(c)
		return c.String(200, caller.ID)
	}
	e.GET("/open", who)
	e.GET("/tasks/:id", who)
	e.POST("/claims", who)
	if err := table.Check(e, "/"); err != nil {
		t.Fatal(err)
	}
	e.GET("/forgotten", who)
	if err := table.Check(e, "/"); err == nil || !strings.Contains(err.Error(), "GET /forgotten has no role") {
		t.Errorf("Check: %v", err)
	}
	s := httptest.NewServer(e)
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for _, tc := range []struct {
		method, path, auth string
		want               int
	}{
		{"GET", "/open", "", 200},
		{"GET", "/open", "Bearer junk", 200},
		{"GET", "/tasks/1", "", 401},
		{"GET", "/tasks/1", "Bearer", 401},
		{"GET", "/tasks/1", "Bearer ", 401},
		{"GET", "/tasks/1", "Basic YTpi", 401},
		{"GET", "/tasks/1", "Bearer junk", 401},
		{"GET", "/tasks/1", "Bearer " + token("berth", "viewer"), 403},
		{"GET", "/tasks/1", "Bearer " + token("berth", "submitter"), 200},
		{"GET", "/tasks/1", "bearer " + token("berth", "admin"), 200},
		{"GET", "/tasks/1", "Bearer " + token("berth-agent", "host"), 403},
		{"POST", "/claims", "Bearer " + token("berth", "admin"), 403},
		{"POST", "/claims", "Bearer " + token("berth-agent", "host"), 200},
		{"GET", "/forgotten", "Bearer " + token("berth", "admin"), 500},
		{"GET", "/nowhere", "", 404},
		{"DELETE", "/tasks/1", "", 405},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, s.URL+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.auth != "" {
			req.Header.Set("Authorization", tc.auth)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s %s %.12s: %d, want %d", tc.method, tc.path, tc.auth, res.StatusCode, tc.want)
		}
		if tc.want == 401 && res.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Error("401 without WWW-Authenticate")
		}
	}
}

func TestCheckFindsRowsWithoutARoute(t *testing.T) {
	e := echo.New()
	g := e.Group("/g", func(next echo.HandlerFunc) echo.HandlerFunc { return next })
	g.GET("/a", func(c echo.Context) error { return nil })
	table := identity.Routes{
		{Method: "GET", Path: "/g/a"}: identity.Public(),
		{Method: "GET", Path: "/g/b"}: identity.Public(),
		{Method: "GET", Path: "/g/c"}: {},
	}
	err := table.Check(e, "/g")
	if err == nil || !strings.Contains(err.Error(), "GET /g/b has a role and is no route") || strings.Contains(err.Error(), "/g/a") {
		t.Errorf("got %v", err)
	}
}
