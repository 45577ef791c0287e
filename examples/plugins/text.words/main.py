#!/usr/bin/env python3
"""A plugin of Berth that needs nothing but Python's standard library."""

import collections
import json
import os
import re
import sys


def say(kind, **members):
    """Tells Berth something: a line of JSON on standard output, at once."""
    print(json.dumps({"type": kind, **members}), flush=True)


def main():
    request = json.load(sys.stdin)
    inputs = request["inputs"]
    if not inputs:
        say("result", outcome="failed", message="the task has no inputs; add some with --input FILE")
        return

    counts = collections.Counter()
    for done, (name, path) in enumerate(sorted(inputs.items())):
        say("progress", fraction=done / len(inputs), note=f"file {done + 1} of {len(inputs)}")
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                counts.update(word.lower() for word in re.findall(r"\w+", line))
        say("log", text=f"{name}: read")

    report = os.path.join(request["artifacts_dir"], "words.json")
    with open(report, "w", encoding="utf-8") as file:
        json.dump(dict(counts), file, indent=1, sort_keys=True)
    say("artifact", name="words.json", **{"class": "report"})

    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    say("result", outcome="succeeded", message=f"{len(counts)} different words", result={
        "files": len(inputs), "words": sum(counts.values()), "top": ranked[: request["payload"].get("top", 10)],
    })


if __name__ == "__main__":
    main()
