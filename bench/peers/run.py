"""tare and its peers on the same shapes, taking turns. See README.md."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def tare(args, model, batches):
    command = [args.tare, "--json", "--quiet", "--no-progress", "--threads", str(args.threads)]
    if args.isa:
        command += ["--isa", args.isa]
    command += ["bench", "model", model, "--prompt-tokens", str(args.prompt), "--gen-tokens", str(args.gen), "--batch",
                ",".join(map(str, batches)), "--repeats", "3", "--clock", args.clock]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip()[-400:]}
    document = json.loads(done.stdout)
    out = {"decode": {}, "machine": document["machine"]}
    for p in document["points"]:
        if p["kind"] == "prefill":
            out["prefill"] = p["tokens_per_s"]
            out["prefill_share"] = p.get("peak_share")
        else:
            out["decode"][str(p["batch"])] = p["tokens_per_s"]
        out["kernels"] = p["kernels"]
        out["bytes"] = p["body_bytes"] + p["head_bytes"]
    return out


def peer(args, engine, model, batches):
    done = subprocess.run([sys.executable, os.path.join(HERE, "one_run.py"), engine, model, str(args.prompt),
                           str(args.gen), str(args.threads), ",".join(map(str, batches)), args.clock],
                          capture_output=True, text=True, timeout=600)
    lines = done.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"error": (done.stderr or "no output").strip()[-400:]}


def versions():
    from importlib.metadata import PackageNotFoundError, version
    out = {}
    for name in ("llama-cpp-python", "gguf", "openvino-genai", "ctranslate2"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = None
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tare", required=True)
    parser.add_argument("--work", required=True, help="folder for generated models")
    parser.add_argument("--tare-models", default="", help="label=path,... of tare's side")
    parser.add_argument("--peers", default="", help="engine:label=path,... ; empty: llama.cpp on random 1.1B files")
    parser.add_argument("--case", default="1.1b-random")
    parser.add_argument("--out", default=os.path.join(HERE, "..", "results", "peers.jsonl"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=32)
    parser.add_argument("--batch", default="1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--isa", default="")
    parser.add_argument("--clock", default="wall", help="wall, or cpu with --threads 1 on a machine that others use too")
    args = parser.parse_args()
    batches = [int(b) for b in args.batch.split(",")]
    sides = [("tare", *pair.split("=", 1)) for pair in args.tare_models.split(",") if pair]
    heads = {}
    if args.peers:
        for one in args.peers.split(","):
            engine, rest = one.split(":", 1)
            sides.append((engine, *rest.split("=", 1)))
    else:
        try:
            import random_gguf
            for name, (body, head) in random_gguf.KINDS.items():
                path = os.path.join(args.work, f"random-1.1b-{name}.gguf")
                if not os.path.exists(path):
                    random_gguf.write(path, body, head)
                sides.append(("llama_cpp", name, path))
                heads[name] = head.name
        except ImportError as error:
            print("no gguf package:", error)
    os.makedirs(os.path.dirname(args.out), exist_ok=True)
    rows = {}
    with open(args.out, "a") as records:
        for turn in range(args.rounds):
            for engine, label, path in sides:
                result = tare(args, path, batches) if engine == "tare" else peer(args, engine, path, batches)
                size = os.path.getsize(path) if os.path.isfile(path) else sum(
                    os.path.getsize(os.path.join(path, f)) for f in os.listdir(path)) if os.path.isdir(path) else 0
                line = {"record": "peer", "case": args.case, "engine": engine, "label": label, "head": heads.get(label),
                        "file_bytes": size, "round": turn, "threads": args.threads, "prompt": args.prompt,
                        "gen": args.gen, "isa": args.isa, "clock": args.clock, "time": int(time.time()), "versions": versions(), **result}
                records.write(json.dumps(line) + "\n")
                records.flush()
                rows.setdefault((engine, label), []).append(line)
                print(engine, label, json.dumps({k: result.get(k) for k in ("prefill", "decode", "error")}), flush=True)
    report(rows)


def median(lines, pick):
    values = [pick(line) for line in lines if "error" not in line and pick(line) is not None]
    return statistics.median(values) if values else None


def report(rows):
    keys = [("prefill", lambda l: l.get("prefill"))]
    batches = sorted({int(b) for lines in rows.values() for l in lines for b in l.get("decode", {})})
    for b in batches:
        keys.append((f"decode x{b}", lambda l, b=b: l.get("decode", {}).get(str(b))))
    for name, pick in keys:
        mine = [median(lines, pick) for (engine, _), lines in rows.items() if engine == "tare"]
        mine = max((v for v in mine if v), default=None)
        print(f"\n{name}, tokens/s (median)")
        for (engine, label), lines in rows.items():
            value = median(lines, pick)
            if value is None:
                error = next((l["error"] for l in lines if "error" in l), "not measured")
                print(f"  {engine:12} {label:12} -  ({error[:100]})")
                continue
            ratio = f"tare is {mine / value:.2f}x" if mine and engine != "tare" else ""
            print(f"  {engine:12} {label:12} {value:10.1f}  {ratio}  head {lines[0]['head']}, {lines[0]['file_bytes']} bytes")


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    main()
