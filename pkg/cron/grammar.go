package cron

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
)

// MaxExpressionLen is how many bytes an expression may have.
const MaxExpressionLen = 256

// field is one of the five places of an expression.
type field struct {
	name      string
	low, high int
	// names stand for low, low+1 and so on.
	names []string
	// example is shown in remedies.
	example string
}

const (
	minute = iota
	hour
	dayOfMonth
	month
	dayOfWeek
)

var fields = [...]field{
	minute:     {"minute", 0, 59, nil, "5, 0,30, 10-20 or */15"},
	hour:       {"hour", 0, 23, nil, "9, 9,17, 8-18 or */2"},
	dayOfMonth: {"day of month", 1, 31, nil, "1, 1,15, 1-7, L (the last) or 15W (the working day nearest to the 15th)"},
	month: {
		"month", 1, 12, strings.Fields("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"), "1, JAN, 3,6,9 or */3",
	},
	dayOfWeek: {
		"day of week", 0, 7, strings.Fields("SUN MON TUE WED THU FRI SAT"), "1, MON, MON-FRI, MON#2 (the second Monday) or FRIL (the last Friday)",
	},
}

// macros are the names that crontab(5) knows, but for @reboot.
var macros = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// expression is a read expression: the canonical text of each field, which is
// all that gronx ever sees, and what the days' fields mean.
type expression struct {
	text [len(fields)]string
	days days
}

func (e expression) String() string { return strings.Join(e.text[:], " ") }

// kind is the written rule of docs/adr/0009.
func (e expression) kind() Kind {
	if strings.ContainsAny(e.text[minute]+e.text[hour], "*/") {
		return Interval
	}
	return Fixed
}

// fault is one reason to refuse, with what to do instead.
type fault struct{ message, remedy string }

// readExpression reads what somebody wrote. It is stricter than gronx, which
// looks at a part of a field only when the clock makes it: what is accepted here
// means one thing, to crontab(5) and to gronx alike.
func readExpression(text string) (expression, []fault) {
	if len(text) > MaxExpressionLen {
		return expression{}, []fault{{
			fmt.Sprintf("has %d bytes, %d are allowed", len(text), MaxExpressionLen), "write ranges and steps in place of long lists",
		}}
	}
	words := split(text)
	if len(words) == 1 && strings.HasPrefix(words[0], "@") {
		long, ok := macros[strings.ToLower(words[0])]
		if !ok {
			return expression{}, []fault{unknownMacro(words[0])}
		}
		words = split(long)
	}
	if len(words) != len(fields) {
		return expression{}, []fault{wrongCount(words)}
	}
	var e expression
	var faults []fault
	for i, word := range words {
		canonical, why := readField(i, strings.ToUpper(word), &e.days)
		if why != nil {
			f := fields[i]
			why.message = fmt.Sprintf("%s %q: %s", f.name, berth.Clip(word, 40), why.message)
			if why.remedy == "" {
				why.remedy = "write for example " + f.example
			}
			faults = append(faults, *why)
		}
		e.text[i] = canonical
	}
	return e, faults
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' })
}

func unknownMacro(word string) fault {
	remedy := "use @yearly, @monthly, @weekly, @daily or @hourly, or write the five fields"
	switch lower := strings.ToLower(word); {
	case lower == "@every" || strings.HasSuffix(lower, "minutes"):
		remedy = "write the interval as a step, for example */5 * * * *"
	case lower == "@reboot":
		remedy = "a schedule has no start-up to wait for: name times"
	}
	return fault{fmt.Sprintf("%q is not a macro", berth.Clip(word, 40)), remedy}
}

func wrongCount(words []string) fault {
	const five = "write minute, hour, day of month, month and day of week, for example 30 2 * * * for each day at 02:30"
	switch {
	case len(words) == 0:
		return fault{"is empty", five}
	case strings.HasPrefix(words[0], "TZ=") || strings.HasPrefix(words[0], "CRON_TZ="):
		return fault{"names a time zone", "put the zone into time_zone and leave five fields here"}
	case strings.EqualFold(words[0], "@every"):
		return unknownMacro(words[0])
	case len(words) == 6:
		return fault{"has 6 fields, 5 are needed", "leave out seconds or the year: " + five}
	}
	return fault{fmt.Sprintf("has %d fields, 5 are needed", len(words)), five}
}

// readField reads one field and gives its canonical text: names as numbers, no
// leading zeros. What it says about days goes into d.
func readField(i int, word string, d *days) (string, *fault) {
	if step, ok := strings.CutPrefix(word, "*"); ok {
		return readStar(i, step, d)
	}
	var parts []string
	for part := range strings.SplitSeq(word, ",") {
		canonical, why := readPart(i, part, d)
		if why != nil {
			return "", why
		}
		parts = append(parts, canonical)
	}
	return strings.Join(parts, ","), nil
}

