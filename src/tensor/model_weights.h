#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "tensor/quantized_tensor.h"
#include "tensor/scheme.h"

namespace tare::tensor {

/// What is known of one weight from headers alone.
struct WeightInfo {
  Shape shape;
  std::variant<DType, QuantSpec> form;
  ActivationSpec activation;
  int64_t stored_bytes = 0;  // in the file: codes, scales, zeros, padding
};

/// A model's configuration and its named weights, independent of any file format: the meeting point of formats,
/// algorithms and kernels. Weights are loaded on demand, one at a time, so that a model never stands in memory twice.
///
/// Names are those of Hugging Face checkpoints ("model.layers.0.self_attn.q_proj.weight", "...bias", "lm_head.weight");
/// matrices are [out, in] in the half-split RoPE order. KV scales have the canonical names "<layer>.self_attn.k_scale",
/// "v_scale", "q_scale", "prob_scale".
class ModelWeights {
 public:
  using Loader = std::function<Result<Weight>()>;

  json::object config;             // as config.json; a GGUF reader writes the equivalent
  KvSpec kv;                       // what the checkpoint says of the KV cache
  std::string format;              // name in the format registry: "safetensors", "gptq", "gguf", ...
  std::vector<std::string> notes;  // what was substituted, skipped or decided while reading, for report and log

  /// Errors: the name exists.
  Status add(std::string name, WeightInfo info, Loader loader);
  Status add(std::string name, Weight weight, ActivationSpec activation = {});

  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  /// nullptr when absent.
  const WeightInfo* find(const std::string& name) const;
  std::vector<std::string> names() const;
  /// Errors: absent; whatever the loader says. A dense result is scanned for NaN and inf by the reader.
  Result<Weight> load(const std::string& name) const;
  void erase(const std::string& name) { entries_.erase(name); }

  int64_t stored_bytes() const;

 private:
  struct Entry {
    WeightInfo info;
    Loader loader;
  };
  std::map<std::string, Entry> entries_;
};

}  // namespace tare::tensor
