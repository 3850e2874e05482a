#!/usr/bin/env bash
# build.sh PRESET [JOBS] [TARGET...]: configures once, then builds what changed. The folder is build/PRESET.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
jobs=${2:-$(nproc)}
shift $(($# < 2 ? $# : 2))
folder=build/$preset
if [ ! -f "$folder/build.ninja" ]; then
  echo "== configure: preset $preset in $folder"
  mkdir -p "$folder"
  cmake --preset "$preset" >"$folder/configure.log" 2>&1 || { tail -30 "$folder/configure.log" >&2; rm -f "$folder/CMakeCache.txt"; exit 1; }
fi
echo "== build: $folder ${*:-(everything)}, $jobs jobs"
if [ -t 1 ]; then exec ninja -C "$folder" -j"$jobs" "$@"; fi
# Without a terminal a line per file is noise: show the last one, or the failures.
ninja -C "$folder" -j"$jobs" "$@" >"$folder/ninja.log" 2>&1 || { grep -vE '^\[[0-9]+/[0-9]+\]|^ninja: Entering' "$folder/ninja.log" >&2; exit 1; }
tail -1 "$folder/ninja.log"
