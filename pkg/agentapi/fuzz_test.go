package agentapi

import (
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

// FuzzLogOffset: the position of a chunk is taken in its one spelling and within
// the bounds of a log, and otherwise refused as offset. The same number as a header
// is a counter from 1 on.
func FuzzLogOffset(f *testing.F) {
	for _, s := range []string{
		"", "0", "1", "-1", "+1", "01", " 1", "1e3", "0x10", "1_000", "१", "67108864", "67108865", "4503599627370496", "4503599627370497",
		"9223372036854775808", strings.Repeat("9", 400), "1\x00", "NaN",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, known := new(big.Int).SetString(s, 10)
		plain := known && n.String() == s && n.Sign() >= 0
		offset, err := logOffset(s)
		if want := plain && n.Cmp(big.NewInt(store.MaxLogBytes)) <= 0; want != (err == nil) {
			t.Fatalf("%q: %d, %v", s, offset, err)
		}
		var invalid *berth.InvalidError
		switch {
		case err == nil && strconv.FormatInt(offset, 10) != s:
			t.Fatalf("%q became %d", s, offset)
		case err != nil && (!errors.As(err, &invalid) || invalid.Fields[0].Path != "offset" || invalid.Fields[0].Remedy == "" || len(err.Error()) > 200):
			t.Fatalf("%q: %v", s, err)
		}
		r := httptest.NewRequest(http.MethodPut, "/", nil)
		r.Header[http.CanonicalHeaderKey(protocol.HeaderFence)] = []string{s}
		fence, err := headerNumber(echo.New().NewContext(r, httptest.NewRecorder()), protocol.HeaderFence)
		if want := plain && n.Sign() > 0 && n.Cmp(big.NewInt(maxCounter)) <= 0; want != (err == nil) || want && strconv.FormatInt(fence, 10) != s {
			t.Fatalf("%q as a fence: %d, %v", s, fence, err)
		}
	})
}

// FuzzSync: what an agent reports of itself, its plugins and its devices is refused
// with the members named, or every text of it can be stored, is bounded, and the
// labels can be asked for.
func FuzzSync(f *testing.F) {
	full := `{"instance":"12345678","epoch":1,"journal_epoch":1,"agent_version":"1.2.3","plugins":[{"name":"work","version":"1.4.0","description":"Does\nwork.",` +
		`"requires":"driver=process","schema":{"type":"object"}}],"devices":[{"driver":"process","hardware_id":"slot-a","name":"slot a","labels":{"os":"linux"},` +
		`"health":"good","highest_fence":3,"clean":true}],"held":[{"attempt":"0000000d-0000-7000-8000-000000000001","fence":1}]}`
	f.Add([]byte(full))
	for _, change := range [][2]string{
		{"slot a", `a\u0000b`},
		{"slot a", "\xff"},
		{"slot a", `\u202e`},
		{`"linux"`, `"a b"`},
		{`"os"`, `"berth.dev/pool"`},
		{"1.4.0", "1.4"},
		{"Does", `\ud800`},
		{"driver=process", "driver in ("},
		{`"epoch":1`, `"epoch":1e3`},
		{`"epoch":1`, `"epoch":-1`},
		{`{"type":"object"}`, `[1]`},
		{`"good"`, `"well"`},
		{"slot-a", "<b>"},
	} {
		f.Add([]byte(strings.Replace(full, change[0], change[1], 1)))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := decode[protocol.SyncRequest](body)
		if err == nil {
			err = checkSync(req)
		}
		var invalid *berth.InvalidError
		if err != nil {
			if !errors.As(err, &invalid) || len(invalid.Fields) == 0 {
				t.Fatalf("another kind of error: %v", err)
			}
			for _, fault := range invalid.Fields {
				if fault.Message == "" || fault.Remedy == "" || len(fault.Path)+len(fault.Message)+len(fault.Remedy) > 1000 || !utf8.ValidString(fault.Path+fault.Message) {
					t.Fatalf("%+v", fault)
				}
			}
			return
		}
		texts := []string{req.Instance, req.AgentVersion}
		for _, p := range req.Plugins {
			texts = append(texts, p.Name, p.Version, strings.NewReplacer("\n", "", "\t", "").Replace(p.Description), p.Requires)
			if len(p.Schema) > maxSchemaBytes || len(p.Schema) > 0 && !json.Valid(p.Schema) {
				t.Fatalf("the schema %.100q passes", p.Schema)
			}
		}
		for _, d := range req.Devices {
			texts = append(texts, d.Driver, d.HardwareID, d.Name, string(d.Health))
			for key, value := range d.Labels {
				texts = append(texts, key, value)
				if _, err := eligibility.Join("", key+"="+value); err != nil || strings.HasPrefix(key, berth.ReportedLabelPrefix) {
					t.Fatalf("the label %q=%q passes: %v", key, value, err)
				}
			}
		}
		if slices.ContainsFunc(texts, func(s string) bool {
			return len(s) > maxDescriptionLen || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl)
		}) {
			t.Fatalf("%q pass", texts)
		}
	})
}

// FuzzClean: what work says is kept as text that databases keep and terminals show,
// and what is clean stays as it is.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "done\r\nin 3 s\t", "a\x00b", "\xff\xfe", "\u009b2J", "\u202egnp.exe", "\x1b[2J", "\r\r\n", "ünïcode"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		rest := strings.NewReplacer("\n", "", "\t", "").Replace(got)
		if !utf8.ValidString(got) || strings.ContainsFunc(rest, unicode.IsControl) || strings.ContainsFunc(rest, func(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }) {
			t.Fatalf("%q became %q", s, got)
		}
		if clean(got) != got || utf8.RuneCountInString(got) > utf8.RuneCountInString(s) || len(got) > 3*len(s) {
			t.Fatalf("%q became %q, then %q", s, got, clean(got))
		}
	})
}
