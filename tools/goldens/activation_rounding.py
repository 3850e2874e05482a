#!/usr/bin/env python3
"""How far two correct implementations of 8-bit activations may differ: the same W8A8 model in float32 and in float64.

Needs torch and transformers. MODEL is a dense Hugging Face directory (tare convert --to safetensors), TOKENS a file of token ids.

    python3 tools/goldens/activation_rounding.py MODEL TOKENS [WINDOWS]
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def quantize_weights(model):
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            w = module.weight.data
            s = w.abs().amax(dim=1, keepdim=True) / 127
            module.weight.data = torch.clamp(torch.round(w / s), -127, 127) * s
            module.register_forward_pre_hook(quantize_input)


def quantize_input(module, args):
    x = args[0]
    s = x.abs().amax(dim=-1, keepdim=True) / 127
    s = torch.where(s == 0, torch.ones_like(s), s)
    return (torch.clamp(torch.round(x / s), -127, 127) * s,)


def window_nll(model, ids):
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()


path, tokens_path, windows = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 2
tokens = json.load(open(tokens_path))
results = {}
for dtype in (torch.float32, torch.float64):
    # The weights are rounded once, in float32, so that both runs use the same ones.
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    quantize_weights(model)
    model = model.to(dtype)
    with torch.no_grad():
        results[dtype] = [window_nll(model, tokens[512 * w:512 * (w + 1)]) for w in range(windows)]
    print(dtype, [round(x, 6) for x in results[dtype]], flush=True)
print("difference", [round(a - b, 6) for a, b in zip(results[torch.float32], results[torch.float64])])
