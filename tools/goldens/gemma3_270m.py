#!/usr/bin/env python3
"""What transformers makes of Gemma-3-270M (Q4_K_M GGUF, dequantized to f32): ids, logits, greedy tokens, likelihood.

Needs torch, transformers and gguf (pip), and the model (tools/get_gemma_model.sh). Writes
tests/data/gemma3-270m/reference.json, numbers only. Tests never rewrite it.

    python3 tools/goldens/gemma3_270m.py build/demo/gemma-3-270m-q4_k_m.gguf
"""

import json
import os
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
# No U+2581 beside spaces: llama.cpp's converter writes runs of spaces as raw spaces, and joins no such mix.
TEXTS = ["Hello world,  this is a test. 123 \u00e9t\u00e9 \u4f60\u597d", "  two\n\n\nlines\t and\ttabs ",
         "<b>x</b>   \U0001f600 f(x) == 10**6;"]
PROMPT = "The capital of France is"
WINDOW_TOKENS = 640  # beyond the sliding window of 512

torch.set_num_threads(2)
folder, name = os.path.split(os.path.abspath(sys.argv[1]))
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager")
with open(os.path.join(ROOT, "HACKING.md"), encoding="utf-8") as f:
    ids = tokenizer(f.read()).input_ids[:WINDOW_TOKENS]
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0]
    likelihood = torch.log_softmax(logits[:-1], dim=-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    prompt = tokenizer(PROMPT).input_ids
    greedy = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0].tolist()[len(prompt):]
rows = {}
for row in (0, 1, 100, 511, 512, 600, WINDOW_TOKENS - 1):
    top = logits[row].topk(20)
    rows[str(row)] = [[int(i), round(float(v), 5)] for v, i in zip(top.values, top.indices)]
reference = {"torch": torch.__version__, "transformers": transformers.__version__,
             "texts": [{"text": t, "ids": tokenizer(t).input_ids} for t in TEXTS],
             "token_ids": ids, "logits": rows, "nll_mean": -float(likelihood.mean()),
             "prompt_ids": prompt, "greedy": greedy}
with open(os.path.join(ROOT, "tests", "data", "gemma3-270m", "reference.json"), "w") as f:
    json.dump(reference, f)
print("nll", reference["nll_mean"], tokenizer.decode(greedy))
