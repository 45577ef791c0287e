package strictjson_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/strictjson"
)

func TestWhatParsersDisagreeAbout(t *testing.T) {
	known := func(key string) bool { return key == "a" || key == "b" }
	nested := func(n int) string { return strings.Repeat(`[{"a":`, n) + "1" + strings.Repeat("}]", n) }
	for body, want := range map[string]string{
		`{"a":{"b":[1,"x",null,true]}}`: "",
		`{"a":1,"a":2}`:                 "a: the key stands there twice",
		`{"a":[{"b":1},{"secret":{"secret":1,"\u0073ecret":2}}]}`: "a[1].*.*: the key stands there twice",
		`{"a":1e999}`:              "a: the number is too large",
		`{"a":1}{}`:                ": something follows the JSON value",
		`{"a":1,}`:                 ": the body is not JSON, from byte 7 on",
		"{\"a\":\"\xff\"}":         ": the body is not valid UTF-8",
		nested(31):                 "",
		nested(1 << 17):            "deeply", // 1 MiB of it
		strings.Repeat("[", 1<<20): "deeply",
		"[" + strings.Repeat("0,", 600_000) + "0]": "too many values",
	} {
		err := strictjson.Check([]byte(body), known)
		got := ""
		var invalid *berth.InvalidError
		if errors.As(err, &invalid) {
			got = invalid.Fields[0].Path + ": " + invalid.Fields[0].Message
		}
		if want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%.60s: %q, want %q", body, got, want)
		}
		if strings.Contains(got, "secret") {
			t.Errorf("a key of the sender's is named: %s", got)
		}
	}
	for body, ok := range map[string]bool{
		`{"items":[{"result":{"a":1,"a":2},"fence":1}]}`: true,
		"{\"result\":\"\xff\"}":                          true,
		`{"items":[{"fence":1,"fence":2}]}`:              false,
		`{"result":1,"result":2}`:                        false,
		`{"result":{]}`:                                  false,
		`{"result":1} {}`:                                false,
	} {
		if err := strictjson.CheckAround([]byte(body), "result"); (err == nil) != ok {
			t.Errorf("%s: %v", body, err)
		}
	}
}
