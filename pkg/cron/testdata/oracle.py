#!/usr/bin/env python3
"""Writes slots.txt: when schedules are due, found without any code of Berth's.

It walks minute by minute through UTC, asks Python's zoneinfo what the local clock
shows, and compares that with the expression. Run it again only to change the cases:

    python3 oracle.py > slots.txt

Form of slots.txt: a line `case`, expression, zone, kind, from, to (UTC), separated by
tabs; then one line with the slots, each as minutes since the slot before (the first:
since from), and for a fixed schedule a colon and the wall time that it stands for.
"""
import calendar
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)

EXPRESSIONS = [
    "*/15 * * * *", "0 * * * *", "0 0 * * *", "30 2 * * *", "30 1 * * *", "0 9,17 * * *",
    "*/15 2 * * *", "0 0-23 * * *",
    # Several wall times in one gap, and one at its end.
    "0,15,30,45 0-3 * * *", "20-40/10 0-3 * * *",
]

# The last day of a leap year is no change, but one to Go's time.ZoneBounds.
CHANGES = {
    "Europe/Berlin": ["2025-03-30", "2025-10-26", "2024-12-31"],
    "America/New_York": ["2025-03-09", "2025-11-02", "2024-12-31"],
    "America/Sao_Paulo": ["2018-02-18", "2018-11-04"],
    "Australia/Lord_Howe": ["2025-04-06", "2025-10-05"],
    "Pacific/Apia": ["2011-04-02", "2011-09-24", "2011-12-30"],
    "Asia/Kathmandu": ["1986-01-01", "2025-03-30", "2025-10-26"],
    "Africa/Cairo": ["2025-04-25", "2025-10-31"],
    "UTC": ["2025-03-30", "2025-10-26"],
}

# Expressions whose days are the question, over years: walked by quarters of an hour,
# of which all offsets of these zones are multiples, and the times of day as well.
QUARTER = timedelta(minutes=15)
LEAP = "0 0 29 2 *"
CALENDAR = [
    "30 6 L * *", "30 6 15W * *", "30 6 1W,31W * *", "30 6 * * 5L", "30 6 * * 1#5", "30 6 * * 0#1,3#2",
    "30 6 13 * 5", "30 6 L * 3", "30 6 */2 * 1", "30 6 1-7 * */3", "30 6 * 2,4-6 1-5/2", "30 6 31 */2 *",
    "30 6 * * 5-7", "30 6 29 2 0",
]


def values(text, low, high):
    """The numbers that a field names, without its words for days."""
    found = set()
    for part in text.split(","):
        if any(c in part for c in "LW#"):
            continue
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = low, high
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def nearest(year, month, number):
    """The working day nearest to a day, in the same month."""
    last = calendar.monthrange(year, month)[1]
    if number > last:
        return None
    days = [d for d in range(1, last + 1) if calendar.weekday(year, month, d) < 5]
    # Of two that are equally near, there is never a question: a weekend has two days.
    return min(days, key=lambda d: abs(d - number))


class Expression:
    def __init__(self, text):
        self.text = text
        minute, hour, self.dom, month, self.dow = text.split()
        self.minutes, self.hours = values(minute, 0, 59), values(hour, 0, 23)
        self.months = values(month, 1, 12)
        self.doms = values(self.dom, 1, 31)
        self.dows = {d % 7 for d in values(self.dow, 0, 6)}
        self.fixed = not any(c in minute + hour for c in "*/")

    def by_month(self, d):
        last = calendar.monthrange(d.year, d.month)[1]
        if d.day in self.doms:
            return True
        for part in self.dom.split(","):
            if part == "L" and d.day == last:
                return True
            if part.endswith("W") and nearest(d.year, d.month, int(part[:-1])) == d.day:
                return True
        return False

    def by_week(self, d):
        weekday = d.isoweekday() % 7
        if weekday in self.dows:
            return True
        for part in self.dow.split(","):
            if part.endswith("L") and int(part[:-1]) == weekday and (d + 7 * DAY).month != d.month:
                return True
            if "#" in part:
                day, nth = map(int, part.split("#"))
                same = [n for n in range(1, d.day + 1) if calendar.weekday(d.year, d.month, n) == d.weekday()]
                if day == weekday and len(same) == nth:
                    return True
        return False

    def due(self, wall):
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.month not in self.months:
            return False
        if self.dow == "*":
            return self.by_month(wall)
        if self.dom.startswith("*") or self.dow.startswith("*"):
            return self.by_month(wall) and self.by_week(wall)
        return self.by_month(wall) or self.by_week(wall)


def walk(expressions, zone, begin, end, stride):
    """Gives per expression its slots from begin to before end, as (instant, wall)."""
    tz = ZoneInfo(zone)
    found = {e.text: [] for e in expressions}
    at = begin - 3 * DAY  # to know which wall times have been
    high = None
    while at < end:
        wall = at.astimezone(tz).replace(tzinfo=None)
        fresh = []  # wall times that the clock shows, or has jumped past, for the first time
        if high is None:
            fresh = [wall]
        else:
            step = high + stride
            while step <= wall:
                fresh.append(step)
                step += stride
        high = wall if high is None else max(high, wall)
        if at >= begin:
            for e in expressions:
                hits = [w for w in (fresh if e.fixed else [wall]) if e.due(w)]
                if hits:
                    found[e.text].append((at, hits[0]))
        at += stride
    return found


def write(expressions, zone, begin, end, stride=MINUTE):
    expressions = [Expression(e) for e in expressions]
    found = walk(expressions, zone, begin, end, stride)
    stamp = "%Y-%m-%dT%H:%M"
    for e in expressions:
        print("case", e.text, zone, "fixed" if e.fixed else "interval", begin.strftime(stamp), end.strftime(stamp), sep="\t")
        before, words = begin, []
        for at, wall in found[e.text]:
            word = str((at - before) // MINUTE)
            words.append(word + ":" + wall.strftime(stamp) if e.fixed else word)
            before = at
        print(*words)


def main():
    utc = timezone.utc
    for zone, changes in CHANGES.items():
        for change in changes:
            day = datetime.fromisoformat(change).replace(tzinfo=utc)
            write(EXPRESSIONS, zone, day - 2 * DAY, day + 3 * DAY)
        write([LEAP], zone, datetime(2019, 1, 1, tzinfo=utc), datetime(2029, 1, 1, tzinfo=utc), QUARTER)
    write([LEAP], "Europe/Berlin", datetime(2096, 1, 1, tzinfo=utc), datetime(2105, 1, 1, tzinfo=utc), QUARTER)
    write(CALENDAR, "Europe/Berlin", datetime(2023, 1, 1, tzinfo=utc), datetime(2027, 1, 1, tzinfo=utc), QUARTER)


main()
