package cron

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// refused has what is wrong in which field, and a part of the reason.
var refused = []struct{ expr, zone, path, reason string }{
	{"", "UTC", "cron", "is empty"},
	{" \t ", "UTC", "cron", "is empty"},
	{"* * * *", "UTC", "cron", "has 4 fields"},
	{"0 * * * * *", "UTC", "cron", "has 6 fields"},
	{"0 0 1 1 * 2030", "UTC", "cron", "has 6 fields"},
	{"0 0 0 1 1 * 2030", "UTC", "cron", "has 7 fields"},
	{"* * * * *\n", "UTC", "cron", "day of week"},
	{"*\u00a0* * * * *", "UTC", "cron", "minute"},
	{strings.Repeat("1,", 130) + "1 * * * *", "UTC", "cron", "256 are allowed"},
	{"TZ=UTC 0 0 * * *", "UTC", "cron", "names a time zone"},
	{"CRON_TZ=UTC 0 0 * * *", "UTC", "cron", "names a time zone"},
	{"@every 5m", "UTC", "cron", "not a macro"},
	{"@5minutes", "UTC", "cron", "not a macro"},
	{"@everysecond", "UTC", "cron", "not a macro"},
	{"@reboot", "UTC", "cron", "not a macro"},
	{"@daily *", "UTC", "cron", "has 2 fields"},
	{"60 * * * *", "UTC", "cron", "60 is not within 0-59"},
	{"10,99 * * * *", "UTC", "cron", "99 is not within 0-59"},
	{"-1 * * * *", "UTC", "cron", "not a value"},
	{"+1 * * * *", "UTC", "cron", "not a value"},
	{"1.5 * * * *", "UTC", "cron", "not a value"},
	{"٣ * * * *", "UTC", "cron", "not a value"},
	{"00000000000000000001 * * * *", "UTC", "cron", "not a value"},
	{"1, * * * *", "UTC", "cron", "empty element"},
	{",1 * * * *", "UTC", "cron", "empty element"},
	{"1,,2 * * * *", "UTC", "cron", "empty element"},
	{"*/100 * * * *", "UTC", "cron", "goes past the range"},
	{"*/60 * * * *", "UTC", "cron", "goes past the range"},
	{"0 */24 * * *", "UTC", "cron", "goes past the range"},
	{"0 0 */31 * *", "UTC", "cron", "goes past the range"},
	{"0 0 * * */7", "UTC", "cron", "goes past the range"},
	{"10-20/15 * * * *", "UTC", "cron", "goes past the range"},
	{"*/0 * * * *", "UTC", "cron", "not a number above 0"},
	{"*/ * * * *", "UTC", "cron", "not a number above 0"},
	{"*/-5 * * * *", "UTC", "cron", "not a number above 0"},
	{"*/5/5 * * * *", "UTC", "cron", "not a number above 0"},
	{"*/5,7 * * * *", "UTC", "cron", "does not go into a list"},
	{"7,*/5 * * * *", "UTC", "cron", "not a value"},
	{"** * * * *", "UTC", "cron", "more than a step"},
	{"*5 * * * *", "UTC", "cron", "more than a step"},
	{"5/15 * * * *", "UTC", "cron", "a step needs a range"},
	{"0/15 * * * *", "UTC", "cron", "a step needs a range"},
	{"/15 * * * *", "UTC", "cron", "not a value"},
	{"5-10-15 * * * *", "UTC", "cron", "not a value"},
	{"5- * * * *", "UTC", "cron", "not a value"},
	{"0 22-2 * * *", "UTC", "cron", "22 comes after 2"},
	{"0 0 ? * *", "UTC", "cron", "? is not read here"},
	{"0 0 0 * *", "UTC", "cron", "0 is not within 1-31"},
	{"0 0 32 * *", "UTC", "cron", "32 is not within 1-31"},
	{"0 0 0W * *", "UTC", "cron", "0 is not within 1-31"},
	{"0 0 W * *", "UTC", "cron", "not a value"},
	{"0 0 LW * *", "UTC", "cron", "not a value"},
	{"0 0 L-3 * *", "UTC", "cron", "not a value"},
	{"0 0 1-5W * *", "UTC", "cron", "not a value"},
	{"0 L * * *", "UTC", "cron", "not a value"},
	{"0 0 * 13 *", "UTC", "cron", "13 is not within 1-12"},
	{"0 0 * MAI *", "UTC", "cron", "not a value"},
	{"0 0 * JANUARY *", "UTC", "cron", "not a value"},
	{"0 0 MON * *", "UTC", "cron", "not a value"},
	{"0 0 * * 8", "UTC", "cron", "8 is not within 0-7"},
	{"0 0 * * 9#1", "UTC", "cron", "9 is not within 0-7"},
	{"9#1 * * * *", "UTC", "cron", "not a value"},
	{"0 0 * * 1#0", "UTC", "cron", "after #"},
	{"0 0 * * 1#6", "UTC", "cron", "after #"},
	{"0 0 * * 1#2#3", "UTC", "cron", "after #"},
	{"0 0 * * #1", "UTC", "cron", "not a value"},
	{"0 0 * * L", "UTC", "cron", "not a value"},
	{"0 0 * * 7-3", "UTC", "cron", "7 comes after 3"},
	{"0 0 30 2 *", "UTC", "cron", "would never fire"},
	{"0 0 31 4,6,9,11 *", "UTC", "cron", "would never fire"},
	{"0 0 30W 2 *", "UTC", "cron", "would never fire"},
	{"*/5 * 30-31 FEB *", "UTC", "cron", "would never fire"},
	{"0 0 29 2 */6", "UTC", "cron", "would not fire for up to"},
	{"0 0 * 2 MON#5", "UTC", "cron", "would not fire for up to 40 years"},
	{"*/30 2 * 3 SUNL", "Europe/Berlin", "cron", "skips all these times"},
	{"0 0 * * *", "", "time_zone", "is empty"},
	{"0 0 * * *", "Local", "time_zone", "another zone on each machine"},
	{"0 0 * * *", "local", "time_zone", "another zone on each machine"},
	{"0 0 * * *", "localtime", "time_zone", "another zone on each machine"},
	{"0 0 * * *", "Europe/Bärlin", "time_zone", "not a time zone"},
	{"0 0 * * *", "Europe/Nowhere", "time_zone", "not a time zone"},
	{"0 0 * * *", "Europe", "time_zone", "not a time zone"},
	{"0 0 * * *", "../etc/passwd", "time_zone", "not a time zone"},
	{"0 0 * * *", "/etc/localtime", "time_zone", "not a time zone"},
	{"0 0 * * *", "right/UTC", "time_zone", "not a time zone"},
	{"0 0 * * *", "posix/UTC", "time_zone", "not a time zone"},
	{"0 0 * * *", "posixrules", "time_zone", "not a time zone"},
	{"0 0 * * *", "+02:00", "time_zone", "not a time zone"},
	{"0 0 * * *", "UTC ", "time_zone", "not a time zone"},
	{"0 0 * * *", strings.Repeat("A", 65), "time_zone", "not a time zone"},
}

