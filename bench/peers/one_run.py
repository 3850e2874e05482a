"""One measurement of one peer, in a process of its own: prints one JSON document.

one_run.py ENGINE MODEL PROMPT GEN THREADS BATCHES [wall|cpu]     cpu: time of this process; for one thread on a busy machine
"""

import json
import statistics
import sys
import time

clock = time.process_time if sys.argv[7:] == ["cpu"] else time.perf_counter


def llama_cpp(model, prompt, gen, threads, batches):
    import ctypes

    import llama_cpp as lc
    lc.llama_backend_init()
    mp = lc.llama_model_default_params()
    m = lc.llama_model_load_from_file(model.encode(), mp)
    if not m:
        raise RuntimeError("the model does not load")
    out = {"prefill": [], "decode": {}}
    vocab = 32000

    def context(sequences, length):
        cp = lc.llama_context_default_params()
        cp.n_ctx = length * sequences + 64
        cp.n_batch = cp.n_ubatch = 512
        cp.n_threads = cp.n_threads_batch = threads
        cp.n_seq_max = sequences
        c = lc.llama_init_from_model(m, cp)
        if not c:
            raise RuntimeError("no context")
        return c

    def step(c, tokens, positions, sequences, wanted):
        b = lc.llama_batch_init(len(tokens), 0, 1)
        b.n_tokens = len(tokens)
        for i, (t, p, s) in enumerate(zip(tokens, positions, sequences)):
            b.token[i] = t
            b.pos[i] = p
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = s
            b.logits[i] = 1 if wanted == "all" or i == len(tokens) - 1 else 0
        start = clock()
        if lc.llama_decode(c, b) != 0:
            raise RuntimeError("llama_decode failed")
        lc.llama_get_logits_ith(c, len(tokens) - 1)
        seconds = clock() - start
        lc.llama_batch_free(b)
        return seconds

    c = context(1, prompt + 8)
    memory = lc.llama_get_memory(c)
    for turn in range(4):
        lc.llama_memory_clear(memory, True)
        s = step(c, [(7 * i + turn) % vocab for i in range(prompt)], range(prompt), [0] * prompt, "last")
        if turn:
            out["prefill"].append(prompt / s)
    lc.llama_free(c)
    for batch in batches:
        c = context(batch, gen + 8)
        rates = []
        for p in range(gen + 2):
            s = step(c, [(p * 31 + j) % vocab for j in range(batch)], [p] * batch, list(range(batch)), "all")
            if p >= 2:
                rates.append(batch / s)
        lc.llama_free(c)
        out["decode"][batch] = statistics.median(rates)
    out["prefill"] = statistics.median(out["prefill"])
    return out


def ctranslate2(model, prompt, gen, threads, batches):
    import ctranslate2 as ct
    g = ct.Generator(model, device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads)
    words = json.load(open(model + "/vocabulary.json"))
    tokens = [words[(7 * i) % 1000 + 300] for i in range(prompt)]

    def run(start, length):
        begin = clock()
        g.generate_batch(start, max_length=length, min_length=length, beam_size=1, include_prompt_in_result=False,
                         end_token=[])
        return clock() - begin

    run([tokens], 1)
    out = {"prefill": statistics.median(prompt / run([tokens], 1) for _ in range(3)), "decode": {}}
    for batch in batches:
        few = [tokens[:1]] * batch
        run(few, 1)
        both = [(run(few, 1), run(few, gen + 1)) for _ in range(3)]
        out["decode"][batch] = statistics.median(batch * gen / (long - short) for short, long in both)
    return out


def openvino(model, prompt, gen, threads, batches):
    import openvino_genai as ov
    p = ov.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    import numpy as np
    import openvino

    def fresh(turn):  # another prompt each time: the pipeline keeps the keys of what it has seen
        return openvino.Tensor(np.array([[(7 * i + 13 * turn + 5) % 1000 + 300 for i in range(prompt)]], dtype=np.int64))

    def run(tokens, count):
        c = ov.GenerationConfig()
        c.max_new_tokens = c.min_new_tokens = count
        c.ignore_eos = True
        begin = clock()
        p.generate(tokens, c)
        return clock() - begin

    run(fresh(0), 1)
    out = {"prefill": statistics.median(prompt / run(fresh(turn), 1) for turn in (1, 2, 3)), "decode": {}}
    few = openvino.Tensor(np.array([[1, 2]], dtype=np.int64))
    both = [(run(few, 1), run(few, gen + 1)) for _ in range(3)]
    out["decode"][1] = statistics.median(gen / (long - short) for short, long in both)
    return out


if __name__ == "__main__":
    engine, model, prompt, gen, threads, batches = sys.argv[1:7]
    try:
        result = globals()[engine](model, int(prompt), int(gen), int(threads), [int(b) for b in batches.split(",")])
    except Exception as error:  # an engine that cannot run is an empty cell with its reason
        result = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(result))
