#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/safetensors_writer.h"
#include "testing/fixtures.h"

namespace tare::testing {

/// Config of a Llama-shaped model with sizes that are no power of two.
inline json::object tiny_config(int layers = 2) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 48},
          {"intermediate_size", 72},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 3},
          {"num_key_value_heads", 1},
          {"head_dim", 16},
          {"vocab_size", 67},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"torch_dtype", "float32"},
          {"tie_word_embeddings", true}};
}

/// All tensors of that model with small varied values (a fixed linear congruence, no outside source).
inline std::vector<io::TensorDeclaration> tiny_tensors(int layers = 2) {
  std::vector<io::TensorDeclaration> out;
  const auto add = [&](std::string name, tensor::Shape shape) {
    out.push_back({std::move(name), tensor::DType::kF32, std::move(shape)});
  };
  add("model.embed_tokens.weight", {67, 48});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {48});
    add(prefix + "mlp.down_proj.weight", {48, 72});
    add(prefix + "mlp.gate_proj.weight", {72, 48});
    add(prefix + "mlp.up_proj.weight", {72, 48});
    add(prefix + "post_attention_layernorm.weight", {48});
    add(prefix + "self_attn.k_proj.weight", {16, 48});
    add(prefix + "self_attn.o_proj.weight", {48, 48});
    add(prefix + "self_attn.q_proj.weight", {48, 48});
    add(prefix + "self_attn.v_proj.weight", {16, 48});
  }
  add("model.norm.weight", {48});
  return out;
}

/// Writes a model folder with these tensors; returns its path. `damaged` names a tensor whose values are spoilt.
inline std::string write_tiny_model(const std::string& name, const json::object& config = tiny_config(),
                                    const std::vector<io::TensorDeclaration>& tensors = tiny_tensors(),
                                    const std::string& damaged = "") {
  const std::string folder = scratch_directory(name);
  std::ofstream(folder + "/config.json") << boost::json::serialize(config);
  auto writer = io::SafetensorsWriter::create_file(folder + "/model.safetensors", tensors);
  EXPECT_TRUE(writer.ok());
  uint32_t state = 12345;
  for (const io::TensorDeclaration& declared : tensors) {
    std::vector<float> values(static_cast<size_t>(*tensor::element_count(declared.shape)));
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = declared.shape.size() == 1 ? 1.0f
                                         : static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) * 0x1p-26f;
    }
    if (declared.name == damaged) std::reverse(values.begin(), values.end());
    EXPECT_TRUE(writer->append(declared.name, std::as_bytes(std::span(values))).ok());
  }
  EXPECT_TRUE(writer->finish().ok());
  return folder;
}

}  // namespace tare::testing
