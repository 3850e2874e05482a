#!/usr/bin/env bash
# Loss of quantized forms of a real model: quantizes, compares with the source, appends a table row to docs/quality.md's
# format on standard output.
#
#   tools/quality.sh MODEL CALIBRATION TEXT [WINDOWS] [SAMPLES]
#
# Each row leaves one line in RECORDS (default bench/results/quality.jsonl): its flags and the loss of every window, from
# which `tools/quality_ratios.py` makes ratios of paired windows.
#
# MODEL: the GGUF of tools/get_demo_model.sh; CALIBRATION and TEXT: WikiText-2 wiki.valid.raw and wiki.test.raw joined as
# tools/join_wikitext.py does. ROWS picks rows by a pattern over their names (default: all).
set -euo pipefail
tare=${TARE:-build/release/tare}
model=$1 calibration=$2 text=$3 windows=${4:-20} samples=${5:-64}
records=${RECORDS:-bench/results/quality.jsonl}
mkdir -p "$(dirname "$records")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

row() { # name, flags of quantize
  local name=$1; shift
  [[ $name =~ ${ROWS:-.} ]] || return 0
  "$tare" quantize "$model" --out "$work/$name" --gate off --no-progress --json "$@" > "$work/$name.json"
  "$tare" eval kld "$work/$name" --reference "$model" --text "$text" --context 512 --windows "$windows" --no-progress \
    --json > "$work/$name.kld"
  python3 - "$name" "$work/$name.json" "$work/$name.kld" "$records" "$(basename "$text")" "$*" <<'PY'
import json, sys
name, made, got, records, text, flags = sys.argv[1], json.load(open(sys.argv[2])), json.load(open(sys.argv[3])), *sys.argv[4:]
record = {"row": name, "flags": flags, "text": text, "bpw": made["bpw"], "seconds": made["seconds"], "kl_mean": got["kl_mean"],
          "perplexity": got["perplexity"], "reference_perplexity": got["reference_perplexity"],
          "top1_agreement": got["top1_agreement"], "window_kl": got["window_kl"]}
with open(records, "a") as out:
    out.write(json.dumps(record) + "\n")
print(f"| `{name}` | {got['kl_mean']:.4f} ± {got['kl_stderr']:.4f} | {100 * got['top1_agreement']:.1f} % | "
      f"{got['perplexity']:.2f} | {got['reference_perplexity']:.2f} | {made['bpw']:.3f} | {made['seconds']:.0f} s | `{flags}` |", flush=True)
PY
  rm -rf "${work:?}/$name"
}

data=(--calibration "$calibration" --samples "$samples" --sequence-length 512)
same=(--scale-rule compressed-tensors --scale-dtype float32)
echo "| row | mean KL | top-1 | perplexity | source's | bits per weight | time | flags |"
echo "|---|---|---|---|---|---|---|---|"
row rtn-g64 --method rtn --bits 4 --group-size 64 "${same[@]}"
row gptq-g64 --method gptq --bits 4 --group-size 64 "${same[@]}" "${data[@]}"
row rtn-g128 --method rtn --bits 4 --group-size 128 "${same[@]}"
row gptq-g128 --method gptq --bits 4 --group-size 128 "${same[@]}" "${data[@]}"
row rtn-w4a8kv4-g128 --method rtn --scheme W4A8KV4 --group-size 128
row gptq-w4a8kv4-g128 --method gptq --scheme W4A8KV4 --group-size 128 "${data[@]}"
row rtn-w4a8kv4-channel --method rtn --scheme W4A8KV4 --group-size -1
row gptq-w4a8kv4-channel --method gptq --scheme W4A8KV4 --group-size -1 "${data[@]}"
row rtn-3bit-g64 --method rtn --bits 3 --group-size 64 --asymmetric
row gptq-3bit-g64 --method gptq --bits 3 --group-size 64 --asymmetric "${data[@]}"
# Transforms. AWQ as the stored peer: 8 windows, zeros, f32 scales.
few=(--calibration "$calibration" --samples 8 --sequence-length 512)
row rtn-zeros-g64 --method rtn --bits 4 --group-size 64 --asymmetric --scale-dtype float32
row awq-zeros-g64 --method awq --bits 4 --group-size 64 --asymmetric --scale-dtype float32 "${few[@]}"
row qoq-g128 --method qoq --group-size 128 "${data[@]}"
row qoq-channel --method qoq --group-size -1 "${data[@]}"
row w8a8 --method w8a8
row smoothquant --method smoothquant "${few[@]}"
row smoothquant-static --method smoothquant-static "${few[@]}"
# Forms without data, and fp8 with one activation scale a matrix. nf4 is to be compared with rtn-g64.
row llm-int8 --method llm-int8
row fp8 --method fp8
row fp8-tensor --method fp8-tensor
row fp8-static --method fp8-static "${few[@]}"
row fp8-block --method fp8-block
row nf4 --method nf4
row nf4-dq --method nf4-dq --format tare
row fp4 --method fp4
row hqq --method hqq
row mxfp4 --method mxfp4
row nvfp4 --method nvfp4
# Mixed precision in the bytes of 4-bit g64.
if [[ mixed-as-g64 =~ ${ROWS:-.} ]]; then
  [[ -f $work/rtn-g64.json ]] ||
    "$tare" quantize "$model" --out "$work/size" --gate off --no-progress --json --method rtn --bits 4 --group-size 64 \
      "${same[@]}" > "$work/rtn-g64.json"
  bytes=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["bytes"])' "$work/rtn-g64.json")
  row mixed-as-g64 --target-bytes "$bytes" "${same[@]}" "${data[@]}"
fi
