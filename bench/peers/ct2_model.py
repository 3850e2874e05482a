"""A CTranslate2 int8 model from a dense Llama checkpoint, without torch. ct2_model.py MODEL_DIR OUT_DIR"""

import json
import os
import struct
import sys

import numpy as np


def tensors(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + size)
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "F32":
            v = raw.view(np.float32)
        elif t["dtype"] == "F16":
            v = raw.view(np.float16).astype(np.float32)
        else:
            v = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        out[name] = np.array(v.reshape(t["shape"]), dtype=np.float32)  # owned and writable: quantized in place
    return out


def main(model, out):
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec
    c = json.load(open(model + "/config.json"))
    w = tensors(model + "/model.safetensors")
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        c["num_hidden_layers"], c["num_attention_heads"], activation=common_spec.Activation.SWISH, pre_norm=True,
        ffn_glu=True, rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=c["rope_theta"],
        num_heads_kv=c["num_key_value_heads"])
    d = spec.decoder
    d.scale_embeddings = False
    d.embeddings.weight = w["model.embed_tokens.weight"]
    d.layer_norm.gamma = w["model.norm.weight"]
    d.projection.weight = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    for i, layer in enumerate(d.layer):
        p = f"model.layers.{i}."
        layer.self_attention.layer_norm.gamma = w[p + "input_layernorm.weight"]
        layer.ffn.layer_norm.gamma = w[p + "post_attention_layernorm.weight"]
        a = p + "self_attn."
        layer.self_attention.linear[0].weight = np.concatenate([w[a + n + "_proj.weight"] for n in "qkv"])
        layer.self_attention.linear[1].weight = w[a + "o_proj.weight"]
        layer.ffn.linear_0.weight = w[p + "mlp.gate_proj.weight"]
        layer.ffn.linear_0_noact.weight = w[p + "mlp.up_proj.weight"]
        layer.ffn.linear_1.weight = w[p + "mlp.down_proj.weight"]
    words = [f"t{i}" for i in range(c["vocab_size"])]
    words[0], words[1], words[2] = "<unk>", "<s>", "</s>"
    spec.register_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.config.layer_norm_epsilon = c["rms_norm_eps"]
    spec.validate()
    spec.optimize(quantization="int8")
    os.makedirs(out, exist_ok=True)
    spec.save(out)


if __name__ == "__main__":
    main(*sys.argv[1:3])
