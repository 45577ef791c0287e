package berth

import (
	"errors"
	"testing"
	"time"
)

func TestRefreshTokensAreJudgedByTheirOwnHistory(t *testing.T) {
	now := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	before := now.Add(-RefreshGrace)
	for name, tc := range map[string]struct {
		token RefreshToken
		want  error
	}{
		"fresh":               {RefreshToken{SessionLives: true}, nil},
		"over":                {RefreshToken{ExpiresAt: now, SessionLives: true}, ErrExpired},
		"revoked":             {RefreshToken{RevokedAt: now, SessionLives: true}, ErrExpired},
		"within the grace":    {RefreshToken{RotatedAt: before, SessionLives: true}, nil},
		"after the grace":     {RefreshToken{RotatedAt: before.Add(-time.Microsecond), SessionLives: true}, ErrUsed},
		"not the immediate":   {RefreshToken{RotatedAt: now, Settled: true, SessionLives: true}, ErrUsed},
		"of an ended session": {RefreshToken{RotatedAt: now}, ErrExpired},
		"stolen, of an ended": {RefreshToken{RotatedAt: now, Settled: true}, ErrExpired},
	} {
		if tc.token.ExpiresAt.IsZero() {
			tc.token.ExpiresAt = now.Add(time.Microsecond)
		}
		if err := tc.token.Use(now); !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

func TestOneWhoKeepsTheKeysStays(t *testing.T) {
	yes, no := true, false
	admin := User{Name: "ann", Roles: []Role{RoleAdmin}, HasPassword: true, Version: 3}
	service, disabled := admin, admin
	service.HasPassword, disabled.Disabled = false, true
	for name, tc := range map[string]struct {
		user    User
		change  UserChange
		others  bool
		want    error
		version int
	}{
		"the last is disabled":      {admin, UserChange{Disabled: &yes}, false, ErrWrongState, 3},
		"the last loses the role":   {admin, UserChange{Roles: []Role{RoleOperator}}, false, ErrWrongState, 3},
		"the last gets another":     {admin, UserChange{Roles: []Role{RoleAdmin, RoleViewer}}, false, nil, 4},
		"with another one":          {admin, UserChange{Disabled: &yes}, true, nil, 4},
		"a service":                 {service, UserChange{Disabled: &yes}, false, nil, 4},
		"one who is disabled":       {disabled, UserChange{Roles: []Role{RoleViewer}}, false, nil, 4},
		"nothing changes":           {admin, UserChange{Disabled: &no, Roles: []Role{RoleAdmin, RoleAdmin}}, false, nil, 3},
		"an old version":            {admin, UserChange{Disabled: &yes, Version: 2}, true, ErrWrongState, 3},
		"a repeat of an old one":    {disabled, UserChange{Disabled: &yes, Version: 2}, true, nil, 3},
		"its version":               {admin, UserChange{Disabled: &yes, Version: 3}, true, nil, 4},
		"the version of the future": {admin, UserChange{Disabled: &yes, Version: 4}, true, ErrWrongState, 3},
	} {
		got, err := tc.user.Changed(tc.change, tc.others)
		if !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) || got.Version != tc.version {
			t.Errorf("%s: version %d, %v", name, got.Version, err)
		}
	}
}

func TestAKeyHasNoMoreThanItsUser(t *testing.T) {
	for _, c := range []struct{ asked, users, want []Role }{
		{[]Role{RoleViewer}, []Role{RoleViewer}, []Role{RoleViewer}},
		{[]Role{RoleViewer, RoleSubmitter}, []Role{RoleSubmitter}, []Role{RoleSubmitter}}, // a viewer sees all tasks
		{[]Role{RoleViewer}, []Role{RoleViewer, RoleSubmitter}, []Role{RoleViewer}},
		{[]Role{RoleViewer, RoleSubmitter, RoleAdmin}, []Role{RoleOperator}, []Role{RoleViewer, RoleSubmitter}},
		{[]Role{RoleHost}, []Role{RoleAdmin}, nil},
		{[]Role{RoleViewer}, nil, nil},
	} {
		if got := Within(c.asked, c.users); !SameRoles(got, c.want) {
			t.Errorf("%v of %v: %v, want %v", c.asked, c.users, got, c.want)
		}
		if SeesAll(Within(c.asked, c.users)) && !SeesAll(c.users) {
			t.Errorf("%v of %v sees more than its user", c.asked, c.users)
		}
	}
	if got := ImpliedRoles([]Role{RoleSubmitter}); !SameRoles(got, []Role{RoleViewer, RoleSubmitter}) {
		t.Errorf("what is granted to viewers is granted to submitters, too: %v", got)
	}
}
