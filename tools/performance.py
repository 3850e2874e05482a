#!/usr/bin/env python3
"""Writes docs/performance.md and docs/performance-roofline-*.svg from the records in bench/results.

tools/performance.py [--check]    with --check: fail when the files on disk are not what the records give

Records: kernels.jsonl (`tare bench kernel --records`), models.jsonl (`tare bench model --records`), throughput.jsonl
(`tare bench throughput --output-file`), peers.jsonl (bench/peers/run.py). The newest record of a cell wins; nothing is typed by hand.
"""

import json
import math
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")


def read(name):
    path = os.path.join(RESULTS, name)
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.strip()]


def percent(share):
    return "-" if share is None else f"{100 * share:.0f} %"


def table(head, rows):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    out += ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]
    return out + [""]


def machine_line(m):
    clock = ", CPU time on a machine that others used too" if m.get("clock") == "cpu" else ""
    return (f"{m['cpu']}, {m['isa']}, {m['threads']} thread{'s' if m['threads'] > 1 else ''}{clock}: reads {m['read_gbps']:.1f} GB/s; u4 x s8 "
            f"{m['int8_u4s8_tops']:.2f} TOP/s, s8 x s8 {m['int8_s8s8_tops']:.2f} TOP/s, f32 {m['fp32_gflops']:.0f} GFLOP/s")


def kernels_section(isa, records):
    newest = {}
    for r in records:
        newest[(r["op"], r["format"], r["m"], r.get("context"), r.get("batch"))] = r
    lines = []
    ms = sorted({r["m"] for r in newest.values() if r["op"] != "attention"})
    forms = []
    for key in newest:
        if key[0] != "attention" and key[:2] not in forms:
            forms.append(key[:2])
    if forms:
        lines += ["Share of the roofline, max(bytes / bandwidth, operations / peak of the instruction used) / time, per M:", ""]
        rows = []
        for op, form in forms:
            cells = [newest.get((op, form, m, None, None)) for m in ms]
            kernel = next(c["kernel"] for c in cells if c)
            rows.append([f"`{kernel}`", form] + [percent(c["roofline_share"]) if c else "" for c in cells])
        lines += table(["kernel", "weights"] + [f"M = {m}" for m in ms], rows)
        rows = []
        for op, form in forms:
            cells = [newest.get((op, form, m, None, None)) for m in ms]
            if any(c and "twin_ratio" in c for c in cells):
                kernel = next(c["kernel"] for c in cells if c)
                rows.append([f"`{kernel}`", form] + [f"{c['twin_ratio']:.2f}" if c and "twin_ratio" in c else "" for c in cells])
        if rows:
            lines += ["Times faster than the same shape in bf16 (timed next to it):", ""]
            lines += table(["kernel", "weights"] + [f"M = {m}" for m in ms], rows)
    naive = {m: newest.get(("gemm_dequant_then_gemm", "gptq-u4-g128", m, None, None)) for m in ms}
    fused = {m: newest.get(("gemm_wna16", "gptq-u4-g128", m, None, None)) for m in ms}
    both = [m for m in ms if naive[m] and fused[m]]
    if both:
        lines += ["The naive path, a dense copy in memory and then a product, against the fused kernel on the same weights:", ""]
        lines += table(["", *[f"M = {m}" for m in both]],
                       [["naive, us"] + [f"{naive[m]['us']:.0f}" for m in both],
                        ["fused, us"] + [f"{fused[m]['us']:.0f}" for m in both],
                        ["fused is faster by"] + [f"{naive[m]['us'] / fused[m]['us']:.1f}x" for m in both]])
    attention = [r for r in newest.values() if r["op"] == "attention"]
    if attention:
        lines += ["Attention (32 query heads, 4 heads of keys, 64 channels):", ""]
        lines += table(["keys and values", "queries", "keys", "sequences", "us", "of peak", "of bandwidth", "of roofline"],
                       [[r["format"], r["m"], r["context"], r["batch"], f"{r['us']:.0f}", percent(r["peak_share"]),
                         percent(r["bandwidth_share"]), percent(r["roofline_share"])] for r in attention])
    return lines


