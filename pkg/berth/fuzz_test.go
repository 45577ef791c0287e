package berth_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// storable: both engines keep s and give it back as it is, and a terminal shows it
// without moving its cursor.
func storable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// judgeFaults holds faults to what callers are promised: each names its place and
// what to do, is bounded, and is text.
func judgeFaults(t *testing.T, err error) {
	t.Helper()
	var invalid *berth.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Fields) == 0 {
		t.Fatalf("another kind of error: %v", err)
	}
	for _, fault := range invalid.Fields {
		if fault.Path == "" || fault.Message == "" || fault.Remedy == "" || len(fault.Path)+len(fault.Message)+len(fault.Remedy) > 1000 {
			t.Fatalf("a fault without place, words or remedy, or a long one: %+v", fault)
		}
		if !utf8.ValidString(fault.Path + fault.Message) {
			t.Fatalf("a fault that is no text: %+v", fault)
		}
	}
}

// FuzzTaskNames: a task's name, tags, inputs' and secrets' names are refused with
// the field named, or are safe to store, bounded, and the same when they are judged
// again.
func FuzzTaskNames(f *testing.F) {
	for _, s := range []string{"", "a", " a name ", "ümlaut", "a\x00b", "\xff", "a\u009b31m", "a\u202eb", "x/y:z=1", "../x", "a.png", strings.Repeat("a", 201), "lab-1", "-rf", "a\n"} {
		f.Add(s, s, s, s)
	}
	f.Add("a\u009b31m", "a", "a", "a")
	f.Add("nightly", "suite:smoke", "app.apk", "registry-password")
	f.Fuzz(func(t *testing.T, name, tag, input, secret string) {
		digest := strings.Repeat("0a", 32)
		task := berth.NewTask{
			Name: name, Tags: []string{tag, tag, "a"}, Payload: redact.NewBytes([]byte("{}")), Retry: berth.DefaultRetryPolicy(),
			Inputs: []berth.InputRef{{Name: input, Digest: digest}}, Secrets: []string{secret},
		}
		var faults berth.Faults
		task.Normalise("tasks[0]", time.Unix(1e9, 0), &faults)
		if err := faults.Err(); err != nil {
			judgeFaults(t, err)
			return
		}
		for _, s := range slices.Concat([]string{task.Name, task.Inputs[0].Name}, task.Tags, task.Secrets) {
			if !storable(s) || len(s) > berth.MaxNameLen {
				t.Fatalf("%q passes", s)
			}
		}
		if task.Name != strings.TrimSpace(name) || !slices.Contains(task.Tags, tag) || task.Inputs[0].Name != input || task.Secrets[0] != secret {
			t.Fatalf("%q, %q, %q, %q became %+v", name, tag, input, secret, task)
		}
		again := task
		again.Tags = slices.Clone(task.Tags)
		again.Normalise("tasks[0]", time.Unix(1e9, 0), &faults)
		if !reflect.DeepEqual([]any{again.Name, again.Tags, again.Inputs, again.Secrets}, []any{task.Name, task.Tags, task.Inputs, task.Secrets}) || faults.Err() != nil {
			t.Fatalf("judged again: %+v, %v", again, faults.Err())
		}
	})
}

// FuzzValidName: what names a pool, a host, a plugin, a user or a secret is of few
// bytes that mean the same in a URL, a file's name, a label's value and a database.
func FuzzValidName(f *testing.F) {
	for _, s := range []string{"", "a", "lab-1", "a.b_c-d9", "-a", "a-", "A", "a b", "a\n", "\na", "é", "a\x00", strings.Repeat("a", 63), strings.Repeat("a", 64), "..", "a..b"} {
		f.Add(s)
	}
	const edge, inner = "abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnopqrstuvwxyz0123456789._-"
	f.Fuzz(func(t *testing.T, s string) {
		want := len(s) >= 1 && len(s) <= 63 && strings.Trim(s, inner) == "" &&
			strings.IndexByte(edge, s[0]) >= 0 && strings.IndexByte(edge, s[len(s)-1]) >= 0
		if berth.ValidName(s) != want {
			t.Fatalf("%q: not %v", s, want)
		}
	})
}

// FuzzAdminLabels: labels of an operator's are refused with their key named, or
// safe to store, bounded, and not Berth's own.
func FuzzAdminLabels(f *testing.F) {
	for _, s := range []string{"", "os", "example.com/rack", "berth.dev/probe", "driver", "a\x00", "\xff", "a\u009b", strings.Repeat("k", 201), "a b"} {
		f.Add(s, "linux")
		f.Add("os", s)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		err := berth.CheckAdminLabels(map[string]string{key: value})
		if err != nil {
			judgeFaults(t, err)
			return
		}
		if !storable(key) || !storable(value) || key == "" || len(key) > berth.MaxNameLen || len(value) > berth.MaxNameLen || berth.OwnLabel(key) {
			t.Fatalf("%q=%q passes", key, value)
		}
	})
}

// FuzzSecretValue: a value is taken as it is, and then it is text that can be
// masked; no fault holds any of it.
func FuzzSecretValue(f *testing.F) {
	for _, s := range []string{"", "ab", "abc", "pass\x00word", "\xff\xff\xff", "ünïcode", strings.Repeat("s", 16<<10), strings.Repeat("s", 16<<10+1), "a\nb\tc"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := berth.CheckSecretValue(redact.NewString(s))
		fits := len(s) >= berth.MinSecretLen && len(s) <= berth.MaxSecretLen && utf8.ValidString(s) && !strings.Contains(s, "\x00")
		if (err == nil) != fits {
			t.Fatalf("fits %v: %v", fits, err)
		}
		if err != nil {
			judgeFaults(t, err)
			if len(s) >= 12 && strings.Contains(err.Error(), s) {
				t.Fatal("the fault holds the value")
			}
		}
	})
}
