#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "model/transformer.h"
#include "model/weight_plan.h"
#include "quantize/transform.h"

/// Small seeded models in memory, and what they compute.
namespace tare::quantize::tiny {

struct Model {
  std::string name;
  std::shared_ptr<const tensor::ModelWeights> weights;
  model::Architecture arch;
};

inline std::vector<float> normal(int64_t count, std::mt19937& random, float scale) {
  std::normal_distribution<float> draw(0, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = draw(random);
  return out;
}

/// A model of this configuration (a JSON object; sizes that are absent get small odd defaults): matrices normal with
/// deviation 1/sqrt(K), biases 0.3, norm weights between 0.5 and 1.5.
inline Model make(std::string name, const char* config_text, unsigned seed = 1) {
  auto weights = std::make_shared<tensor::ModelWeights>();
  weights->config = boost::json::parse(config_text).get_object();
  json::object& config = weights->config;
  const auto fill = [&](const char* key, json::value value) {
    if (!json::find(config, key)) config[key] = std::move(value);
  };
  fill("model_type", "llama");
  fill("vocab_size", 131);
  fill("hidden_size", 96);
  fill("intermediate_size", 344);
  fill("num_hidden_layers", 2);
  fill("num_attention_heads", 4);
  fill("num_key_value_heads", 2);
  fill("head_dim", 24);
  fill("max_position_embeddings", 256);
  auto arch = model::describe_architecture(config);
  EXPECT_TRUE(arch.ok()) << arch.error().message();
  std::mt19937 random(seed);
  for (const model::NeededWeight& needed : model::needed_weights(*arch, arch->tied_head)) {
    const int64_t count = *tensor::element_count(needed.shape);
    std::vector<float> values;
    if (needed.shape.size() == 2) {
      const bool table = needed.name == model::kEmbedding;
      values = normal(count, random, table ? 1.0f : 1.0f / std::sqrt(static_cast<float>(needed.shape[1])));
    } else if (needed.name.ends_with(".bias")) {
      values = normal(count, random, 0.3f);
    } else {
      std::uniform_real_distribution<float> draw(0.5f, 1.5f);
      for (int64_t i = 0; i < count; ++i) values.push_back(draw(random) - (arch->norm_plus_one ? 1.0f : 0.0f));
    }
    EXPECT_TRUE(weights->add(needed.name, tensor::Tensor::from_f32(needed.shape, std::move(values))).ok());
  }
  return {std::move(name), weights, *arch};
}

/// Hidden sizes 96, 344 and 576; grouped heads; biases; tied and own heads; fused matrices; norms on heads; layers
/// without RoPE; multipliers.
inline std::vector<Model> rotatable() {
  std::vector<Model> out;
  out.push_back(make("qwen2 96, biases, tied", R"({"model_type": "qwen2", "tie_word_embeddings": true})"));
  out.push_back(make("llama 344, all biases, own head", R"({"hidden_size": 344, "intermediate_size": 96,
      "num_attention_heads": 6, "head_dim": 64, "attention_bias": true, "mlp_bias": true})",
                     2));
  out.push_back(make("llama 576, 9 heads of 64 over 3, tied", R"({"hidden_size": 576, "intermediate_size": 200,
      "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": true})",
                     3));
  out.push_back(make("qwen3, norms on heads", R"({"model_type": "qwen3"})", 4));
  out.push_back(make("phi3, fused, partly rotary", R"({"model_type": "phi3", "head_dim": 32,
      "partial_rotary_factor": 0.5})",
                     5));
  out.push_back(make("granite, multipliers, tied", R"({"model_type": "granite", "embedding_multiplier": 3,
      "residual_multiplier": 0.4, "logits_scaling": 2, "attention_multiplier": 0.3, "tie_word_embeddings": true})",
                     6));
  out.push_back(make("smollm3, a layer without RoPE", R"({"model_type": "smollm3", "no_rope_layers": [1, 0],
      "tie_word_embeddings": false})",
                     7));
  return out;
}

inline std::vector<int32_t> some_tokens(const model::Architecture& arch, int count, unsigned seed = 9) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int32_t& token : out) token = static_cast<int32_t>(random() % static_cast<uint32_t>(arch.vocab_size));
  return out;
}

