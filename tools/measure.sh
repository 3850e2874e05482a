#!/usr/bin/env bash
# measure.sh TARE DENSE W4A8 [DIR]: every record of docs/performance.md, on a quiet machine, about 20 minutes
# TARE: the binary; DENSE: a bf16 model (`tare bench random-model --shape 1.1b`); W4A8: the same after `tare quantize`
set -eu
tare=$1 dense=$2 w4a8=$3
results=$(cd "$(dirname "$0")/.." && pwd)/bench/results
mkdir -p "$results"
isas=avx2
grep -q avx512_vnni /proc/cpuinfo && isas="avx512vnni avx2"
run() { echo "$*"; "$tare" --no-progress "$@" || echo "failed: $*"; }
for isa in $isas; do
  run --isa "$isa" bench kernel --op gemm_w4a8,gemm_w8a8,gemm_wna8,gemm_fp8,gemm --cold 600 --twin --records "$results/kernels.jsonl"
  run --isa "$isa" bench kernel --op gemm_wna16 --cold 600 --twin --records "$results/kernels.jsonl"
  run --isa "$isa" bench kernel --op gemm_dequant_then_gemm --m 1,16,512 --cold 600 --records "$results/kernels.jsonl"
  run --isa "$isa" bench kernel --op attention --context 8192 --batch 1,8 --cold 600 --records "$results/kernels.jsonl"
  run --isa "$isa" bench kernel --op attention --context 512 --queries 512 --batch 1 --cold 0 --records "$results/kernels.jsonl"
  run --isa "$isa" bench model "$w4a8" --prompt-tokens 512 --gen-tokens 64 --batch 1,16,64 --twin "$dense" --records "$results/models.jsonl"
  for kv in f16 int4; do
    run --isa "$isa" bench model "$w4a8" --prompt-tokens 64 --gen-tokens 16 --depth 8192 --batch 1,8 --kv-cache-dtype $kv --records "$results/models.jsonl"
  done
done
"$(dirname "$0")/performance.py"