var accepted = []struct {
	expr, canonical string
	kind            Kind
}{
	{"@yearly", "0 0 1 1 *", Fixed},
	{"@annually", "0 0 1 1 *", Fixed},
	{"@monthly", "0 0 1 * *", Fixed},
	{"@weekly", "0 0 * * 0", Fixed},
	{"@daily", "0 0 * * *", Fixed},
	{" @Midnight\t", "0 0 * * *", Fixed},
	{"@hourly", "0 * * * *", Interval},
	{"30 2 * * *", "30 2 * * *", Fixed},
	{"  30   2\t* * * ", "30 2 * * *", Fixed},
	{"05 09,17 * * *", "5 9,17 * * *", Fixed},
	{"0-59 0-23 * * *", "0-59 0-23 * * *", Fixed},
	{"0 0-23 * * *", "0 0-23 * * *", Fixed},
	{"0 * * * *", "0 * * * *", Interval},
	{"* 9 * * *", "* 9 * * *", Interval},
	{"*/15 2 * * *", "*/15 2 * * *", Interval},
	{"0-45/15 2 * * *", "0-45/15 2 * * *", Interval},
	{"0 */2 * * *", "0 */2 * * *", Interval},
	{"0 8-18/2 * * *", "0 8-18/2 * * *", Interval},
	{"0 9 */2 */3 */2", "0 9 */2 */3 */2", Fixed},
	{"0 9 * jan-Mar mon-FRI", "0 9 * 1-3 1-5", Fixed},
	{"0 9 * * FRI-SUN", "0 9 * * 5-7", Fixed},
	{"0 9 * * 7", "0 9 * * 0", Fixed},
	{"0 9 * * 0-7", "0 9 * * 0-7", Fixed},
	{"0 9 L,15w * *", "0 9 L,15W * *", Fixed},
	{"0 9 * * fri#2,7L", "0 9 * * 5#2,0L", Fixed},
	{"0 0 29 2 *", "0 0 29 2 *", Fixed},
	{"0 0 29 2 1", "0 0 29 2 1", Fixed},
	{"0 2 * 3 SUNL", "0 2 * 3 0L", Fixed},
}

