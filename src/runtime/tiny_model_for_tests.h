#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "base/thread_pool.h"
#include "model/transformer.h"
#include "model/weight_plan.h"
#include "runtime/engine.h"
#include "testing/fixtures.h"

namespace tare::runtime {

/// A Llama-shaped model of a few thousand random f32 weights, in memory.
struct TinyModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<model::Transformer> transformer;

  static constexpr int64_t kVocab = 101;
  static constexpr int64_t kBatch = 64;

  /// context: what the model claims to be trained for. poison: the embedding of this token is NaN.
  static TinyModel make(int threads, int64_t context = 256, int32_t poison = -1) {
    const json::object config{{"architectures", {"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"hidden_size", 32},
                              {"intermediate_size", 48},
                              {"num_hidden_layers", 2},
                              {"num_attention_heads", 2},
                              {"num_key_value_heads", 1},
                              {"head_dim", 16},
                              {"vocab_size", kVocab},
                              {"max_position_embeddings", context},
                              {"rms_norm_eps", 1e-5},
                              {"rope_theta", 10000.0},
                              {"hidden_act", "silu"},
                              {"torch_dtype", "float32"},
                              {"tie_word_embeddings", false}};
    TinyModel out{.pool = std::make_unique<ThreadPool>(threads)};
    model::Architecture arch = *model::describe_architecture(config);
    tensor::ModelWeights weights;
    weights.config = config;
    std::mt19937 random(7);
    for (const model::NeededWeight& needed : model::needed_weights(arch, false)) {
      const auto count = static_cast<size_t>(*tensor::element_count(needed.shape));
      std::vector<float> values(count, 1.0f);
      if (needed.shape.size() == 2) {
        // Widths as wide as outputs that vary with the context need.
        std::normal_distribution<float> normal(0, 2.0f / std::sqrt(static_cast<float>(needed.shape[1])));
        for (float& v : values) v = normal(random);
        if (poison >= 0 && needed.name == model::kEmbedding) values[static_cast<size_t>(poison) * 32] = NAN;
      }
      tensor::Tensor tensor{tensor::DType::kF32, needed.shape, Buffer::own(std::move(values))};
      EXPECT_TRUE(weights.add(needed.name, std::move(tensor)).ok());
    }
    model::Transformer::Options options{
        .bind = {.registry = kernels::builtin_linear_kernels(), .caps = machine::capabilities()},
        .max_batch_tokens = kBatch,
        .context = context};
    auto loaded = model::Transformer::load(weights, std::move(arch), std::move(options), *out.pool);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message();
    out.transformer = std::make_unique<model::Transformer>(std::move(*loaded));
    return out;
  }
};

/// Cache settings of a --kv-cache-dtype; fp8 has static scales that differ by layer.
inline model::AttentionCache::Options cache_of(const std::string& dtype, int64_t num_blocks, int64_t block_size,
                                               int64_t layers, bool calculate = false) {
  model::AttentionCache::Options cache{
      .block_size = block_size, .num_blocks = num_blocks, .caps = machine::capabilities()};
  const auto rule = calculate ? kvcache::KvScaleRule::kCalculate : kvcache::KvScaleRule::kCheckpoint;
  cache.format = *kvcache::parse_kv_format(dtype, {}, rule);
  for (int64_t i = 0; i < layers; ++i) {
    cache.scales.push_back({{0.02f + 0.01f * static_cast<float>(i)}, {0.03f}});
  }
  return cache;
}

/// What an output was: everything that must not depend on the company it ran in.
struct Transcript {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  std::string text;
  std::optional<FinishReason> finish;
  std::string stop_reason;
  std::vector<double> prompt_logprobs;

  bool operator==(const Transcript&) const = default;

  void take(const Event& event) {
    for (const Sample& s : event.tokens) {
      tokens.push_back(s.id);
      logprobs.push_back(s.logprob);
    }
    for (const Sample& s : event.prompt) prompt_logprobs.push_back(s.logprob);
    text += event.text;
    EXPECT_FALSE(finish.has_value()) << "news after the end";
    finish = event.finish;
    stop_reason = event.stop_reason;
  }
};
using Transcripts = std::map<std::pair<RequestId, int64_t>, Transcript>;

/// Steps until nothing is left.
inline Transcripts drain(Engine& engine) {
  Transcripts out;
  while (!engine.idle()) {
    auto events = engine.step();
    EXPECT_TRUE(events.ok()) << events.error().message();
    if (!events.ok()) break;
    for (const Event& event : *events) out[{event.id, event.index}].take(event);
  }
  return out;
}

}  // namespace tare::runtime
