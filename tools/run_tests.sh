#!/usr/bin/env bash
# run_tests.sh PRESET [JOBS] [CTEST ARGUMENT...]: runs the tests and lists what was skipped. With CI set, a skip for
# missing reference data is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
jobs=${2:-$(nproc)}
shift $(($# < 2 ? $# : 2))
log=build/$preset/ctest.log
echo "== test: build/$preset, $jobs at a time"
ctest --test-dir "build/$preset" --output-on-failure -j"$jobs" "$@" 2>&1 | tee "$log"

# ctest shows the output of failed tests only, so the skips of passed ones are read from its log.
skips=$(grep -h 'skipped: ' "build/$preset/Testing/Temporary/LastTest.log" | sed 's/^.*skipped: /  /' | sort | uniq -c | sort -rn || true)
[ -n "$skips" ] || exit 0
echo
echo "skipped (number of tests, reason):"
echo "$skips"
if [ -n "${CI:-}" ] && grep -q 'skipped: needs' "build/$preset/Testing/Temporary/LastTest.log"; then
  echo "error: tests were skipped for missing reference data, which CI does not allow" >&2
  exit 1
fi
grep -h 'tests passed' "$log" | tail -1
