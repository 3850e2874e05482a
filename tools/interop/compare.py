#!/usr/bin/env python3
"""Loads what tare writes in the tools that the formats belong to, and compares logits.

    compare.py --tare build/release/tare --fixtures FOLDER --work FOLDER [--python PYTHON] [--llama-python PYTHON]
               [--only TEXT] [--out docs/interop.md]

For each row: a checkpoint of the reference data (or a model quantized here) is converted by `tare convert`, run by
`tare eval logits` and by the peer, on the same 16 token ids. A peer that is not there or fails leaves an empty cell with
its last line. Tolerance: the peer computes in f32 over the same dequantized weights, or in its own 16-bit type.
"""
import argparse
import json
import os
import subprocess
import sys

IDS = [1, 75, 104, 111, 114, 35, 122, 114, 117, 111, 103, 36, 200, 87, 90, 3]

# source (under checkpoints/ or models/), format, peer, largest difference allowed relative to the largest logit
ROWS = [
    ("ct-w4a16-g128", "compressed-tensors", "transformers", 3e-3),
    ("ct-w4a16-asym", "compressed-tensors", "transformers", 1e-3),
    ("gptq-4bit-g128-descact", "compressed-tensors", "transformers", 1e-3),
    ("gptq-8bit-g128", "compressed-tensors", "transformers", 1e-3),
    ("ct-w8a8-int8-dynamic", "compressed-tensors", "transformers", 3e-2),
    ("ct-fp8-dynamic-T2", "compressed-tensors", "transformers", 3e-2),
    ("ct-nvfp4-T2", "compressed-tensors", "transformers", 2e-1),
    ("gptq-4bit-g128-sym", "gptq", "gptqmodel", 1e-3),
    ("gptq-4bit-g128-descact", "gptq", "gptqmodel", 1e-3),
    ("gptq-8bit-g128", "gptq", "gptqmodel", 1e-3),
    ("gptq-dynamic", "gptq", "gptqmodel", 1e-3),
    ("gptq-4bit-g32-T2", "gptq", "gptqmodel", 1e-3),
    ("ct-w4a16-asym", "gptq_v2", "gptqmodel", 1e-3),
    ("gptq-2bit-g64", "gptq_v2", "gptqmodel", 1e-3),
    ("ct-w4a16-g128", "awq", "gptqmodel", 1e-3),
    ("awq-gemm-g128", "awq", "gptqmodel", 1e-3),
    ("awq-gemm-g128", "awq", "autoawq", 1e-3),
    ("fp8-block", "fp8", "transformers", 3e-2),
    ("bnb-nf4", "bitsandbytes", "transformers", 3e-2),  # its configuration asks for float16
    ("bnb-nf4-dq", "bitsandbytes", "transformers", 1e-3),
    ("bnb-int8", "bitsandbytes", "transformers", 3e-2),
    ("../models/T1", "gguf", "llama-cpp-python", 1e-2),
    ("../models/T2", "gguf", "llama-cpp-python", 1e-2),
    ("../models/T4", "gguf", "llama-cpp-python", 1e-2),
    ("gguf-q4_0", "gguf", "llama-cpp-python", 2e-2),
    ("gguf-q4_k_m", "gguf", "llama-cpp-python", 2e-2),
    ("gptq-4bit-g128-sym", "gguf", "llama-cpp-python", 2e-2),
    ("ct-w8a16-channel-T2", "gguf", "llama-cpp-python", 2e-2),
    ("gguf-q4_k_m", "gguf", "xllamacpp", 2e-2),
]


def run(command, **options):
    env = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, **options)


def last_line(result):
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
    return lines[-1].replace("|", "/")[:200] if lines else "no output, exit code %d" % result.returncode


def compare(ours, theirs):
    import numpy

    a, b = numpy.load(ours), numpy.load(theirs)
    if numpy.isnan(b).any():  # log-probabilities of the most likely tokens only
        row = a[-1].astype(numpy.float64)
        row = row - row.max()
        row = row - numpy.log(numpy.exp(row).sum())
        seen = ~numpy.isnan(b[-1])
        return float(numpy.abs(row[: len(seen)][seen] - b[-1][seen]).max()), float(numpy.abs(b[-1][seen]).max()), True
    columns = min(a.shape[1], b.shape[1])
    a, b = a[:, :columns], b[:, :columns]
    same = bool((a.argmax(1) == b.argmax(1)).all())
    return float(numpy.abs(a - b).max()), float(numpy.abs(b).max()), same


def one(args, row, number):
    source, target, peer, tolerance = row
    path = os.path.join(args.fixtures, "checkpoints", source)
    if source.startswith("../models"):
        path = os.path.join(args.fixtures, source[3:])
    base = json.load(open(path + "/reference.json")).get("base_model", "T1") if os.path.exists(path + "/reference.json") else "T1"
    folder = os.path.join(args.work, "%02d" % number)
    command = [args.tare, "convert", path, "--to", target, "--out", folder, "--overwrite", "--quiet"]
    if target == "gguf" and not os.path.exists(path + "/tokenizer.json") and not os.path.exists(path + "/model.gguf"):
        # The reference data leaves tokenizers out of checkpoints: they are those of the base model.
        path = with_tokenizer(path, os.path.join(args.fixtures, "models", base), folder + "-source")
        command[2] = path
    written = run(command)
    if written.returncode != 0:
        return "", last_line(written), {}
    model = folder + "/model.gguf" if target == "gguf" else folder
    ids = ",".join(map(str, IDS))
    ours = run([args.tare, "eval", "logits", model, "--token-ids", ids, "--out", folder + ".ours.npy", "--kv-cache-dtype", "f32", "--quiet"])
    if ours.returncode != 0:
        return "", "tare: " + last_line(ours), {}
    python = args.llama_python if peer == "llama-cpp-python" and args.llama_python else args.python
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_logits.py")
    theirs = run([python, script, peer, folder, ids, folder + ".theirs.npy"])
    versions = {}
    for line in theirs.stdout.splitlines():
        if line.startswith("{"):
            versions = json.loads(line)
            break
    if theirs.returncode != 0:
        return "", last_line(theirs), versions
    difference, scale, same = compare(folder + ".ours.npy", folder + ".theirs.npy")
    good = difference <= tolerance * scale
    text = "%s: largest difference %.2e of %.2f%s" % ("equal" if good else "DIFFERS", difference, scale,
                                                       ", same choices" if same else ", other choices")
    return text, "", versions


def with_tokenizer(path, base, folder):
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(path, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(os.path.join(base, name)):
            shutil.copy(os.path.join(base, name), folder)
    subprocess.run(["chmod", "-R", "u+w", folder])
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tare", required=True)
    parser.add_argument("--fixtures", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--llama-python", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    lines, seen, failed = [], {}, 0
    for number, row in enumerate(ROWS):
        if args.only and args.only not in " ".join(map(str, row)):
            continue
        try:
            result, error, versions = one(args, row, number)
        except subprocess.TimeoutExpired:
            result, error, versions = "", "timed out", {}
        seen.update(versions)
        failed += "DIFFERS" in result
        line = "| `%s` | %s | %s | %s | %s |" % (row[0].replace("../models/", ""), row[1], row[2], result, error)
        print(line, flush=True)
        lines.append(line)
    table = ["| source | written as | loaded by | logits | why not |", "|---|---|---|---|---|"] + lines
    table += ["", "Versions: " + ", ".join("%s %s" % pair for pair in sorted(seen.items())) + "."]
    if args.out:
        with open(args.out, "w") as out:
            out.write("\n".join(table) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
