#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "base/checked.h"
#include "checkpoints/online.h"
#include "numerics/packing.h"
#include "numerics/rounding.h"
#include "quantize/forms/form.h"

namespace tare::quantize {

using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;

namespace {

using Table16 = std::array<float, 16>;

// 1 / x, or 0 where that is no number: a range of 0, or one so small that only its zeros matter.
float inverse_of(float x) {
  return x >= std::numeric_limits<float>::min() ? 1.0f / x : 0.0f;
}

Table16 nf4_table() {
  Table16 out;
  const std::span<const float> values = checkpoints::nf4_values();
  std::copy(values.begin(), values.end(), out.begin());
  return out;
}

Table16 fp4_table() {
  constexpr std::array<float, 8> kTwelfths = {0, 0.0625f, 8, 12, 4, 6, 2, 3};
  Table16 out;
  for (size_t i = 0; i < 8; ++i) {
    out[i] = kTwelfths[i] / 12.0f;
    out[i + 8] = i == 0 ? 0.0f : -out[i];
  }
  return out;
}

// The nearest entry; of two that are equally near the one that stands first in the table.
uint8_t nearest_entry(const Table16& table, float value) {
  uint8_t best = 0;
  float least = std::abs(value - table[0]);
  for (uint8_t i = 1; i < 16; ++i) {
    const float distance = std::abs(value - table[i]);
    if (distance < least) {
      least = distance;
      best = i;
    }
  }
  return best;
}

// The signed dynamic map of 256 values: seven decades, the i-th with 2^i values a sign between 0.1 and 1, each the
// middle of two of 2^i + 1 equally spaced points; and 0 and 1.
std::vector<float> dynamic_map() {
  constexpr float kDecades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::vector<float> out = {0.0f, 1.0f};
  for (int i = 0; i < 7; ++i) {
    const int count = 1 << i;
    const float decade = kDecades[i];
    const float step = (1.0f - 0.1f) / static_cast<float>(count);
    const auto point = [&](int j) {  // the second half is counted from the end, each rounded once: as torch.linspace
      return j < (count + 1) / 2 ? std::fma(step, static_cast<float>(j), 0.1f)
                                 : std::fma(-step, static_cast<float>(count - j), 1.0f);
    };
    for (int j = 0; j < count; ++j) {
      const float value = decade * ((point(j) + point(j + 1)) / 2.0f);
      out.push_back(value);
      out.push_back(-value);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

// The nearest of 256 ascending values for one in [-1, 1], which is first rounded to a grid of 65536: the library's CPU
// code looks it up in a table of that size. Of two that are equally near the lower one.
uint8_t nearest_of_map(const std::vector<float>& map, float value) {
  constexpr float kSteps = 65535.0f;
  const auto step = static_cast<int>((std::clamp(value, -1.0f, 1.0f) + 1.0f) * 0.5f * kSteps + 0.5f);
  const float stepped = -1.0f + 2.0f * static_cast<float>(step) / kSteps;
  size_t low = 0;
  size_t high = map.size() - 1;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (0.5f * (map[middle] + map[middle + 1]) < stepped) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<uint8_t>(low);
}

constexpr int64_t kNestedBlock = 256;

// Scales in 8 bits: their mean is taken out, and each run of blocks has an f32 scale of its own. A run is 256 blocks as
// in the library where rows hold a whole part of that (or it a whole part of a row); else it is as many whole rows as
// 256 blocks hold, at least one: only tare's own file has room for those.
Status nest_scales(QuantizedFields& f, const std::vector<float>& absmax, int64_t block) {
  const int64_t per_row = ceil_div(f.k, block);
  int64_t tile_rows = 1, tile_columns = f.k, run = per_row;
  if (per_row > kNestedBlock && per_row % kNestedBlock == 0) {
    run = kNestedBlock;
    tile_columns = run * block;
  } else if (per_row <= kNestedBlock) {
    tile_rows = kNestedBlock / per_row;
    run = tile_rows * per_row;
  }
  double sum = 0;
  for (const float v : absmax) sum += static_cast<double>(v);
  const float offset = static_cast<float>(sum) / static_cast<float>(absmax.size());
  const auto map = std::make_shared<const std::vector<float>>(dynamic_map());
  std::vector<uint8_t> codes(absmax.size());
  std::vector<float> outer(static_cast<size_t>(ceil_div(static_cast<int64_t>(absmax.size()), run)));
  for (size_t r = 0; r < outer.size(); ++r) {
    const size_t first = r * static_cast<size_t>(run);
    const size_t last = std::min(first + static_cast<size_t>(run), absmax.size());
    float largest = 0;
    for (size_t i = first; i < last; ++i) largest = std::max(largest, std::abs(absmax[i] - offset));
    outer[r] = largest;
    const float inverse = inverse_of(largest);
    if (inverse == 0) continue;
    for (size_t i = first; i < last; ++i) codes[i] = nearest_of_map(*map, (absmax[i] - offset) * inverse);
  }
  f.rule = tensor::Rule::kNested;
  f.scale_lut = map;
  f.nested_offset = offset;
  TARE_ASSIGN(f.a, Grid::make(GridType::kLut256, f.n, f.k, 1, block, Buffer::own(std::move(codes))));
  TARE_ASSIGN(f.A, Grid::make(GridType::kF32, f.n, f.k, tile_rows, tile_columns, Buffer::own(std::move(outer))));
  return {};
}

Result<QuantizedTensor> four_bits(const Table16& table, bool nested, const GridSpec& spec, const float* w, int64_t n,
                                  int64_t k, ThreadPool& pool) {
  const int64_t block = spec.group_width(k);
  const int64_t blocks = k == 0 ? 0 : ceil_div(k, block);
  const int64_t stride = numerics::packed_bytes(k, 4);
  std::vector<float> absmax(static_cast<size_t>(n * blocks));
  std::vector<uint8_t> codes(static_cast<size_t>(n * stride));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = w + row * k;
      uint8_t* out = codes.data() + row * stride;
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t first = b * block, last = std::min(first + block, k);
        float largest = 0;
        for (int64_t i = first; i < last; ++i) largest = std::max(largest, std::abs(values[i]));
        absmax[static_cast<size_t>(row * blocks + b)] = largest;
        const float inverse = inverse_of(largest);
        for (int64_t i = first; i < last; ++i) {
          const uint8_t code = nearest_entry(table, std::clamp(values[i] * inverse, -1.0f, 1.0f));
          out[i / 2] = static_cast<uint8_t>(out[i / 2] | code << 4 * (i % 2));
        }
      }
    }
  });
  QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kLut, .bits = 4};
  f.codes = Buffer::own(std::move(codes));
  f.code_stride = stride;
  f.lut.assign(table.begin(), table.end());
  if (nested) {
    TARE_TRY(nest_scales(f, absmax, block));
  } else {
    TARE_ASSIGN(f.a, Grid::make(GridType::kF32, n, k, 1, block, Buffer::own(std::move(absmax))));
  }
  f.origin.bytes = static_cast<int64_t>(f.codes.size() + f.a->values.size() + (f.A ? f.A->values.size() : 0));
  return QuantizedTensor::make(std::move(f));
}

}  // namespace