def models_section(records):
    newest = {}
    for r in records:
        newest[(r["model"], r["kind"], r["depth"], r["batch"], r["kv_cache_dtype"])] = r
    rows = []
    for r in newest.values():
        limit = r.get("roofline_share", r.get("bandwidth_share", r.get("peak_share")))
        rows.append([os.path.basename(r["model"].rstrip("/")), r["kind"], r["tokens"], r["depth"], r["batch"],
                     r["kv_cache_dtype"], f"{r['tokens_per_s']:.1f}", percent(r.get("peak_share")),
                     percent(r.get("bandwidth_share")), percent(limit), ", ".join(f"`{k}`" for k in r["kernels"])])
    return table(["model", "", "tokens", "depth", "batch", "KV", "tokens/s", "of int8 or f32 ceiling", "of bandwidth",
                  "of the limit", "kernels"], rows)


def throughput_section(records):
    newest = {}
    for r in records:
        newest[(r["model"], r["engine"]["kv_cache_dtype"], r["isa"], r["batch"])] = r
    if not newest:
        return []
    first = records[0]
    lines = ["## Throughput in one budget", "",
             f"`tare bench throughput` with `--memory {first['memory_budget']}`, {first['input_len']} tokens in and {first['output_len']} out, "
             f"{first['cpu']}, {first['isa']}, {first['threads']} threads.", ""]
    rows = [[os.path.basename(r["model"]), f"{r['bpw']:.2f}", r["engine"]["kv_cache_dtype"], r["batch"], f"{r['tokens_per_second']:.1f}",
             f"{r['output_tokens_per_second']:.1f}", f"{r['peak_rss_bytes'] / 2**20:.0f} MiB"] for r in newest.values()]
    return lines + table(["model", "bits per weight", "KV", "batch", "tokens/s, in and out", "tokens/s out", "peak memory"], rows)


def peers_section(records):
    lines = []
    for r in records:
        # Bytes that the weights take in a step, where the engine tells them; else the file.
        r["file_bytes"] = r.get("bytes", r["file_bytes"])
    for case in dict.fromkeys((r["case"], r["isa"]) for r in records):
        mine = [r for r in records if (r["case"], r["isa"]) == case]
        batches = sorted({int(b) for r in mine for b in r.get("decode", {})})

        def value(r, what):
            return r.get("prefill") if what == "prefill" else r.get("decode", {}).get(str(what))

        sides = list(dict.fromkeys((r["engine"], r["label"]) for r in mine))
        medians, errors = {}, {}
        for side in sides:
            for what in ["prefill", *batches]:
                values = [v for r in mine if (r["engine"], r["label"]) == side and "error" not in r
                          and (v := value(r, what)) is not None]
                medians[side, what] = statistics.median(values) if values else None
            errors[side] = next((r["error"] for r in mine if (r["engine"], r["label"]) == side and "error" in r), None)
        rows = []
        for side in sides:
            one = next(r for r in mine if (r["engine"], r["label"]) == side)
            cells = []
            for what in ["prefill", *batches]:
                v = medians[side, what]
                best = max((medians[s, what] or 0) for s in sides if s[0] == "tare") if any(
                    s[0] == "tare" for s in sides) else 0
                cells.append("" if v is None else f"{v:.1f}" + (f" (tare {best / v:.2f}x)" if side[0] != "tare" and best else ""))
            rows.append([side[0], side[1], one.get("head") or "", one["file_bytes"], *cells,
                         (errors[side] or "").replace("|", "/")[:120]])
        lines += [f"### {case[0]}" + (f", tare limited to {case[1]}" if case[1] else ""), "",
                  f"Median of {max(r['round'] for r in mine) + 1} rounds, engines taking turns, threads: {mine[0]['threads']}, "
                  f"{mine[0].get('clock', 'wall')} time; "
                  f"prefill of {mine[0]['prompt']} tokens, decode of {mine[0]['gen']}; tokens/s.", ""]
        lines += table(["engine", "weights", "head", "bytes", "prefill", *[f"decode, batch {b}" for b in batches], "error"], rows)
    return lines


