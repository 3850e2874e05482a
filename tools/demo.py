#!/usr/bin/env python3
"""Quantizes one model to W8A8 and W4A8, compares both with the source, and asks each the same question.

Everything shown comes from the --json output of the tare binary; the first command that fails ends the demo.
"""

import argparse
import json
import os
import subprocess
import sys
import time

VARIANTS = [
    # label, folder, flags of `tare quantize`
    ("W8A8", "w8a8", ["--scheme", "W8A8", "--method", "rtn", "--format", "compressed-tensors"]),
    ("W4A8", "w4a8", ["--scheme", "W4A8", "--method", "rtn", "--group-size", "128", "--format", "tare"]),
]
WINDOWS = 8
CONTEXT = 512
QUESTION = "What is the capital of France? Answer in one sentence."


def tare(binary, *arguments):
    """Runs one command with --json and returns its document; progress and warnings pass through."""
    command = [binary, *arguments, "--json"]
    print("   $ " + " ".join(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"error: the demo stopped: exit code {done.returncode} from the command above")
    return json.loads(done.stdout)


def size_of(path):
    """Bytes of a model file, or of the weight files of a folder."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    weights = (".safetensors", ".gguf")
    return sum(e.stat().st_size for e in os.scandir(path) if e.name.endswith(weights))


def quantize(binary, model, out, flags):
    """Quantizes unless the folder already holds the result of this binary, model and these flags."""
    stamp_path = out + ".stamp"
    stamp = json.dumps([os.path.abspath(model), os.stat(model).st_mtime_ns, os.stat(binary).st_mtime_ns, flags])
    if os.path.isdir(out) and os.path.exists(stamp_path) and open(stamp_path).read() == stamp:
        print(f"   {out} is up to date")
        return
    tare(binary, "quantize", model, "--out", out, "--overwrite", "--gate", "off", "--dequantize-first", *flags)
    with open(stamp_path, "w") as f:
        f.write(stamp)


def rate(bench, kind):
    points = [p["tokens_per_s"] for p in bench["points"] if p["kind"] == kind]
    return points[0] if points else float("nan")


def measure(binary, path, source, text):
    judged = tare(binary, "eval", "kld", path, "--reference", source, "--text", text, "--windows", str(WINDOWS),
                  "--context", str(CONTEXT))
    bench = tare(binary, "bench", "model", path, "--prompt-tokens", "256", "--gen-tokens", "32", "--repeats", "3")
    answer = tare(binary, "generate", path, "--chat", "--prompt", QUESTION, "--max-tokens", "48", "--temperature", "0")
    found = tare(binary, "inspect", path)
    return {
        "size": size_of(path) / 2**20,
        "bpw": found["bpw"],
        "perplexity": judged["perplexity"],
        "kl": judged["kl_mean"],
        "prefill": rate(bench, "prefill"),
        "decode": rate(bench, "decode"),
        "memory": answer["memory"]["peak_rss_bytes"] / 2**20,
        "answer": " ".join(answer["text"].split()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tare", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", required=True, help="folder for the quantized models")
    parser.add_argument("--text", required=True)
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)

    models = [("source", options.model)]
    for label, folder, flags in VARIANTS:
        print(f"== demo: quantize to {label}", flush=True)
        out = os.path.join(options.work, folder)
        quantize(options.tare, options.model, out, flags)
        models.append((label, out))

    rows = []
    for label, path in models:
        print(f"== demo: measure {label}", flush=True)
        started = time.time()
        rows.append((label, measure(options.tare, path, options.model, options.text)))
        print(f"   {time.time() - started:.0f} s", flush=True)

    print(f"\n{options.model}; perplexity and KL over {WINDOWS} windows of {CONTEXT} tokens of {options.text}, "
          "KL against the source\n")
    print(f"{'':8} {'size':>10} {'bits/weight':>12} {'perplexity':>11} {'KL':>8} {'prefill':>13} {'decode':>13} {'memory':>10}")
    for label, r in rows:
        print(f"{label:8} {r['size']:6.1f} MiB {r['bpw']:12.2f} {r['perplexity']:11.3f} {r['kl']:8.4f} "
              f"{r['prefill']:7.1f} tok/s {r['decode']:7.1f} tok/s {r['memory']:6.0f} MiB")
    print(f"\n> {QUESTION}")
    for label, r in rows:
        print(f"{label:8} {r['answer']}")


if __name__ == "__main__":
    main()
