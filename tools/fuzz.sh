#!/usr/bin/env bash
# fuzz.sh [SECONDS] [JOBS]: builds every libFuzzer target (src/**/*_fuzz.cpp) and runs each on its stored corpus in
# tests/corpus/NAME. New inputs stay in build/fuzz/corpus; a crash is kept in build/fuzz/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-20}
jobs=${2:-$(nproc)}
mapfile -t targets < <(git ls-files 'src/*_fuzz.cpp' | sed 's,.*/,,; s/\.cpp$//')
[ ${#targets[@]} -gt 0 ] || { echo "no fuzz targets"; exit 0; }
tools/build.sh fuzz "$jobs" "${targets[@]}"
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target" build/fuzz/crashes "tests/corpus/$target"
  echo "== fuzz: $target, $seconds s, $(find "tests/corpus/$target" -type f | wc -l) stored inputs"
  "build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/crashes/$target-" "build/fuzz/corpus/$target" "tests/corpus/$target" \
    >"build/fuzz/$target.log" 2>&1 || { tail -40 "build/fuzz/$target.log" >&2; exit 1; }
  grep -E 'number_of_executed_units|peak_rss_mb' "build/fuzz/$target.log" | sed 's/^/   /'
done
