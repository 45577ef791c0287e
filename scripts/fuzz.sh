#!/bin/sh
# Runs every fuzz target for a while, one after the other, and says how many
# there are: scripts/fuzz.sh 60s [pattern]. A finding is kept by go test in the
# package's testdata/fuzz and from then on part of `make test`.
set -u
cd "$(dirname "$0")/.." || exit 1
time=${1:-60s}
pattern=${2:-.}
targets=$(grep -rn --include='*_test.go' -o '^func Fuzz[A-Za-z0-9_]*(f \*testing\.F)' cmd pkg scripts test |
	sed 's/^\([^:]*\)\/[^/:]*:[0-9]*:func \(Fuzz[A-Za-z0-9_]*\).*/\1 \2/' | grep -- "$pattern" | sort)
[ -n "$targets" ] || { echo "fuzz: no target matches $pattern"; exit 1; }
passed=0 failed=0
while read -r folder name; do
	printf '%s %s\n' "$folder" "$name"
	if go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -parallel 2 "./$folder" >build/fuzz.log 2>&1; then
		passed=$((passed + 1))
		grep -a "^fuzz: elapsed" build/fuzz.log | tail -n 1
	else
		failed=$((failed + 1))
		cat build/fuzz.log
	fi
done <<LIST
$targets
LIST
echo "fuzz: $passed passed, $failed failed, $time each"
[ "$failed" -eq 0 ]
