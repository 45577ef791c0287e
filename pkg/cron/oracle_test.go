package cron

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestOracle holds Next against a walk through time by another program; see
// testdata/oracle.py.
func TestOracle(t *testing.T) {
	data, err := os.ReadFile("testdata/slots.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	slots := 0
	for i := 0; i+1 < len(lines); i += 2 {
		head := strings.Split(lines[i], "\t")
		expr, zone, from, to := head[1], head[2], minuteOf(t, head[4]), minuteOf(t, head[5])
		t.Run(expr+" "+zone+" "+head[4], func(t *testing.T) {
			s := must(t, expr, zone)
			if s.Kind() != Kind(head[3]) {
				t.Fatalf("it is %s, want %s", s.Kind(), head[3])
			}
			want := oracleSlots(t, s, from, lines[i+1])
			slots += len(want)
			compare(t, s, from, to, want)
		})
	}
	if slots < 15_000 {
		t.Errorf("the oracle has %d slots only", slots)
	}
}

func minuteOf(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(localForm, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func oracleSlots(t *testing.T, s Spec, from time.Time, line string) []Slot {
	t.Helper()
	var slots []Slot
	at := from
	for word := range strings.FieldsSeq(line) {
		minutes, local, _ := strings.Cut(word, ":")
		n, err := strconv.Atoi(minutes)
		if err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Duration(n) * time.Minute)
		key := Key(local)
		if s.Kind() == Interval {
			key = Key(at.Format("2006-01-02T15:04:05Z"))
		}
		slot, err := s.Stored(at, key)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, slot)
	}
	return slots
}

// compare walks by Next from slot to slot, and also asks from within each gap
// between two slots.
func compare(t *testing.T, s Spec, from, to time.Time, want []Slot) {
	t.Helper()
	after := from.Add(-time.Nanosecond)
	for _, w := range want {
		for _, at := range []time.Time{after, after.Add(w.At.Sub(after) / 2), w.At.Add(-time.Nanosecond)} {
			if got, ok := s.Next(at); !ok || got != w {
				t.Fatalf("after %s comes %+v (%v), want %+v", s.In(at), got, ok, w)
			}
		}
		if got, ok := s.Latest(w.At); !ok || got != w {
			t.Fatalf("up to %s the latest is %+v (%v), want %+v", s.In(w.At), got, ok, w)
		}
		after = w.At
	}
	if got, ok := s.Next(after); !ok || got.At.Before(to) {
		t.Fatalf("after %s comes %+v (%v), want none before %s", s.In(after), got, ok, to)
	}
}
