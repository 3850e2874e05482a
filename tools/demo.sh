#!/usr/bin/env bash
# demo.sh [MODEL]: the demo on MODEL, or on the small real model when none is given.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:-}
if [ -z "$model" ]; then model=$(tools/get_demo_model.sh); fi
exec python3 tools/demo.py --tare build/release/tare --model "$model" --work build/demo --text share/text/time_machine.txt
