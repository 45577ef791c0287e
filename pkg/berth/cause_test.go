package berth

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCauseOf(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"":                               "",
		"the button is not there":        "the button is not there",
		"exit status 3":                  "exit status <n>",
		"took 31.5s, at most 30s":        "took <n>, at most <n>",
		"no device emulator-5554":        "no device emulator-<n>",
		`expected "Log in", got 'Sorry'`: "expected <text>, got <text>",
		"it can't be: isn't it":          "it can't be: isn't it",
		"task 01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10 is gone": "task <id> is gone",
		"at 0xc000123 of deadbeef01":                        "at <id> of <id>",
		"open /var/lib/berth/runs/7/out: no such file":      "open <path>: no such file",
		`open C:\temp\x7: no such file`:                     "open <path>: no such file",
		"and/or":                                            "and/or",
		"GET http://127.0.0.1:8081/a?b=1 failed":            "GET <url>=<n> failed",
		"dial 10.1.2.3:80: refused":                         "dial <n>: refused",
		"since 2026-03-02T10:20:30.5Z or 10:20:30.":         "since <time> or <time>.",
		"main.go:17: nil\n\tgoroutine 5 [running]":          "main.go:<n>: nil goroutine <n> [running]",
		"unclosed \"quote 7":                                "unclosed \"quote <n>",
		"broken \xff\x00text":                               "broken \uFFFD text",
		"steps[12] attempt=3":                               "steps[<n>] attempt=<n>",
		strings.Repeat("word ", 200):                        strings.Repeat("word ", 59) + "word…",
	} {
		if got := CauseOf("p", "r", message).Message.Reveal(); got != want {
			t.Errorf("%q\n gives %q\n  want %q", message, got, want)
		}
	}
}

// Two runs of one fault differ in what is of the run alone.
func TestCauseOfTellsFaultsApart(t *testing.T) {
	t.Parallel()
	one := CauseOf("work", "failed", "no element 'a' after 30s in run 7")
	for _, c := range []struct {
		cause Cause
		same  bool
	}{
		{CauseOf("work", "failed", `no element 'other' after 31s in run 8`), true},
		{CauseOf("work", "failed", "no window 'a' after 30s in run 7"), false},
		{CauseOf("work", "timed_out", "no element 'a' after 30s in run 7"), false},
		{CauseOf("other", "failed", "no element 'a' after 30s in run 7"), false},
	} {
		if (c.cause.Key == one.Key) != c.same {
			t.Errorf("%+v and %+v: the same cause is %v, want %v", one, c.cause, !c.same, c.same)
		}
	}
	if !one.Key.Valid() || !UnknownCause.Valid() || CauseKey("x").Valid() || CauseKey("").Valid() {
		t.Error("keys are not what is valid")
	}
}

// What is normalised stays as it is, is bounded, and holds no digit, nothing
// that a terminal or a database would stumble over.
func TestCauseOfHolds(t *testing.T) {
	t.Parallel()
	piece := rapid.OneOf(
		rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune(`aé0 '"`+"`"+`/\.:-_<>=%[]x…`))),
		rapid.SampledFrom([]string{"https://a.b/1", "2026-03-02", "0xff", "can't", "12ms", "a/b", "C:\\x", "\xff", "\x00", "<n>", "deadbeef0"}),
		rapid.StringN(0, 600, -1),
	)
	rapid.Check(t, func(t *rapid.T) {
		message := strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, "message"), rapid.SampledFrom([]string{"", " "}).Draw(t, "between"))
		one := CauseOf("p", "r", message)
		text := one.Message.Reveal()
		if again := CauseOf("p", "r", text); again.Key != one.Key || again.Message.Reveal() != text {
			t.Fatalf("%q\n gives %q\n  then %q", message, text, again.Message.Reveal())
		}
		if n := utf8.RuneCountInString(text); n > MaxCauseMessage {
			t.Fatalf("%d characters", n)
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsDigit(r) || !unicode.IsPrint(r) && r != '\uFFFD' }) {
			t.Fatalf("%q gives %q", message, text)
		}
		if !one.Key.Valid() {
			t.Fatalf("key %q", one.Key)
		}
	})
}

func TestDeadLetterReason(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{ReasonNoTriesLeft, "assertion_failed", "assertion_failed"},
		{ReasonNotRetryable, "exit_code", "exit_code"},
		{ReasonNotRetrySafe, "lease_expired", "lease_expired"},
		{ReasonNoTriesLeft, "", ReasonNoTriesLeft},
		{ReasonHandBackLimit, "unclaimed", ReasonHandBackLimit},
		{ReasonQueueTimeout, "", ReasonQueueTimeout},
	} {
		if got := DeadLetterReason(c[0], c[1]); got != c[2] {
			t.Errorf("%s after %s gives %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
