#!/usr/bin/env python3
"""quality_ratios.py [RECORDS]: a table of all rows, and ratios of losses over the same windows with their upper 95 % bound.

RECORDS: bench/results/quality.jsonl as tools/quality.sh appends to it; the last record of a row counts. The loss of a row
is its mean KL divergence to the source over n windows. The ratio r = mean(a) / mean(b) of two rows has the standard error
of mean(a - r b) / mean(b) (paired windows, first order); the upper bound is one-sided, Student's t with n - 1 degrees.
A line holds when the upper bound is below it.
"""

import json
import math
import re
import sys

# Row, row that it is compared with, line, and what the line says.
LINES = [
    ("gptq-g64", "rtn-g64", 0.60, "GPTQ g64 of nearest"),
    ("gptq-g128", "rtn-g128", 0.60, "GPTQ g128 of nearest"),
    ("awq-zeros-g64", "rtn-zeros-g64", 0.48, "AWQ g64 of nearest"),
    ("qoq-g128", "rtn-w4a8kv4-g128", 0.65, "QoQ W4A8KV4 g128 of nearest in the same grid"),
    ("qoq-channel", "rtn-w4a8kv4-channel", 0.70, "QoQ W4A8KV4 per channel of nearest in the same grid"),
    ("smoothquant", "w8a8", 1.00, "SmoothQuant W8A8 of plain W8A8"),
    ("nf4", "rtn-g64", 1.00, "NF4 of nearest 4-bit g64 without zeros"),
]
# One-sided 95 % points of Student's t by degrees of freedom; the next lower row is the safe side.
STUDENT = {1: 6.314, 2: 2.920, 3: 2.353, 5: 2.015, 9: 1.833, 14: 1.761, 19: 1.729, 29: 1.699, 63: 1.669}


def ratio_and_bound(a, b):
    n = len(a)
    mean_b = sum(b) / n
    ratio = sum(a) / n / mean_b
    rest = [x - ratio * y for x, y in zip(a, b)]
    stderr = math.sqrt(sum(x * x for x in rest) / (n - 1) / n) / mean_b
    t = STUDENT[max(k for k in STUDENT if k <= n - 1)]
    return ratio, ratio + t * stderr


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "bench/results/quality.jsonl"
    with open(path) as lines:
        rows = {record["row"]: record for record in map(json.loads, lines)}
    print("| row | windows | mean KL | top-1 | perplexity | source's | bits per weight | `tare quantize` |")
    print("|---|---|---|---|---|---|---|---|")
    for name, r in rows.items():
        n = len(r["window_kl"])
        stderr = math.sqrt(sum((x - r["kl_mean"]) ** 2 for x in r["window_kl"]) / (n - 1) / n) if n > 1 else math.nan
        flags = re.sub(r"--calibration \S+", "--calibration VALID", r["flags"])
        print(f"| {name} | {n} | {r['kl_mean']:.4f} ± {stderr:.4f} | {r['top1_agreement']:.1%} | {r['perplexity']:.2f} | "
              f"{r['reference_perplexity']:.2f} | {r['bpw']:.3f} | `{flags}` |")
    print()
    print("| what | windows | ratio | upper 95 % bound | line | |")
    print("|---|---|---|---|---|---|")
    for name, base, line, what in LINES:
        if name not in rows or base not in rows:
            print(f"| {what} | | | | {line:.0%} | not run |")
            continue
        a, b = rows[name]["window_kl"], rows[base]["window_kl"]
        if len(a) != len(b) or rows[name]["text"] != rows[base]["text"] or len(a) < 2:
            print(f"| {what} | {len(a)}, {len(b)} | | | {line:.0%} | windows differ |")
            continue
        ratio, bound = ratio_and_bound(a, b)
        print(f"| {what} | {len(a)} | {ratio:.1%} | {bound:.1%} | {line:.0%} | {'holds' if bound <= line else 'missed'} |")
    if "fp8" in rows:
        loss = rows["fp8"]["perplexity"] / rows["fp8"]["reference_perplexity"] - 1
        print(f"| FP8, perplexity above the source | {len(rows['fp8']['window_kl'])} | {loss:+.2%} | | +1.00% | "
              f"{'holds' if loss <= 0.01 else 'missed'} |")


if __name__ == "__main__":
    main()