def roofline(isa, records):
    m = records[-1]["machine"]
    points = [r for r in records if r["op"] in ("gemm_w4a8", "gemm_w8a8", "gemm_wna16") and r["format"] in
              ("qoq-g128", "w8-channel", "gptq-u4-g128")]
    if not points:
        return None
    newest = {}
    for r in points:
        newest[(r["format"], r["m"])] = r
    peaks = {"vpdpbusd / vpmaddubsw": m["int8_u4s8_tops"] * 1e3, "f32 fma": m["fp32_gflops"]}
    x0, x1, y0, y1 = 0.5, 4096, 5, max(peaks.values()) * 1.6
    W, H, L, B = 720, 440, 70, 50

    def px(v):
        return L + (math.log(v / x0) / math.log(x1 / x0)) * (W - L - 20)

    def py(v):
        return H - B - (math.log(max(v, y0) / y0) / math.log(y1 / y0)) * (H - B - 20)

    s = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
         f'<rect width="{W}" height="{H}" fill="white"/>']
    for e in range(0, 13, 2):
        v = 2.0 ** e
        s.append(f'<text x="{px(v):.0f}" y="{H - B + 18}" text-anchor="middle">{v:g}</text>')
        s.append(f'<line x1="{px(v):.0f}" y1="20" x2="{px(v):.0f}" y2="{H - B}" stroke="#eee"/>')
    v = 10
    while v < y1:
        s.append(f'<text x="{L - 6}" y="{py(v) + 4:.0f}" text-anchor="end">{v:g}</text>')
        s.append(f'<line x1="{L}" y1="{py(v):.0f}" x2="{W - 20}" y2="{py(v):.0f}" stroke="#eee"/>')
        v *= 10
    s.append(f'<text x="{W / 2:.0f}" y="{H - 10}" text-anchor="middle">operations per stored byte of weights</text>')
    s.append(f'<text x="16" y="{H / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {H / 2:.0f})">Gop/s ({isa})</text>')
    for name, peak in peaks.items():
        knee = peak / m["read_gbps"]
        s.append(f'<polyline fill="none" stroke="#444" points="{px(x0):.1f},{py(x0 * m["read_gbps"]):.1f} '
                 f'{px(knee):.1f},{py(peak):.1f} {px(x1):.1f},{py(peak):.1f}"/>')
        s.append(f'<text x="{W - 24}" y="{py(peak) - 5:.0f}" text-anchor="end" fill="#444">{name}</text>')
    colors = {"qoq-g128": "#c0392b", "w8-channel": "#2980b9", "gptq-u4-g128": "#27ae60"}
    for row, (form, color) in enumerate(colors.items()):
        mine = sorted((r for (f, _), r in newest.items() if f == form), key=lambda r: r["m"])
        if not mine:
            continue
        for r in mine:
            intensity = r["gops"] / r["gbps"]
            s.append(f'<circle cx="{px(intensity):.1f}" cy="{py(r["gops"]):.1f}" r="4" fill="{color}"><title>{r["kernel"]} '
                     f'M = {r["m"]}</title></circle>')
        s.append(f'<text x="{L + 10}" y="{36 + 16 * row}" fill="{color}">{mine[0]["kernel"]} ({form})</text>')
    s.append("</svg>")
    return "\n".join(s) + "\n"


def build():
    kernels, models, peers = read("kernels.jsonl"), read("models.jsonl"), read("peers.jsonl")
    files = {}
    out = ["# Performance", "",
           "Generated by `tools/performance.py` from the records in `bench/results`; do not edit. A speed counts only as a share "
           "of what the machine gave in the same run, or as a ratio to something timed beside it.", ""]
    for isa in dict.fromkeys(r["machine"]["isa"] for r in kernels):
        mine = [r for r in kernels if r["machine"]["isa"] == isa]
        out += [f"## Kernels, {isa}", "", machine_line(mine[-1]["machine"]), ""]
        picture = roofline(isa, mine)
        if picture:
            name = f"performance-roofline-{isa}.svg"
            files[name] = picture
            out += [f"![roofline]({name})", ""]
        out += kernels_section(isa, mine)
    for isa in dict.fromkeys(r["machine"]["isa"] for r in models):
        mine = [r for r in models if r["machine"]["isa"] == isa]
        out += [f"## Whole models, {isa}", "", machine_line(mine[-1]["machine"]), ""] + models_section(mine)
    out += throughput_section(read("throughput.jsonl"))
    if peers:
        out += ["## Beside other engines", ""] + peers_section(peers)
    files["performance.md"] = "\n".join(out).rstrip() + "\n"
    return files


def main():
    stale = []
    for name, text in build().items():
        path = os.path.join(ROOT, "docs", name)
        if "--check" in sys.argv:
            if not os.path.exists(path) or open(path).read() != text:
                stale.append(name)
            continue
        with open(path, "w") as f:
            f.write(text)
    if stale:
        sys.exit(f"not what the records give: {', '.join(stale)}; run tools/performance.py")


if __name__ == "__main__":
    main()
