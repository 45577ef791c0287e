package berth_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
)

// TestFactsAreBounded: whatever an act changes, its row stays small and is JSON
// that both engines take.
func TestFactsAreBounded(t *testing.T) {
	if f := berth.NewFacts(nil); f != "" {
		t.Errorf("no facts are %q", f)
	}
	if f := berth.NewFacts(map[string]string{"b": "2", "a": "1"}); f != `{"a":"1","b":"2"}` {
		t.Errorf("facts %q", f)
	}
	many := map[string]string{"long": strings.Repeat("é", 5000), "nul": "a\x00b", "bad": "a\xffb"}
	for i := range 1000 {
		many[fmt.Sprintf("x%04d", i)] = "v"
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(berth.NewFacts(many)), &got); err != nil {
		t.Fatal(err)
	}
	long := got["long"]
	if len(got) != berth.MaxFacts+1 || got["..."] != fmt.Sprint(len(many)-berth.MaxFacts) {
		t.Errorf("%d fields, ... = %q", len(got), got["..."])
	}
	if len(long) > berth.MaxFactBytes || !utf8.ValidString(long) || !strings.HasSuffix(long, "é...") {
		t.Errorf("a long value became %d bytes, %q", len(long), long)
	}
	if got["nul"] != "ab" || got["bad"] != "a\uFFFDb" {
		t.Errorf("texts became %q and %q", got["nul"], got["bad"])
	}
}

// TestAuditActionsListsAll: what the list lacks, no test would ask for.
func TestAuditActionsListsAll(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Type == nil {
			return true
		}
		prefix, known := map[string]string{"AuditAction": "", "Event": "task."}[fmt.Sprint(spec.Type)]
		if !known || len(spec.Values) != 1 {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		want[prefix+value] = true
		return true
	})
	delete(want, "task.renewed") // logged alone
	got := map[string]bool{}
	for _, a := range berth.AuditActions() {
		got[string(a)] = true
	}
	if len(want) < 40 || !maps.Equal(want, got) {
		t.Errorf("event.go has %d actions, the list %d:\n%v\n%v", len(want), len(got), want, got)
	}
}
