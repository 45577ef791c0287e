#!/bin/sh
# Runs all that speaks for Berth's security, one part after the other, and ends
# with "N passed, M failed": tests, every fuzz target for FUZZTIME (5s), the
# linters, and the search for known vulnerabilities.
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
passed=0 failed=0

# count OUTPUT WORDS adds what a part's last line says; a part that says nothing
# has failed.
count() {
	line=$(grep -a "^$2: [0-9]* passed, [0-9]* failed" "$1" | tail -n 1)
	if [ -z "$line" ]; then
		failed=$((failed + 1))
		return
	fi
	passed=$((passed + $(echo "$line" | sed 's/^[a-z]*: \([0-9]*\) passed.*/\1/')))
	failed=$((failed + $(echo "$line" | sed 's/^[a-z]*: [0-9]* passed, \([0-9]*\) failed.*/\1/')))
}

# one NAME COMMAND... is a part that passes or fails as a whole.
one() {
	name=$1
	shift
	echo "=== $name"
	if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

echo '=== tests'
bin/with-postgres bin/gotest -count=1 -timeout 20m ./test/security/... ./pkg/identity/... ./pkg/redact/... ./pkg/httpserver/... ./pkg/httpapi/... \
	./pkg/agentapi/... ./pkg/strictjson/... ./pkg/runtime/chromium/... 2>&1 | tee build/security-tests.log
count build/security-tests.log tests
bin/with-postgres bin/gotest -count=1 -timeout 20m -run "${SECURITY_E2E:-Content|Secret|Bootstrap|Admin}" ./test/e2e 2>&1 | tee build/security-tests.log
count build/security-tests.log tests

bin/with-postgres bin/gotest -count=1 -timeout 20m -run 'Trail|UnfitRoles|TooManyRights|DeniedAddress|ChangesItsAddress|FilesOfTheHost|Masked' \
	./pkg/schema ./pkg/controlplane ./pkg/runtime/builtin 2>&1 | tee build/security-tests.log
count build/security-tests.log tests

echo '=== fuzz'
bin/with-postgres scripts/fuzz.sh "${FUZZTIME:-5s}" 2>&1 | tee build/security-fuzz.log
count build/security-fuzz.log fuzz

one lint make --no-print-directory --keep-going lint
one vulnerabilities make --no-print-directory vulncheck

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
