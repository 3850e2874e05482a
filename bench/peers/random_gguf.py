"""Random GGUF files of the 1.1B Llama shape: valid blocks, meaningless values."""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

SHAPE = dict(hidden=2048, intermediate=5632, layers=22, heads=32, kv_heads=4, vocab=32000)


def random_blocks(rng, rows, columns, kind):
    """uint8 [rows, row bytes]: random codes; the f16 scales of each block are set to something small and finite."""
    block, size = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.002).tobytes(), dtype=np.uint8)
    places = {T.Q4_0: [0], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q6_K: [size - 2]}[kind]
    for at in places:
        data[:, :, at:at + 2] = scale
    return data.reshape(rows, -1)


def write(path, body, head):
    s = SHAPE
    rng = np.random.default_rng(1)
    w = GGUFWriter(path, "llama")
    w.add_context_length(16384)
    w.add_embedding_length(s["hidden"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["intermediate"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(64)
    w.add_vocab_size(s["vocab"])
    w.add_tokenizer_model("no_vocab")
    total = 0

    def matrix(name, rows, columns, kind):
        nonlocal total
        data = random_blocks(rng, rows, columns, kind)
        total += data.nbytes
        w.add_tensor(name, data, raw_dtype=kind)

    kv = s["kv_heads"] * 64
    matrix("token_embd.weight", s["vocab"], s["hidden"], body)
    for i in range(s["layers"]):
        p = f"blk.{i}."
        w.add_tensor(p + "attn_norm.weight", np.ones(s["hidden"], np.float32))
        w.add_tensor(p + "ffn_norm.weight", np.ones(s["hidden"], np.float32))
        matrix(p + "attn_q.weight", s["hidden"], s["hidden"], body)
        matrix(p + "attn_k.weight", kv, s["hidden"], body)
        matrix(p + "attn_v.weight", kv, s["hidden"], body)
        matrix(p + "attn_output.weight", s["hidden"], s["hidden"], body)
        matrix(p + "ffn_gate.weight", s["intermediate"], s["hidden"], body)
        matrix(p + "ffn_up.weight", s["intermediate"], s["hidden"], body)
        matrix(p + "ffn_down.weight", s["hidden"], s["intermediate"], body)
    w.add_tensor("output_norm.weight", np.ones(s["hidden"], np.float32))
    matrix("output.weight", s["vocab"], s["hidden"], head)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return total


# As llama.cpp's own quantizer chooses heads.
KINDS = {"Q4_0": (T.Q4_0, T.Q6_K), "Q4_K_S": (T.Q4_K, T.Q6_K), "Q8_0": (T.Q8_0, T.Q8_0)}