Result<QuantizedTensor> quantize_nf4(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  return four_bits(nf4_table(), false, spec, w, n, k, pool);
}

Result<QuantizedTensor> quantize_nf4_double(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                            ThreadPool& pool) {
  return four_bits(nf4_table(), true, spec, w, n, k, pool);
}

Result<QuantizedTensor> quantize_fp4(const GridSpec& spec, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  return four_bits(fp4_table(), false, spec, w, n, k, pool);
}

Result<QuantizedTensor> quantize_fp4_double(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                            ThreadPool& pool) {
  return four_bits(fp4_table(), true, spec, w, n, k, pool);
}

// w = (c * absmax) / 127, c = rne(w * (127 * (1 / absmax))): the library divides a number by a tensor in two steps.
Result<QuantizedTensor> quantize_llm_int8(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool& pool) {
  std::vector<float> absmax(static_cast<size_t>(n));
  std::vector<int8_t> codes(static_cast<size_t>(n * k));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = w + row * k;
      float largest = 0;
      for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::abs(values[i]));
      absmax[static_cast<size_t>(row)] = largest;
      const float factor = inverse_of(largest) * 127.0f;
      for (int64_t i = 0; i < k; ++i) {
        codes[static_cast<size_t>(row * k + i)] =
            static_cast<int8_t>(numerics::round_clamp(values[i] * factor, -127, 127));
      }
    }
  });
  QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kInt, .bits = 8};
  f.codes = Buffer::own(std::move(codes));
  f.code_stride = k;
  TARE_ASSIGN(f.a, Grid::make(GridType::kF32, n, k, 1, k, Buffer::own(std::move(absmax))));
  TARE_ASSIGN(f.A, Grid::make(GridType::kF32, n, k, n, k, Buffer::own(std::vector<float>{127.0f})));
  f.A_divides = true;
  f.code_first = true;
  f.origin.bytes = n * k + n * 4;
  return QuantizedTensor::make(std::move(f));
}

}  // namespace tare::quantize
