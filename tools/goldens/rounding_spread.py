#!/usr/bin/env python3
"""How far correct implementations of one quantization scheme may differ: the same codes computed in float32, in float64, and with
KV scales rounded to float16 as a cache page stores them.

Needs torch and transformers. MODEL is a dense Hugging Face directory (tare convert --to safetensors), TOKENS a file of token ids
(a JSON list). Schemes are those of fixtures/smollm2/README.md.

    python3 tools/goldens/rounding_spread.py MODEL TOKENS [--windows 10] [--schemes w8a8 w4a8kv4_pc_asym ...]
"""

import argparse
import json
import math

import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama


def channel8(w):
    s = w.abs().amax(dim=1, keepdim=True) / 127
    return torch.clamp(torch.round(w / s), -127, 127) * s


def asymmetric4(group):
    def quantize(w):
        parts = w.split(group or w.shape[1], dim=1)
        return torch.cat([asymmetric4_group(p) for p in parts], dim=1)

    return quantize


def asymmetric4_group(w):
    lo = w.amin(dim=1, keepdim=True).clamp(max=0)
    s = (w.amax(dim=1, keepdim=True).clamp(min=0) - lo) / 15
    z = torch.clamp(torch.round(-lo / s), 0, 15)
    return s * (torch.clamp(torch.round(w / s) + z, 0, 15) - z)


def qoq_channel(w):
    lo = w.amin(dim=1, keepdim=True)
    s = ((w.amax(dim=1, keepdim=True) - lo) / 15).half().float()
    zero = (-lo).half().float()
    return s * torch.clamp(torch.round((w + zero) / s), 0, 15) - zero


def qoq_group(group):
    def quantize(w):
        s1 = (w.abs().amax(dim=1, keepdim=True) / 119).half().float()
        out = []
        for v in torch.clamp(w / s1, -119, 119).split(group, dim=1):
            lo = v.amin(dim=1, keepdim=True)
            s2 = torch.clamp(torch.round((v.amax(dim=1, keepdim=True) - lo) / 15), 1, 127)
            z = torch.clamp(torch.round(-lo), -128, 127)
            out.append(s1 * (torch.clamp(torch.round((v + z) / s2), 0, 15) * s2 - z))
        return torch.cat(out, dim=1)

    return quantize


SCHEMES = {
    # name: weights, 8-bit activations, levels of the KV cache
    "w8a8": (channel8, True, 0),
    "kv8": (None, False, 255),
    "kv4": (None, False, 15),
    "w4a8_g128_asym": (asymmetric4(128), True, 0),
    "w4a8kv4_g128_asym": (asymmetric4(128), True, 15),
    "w4a8kv4_pc_asym": (asymmetric4(0), True, 15),
    "qoq_g128_w4a8": (qoq_group(128), True, 0),
    "qoq_g128_w4a8kv4": (qoq_group(128), True, 15),
    "qoq_g128_w4a8kv8": (qoq_group(128), True, 255),
    "qoq_pc_w4a8kv4": (qoq_channel, True, 15),
}


def quantize_input(module, args):
    x = args[0]
    s = x.abs().amax(dim=-1, keepdim=True) / 127
    s = torch.where(s == 0, torch.ones_like(s), s)
    return (torch.clamp(torch.round(x / s), -127, 127) * s,)


class Cache:
    """Quantizes keys after RoPE and values as projected, per token and head."""

    def __init__(self, levels, half):
        self.levels, self.half = levels, half

    def __call__(self, x):
        lo = x.amin(dim=-1, keepdim=True)
        s = (x.amax(dim=-1, keepdim=True) - lo) / self.levels
        if self.half:
            lo, s = lo.half().to(x.dtype), s.half().to(x.dtype)
        s = torch.where(s == 0, torch.ones_like(s), s)
        return torch.clamp(torch.round((x - lo) / s), 0, self.levels) * s + lo


def window_nll(model, ids):
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()


def run(path, scheme, dtype, half, windows):
    quantize, activations, levels = SCHEMES[scheme]
    # The weights are rounded once, in float32, so that all runs use the same ones.
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    cache = Cache(levels, half) if levels else None
    original = modeling_llama.apply_rotary_pos_emb
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            if quantize:
                module.weight.data = quantize(module.weight.data)
            if activations:
                module.register_forward_pre_hook(quantize_input)
            if cache and name.endswith("v_proj"):
                size = model.config.head_dim
                module.register_forward_hook(lambda m, i, out: cache(out.unflatten(-1, (-1, size))).flatten(-2))
    if cache:

        def rope(q, k, *args, **kwargs):
            q, k = original(q, k, *args, **kwargs)
            return q, cache(k)

        modeling_llama.apply_rotary_pos_emb = rope
    model = model.to(dtype)
    with torch.no_grad():
        nll = [window_nll(model, ids) for ids in windows]
    modeling_llama.apply_rotary_pos_emb = original
    return nll


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES))
    options = parser.parse_args()
    with open(options.tokens) as f:
        tokens = json.load(f)
    windows = [tokens[512 * w : 512 * (w + 1)] for w in range(options.windows)]
    print("| scheme | float32 | float64 | float16 KV scales | largest difference | of a window, nats |", flush=True)
    print("|---|---|---|---|---|---|")
    for scheme in options.schemes:
        results = [run(options.model, scheme, torch.float32, False, windows), run(options.model, scheme, torch.float64, False, windows)]
        if SCHEMES[scheme][2]:
            results.append(run(options.model, scheme, torch.float32, True, windows))
        ppl = [math.exp(sum(r) / len(r)) for r in results]
        spread = max(abs(p / ppl[0] - 1) for p in ppl)
        cells = [f"{p:.4f}" for p in ppl] + ["-"] * (3 - len(ppl))
        windows_apart = max(abs(a - b) for r in results[1:] for a, b in zip(r, results[0]))
        print(f"| {scheme} | {' | '.join(cells)} | {100 * spread:.3f} % | {windows_apart:.4f} |", flush=True)


if __name__ == "__main__":
    main()