// TestVerdicts asks at each minute of an hour, since gronx by itself answers
// differently: it looks at a list's elements only until one is due.
func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still but for Sleep
		for range 60 {
			checkVerdicts(t)
			time.Sleep(time.Minute)
		}
	})
}

func checkVerdicts(t *testing.T) {
	t.Helper()
	for _, c := range refused {
		_, err := Parse(c.expr, c.zone)
		var invalid *berth.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Fields) != 1 {
			t.Fatalf("%s: Parse(%q, %q) gives %v, want one fault", time.Now(), c.expr, c.zone, err)
		}
		f := invalid.Fields[0]
		if f.Path != c.path || !strings.Contains(f.Message, c.reason) || f.Remedy == "" || len(f.Message) > 200 {
			t.Fatalf("%s: Parse(%q, %q) gives %+v, want %q of %s and a remedy", time.Now(), c.expr, c.zone, f, c.reason, c.path)
		}
	}
	for _, c := range accepted {
		s, err := Parse(c.expr, "Europe/Berlin")
		if err != nil || s.Expression() != c.canonical || s.Kind() != c.kind {
			t.Fatalf("%s: Parse(%q) gives %q, %s, %v, want %q, %s", time.Now(), c.expr, s.expression, s.kind, err, c.canonical, c.kind)
		}
	}
}

func TestEveryFaultIsNamed(t *testing.T) {
	_, err := Parse("60 24 * 13 *", "Local")
	var invalid *berth.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Fields) != 4 || !errors.Is(err, berth.ErrInvalid) {
		t.Errorf("got %v, want three faults of cron and one of time_zone", err)
	}
}

// TestExamples are the examples of docs/adr/0009: what the fires around the changes
// look like, as people would write them down.
func TestExamples(t *testing.T) {
	for _, c := range []struct {
		expr, zone, from string
		want             []string
	}{
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{
			"2026-03-29T02:30 at 03:00 +02:00", "2026-03-30T02:30 at 02:30 +02:00",
		}},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{
			"2026-10-25T02:30 at 02:30 +02:00", "2026-10-26T02:30 at 02:30 +01:00",
		}},
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{
			"2026-03-29T02:00 at 03:00 +02:00", "2026-03-29T03:30 at 03:30 +02:00",
		}},
		{"*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{
			"2026-03-30T02:00 at 02:00 +02:00",
		}},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{
			"2026-10-25T02:00 at 02:00 +02:00", "2026-10-25T02:30 at 02:30 +02:00",
			"2026-10-25T02:00 at 02:00 +01:00", "2026-10-25T02:30 at 02:30 +01:00",
		}},
		{"0 9,17 * * *", "Pacific/Apia", "2011-12-30T04:00:00Z", []string{ // 30 December did not exist
			"2011-12-30T09:00 at 00:00 +14:00", "2011-12-31T09:00 at 09:00 +14:00",
		}},
	} {
		s := must(t, c.expr, c.zone)
		from, _ := time.Parse(time.RFC3339, c.from)
		var got []string
		for _, slot := range s.Preview(from, len(c.want)) {
			got = append(got, slot.Local.String()+" at "+s.In(slot.At).Format("15:04 -07:00"))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s from %s:\n got %q\nwant %q", s, c.from, got, c.want)
		}
	}
}