/// Logits [T, vocab] of one sequence.
inline std::vector<float> logits(const tensor::ModelWeights& weights, const model::Architecture& arch,
                                 const std::vector<int32_t>& tokens, ThreadPool& pool, const char* kv = "f32",
                                 const model::Observer* observer = nullptr) {
  const auto count = static_cast<int64_t>(tokens.size());
  model::Transformer::Options options{
      .bind = {.registry = kernels::builtin_linear_kernels(), .caps = machine::capabilities()},
      .max_batch_tokens = count,
      .context = count};
  auto transformer = model::Transformer::load(weights, arch, options, pool);
  EXPECT_TRUE(transformer.ok()) << transformer.error().message();
  model::AttentionCache::Options cache_options{
      .num_blocks = count / 16 + 1, .max_batch_tokens = count, .context = count, .caps = machine::capabilities()};
  cache_options.format = *kvcache::parse_kv_format(kv, {}, kvcache::KvScaleRule::kCheckpoint);
  auto cache = model::AttentionCache::make(arch, cache_options, pool.size());
  EXPECT_TRUE(cache.ok()) << cache.error().message();
  std::vector<int32_t> blocks(static_cast<size_t>(count / 16 + 1));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> out(tokens.size() * static_cast<size_t>(arch.vocab_size));
  const model::SequenceSlice slice{.block_table = blocks, .count = count};
  const Status ran = transformer->forward({.tokens = tokens, .sequences = {&slice, 1}, .logit_rows = rows}, *cache,
                                          out.data(), observer);
  EXPECT_TRUE(ran.ok()) << ran.error().message();
  return out;
}

/// Largest difference relative to the largest logit.
inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i]));
    worst = std::max(worst, std::abs(a[i] - b[i]));
  }
  return static_cast<double>(worst / most);
}

/// Mean KL in nats between the rows of two sets of logits.
inline double mean_kl(const std::vector<float>& reference, const std::vector<float>& other, int64_t vocab) {
  double total = 0;
  const auto rows = static_cast<int64_t>(reference.size()) / vocab;
  for (int64_t row = 0; row < rows; ++row) {
    const float* a = reference.data() + row * vocab;
    const float* b = other.data() + row * vocab;
    const auto log_sum = [&](const float* x) {
      const auto most = static_cast<double>(*std::max_element(x, x + vocab));
      double sum = 0;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(x[i]) - most);
      return most + std::log(sum);
    };
    const double za = log_sum(a);
    const double zb = log_sum(b);
    for (int64_t i = 0; i < vocab; ++i) {
      const double la = static_cast<double>(a[i]) - za;
      total += std::exp(la) * (la - static_cast<double>(b[i]) + zb);
    }
  }
  return total / static_cast<double>(rows);
}

/// The weights with those of a block in place of its layer's.
inline std::shared_ptr<const tensor::ModelWeights> with_block(const tensor::ModelWeights& source, const Block& block) {
  auto out = std::make_shared<tensor::ModelWeights>(source);
  const auto put = [&](const std::string& name, tensor::Shape shape, const std::vector<float>& values) {
    if (values.empty()) return;
    out->erase(name);
    EXPECT_TRUE(out->add(name, tensor::Tensor::from_f32(std::move(shape), values)).ok());
  };
  for (const BlockMatrix& m : block.matrices) {
    put(m.name + ".weight", {m.n, m.k}, m.w);
    put(m.name + ".bias", {m.n}, m.bias);
  }
  const auto norm = [&](const std::string& name, const std::vector<float>& values) {
    if (!name.empty()) {
      put(model::norm_name(block.layer, name), {static_cast<int64_t>(values.size())}, values);
    }
  };
  norm(block.arch->attention_norm_in, block.attention_norm_in);
  norm(block.arch->mlp_norm_in, block.mlp_norm_in);
  norm("self_attn.q_norm", block.q_norm);
  norm("self_attn.k_norm", block.k_norm);
  return out;
}

/// The tools of a test: one thread (these matrices are too small to share; on a busy machine two wait for each other)
/// and the machine's kernels.
struct Tools {
  ThreadPool pool{1};
  Products products{kernels::builtin_linear_kernels(), machine::capabilities(), pool};
  TransformContext context(const model::Architecture& arch) {
    return {.arch = &arch, .widths = {.weight = 4, .activation = 8, .kv = 4}, .products = &products};
  }
};

/// A block with calibration data behind it. Kept in one place: BlockData refers to the sequences.
struct Bench {
  Bench(const Model& model, Tools& tools, const MatrixScheme& scheme, int sequences = 4, int length = 64)
      : block(std::move(*Block::load(*model.weights, model.arch, 0))) {
    for (int s = 0; s < sequences; ++s) {
      calibration.sequences.push_back(some_tokens(model.arch, length, 100 + static_cast<unsigned>(s)));
    }
    calibration.tokens = int64_t{sequences} * length;
    for (BlockMatrix& m : block.matrices) m.scheme = scheme;
    data.emplace(std::move(*BlockData::start(*model.weights, model.arch, calibration, {}, tools.products)));
    EXPECT_TRUE(data->open(block).ok());
  }
  Block block;
  CalibrationData calibration;
  std::optional<BlockData> data;
};

}  // namespace tare::quantize::tiny
