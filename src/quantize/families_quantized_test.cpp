// Every family, quantized: how far the logits move against how far rounding says they must.
//
// The prediction: the same model in f32 whose matrices carry independent noise of the relative size that rounding has,
// measured on the very tensors: sum (w - w^)^2 / sum w^2 of each weight, plus the same of the int8 rounding of its
// input (x W has the relative error of x when W is random), or of the codes of keys and values. Noise of that size and
// rounding move the logits alike up to the luck of a draw: kFactor either way holds for all cases, and a norm,
// bias, multiplier or scale that quantization forgot is far outside. The integer kernels themselves are compared with
// the reference kernels on the same codes, much tighter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "checkpoints/checkpoint.h"
#include "model/transformer.h"
#include "model/weight_plan.h"
#include "quantize/pipeline.h"
#include "testing/fixtures.h"

namespace tare::quantize {
namespace {

constexpr const char* kFolder = "tests/data/families";
constexpr double kFactor = 2.0;

using Floats = std::vector<float>;

struct Family {
  std::shared_ptr<const tensor::ModelWeights> weights;
  model::Architecture arch;
  std::vector<int32_t> tokens;
};

Family open_family(const std::string& name) {
  const std::string path = std::string(kFolder) + "/" + name;
  Family out;
  out.weights = std::make_shared<const tensor::ModelWeights>(*checkpoints::load_checkpoint(path));
  out.arch = *model::describe_architecture(out.weights->config);
  const json::value reference = *json::parse(tare::testing::read_fixture(path + "/reference.json"), name);
  for (const json::value& id : reference.at("token_ids").get_array()) {
    out.tokens.push_back(static_cast<int32_t>(*json::as_int(id)));
  }
  return out;
}

struct RunOptions {
  std::string kv = "f32";
  machine::Capabilities caps = machine::capabilities();
  const model::Observer* observer = nullptr;
};

Floats logits_of(const Family& family, const tensor::ModelWeights& weights, const RunOptions& options) {
  ThreadPool pool(1);
  const auto length = static_cast<int64_t>(family.tokens.size());
  model::Transformer::Options load{.bind = {.registry = kernels::builtin_linear_kernels(), .caps = options.caps},
                                   .max_batch_tokens = 128,
                                   .context = length};
  auto transformer = model::Transformer::load(weights, family.arch, load, pool);
  EXPECT_TRUE(transformer.ok()) << transformer.error().message();
  model::AttentionCache::Options cache_options{
      .num_blocks = 8, .max_batch_tokens = 128, .context = length, .caps = options.caps};
  cache_options.format = *kvcache::parse_kv_format(options.kv, {}, kvcache::KvScaleRule::kCheckpoint);
  auto cache = model::AttentionCache::make(family.arch, cache_options, 1);
  EXPECT_TRUE(cache.ok()) << cache.error().message();
  if (!transformer.ok() || !cache.ok()) return {};
  const std::vector<int32_t> blocks = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int32_t> rows(family.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  Floats logits(rows.size() * static_cast<size_t>(family.arch.vocab_size));
  const model::SequenceSlice slice{.block_table = blocks, .count = length};
  const Status status = transformer->forward({.tokens = family.tokens, .sequences = {&slice, 1}, .logit_rows = rows},
                                             *cache, logits.data(), options.observer);
  EXPECT_TRUE(status.ok()) << status.error().message();
  return logits;
}

double rms_difference(const Floats& a, const Floats& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Relative squared error of rounding each row of x [rows, width] to 2 * levels + 1 steps of its largest magnitude
// (levels 127: int8 tokens), or between its least and largest value (keys and values).
double rounding_error(const float* x, int64_t rows, int64_t width, int64_t stride, bool symmetric, int steps) {
  double error = 0, total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * stride;
    const auto [low, high] = std::minmax_element(row, row + width);
    const double largest = std::max(std::abs(*low), std::abs(*high));
    const double zero = symmetric ? 0 : *low;
    const double step = symmetric ? largest / steps : (static_cast<double>(*high) - *low) / steps;
    for (int64_t i = 0; i < width; ++i) {
      const double rounded = step == 0 ? row[i] : std::nearbyint((row[i] - zero) / step) * step + zero;
      error += std::pow(rounded - row[i], 2);
      total += std::pow(static_cast<double>(row[i]), 2);
    }
  }
  return total == 0 ? 0 : error / total;
}

// What rounding does to the inputs of the matrices and to the keys, by layer.
struct InputErrors {
  std::map<std::pair<int64_t, model::Site>, double> tokens;  // int8, relative squared
  std::map<int64_t, double> keys;                            // of the KV form asked for
};

InputErrors measure(const Family& family, int kv_steps) {
  InputErrors out;
  model::Observer observer;
  observer.input = [&](int64_t layer, model::Site site, const float* x, int64_t m, int64_t k) {
    out.tokens[{layer, site}] = rounding_error(x, m, k, k, true, 127);
  };
  observer.keys = [&](int64_t layer, const float*, int64_t, const float* k, int64_t k_stride, int64_t m) {
    double sum = 0;
    for (int64_t head = 0; head < family.arch.kv_heads; ++head) {
      sum += rounding_error(k + head * family.arch.head_dim, m, family.arch.head_dim, k_stride, false, kv_steps);
    }
    out.keys[layer] = sum / static_cast<double>(family.arch.kv_heads);
  };
  (void)logits_of(family, *family.weights, {.observer = &observer});
  return out;
}

// The model with noise on the rows [first, first + count) of matrices: relative squared size by matrix.
struct Noise {
  double squared = 0;
  int64_t first = 0;
  int64_t count = 0;
};

tensor::ModelWeights with_noise(const Family& family, const std::map<std::string, Noise>& noise, uint32_t seed) {
  tensor::ModelWeights out;
  out.config = family.weights->config;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (const std::string& name : family.weights->names()) {
    const tensor::Weight weight = *family.weights->load(name);
    const auto found = noise.find(name);
    if (found == noise.end()) {
      EXPECT_TRUE(out.add(name, weight).ok());
      continue;
    }
    Floats values = *tensor::to_f32(weight);
    const tensor::Shape shape = family.weights->find(name)->shape;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(found->second.first * shape[1]);
    const auto end = begin + static_cast<std::ptrdiff_t>(found->second.count * shape[1]);
    double sum = 0;
    for (auto at = begin; at != end; ++at) sum += std::pow(static_cast<double>(*at), 2);
    const auto size = static_cast<float>(std::sqrt(found->second.squared * sum / static_cast<double>(end - begin)));
    for (auto at = begin; at != end; ++at) *at += size * normal(random);
    EXPECT_TRUE(out.add(name, tensor::Tensor::from_f32(shape, std::move(values))).ok());
  }
  return out;
}

double predicted(const Family& family, const Floats& plain, const std::map<std::string, Noise>& noise) {
  double sum = 0;
  constexpr int kDraws = 4;
  for (uint32_t seed = 1; seed <= kDraws; ++seed) {
    sum += std::pow(rms_difference(logits_of(family, with_noise(family, noise, seed), {}), plain), 2);
  }
  return std::sqrt(sum / kDraws);
}

std::vector<std::pair<model::Site, model::LayerLinear>> matrices(const model::Architecture& arch, int64_t layer) {
  std::vector<std::pair<model::Site, model::LayerLinear>> out;
  const model::LayerLinears linears = model::layer_linears(arch, layer);
  for (const auto& m : linears.qkv) out.emplace_back(model::Site::kQkv, m);
  for (const auto& m : linears.o) out.emplace_back(model::Site::kOut, m);
  for (const auto& m : linears.gate_up) out.emplace_back(model::Site::kGateUp, m);
  for (const auto& m : linears.down) out.emplace_back(model::Site::kDown, m);
  return out;
}

class QuantizedFamily : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedFamily, WeightsAndTokens) {
  const Family family = open_family(GetParam());
  const Floats plain = logits_of(family, *family.weights, {});
  const InputErrors inputs = measure(family, 255);
  ThreadPool pool(1);
  struct Case {
    const char* name;
    SchemeFlags flags;
  };
  const Case cases[] = {{"W4A8 g128", {.scheme = "W4A8"}},
                        {"W4A8 g32", {.scheme = "W4A8", .group_size = 32}},
                        {"W4A8 per channel", {.scheme = "W4A8", .group_size = -1}},
                        {"W8A8", {.scheme = "W8A8"}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    PipelineOptions options{.recipe = *find_recipe("rtn")};
    options.scheme = *resolve_scheme(*options.recipe, one.flags, &options.widths);
    const auto outcome = quantize_model(family.weights, family.arch, options, pool);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message();
    std::map<std::string, Noise> noise;
    for (int64_t layer = 0; layer < family.arch.layers; ++layer) {
      for (const auto& [site, matrix] : matrices(family.arch, layer)) {
        const auto report = std::find_if(outcome->matrices.begin(), outcome->matrices.end(),
                                         [&](const MatrixReport& r) { return r.name == matrix.name; });
        ASSERT_NE(report, outcome->matrices.end()) << matrix.name;
        EXPECT_TRUE(outcome->weights.find(matrix.name + ".weight")->activation.type == tensor::ActivationType::kS8);
        noise[matrix.name + ".weight"] = {report->error + inputs.tokens.at({layer, site}), 0, matrix.n};
      }
    }
    const double bound = predicted(family, plain, noise);
    const Floats real = logits_of(family, outcome->weights, {});
    const double moved = rms_difference(real, plain);
    EXPECT_LE(moved, kFactor * bound);
    EXPECT_GE(moved, bound / kFactor) << "too good: is anything quantized?";
    // The kernels of this machine and the reference kernels, on the same codes: where f32 differs in the last bit, now
    // and then a token's code rounds the other way.
    machine::Capabilities reference = machine::capabilities();
    reference.isa = machine::Isa::kReference;
    EXPECT_LE(rms_difference(real, logits_of(family, outcome->weights, {.caps = reference})), 0.3 * bound);
    RecordProperty(std::string(one.name) + " moved/predicted", std::to_string(moved / bound));
  }
}

TEST_P(QuantizedFamily, KeysAndValues) {
  const Family family = open_family(GetParam());
  const Floats plain = logits_of(family, *family.weights, {});
  for (const auto& [form, steps] : {std::pair<const char*, int>{"int8", 255}, {"int4", 15}}) {
    SCOPED_TRACE(form);
    const InputErrors inputs = measure(family, steps);
    std::map<std::string, Noise> noise;
    for (int64_t layer = 0; layer < family.arch.layers; ++layer) {
      // Noise on the rows that make keys and values; values are taken to round like keys.
      for (const auto& [site, matrix] : matrices(family.arch, layer)) {
        const double squared = inputs.keys.at(layer);
        if (matrix.kind == "k_proj" || matrix.kind == "v_proj") noise[matrix.name + ".weight"] = {squared, 0, matrix.n};
        if (matrix.kind == "qkv_proj") {
          noise[matrix.name + ".weight"] = {squared, family.arch.q_size(), 2 * family.arch.kv_size()};
        }
      }
    }
    const double bound = predicted(family, plain, noise);
    const double moved = rms_difference(logits_of(family, *family.weights, {.kv = form}), plain);
    EXPECT_LE(moved, kFactor * bound);
    EXPECT_GE(moved, bound / kFactor) << "too good: is anything quantized?";
    RecordProperty(std::string(form) + " moved/predicted", std::to_string(moved / bound));
  }
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.is_directory()) out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFamily, ::testing::ValuesIn(names()), [](const auto& parameter) {
  std::string name = parameter.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace tare::quantize
