#!/usr/bin/env python3
"""Perplexity of every stored quantization variant of the small real model, with tare's own codes and kernels, beside the stored one.

The stored numbers come from transformers with fake quantization in float32 (fixtures/smollm2/ppl.json, its README has the
formulas). Ends with 1 when a variant is farther from its stored value than --limit.

    python3 tools/reference_variants.py --model build/demo/SmolLM2-135M-Instruct.Q4_1.gguf [--only w8a8 kv4] [--windows 10]
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

W4 = ["--scheme", "W4A16", "--scale-dtype", "float32"]
SYMMETRIC = ["--symmetric", "--scale-rule", "compressed-tensors"]
QOQ = ["--grid", "progressive"]
VARIANTS = {
    # name in ppl.json: flags of `tare quantize` (None: the source as it is), flags of `tare eval ppl`
    "f32": (None, []),
    "rtn_w8_pc_sym": (["--scheme", "W8A16", "--scale-dtype", "float32"], []),
    "w8a8": (["--scheme", "W8A8", "--scale-dtype", "float32"], []),
    "rtn_w4_g32_asym": (W4 + ["--asymmetric", "--group-size", "32"], []),
    "rtn_w4_g64_asym": (W4 + ["--asymmetric", "--group-size", "64"], []),
    "rtn_w4_g64_sym": (W4 + SYMMETRIC + ["--group-size", "64"], []),
    "rtn_w4_g128_asym": (W4 + ["--asymmetric", "--group-size", "128"], []),
    "rtn_w4_g128_sym": (W4 + SYMMETRIC + ["--group-size", "128"], []),
    "rtn_w4_g128_sym_div7": (W4 + ["--symmetric", "--group-size", "128"], []),
    "rtn_w4_pc_asym": (W4 + ["--asymmetric", "--group-size", "-1"], []),
    "w4a8_g128_asym": (["--scheme", "W4A8", "--grid", "integer", "--asymmetric", "--group-size", "128",
                        "--scale-dtype", "float32"], []),
    "kv8": (None, ["--kv-cache-dtype", "int8"]),
    "kv4": (None, ["--kv-cache-dtype", "int4"]),
    "w4a8kv4_g128_asym": ("w4a8_g128_asym", ["--kv-cache-dtype", "int4"]),
    "w4a8kv4_pc_asym": (["--scheme", "W4A8", "--grid", "integer", "--asymmetric", "--group-size", "-1",
                         "--scale-dtype", "float32"], ["--kv-cache-dtype", "int4"]),
    "qoq_g128_w4": (["--scheme", "W4A16"] + QOQ + ["--group-size", "128"], []),
    "qoq_g64_w4": (["--scheme", "W4A16"] + QOQ + ["--group-size", "64"], []),
    "qoq_pc_w4": (["--scheme", "W4A16", "--grid", "qoq-channel", "--group-size", "-1"], []),
    "qoq_g128_w4a8": (["--scheme", "W4A8"] + QOQ + ["--group-size", "128"], []),
    "qoq_g128_w4a8kv4": ("qoq_g128_w4a8", ["--kv-cache-dtype", "int4"]),
    "qoq_pc_w4a8kv4": (["--scheme", "W4A8", "--grid", "qoq-channel", "--group-size", "-1"], ["--kv-cache-dtype", "int4"]),
    "qoq_g128_w4a8kv8": ("qoq_g128_w4a8", ["--kv-cache-dtype", "int8"]),
}


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def flags_of(name):
    """Flags of quantize, following a name of another variant; None for the source itself."""
    flags = VARIANTS[name][0]
    return flags_of(flags) if isinstance(flags, str) else flags


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tare", default="build/release/tare")
    parser.add_argument("--model", required=True)
    parser.add_argument("--fixtures", default=os.environ.get("TARE_FIXTURES", "../shared/fixtures"))
    parser.add_argument("--text", default=None, help="the stored protocol's text (default: beside the fixtures)")
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--limit", type=float, default=0.003, help="allowed relative difference of perplexity")
    options = parser.parse_args()
    text = options.text or os.path.join(options.fixtures, "../data/wikitext-2-raw/wiki.test.joined.txt")
    with open(os.path.join(options.fixtures, "smollm2/ppl.json")) as f:
        stored = json.load(f)["variants_first_10_windows"]

    print("| variant | stored ppl | tare ppl | difference | largest window difference, nats |", flush=True)
    print("|---|---|---|---|---|")
    far = []
    with tempfile.TemporaryDirectory() as work:
        for name in options.only:
            model = options.model
            flags = flags_of(name)
            if flags is not None:
                model = os.path.join(work, "model")
                shutil.rmtree(model, ignore_errors=True)
                run([options.tare, "quantize", options.model, "--out", model, "--dequantize-first", "--gate", "off",
                     "--head", "float32", "--json", "--quiet", *flags])
            got = run([options.tare, "eval", "ppl", model, "--text", text, "--context", "512", "--windows",
                       str(options.windows), "--json", "--quiet", *(VARIANTS[name][1] or ["--kv-cache-dtype", "f32"])])
            nll = [float(x) for x in got["window_nll"]]
            want = stored[name]["window_nll"][: options.windows]
            difference = math.exp(sum(nll) / len(nll) - sum(want) / len(want)) - 1
            worst = max(abs(a - b) for a, b in zip(nll, want))
            if abs(difference) > options.limit:
                far.append(name)
            print(f"| {name} | {math.exp(sum(want) / len(want)):.6f} | {math.exp(sum(nll) / len(nll)):.6f} | "
                  f"{100 * difference:+.3f} % | {worst:.6f} |", flush=True)
    if far:
        sys.exit(f"farther than {100 * options.limit:g} %: {', '.join(far)}")


if __name__ == "__main__":
    main()
