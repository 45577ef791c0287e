#!/bin/sh
# Runs CI twice, with empty caches and with full ones, and writes what each part
# took between the marks of the given Markdown file.
#
#   scripts/ci-times.sh docs/ci.md
set -eu

page=${1:?usage: scripts/ci-times.sh page.md}
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
# Module files are read-only unless told otherwise, and could not be removed.
trap 'rm -rf "$folder"' EXIT INT TERM
export GOCACHE="$folder/build" GOMODCACHE="$folder/modules"
GOFLAGS="${GOFLAGS:--buildvcs=false} -modcacherw"
export GOFLAGS

code=0
for round in cold warm; do
	BERTH_CI_TIMES="$folder/$round" .ci/run || code=$?
done

{
	echo '| part | cold | warm |'
	echo '|---|---|---|'
	# A part that CI did not run has no row.
	paste "$folder/cold" "$folder/warm" | awk -F '\t' '
		function time(s) { return sprintf("%d:%02d", s / 60, s % 60) }
		{ print "| " $1 " | " time($2) " | " time($4) " |"; cold += $2; warm += $4 }
		END { print "| all | " time(cold) " | " time(warm) " |" }'
	echo
	# shellcheck disable=SC1091
	printf 'Minutes and seconds, on %s cores, %s, %s, at %s%s.\n' "$(nproc)" \
		"$(. /etc/os-release && echo "$PRETTY_NAME")" "$(go env GOVERSION)" \
		"$(git rev-parse --short HEAD 2>/dev/null || echo 'an unknown commit')" \
		"$([ "$code" -eq 0 ] || echo ' (CI failed)')"
} >"$folder/table"

awk -v table="$folder/table" '
	/<!-- ci-times: end -->/ { inside = 0 }
	!inside { print }
	/<!-- ci-times: begin -->/ { inside = 1; while ((getline line < table) > 0) print line }
' "$page" >"$folder/page"
cat "$folder/page" >"$page"
exit "$code"
