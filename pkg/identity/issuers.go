package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"

	"github.com/berth-dev/berth/pkg/berth"
)

// The bounds of issuers and the defaults of their settings.
const (
	maxIssuers       = 16
	defaultMaxLife   = time.Hour
	longestMaxLife   = 24 * time.Hour
	defaultSkew      = 30 * time.Second
	longestSkew      = 5 * time.Minute
	defaultNameClaim = "preferred_username"
)

// Issuer is an external OIDC issuer whose tokens are taken.
type Issuer struct {
	// URL is the issuer's name, letter by letter as its tokens' iss has it.
	URL string
	// Audience that its tokens must be for.
	Audience string
	// RolesClaim is the way to the claim that holds roles or groups, a name a
	// level.
	RolesClaim []string
	// Roles maps what stands there to roles.
	Roles map[string]berth.Role
	// NameClaim names the user.
	NameClaim string
	// Algorithms that its tokens may be signed with: RS256, ES256, EdDSA.
	Algorithms []jwa.SignatureAlgorithm
	// Skew is how far its clock may differ; MaxLife bounds its tokens' life.
	Skew, MaxLife time.Duration
}

// issuerFile is the JSON of an issuer.
type issuerFile struct {
	Issuer           string            `json:"issuer"`
	Audience         string            `json:"audience"`
	RolesClaim       json.RawMessage   `json:"roles_claim"`
	Roles            map[string]string `json:"roles"`
	NameClaim        string            `json:"name_claim"`
	Algorithms       []string          `json:"algorithms"`
	ClockSkewSeconds *float64          `json:"clock_skew_seconds"`
	MaxLifeSeconds   *float64          `json:"max_life_seconds"`
}

// LoadIssuers reads the issuers from a JSON file, {"issuers": [...]}. The error
// is a berth.InvalidError that names every fault.
func LoadIssuers(path string) ([]Issuer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		why := "cannot be read"
		if errors.Is(err, os.ErrNotExist) {
			why = "there is no such file"
		}
		return nil, berth.Invalid("BERTH_ISSUERS_FILE", why, "check its path and rights")
	}
	return ParseIssuers(b)
}

// ParseIssuers reads the content of such a file.
func ParseIssuers(text []byte) ([]Issuer, error) {
	var file struct {
		Issuers []issuerFile `json:"issuers"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(&file)
	if err == nil {
		if _, err = dec.Token(); errors.Is(err, io.EOF) {
			err = distinct(text)
		} else {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		return nil, berth.Invalid("issuers file", "is not the JSON that it should be: "+berth.Clip(err.Error(), 120), `write {"issuers": [{"issuer": "https://...", ...}]}`)
	}
	var f berth.Faults
	var out []Issuer
	seen := map[string]bool{}
	if len(file.Issuers) == 0 || len(file.Issuers) > maxIssuers {
		f.Add("issuers", fmt.Sprintf("are %d", len(file.Issuers)), fmt.Sprintf("name 1 to %d, or leave BERTH_ISSUERS_FILE out", maxIssuers))
	}
	for n, from := range file.Issuers {
		at := fmt.Sprintf("issuers[%d]", n)
		i := from.issuer(at, &f)
		if seen[i.URL] {
			f.Add(at+".issuer", "stands twice", "join the two")
		}
		seen[i.URL] = true
		out = append(out, i)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

func (from issuerFile) issuer(at string, f *berth.Faults) Issuer {
	i := Issuer{
		URL: from.Issuer, Audience: from.Audience, NameClaim: from.NameClaim, Roles: map[string]berth.Role{},
		Skew:    duration(at+".clock_skew_seconds", from.ClockSkewSeconds, defaultSkew, 0, longestSkew, f),
		MaxLife: duration(at+".max_life_seconds", from.MaxLifeSeconds, defaultMaxLife, time.Minute, longestMaxLife, f),
	}
	if _, err := issuerURL(i.URL); err != nil {
		f.Add(at+".issuer", err.Error(), "write it as the issuer's tokens do, for example https://id.example.com/realms/lab")
	}
	if i.Audience == "" || len(i.Audience) > 512 {
		f.Add(at+".audience", "is missing", "name the audience (often the client id) that its tokens for Berth have")
	}
	if i.NameClaim == "" {
		i.NameClaim = defaultNameClaim
	}
	i.RolesClaim = claimPath(from.RolesClaim)
	if len(i.RolesClaim) == 0 || len(i.RolesClaim) > 8 || slices.Contains(i.RolesClaim, "") {
		f.Add(at+".roles_claim", "is no claim", `write its name, or the way to it: ["realm_access", "roles"]`)
	}
	from.mapRoles(at, &i, f)
	from.mapAlgorithms(at, &i, f)
	return i
}

func (from issuerFile) mapRoles(at string, i *Issuer, f *berth.Faults) {
	if len(from.Roles) == 0 {
		f.Add(at+".roles", "maps nothing, so nobody would get in", `write for example {"farm-operators": "operator"}`)
	}
	for value, name := range from.Roles {
		role := berth.Role(name)
		if !slices.Contains(berth.Roles(), role) { // never the hosts'
			f.Add(at+".roles."+berth.Clip(value, 60), fmt.Sprintf("%q is no role of people", berth.Clip(name, 30)), "use viewer, submitter, operator or admin")
		}
		i.Roles[value] = role
	}
}

func (from issuerFile) mapAlgorithms(at string, i *Issuer, f *berth.Faults) {
	known := []jwa.SignatureAlgorithm{jwa.RS256, jwa.ES256, jwa.EdDSA}
	if len(from.Algorithms) == 0 {
		i.Algorithms = known
	}
	for _, name := range from.Algorithms {
		alg := jwa.SignatureAlgorithm(name)
		if !slices.Contains(known, alg) {
			f.Add(at+".algorithms", fmt.Sprintf("%q is not taken", berth.Clip(name, 20)), "use RS256, ES256 and EdDSA, or those of them that the issuer signs with")
		}
		i.Algorithms = append(i.Algorithms, alg)
	}
}

// claimPath is a name, or a list of names; nil for anything else.
func claimPath(raw json.RawMessage) []string {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return []string{name}
	}
	var names []string
	if json.Unmarshal(raw, &names) != nil {
		return nil
	}
	return names
}

func duration(at string, seconds *float64, standard, least, most time.Duration, f *berth.Faults) time.Duration {
	if seconds == nil {
		return standard
	}
	if *seconds < least.Seconds() || *seconds > most.Seconds() {
		f.Add(at, "is out of range", fmt.Sprintf("use %v to %v", least.Seconds(), most.Seconds()))
		return standard
	}
	return time.Duration(*seconds * float64(time.Second))
}

// issuerURL judges an issuer's URL: https, or http on a loopback address (tests,
// a proxy on the same machine).
func issuerURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "" || err != nil || u.Host == "" || len(text) > 512:
		return nil, errors.New("is no URL")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(text, "?#"):
		return nil, errors.New("has a user, a query or a fragment")
	}
	return u, secure(u)
}

// secure reports whether what comes from u is what its owner sent.
func secure(u *url.URL) error {
	if u.Scheme == "https" || u.Scheme == "http" && loopback(u) {
		return nil
	}
	return errors.New("is not https")
}

func loopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