// readStar reads * and */n, which stand alone: in a list, the others would say
// nothing or, in a field of days, change how the two fields of days are joined.
func readStar(i int, step string, d *days) (string, *fault) {
	f := fields[i]
	high := f.high
	if i == dayOfWeek {
		high = 6 // 7 is Sunday once more
	}
	if step == "" {
		d.add(i, f.low, high, 1)
		d.star(i, true)
		return "*", nil
	}
	if strings.Contains(step, ",") {
		return "", &fault{"* does not go into a list", fmt.Sprintf("write it as a range, for example %d-%d", f.low, high)}
	}
	digits, ok := strings.CutPrefix(step, "/")
	if !ok {
		return "", &fault{"* is followed by more than a step", ""}
	}
	n, why := readStep(digits, high-f.low+1)
	if why != nil {
		return "", why
	}
	d.add(i, f.low, high, n)
	d.star(i, false)
	return fmt.Sprintf("*/%d", n), nil
}

// readPart reads one element of a list: a value, a range, a range with a step,
// or one of the words for days.
func readPart(i int, part string, d *days) (string, *fault) {
	f := fields[i]
	if part == "" {
		return "", &fault{"has an empty element", "take out the comma that has nothing beside it"}
	}
	if part == "?" {
		return "", &fault{"? is not read here", "write *"}
	}
	if canonical, why, ok := readDayWord(i, part, d); ok {
		return canonical, why
	}
	span, digits, stepped := strings.Cut(part, "/")
	from, to, ranged := strings.Cut(span, "-")
	low, why := f.value(from)
	if why != nil {
		return "", why
	}
	if !ranged {
		if stepped {
			return "", &fault{"a step needs a range or *", fmt.Sprintf("write %d-%d/%s", low, f.high, berth.Clip(digits, 10))}
		}
		if i == dayOfWeek {
			low %= 7
		}
		d.add(i, low, low, 1)
		return strconv.Itoa(low), nil
	}
	high, why := f.value(to)
	if why != nil {
		return "", why
	}
	if to == "SUN" && high < low {
		high = 7 // FRI-SUN
	}
	if high < low {
		return "", &fault{fmt.Sprintf("%d comes after %d", low, high), "write two ranges, for example 22-23,0-2 for 22-2"}
	}
	if !stepped {
		d.add(i, low, high, 1)
		return fmt.Sprintf("%d-%d", low, high), nil
	}
	n, why := readStep(digits, high-low+1)
	if why != nil {
		return "", why
	}
	d.add(i, low, high, n)
	return fmt.Sprintf("%d-%d/%d", low, high, n), nil
}

// readDayWord reads L, 15W, 5#2 and 5L; ok says that part is one of them.
func readDayWord(i int, part string, d *days) (canonical string, why *fault, ok bool) {
	f := fields[i]
	switch {
	case i == dayOfMonth && part == "L":
		d.last = true
		return part, nil, true
	case i == dayOfMonth && strings.HasSuffix(part, "W"):
		day, why := f.value(strings.TrimSuffix(part, "W"))
		if why != nil {
			return "", why, true
		}
		d.near = append(d.near, day)
		return fmt.Sprintf("%dW", day), nil, true
	case i == dayOfWeek && strings.HasSuffix(part, "L"):
		day, why := f.value(strings.TrimSuffix(part, "L"))
		if why != nil {
			return "", why, true
		}
		d.lastOf |= 1 << (day % 7)
		return fmt.Sprintf("%dL", day%7), nil, true
	case i == dayOfWeek && strings.Contains(part, "#"):
		name, digits, _ := strings.Cut(part, "#")
		day, why := f.value(name)
		if why != nil {
			return "", why, true
		}
		n, isNumber := number(digits)
		if !isNumber || n < 1 || n > 5 {
			return "", &fault{"the number after # is not 1 to 5", ""}, true
		}
		d.nth[n-1] |= 1 << (day % 7)
		return fmt.Sprintf("%d#%d", day%7, n), nil, true
	}
	return "", nil, false
}

// value reads one number or name of the field.
func (f field) value(text string) (int, *fault) {
	if at := slices.Index(f.names, text); at >= 0 {
		return f.low + at, nil
	}
	n, ok := number(text)
	if !ok {
		return 0, &fault{fmt.Sprintf("%q is not a value", berth.Clip(text, 20)), ""}
	}
	if n < f.low || n > f.high {
		return 0, &fault{fmt.Sprintf("%d is not within %d-%d", n, f.low, f.high), ""}
	}
	return n, nil
}

// readStep refuses a step that leaves one value of many: it was surely meant
// otherwise (*/100, */60).
func readStep(digits string, values int) (int, *fault) {
	n, ok := number(digits)
	if !ok || n < 1 {
		return 0, &fault{fmt.Sprintf("the step %q is not a number above 0", berth.Clip(digits, 20)), ""}
	}
	if n > max(values-1, 1) {
		return 0, &fault{
			fmt.Sprintf("a step of %d goes past the range, which has %d values", n, values),
			"write the one value itself, or a smaller step",
		}
	}
	return n, nil
}

// number reads up to four digits, and nothing else.
func number(text string) (int, bool) {
	if text == "" || len(text) > 4 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}