func TestSlotsOfAChangingDay(t *testing.T) {
	for _, c := range []struct {
		expr           string
		spring, autumn int
	}{{"0 0-23 * * *", 23, 24}, {"0 * * * *", 23, 25}} {
		s := must(t, c.expr, "Europe/Berlin")
		count := func(month time.Month, day int) int {
			begin := time.Date(2026, month, day, 0, 0, 0, 0, s.location)
			next, _ := s.Next(begin.Add(-time.Second))
			return s.Missed(next, begin.AddDate(0, 0, 1).Add(-time.Second), 0).Count
		}
		if spring, autumn := count(time.March, 29), count(time.October, 25); spring != c.spring || autumn != c.autumn {
			t.Errorf("%s: %d and %d slots, want %d and %d", s, spring, autumn, c.spring, c.autumn)
		}
	}
}

func TestStored(t *testing.T) {
	at := time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC)
	fixed, interval := must(t, "30 2 * * *", "Europe/Berlin"), must(t, "*/30 * * * *", "Europe/Berlin")
	for _, s := range []Spec{fixed, interval} {
		want, _ := s.Next(at.Add(-time.Second))
		if got, err := s.Stored(want.At.In(time.FixedZone("", 3600)), want.Key); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", s, got, err, want)
		}
	}
	if _, err := fixed.Stored(at, "2026-03-29T01:00:00Z"); err == nil {
		t.Error("an interval's key was taken for a fixed one's")
	}
	if _, err := interval.Stored(at, "2026-03-29T02:30"); err == nil {
		t.Error("a fixed key was taken for an interval's")
	}
}

// TestDays holds gronx against our own reading of the days' fields, for every
// pair of forms: each day of a year and a half, and for those that come rarely of
// all eight years around the missing 29 February of 2100.
func TestDays(t *testing.T) {
	forms := [][]string{
		{"*", "*/2", "*/30", "1", "29", "31", "1-7", "28-31", "L", "1W", "15W", "31W", "L,1W,14", "10-30/10"},
		{"*", "*/2", "2", "4,6", "1-12/11"},
		{"*", "*/2", "*/6", "0", "7", "1-5", "5-7", "5L", "1#1", "3#5", "0#5,2", "1-7/2"},
	}
	judged := 0
	for _, dom := range forms[0] {
		for _, month := range forms[1] {
			for _, dow := range forms[2] {
				expr := fmt.Sprintf("0 12 %s %s %s", dom, month, dow)
				e, faults := readExpression(expr)
				if len(faults) > 0 {
					t.Fatal(expr, faults)
				}
				if e.days.judge() != nil {
					continue
				}
				judged++
				checkDays(t, e)
			}
		}
	}
	if judged < 700 {
		t.Errorf("only %d expressions were judged", judged)
	}
}

func checkDays(t *testing.T, e expression) {
	t.Helper()
	s := Spec{expression: e.String(), location: time.UTC, kind: Fixed}
	begin, end := time.Date(2095, 11, 1, 0, 0, 0, 0, time.UTC), time.Date(2097, 4, 1, 0, 0, 0, 0, time.UTC)
	if e.days.silence() > 200 {
		end = time.Date(2104, 4, 1, 0, 0, 0, 0, time.UTC)
	}
	next, ok := s.Next(begin)
	for day := begin; day.Before(end); day = day.AddDate(0, 0, 1) {
		last := time.Date(day.Year(), day.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
		if !e.days.has(day.Month(), day.Day(), last, day.Weekday()) {
			continue
		}
		if want := day.Add(12 * time.Hour); !ok || !next.At.Equal(want) {
			t.Fatalf("%s: gronx comes to %v (%v), want %v", s, next.At, ok, want)
		}
		next, ok = s.Next(next.At)
	}
}
