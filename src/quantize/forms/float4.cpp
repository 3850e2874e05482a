#include <algorithm>
#include <bit>
#include <cmath>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"
#include "quantize/forms/form.h"
#include "quantize/typed_scale.h"

namespace tare::quantize {

using numerics::E2M1;
using numerics::E4M3;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedTensor;

namespace {

float range_of(const float* w, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(w[i]));
  return largest;
}

// Codes and one byte of scale a group. choose: the byte for a group's range, and the number that it multiplies with.
struct GroupScale {
  uint8_t code = 0;
  float value = 1;
};
template <class Choose>
tensor::QuantizedFields quantize_groups(const float* w, int64_t n, int64_t k, int64_t width,
                                        std::vector<uint8_t>& scales, ThreadPool& pool, const Choose& choose) {
  const int64_t groups = k == 0 ? 0 : ceil_div(k, width);
  const int64_t stride = numerics::packed_bytes(k, 4);
  scales.resize(static_cast<size_t>(n * groups));
  std::vector<uint8_t> codes(static_cast<size_t>(n * stride));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = w + row * k;
      uint8_t* out = codes.data() + row * stride;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * width, last = std::min(first + width, k);
        const GroupScale scale = choose(range_of(values + first, last - first));
        scales[static_cast<size_t>(row * groups + g)] = scale.code;
        for (int64_t i = first; i < last; ++i) {
          // + 0: a weight of -0 has the code of 0, as in compressed-tensors; small negative ones keep their sign.
          const auto code = static_cast<uint8_t>(E2M1::encode_saturating(values[i] / scale.value + 0.0f));
          out[i / 2] = static_cast<uint8_t>(out[i / 2] | code << 4 * (i % 2));
        }
      }
    }
  });
  tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE2M1, .bits = 4};
  f.codes = Buffer::own(std::move(codes));
  f.code_stride = stride;
  return f;
}

// The power of two for a range: a quarter of the largest one below it, or of the next when the range comes within an
// eighth of that (1.75 * 2^e and up), so that at most 7 is cut to 6. Source: compressed-tensors 0.19.
GroupScale power_of_two(float range) {
  constexpr uint32_t kEighth = 1u << 21;
  const int exponent = static_cast<int>((std::bit_cast<uint32_t>(range) + kEighth) >> 23);  // biased by 127
  const auto code = static_cast<uint8_t>(std::clamp(exponent - 2, 0, 254));
  return {code, numerics::e8m0_to_f32(code)};
}

}  // namespace

Result<QuantizedTensor> quantize_mxfp4(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  const int64_t width = spec.group_width(k);
  std::vector<uint8_t> scales;
  tensor::QuantizedFields f = quantize_groups(w, n, k, width, scales, pool, power_of_two);
  TARE_ASSIGN(f.a, Grid::make(GridType::kE8M0, n, k, 1, width, Buffer::own(std::move(scales))));
  f.origin.bytes = static_cast<int64_t>(f.codes.size() + f.a->values.size());
  return QuantizedTensor::make(std::move(f));
}

// global = 448 * 6 * (1 / range), each rounded to the scale's type, of the matrix (or of all that read the same
// input, since runners fuse those); scale = e4m3(global * (range of the group / 6)), w = (c * scale) / global.
// Source: compressed-tensors 0.19, which computes in the type of the model.
Result<QuantizedTensor> quantize_nvfp4(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  const float range = std::max(spec.shared_range, range_of(w, n * k));
  const auto rounded = [&](float value) { return as_stored(value, spec.scale_dtype); };
  const float wanted = rounded(E4M3::max_value() * E2M1::max_value() * rounded(1.0f / range));
  const float global = range > 0 && std::isfinite(wanted) && wanted > 0 ? wanted : 1.0f;
  const int64_t width = spec.group_width(k);
  std::vector<uint8_t> scales;
  tensor::QuantizedFields f = quantize_groups(w, n, k, width, scales, pool, [&](float group) {
    uint32_t code = E4M3::encode_saturating(global * rounded(group / E2M1::max_value()));
    if (code == 0) code = E4M3::encode_saturating(0.125f);  // zeros, or next to the global range as good as that
    return GroupScale{static_cast<uint8_t>(code), E4M3::decode(code) / global};
  });
  TARE_ASSIGN(f.a, Grid::make(GridType::kE4M3, n, k, 1, width, Buffer::own(std::move(scales))));
  TARE_ASSIGN(f.A, Grid::make(GridType::kF32, n, k, n, k, Buffer::own(std::vector<float>{global})));
  f.A_divides = true;
  f.code_first = true;
  f.origin.bytes = static_cast<int64_t>(f.codes.size() + f.a->values.size() + f.A->values.size());
  return QuantizedTensor::make(std::move(f));
}

}  // namespace tare::quantize
