#!/usr/bin/env bash
# tidy.sh PRESET [JOBS]: clang-tidy on the sources changed since the branch left main; on main itself, on those of the
# newest commits. The newest TARE_TIDY_FILES (12) of them: each takes half a minute. The preset must be configured.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
jobs=${2:-$(nproc)}
limit=${TARE_TIDY_FILES:-12}
head=$(git rev-parse HEAD)
base=""
for candidate in "${TARE_TIDY_BASE:-}" origin/main main; do
  [ -n "$candidate" ] && base=$(git merge-base HEAD "$candidate" 2>/dev/null || true)
  [ -n "$base" ] && [ "$base" != "$head" ] && break
  base=""
done
if [ -n "$base" ]; then
  range=("$base..HEAD")
  echo "changed since $(git rev-parse --short "$base")"
else
  range=(-n 40)
  echo "no merge base with main: the files changed last"
fi
files=$(git log --first-parent "${range[@]}" --diff-filter=AMR --name-only --format= -- '*.cpp' | awk '!seen[$0]++' |
  while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done)
# Fuzz targets are compiled by their own preset only, so this one has no command for them.
files=$(grep -v '_fuzz\.cpp$' <<<"$files" || true)
[ -n "$files" ] || { echo "no source changed"; exit 0; }
all=$(wc -l <<<"$files")
files=$(head -n "$limit" <<<"$files")
echo "$(wc -l <<<"$files") of $all files, the newest"
xargs -P "$jobs" -n 1 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p "build/$preset" <<<"$files" 2> >(grep -vE 'warnings? generated|^$|Suppressed|Use -header-filter' >&2)
