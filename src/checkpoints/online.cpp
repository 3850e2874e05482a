#include "checkpoints/online.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "checkpoints/source.h"
#include "numerics/mini_float.h"

namespace tare::checkpoints {

using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedTensor;

namespace {

using numerics::E4M3;
using Make = std::function<Result<QuantizedTensor>(const std::vector<float>& w, int64_t n, int64_t k)>;

using Original = std::shared_ptr<const tensor::ModelWeights>;

Status replace(tensor::ModelWeights& weights, const Original& original, const std::string& name,
               const tensor::QuantSpec& spec, const tensor::ActivationSpec& activation, int64_t bytes, Make make) {
  const tensor::Shape shape = original->find(name)->shape;
  weights.erase(name);
  tensor::WeightInfo info{.shape = shape, .form = spec, .activation = activation, .stored_bytes = bytes};
  return weights.add(name, std::move(info),
                     [original, name, make = std::move(make), shape]() -> Result<tensor::Weight> {
                       TARE_ASSIGN(const tensor::Weight weight, original->load(name));
                       TARE_ASSIGN(const std::vector<float> w, tensor::to_f32(weight));
                       TARE_ASSIGN(QuantizedTensor q, make(w, shape[0], shape[1]));
                       return tensor::Weight(std::move(q));
                     });
}

Result<QuantizedTensor> make_fp8(const std::vector<float>& w, int64_t n, int64_t k, bool per_row) {
  const int64_t rows = per_row ? 1 : n;
  std::vector<float> scales(static_cast<size_t>(per_row ? n : 1));
  std::vector<uint8_t> codes(w.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto begin = w.begin() + static_cast<int64_t>(i) * rows * k;
    const auto end = begin + rows * k;
    float amax = 0;
    for (auto at = begin; at != end; ++at) amax = std::max(amax, std::abs(*at));
    const float scale = amax > 0 ? amax / E4M3::max_value() : 1.0f;
    scales[i] = scale;
    const auto first = static_cast<size_t>(begin - w.begin());
    for (size_t j = first; j < first + static_cast<size_t>(rows * k); ++j) {
      codes[j] = static_cast<uint8_t>(E4M3::encode_saturating(w[j] / scale));
    }
  }
  tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE4M3, .bits = 8};
  f.codes = Buffer::own(std::move(codes));
  const int64_t bytes = n * k + static_cast<int64_t>(scales.size()) * 4;
  TARE_ASSIGN(f.a, Grid::make(GridType::kF32, n, k, rows, k, Buffer::own(std::move(scales))));
  f.origin = {.format = "fp8 at load", .bytes = bytes};
  return QuantizedTensor::make(std::move(f));
}

Status quantize_fp8(tensor::ModelWeights& weights, bool per_row) {
  const auto original = std::make_shared<const tensor::ModelWeights>(weights);
  for (const std::string& name : original->names()) {
    const tensor::WeightInfo& info = *original->find(name);
    if (!is_linear_weight(name, info)) continue;
    const int64_t n = info.shape[0], k = info.shape[1];
    tensor::QuantSpec spec{.kind = tensor::CodeKind::kE4M3, .bits = 8, .group_n = per_row ? 1 : n, .group_size = k};
    const int64_t bytes = n * k + (per_row ? n : 1) * 4;
    TARE_TRY(replace(weights, original, name, spec, {.type = tensor::ActivationType::kE4M3}, bytes,
                     [per_row](const std::vector<float>& w, int64_t rows, int64_t columns) {
                       return make_fp8(w, rows, columns, per_row);
                     }));
  }
  weights.notes.push_back("embeddings, head, norms and routers stay dense");
  return {};
}

constexpr int64_t kNf4Block = 64;

// NF4 values; a weight takes the nearest, ties to the lower one (docs/formats.md 5.3).
constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

uint32_t nf4_code(float x) {
  uint32_t code = 0;
  while (code < 15 && x > (kNf4[code] + kNf4[code + 1]) / 2) ++code;
  return code;
}

Result<QuantizedTensor> make_nf4(const std::vector<float>& w, int64_t n, int64_t k) {
  std::vector<float> scales(w.size() / kNf4Block);
  std::vector<uint8_t> codes(w.size() / 2);
  for (size_t b = 0; b < scales.size(); ++b) {
    float amax = 0;
    for (size_t i = 0; i < kNf4Block; ++i) amax = std::max(amax, std::abs(w[b * kNf4Block + i]));
    scales[b] = amax;
    const float inverse = amax > 0 ? 1.0f / amax : 0.0f;
    for (size_t i = 0; i < kNf4Block; ++i) {
      const size_t at = b * kNf4Block + i;
      codes[at / 2] |= static_cast<uint8_t>(nf4_code(w[at] * inverse) << 4 * (at % 2));
    }
  }
  tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kLut, .bits = 4};
  f.codes = Buffer::own(std::move(codes));
  f.lut.assign(kNf4.begin(), kNf4.end());
  TARE_ASSIGN(f.a, Grid::make(GridType::kF32, n, k, 1, kNf4Block, Buffer::own(std::move(scales))));
  f.origin = {.format = "nf4 at load", .bytes = n * k / 2 + n * k / kNf4Block * 4};
  return QuantizedTensor::make(std::move(f));
}

}  // namespace

Status quantize_fp8_per_tensor(tensor::ModelWeights& weights) {
  weights.notes.push_back("dynamic FP8 activations are scaled for each token, not over all tokens of a batch");
  return quantize_fp8(weights, false);
}

Status quantize_fp8_per_channel(tensor::ModelWeights& weights) {
  return quantize_fp8(weights, true);
}

bool is_linear_weight(const std::string& name, const tensor::WeightInfo& info) {
  if (!name.ends_with(".weight") || info.shape.size() != 2) return false;
  const std::string_view module = parent_module(name);
  const std::string_view part = last_part(module);
  return part.ends_with("_proj") || part == "w1" || part == "w2" || part == "w3";
}

std::span<const float> nf4_values() {
  return kNf4;
}

Status quantize_nf4(tensor::ModelWeights& weights) {
  const auto original = std::make_shared<const tensor::ModelWeights>(weights);
  for (const std::string& name : original->names()) {
    const tensor::WeightInfo& info = *original->find(name);
    if (!is_linear_weight(name, info)) continue;
    const int64_t n = info.shape[0], k = info.shape[1];
    if (k % kNf4Block != 0) {
      weights.notes.push_back(fmt::format("{} stays dense: its rows are no multiple of {}", name, kNf4Block));
      continue;
    }
    tensor::QuantSpec spec{.kind = tensor::CodeKind::kLut, .bits = 4, .group_size = kNf4Block};
    TARE_TRY(replace(weights, original, name, spec, {}, n * k / 2 + n * k / kNf4Block * 4, make_nf4));
  }
  weights.notes.push_back("embeddings, head, norms and routers stay dense");
  return {};
}

}  // namespace tare::checkpoints
