#!/usr/bin/env python3
"""Logits of one model by one peer, as .npy [T, vocab] float32.

    peer_logits.py PEER MODEL IDS OUT.npy

PEER: transformers, gptqmodel, autoawq, llama-cpp-python, xllamacpp. IDS: comma-separated token ids. Prints the peer's
versions as one JSON line. Each peer runs in a process of its own, so that one that is missing or fails says so alone.
"""
import importlib.metadata as metadata
import json
import sys


def versions(*names):
    out = {}
    for name in names:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def torch_forward(model, ids):
    import torch

    model = model.to(torch.float32).eval() if hasattr(model, "to") else model
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def by_transformers(path, ids):
    import torch
    from transformers import AutoModelForCausalLM

    config = json.load(open(path + "/config.json")).get("quantization_config", {})
    options = {}
    if config.get("quant_method") == "fp8":
        from transformers import FineGrainedFP8Config

        options["quantization_config"] = FineGrainedFP8Config(dequantize=True)
    if config.get("quant_method") == "compressed-tensors":
        from transformers import CompressedTensorsConfig

        options["quantization_config"] = CompressedTensorsConfig(run_compressed=False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, device_map="cpu", **options)
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].float().numpy()


def by_gptqmodel(path, ids):
    import torch
    from gptqmodel import BACKEND, GPTQModel

    names = [name for name in ("GPTQ_TORCH", "TORCH", "AUTO") if hasattr(BACKEND, name)]
    if json.load(open(path + "/config.json"))["quantization_config"]["quant_method"] == "awq":
        names = [name for name in ("TORCH_AWQ", "AWQ_TORCH") if hasattr(BACKEND, name)] + names
    model = GPTQModel.load(path, device="cpu", backend=getattr(BACKEND, names[0]), dtype=torch.float32)
    inner = getattr(model, "model", model)
    with torch.no_grad():
        return inner(torch.tensor([ids])).logits[0].float().numpy()


def by_autoawq(path, ids):
    import torch
    from awq import AutoAWQForCausalLM

    model = AutoAWQForCausalLM.from_quantized(path, fuse_layers=False, device_map="cpu")
    with torch.no_grad():
        return model.model(torch.tensor([ids])).logits[0].float().numpy()


def by_llama_cpp(path, ids):
    import numpy
    from llama_cpp import Llama

    llama = Llama(model_path=path + "/model.gguf", n_ctx=512, logits_all=True, verbose=False, n_threads=1)
    llama.eval(ids)
    return numpy.array(llama.scores[: len(ids)], dtype=numpy.float32)


def by_xllamacpp(path, ids):
    """Only the most likely tokens of the last position: its server gives no whole rows. NaN elsewhere."""
    import numpy
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path + "/model.gguf"
    params.n_ctx = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.n_gpu_layers = 0
    server = xllamacpp.Server(params)
    answer = server.handle_completions(
        {"prompt": ids, "max_tokens": 1, "temperature": 1.0, "n_probs": 64, "logprobs": 64, "post_sampling_probs": False}
    )
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    text = json.dumps(answer)
    rows = None
    for choice in answer.get("choices", []):
        content = (choice.get("logprobs") or {}).get("content")
        if content:
            rows = content[0]["top_logprobs"]
    if rows is None:
        raise RuntimeError("no logprobs in the answer: " + text[:300])
    out = numpy.full((len(ids), 1 + max(row["id"] for row in rows)), numpy.nan, dtype=numpy.float32)
    for row in rows:
        out[-1, row["id"]] = row["logprob"]
    return out


PEERS = {
    "transformers": (by_transformers, ["transformers", "torch", "compressed-tensors", "bitsandbytes"]),
    "gptqmodel": (by_gptqmodel, ["gptqmodel", "transformers", "torch"]),
    "autoawq": (by_autoawq, ["autoawq", "transformers", "torch"]),
    "llama-cpp-python": (by_llama_cpp, ["llama-cpp-python"]),
    "xllamacpp": (by_xllamacpp, ["xllamacpp"]),
}


def main():
    import numpy

    peer, path, ids, out = sys.argv[1:5]
    run, packages = PEERS[peer]
    print(json.dumps(versions(*packages)), flush=True)
    numpy.save(out, run(path, [int(part) for part in ids.split(",")]))


if __name__ == "__main__":
    main()
