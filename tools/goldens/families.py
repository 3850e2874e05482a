#!/usr/bin/env python3
"""Makes a tiny seeded model of each family with transformers, and the logits that transformers gives for it.

Needs torch, transformers and safetensors (pip). Writes tests/data/families/<case>/: config.json, model.safetensors (bf16) and
reference.json (token ids, logits of the last positions, versions). Tests never rewrite these files.

    python3 tools/goldens/families.py [CASE...]
"""

import json
import os
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM

OUT = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "families")

# Odd sizes on purpose: 3 query heads to 1, head size apart from hidden / heads, vocabularies that are no power of two.
BASE = dict(vocab_size=103, hidden_size=36, intermediate_size=44, num_hidden_layers=3, num_attention_heads=3,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, pad_token_id=0)
TOKENS = [(7 * i + 3 * (i // 5) + 1) % 103 for i in range(40)]
LONG = [(5 * i + i // 7 + 1) % 103 for i in range(90)]  # beyond max_position_embeddings / original length


def rope(**more):
    return {"rope_parameters": {"rope_theta": 10000.0, **more}}


def factors(start, step):
    return [start + step * i for i in range(6)]


CASES = {
    # case: (config class, settings, tokens)
    "llama": ("LlamaConfig", dict(tie_word_embeddings=False), TOKENS),
    "llama-bias-tied": ("LlamaConfig", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), TOKENS),
    "llama-linear": ("LlamaConfig", rope(rope_type="linear", factor=4.0), LONG),
    "llama-dynamic": ("LlamaConfig", rope(rope_type="dynamic", factor=2.0), LONG),
    "llama-llama3": ("LlamaConfig", dict(**rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                original_max_position_embeddings=32), max_position_embeddings=256), LONG),
    "llama-yarn": ("LlamaConfig", dict(**rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
                                       max_position_embeddings=256), LONG),
    "mistral": ("MistralConfig", dict(sliding_window=8), TOKENS),
    "qwen2": ("Qwen2Config", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1), TOKENS),
    "qwen3": ("Qwen3Config", dict(tie_word_embeddings=True), TOKENS),
    "gemma2": ("Gemma2Config", dict(sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=20.0,
                                    final_logit_softcapping=10.0, hidden_activation="gelu_pytorch_tanh"), TOKENS),
    "gemma3": ("Gemma3TextConfig", dict(sliding_window=8, query_pre_attn_scalar=24, num_hidden_layers=7), TOKENS),
    # A rule for each kind of layer, beyond the length that the slow layers were stretched from.
    "gemma3-linear": ("Gemma3TextConfig", dict(
        sliding_window=8, query_pre_attn_scalar=24, num_hidden_layers=7,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}), LONG),
    # The whole model with its vision tower, which is left out; no image is shown to it.
    "gemma3-nested": ("Gemma3Config", dict(
        text_config=dict(**BASE, sliding_window=8, query_pre_attn_scalar=24),
        vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=8,
                           patch_size=4), mm_tokens_per_image=4), TOKENS),
    "qwen3-yarn": ("Qwen3Config", dict(**rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
                                       use_sliding_window=True, sliding_window=12, max_window_layers=1,
                                       max_position_embeddings=128), LONG),
    "mistral-long": ("MistralConfig", dict(sliding_window=24, max_position_embeddings=32), LONG),
    "phi3": ("Phi3Config", dict(head_dim=12, sliding_window=12), TOKENS),
    "phi3-longrope-short": ("Phi3Config", dict(head_dim=12, **rope(rope_type="longrope", short_factor=factors(1.0, 0.05),
                                                      long_factor=factors(1.5, 0.5)),
                                               original_max_position_embeddings=64, max_position_embeddings=256), TOKENS),
    "phi3-longrope-long": ("Phi3Config", dict(head_dim=12, **rope(rope_type="longrope", short_factor=factors(1.0, 0.05),
                                                     long_factor=factors(1.5, 0.5)),
                                              original_max_position_embeddings=64, max_position_embeddings=256), LONG),
    "phi3-partial": ("Phi3Config", dict(head_dim=12, **rope(partial_rotary_factor=0.5), partial_rotary_factor=0.5), TOKENS),
    "olmo2": ("Olmo2Config", dict(), TOKENS),
    "granite": ("GraniteConfig", dict(embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.0,
                                      attention_multiplier=0.2), TOKENS),
    "smollm3": ("SmolLM3Config", dict(num_hidden_layers=5), TOKENS),
    "exaone4": ("Exaone4Config", dict(sliding_window=8, sliding_window_pattern=2), TOKENS),
    "exaone4-full": ("Exaone4Config", dict(sliding_window=None, layer_types=["full_attention"] * 3,
                                           tie_word_embeddings=True), TOKENS),
}


def make(case):
    config_class, settings, tokens = CASES[case]
    config = getattr(transformers, config_class)(**(settings if "text_config" in settings else {**BASE, **settings}))
    config._attn_implementation = "eager"
    torch.manual_seed(sum(map(ord, case)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.5)
            else:  # norms
                parameter.add_(torch.randn_like(parameter) * 0.2)
            parameter.copy_(parameter.to(torch.bfloat16))  # stored in half the bytes, without loss
        logits = model(torch.tensor([tokens])).logits[0]
    folder = os.path.join(OUT, case)
    os.makedirs(folder, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    for extra in ("generation_config.json",):
        path = os.path.join(folder, extra)
        if os.path.exists(path):
            os.remove(path)
    rows = [0, 7, 20, len(tokens) - 1]
    reference = {"case": case, "torch": torch.__version__, "transformers": transformers.__version__, "token_ids": tokens,
                 "logits": {str(r): [round(x, 6) for x in logits[r].tolist()] for r in rows}}
    with open(os.path.join(folder, "reference.json"), "w") as f:
        json.dump(reference, f)
    print(f"{case}: {sum(p.numel() for p in model.parameters())} parameters, "
          f"logits {logits.min():.2f} .. {logits.max():.2f}")


for case in sys.argv[1:] or CASES:
    make(case)
