package httpapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/berth-dev/berth/api"
	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpapi"
)

func model(t *testing.T) *v3.Document {
	t.Helper()
	doc, err := libopenapi.NewDocument(api.Document)
	if err != nil {
		t.Fatal(err)
	}
	m, err := doc.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	return &m.Model
}

// operation is one route of the document.
type operation struct {
	method, path, role string
	*v3.Operation
}

func operations(t *testing.T) []operation {
	var out []operation
	for path, item := range model(t).Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			out = append(out, operation{strings.ToUpper(method), path, op.Extensions.GetOrZero("x-berth-role").Value, op})
		}
	}
	return out
}

func echoPath(path string) string {
	return httpapi.BaseURL + strings.NewReplacer("{", ":", "}", "").Replace(path)
}

func TestRoutesAreThoseOfTheDocument(t *testing.T) {
	s := apitest.OnSQLite(t)
	var documented, registered []string
	for _, op := range operations(t) {
		documented = append(documented, op.method+" "+echoPath(op.path))
	}
	for _, r := range s.Echo.Routes() {
		// A group's middleware brings catch-all routes that answer 404.
		if strings.HasPrefix(r.Path, httpapi.BaseURL) && r.Method != "echo_route_not_found" {
			registered = append(registered, r.Method+" "+r.Path)
		}
	}
	slices.Sort(documented)
	slices.Sort(registered)
	if !slices.Equal(documented, registered) {
		t.Errorf("document and routes differ:\ndocument %v\nroutes   %v", documented, registered)
	}
	for route := range httpapi.Kinds() {
		if !slices.Contains(registered, route.Method+" "+route.Path) {
			t.Errorf("Kinds names %v, which is no route", route)
		}
	}
	for route := range httpapi.Ungated() {
		if !slices.Contains(registered, route.Method+" "+route.Path) {
			t.Errorf("Ungated names %v, which is no route", route)
		}
	}
}

// Unknown fields are refused by the schemas alone, so each must say whether it
// takes them.
func TestRequestSchemasSayWhetherTheyTakeMore(t *testing.T) {
	for _, op := range operations(t) {
		if op.RequestBody == nil {
			continue
		}
		for _, media := range op.RequestBody.Content.FromOldest() {
			saysSo(t, op.OperationId, media.Schema)
		}
	}
}

func saysSo(t *testing.T, at string, proxy *base.SchemaProxy) {
	t.Helper()
	s, err := proxy.BuildSchema()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(s.Type, "object") && s.AdditionalProperties == nil {
		t.Errorf("%s: additionalProperties is missing", at)
	}
	if s.Properties != nil {
		for name, p := range s.Properties.FromOldest() {
			saysSo(t, at+"."+name, p)
		}
	}
	if s.Items != nil && s.Items.IsA() {
		saysSo(t, at+"[]", s.Items.A)
	}
}

// example fills a path's parameters with what exists nowhere.
func example(path string) string {
	return httpapi.BaseURL + strings.NewReplacer(
		"{id}", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10", "{number}", "1", "{name}", "nothing", "{version}", "1.0.0",
		"{digest}", strings.Repeat("0", 64),
	).Replace(path)
}

func TestEveryRouteAsksForItsRole(t *testing.T) {
	s := apitest.OnSQLite(t)
	tokens := map[string]string{"none": "", "garbage": "garbage"}
	for _, role := range berth.Roles() {
		s.User("u-"+string(role), role)
		tokens[string(role)] = s.Token("u-" + string(role))
	}
	tokens["host"] = s.Agent("lab-1").Token()
	for _, op := range operations(t) {
		for who, token := range tokens {
			t.Run(fmt.Sprintf("%s %s/%s", op.method, op.path, who), func(t *testing.T) {
				body, kind := "", "application/json"
				if op.RequestBody != nil {
					body = `{"no such field":1}` // let in, it is refused as invalid and changes nothing
					kind = op.RequestBody.Content.First().Key()
				}
				got := send(t, s, op.method, example(op.path), token, body, "Content-Type", kind).StatusCode
				refused := got == http.StatusUnauthorized || got == http.StatusForbidden
				switch {
				case op.role == "public":
					if refused {
						t.Errorf("status %d on a public route", got)
					}
				case who == "none" || who == "garbage":
					if got != http.StatusUnauthorized {
						t.Errorf("status %d without a token, want 401", got)
					}
				case berth.Role(who).Includes(berth.Role(op.role)):
					if refused || got >= 500 {
						t.Errorf("status %d, but %s includes %s", got, who, op.role)
					}
				default:
					if got != http.StatusForbidden {
						t.Errorf("status %d for %s where %s is asked for, want 403", got, who, op.role)
					}
				}
			})
		}
	}
}
