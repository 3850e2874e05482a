#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "numerics/mini_float.h"
#include "quantize/forms/form.h"
#include "quantize/typed_scale.h"

namespace tare::quantize {

using numerics::E4M3;
using tensor::QuantizedTensor;

namespace {

// absmax / 448. In f32 as transformers has it: the inverse of 448 * (1 / absmax).
float scale_of(float absmax, tensor::DType dtype) {
  if (absmax == 0) return 1.0f;
  const float scale = dtype == tensor::DType::kF32 ? 1.0f / (1.0f / absmax * E4M3::max_value())
                                                   : as_stored(absmax / E4M3::max_value(), dtype);
  return scale > 0 && std::isfinite(scale) ? scale : 1.0f;  // a range that is 0 as stored
}

// e4m3(w / scale). With 16-bit scales as compressed-tensors computes in models of that type: the quotient is rounded to
// it first, and -0 becomes 0.
uint8_t code_of(float w, float scale, tensor::DType dtype) {
  const float quotient = dtype == tensor::DType::kF32 ? w / scale : as_stored(w / scale, dtype) + 0.0f;
  return static_cast<uint8_t>(E4M3::encode_saturating(quotient));
}

// One scale for each tile of tile_n x tile_k.
Result<QuantizedTensor> quantize_tiles(const GridSpec& spec, const float* w, int64_t n, int64_t k, int64_t tile_n,
                                       int64_t tile_k, ThreadPool& pool) {
  tile_n = std::clamp<int64_t>(tile_n, 1, std::max<int64_t>(n, 1));
  tile_k = std::clamp<int64_t>(tile_k, 1, std::max<int64_t>(k, 1));
  const int64_t rows = ceil_div(n, tile_n), columns = ceil_div(k, tile_k);
  std::vector<float> scales(static_cast<size_t>(rows * columns));
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  pool.parallel_for(rows * columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / columns * tile_n, column = tile % columns * tile_k;
      const int64_t last_row = std::min(row + tile_n, n), last_column = std::min(column + tile_k, k);
      float largest = 0;
      for (int64_t r = row; r < last_row; ++r) {
        for (int64_t c = column; c < last_column; ++c) largest = std::max(largest, std::abs(w[r * k + c]));
      }
      const float scale = scale_of(largest, spec.scale_dtype);
      scales[static_cast<size_t>(tile)] = scale;
      for (int64_t r = row; r < last_row; ++r) {
        for (int64_t c = column; c < last_column; ++c) {
          codes[static_cast<size_t>(r * k + c)] = code_of(w[r * k + c], scale, spec.scale_dtype);
        }
      }
    }
  });
  tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE4M3, .bits = 8};
  f.codes = Buffer::own(std::move(codes));
  f.code_stride = k;
  TARE_ASSIGN(f.a, tensor::Grid::make(scale_grid_type(spec.scale_dtype), n, k, tile_n, tile_k,
                                      scale_buffer(scales, spec.scale_dtype)));
  f.origin.bytes = static_cast<int64_t>(f.codes.size() + f.a->values.size());
  return QuantizedTensor::make(std::move(f));
}

}  // namespace

Result<QuantizedTensor> quantize_fp8_rows(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                          ThreadPool& pool) {
  return quantize_tiles(spec, w, n, k, 1, k, pool);
}

Result<QuantizedTensor> quantize_fp8_tensor(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                            ThreadPool& pool) {
  return quantize_tiles(spec, w, n, k, n, k, pool);
}

Result<QuantizedTensor> quantize_fp8_blocks(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                            ThreadPool& pool) {
  return quantize_tiles(spec, w, n, k, 128, 128, pool);
}

}  // namespace tare::quantize
