#include "kernels/reference/samples.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "kernels/activations.h"
#include "kernels/reference/activations.h"
#include "kernels/reference/gemm.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"
#include "numerics/rounding.h"

namespace tare::kernels {

namespace {

using namespace tensor;
using namespace numerics;

// SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  int64_t below(int64_t count) { return static_cast<int64_t>(next() % static_cast<uint64_t>(count)); }
  // About normal: sum of 12 uniform numbers. No libm, so equal on every machine.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  uint64_t state_;
};

Buffer pack_codes(int64_t rows, int64_t per_row, int bits, const std::vector<uint32_t>& codes) {
  const int64_t stride = packed_bytes(per_row, bits);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * stride));
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t i = 0; i < per_row; ++i) {
      write_code(bytes.data() + n * stride, i * bits, bits, codes[static_cast<size_t>(n * per_row + i)]);
    }
  }
  return Buffer::own(std::move(bytes));
}

// Encodes magnitudes into a grid type; integer types take the number as it is.
Buffer encode_grid(GridType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(grid_element_bytes(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    const float v = values[i];
    uint32_t raw = 0;
    switch (type) {
      case GridType::kF32:
        raw = std::bit_cast<uint32_t>(v);
        break;
      case GridType::kF16:
        raw = f32_to_f16(v);
        break;
      case GridType::kBF16:
        raw = f32_to_bf16(v);
        break;
      case GridType::kE4M3:
        raw = E4M3::encode_saturating(v);
        break;
      case GridType::kE8M0:
        raw = std::bit_cast<uint32_t>(v) >> 23;
        break;
      default:
        raw = static_cast<uint32_t>(static_cast<int32_t>(v));
        break;
    }
    std::memcpy(bytes.data() + i * static_cast<size_t>(grid_element_bytes(type)), &raw,
                static_cast<size_t>(grid_element_bytes(type)));
  }
  return Buffer::own(std::move(bytes));
}

struct GridRange {
  float lowest;
  float highest;
};

GridRange integer_range(GridType type) {
  switch (type) {
    case GridType::kU4:
      return {0, 15};
    case GridType::kU6:
      return {0, 63};
    case GridType::kS6:
      return {-32, 31};
    case GridType::kS8:
      return {-128, 127};
    default:
      return {0, 255};
  }
}

// Positive for floats, over the whole range for integers.
float draw_scale(Random& random, GridType type, SamplePattern pattern) {
  if (!is_integer(type)) {
    if (pattern != SamplePattern::kRandom) return 0.03125f;
    const double scale = 0.002 + 0.05 * random.uniform();
    return static_cast<float>(type == GridType::kE4M3 ? scale * 64 : scale);  // e4m3 is coarse below 2^-6
  }
  const GridRange range = integer_range(type);
  if (pattern == SamplePattern::kLargest) return range.highest;
  if (pattern == SamplePattern::kSmallest) return range.lowest;
  return range.lowest + static_cast<float>(random.below(static_cast<int64_t>(range.highest - range.lowest) + 1));
}

Grid draw_grid(Random& random, GridType type, int64_t n, int64_t k, int64_t tile_n, int64_t tile_k,
               SamplePattern pattern, float factor = 1) {
  std::vector<float> values(static_cast<size_t>(ceil_div(n, tile_n) * ceil_div(k, tile_k)));
  for (float& v : values) v = draw_scale(random, type, pattern) * factor;
  return *Grid::make(type, n, k, tile_n, tile_k, encode_grid(type, values));
}

std::vector<uint32_t> draw_codes(Random& random, CodeKind kind, int bits, int64_t count, SamplePattern pattern,
                                 uint32_t zero_code) {
  const uint32_t all = (1u << bits) - 1;
  const uint32_t sign = 1u << (bits - 1);
  std::vector<uint32_t> codes(static_cast<size_t>(count));
  for (uint32_t& code : codes) {
    switch (pattern) {
      case SamplePattern::kRandom:
        code = static_cast<uint32_t>(random.next()) & all;
        break;
      case SamplePattern::kLargest:
        code = kind == CodeKind::kInt ? sign : all;
        break;
      case SamplePattern::kSmallest:
        code = kind == CodeKind::kInt ? sign - 1 : 0;
        break;
      case SamplePattern::kZero:
        code = zero_code;
        break;
    }
    // No NaN and no inf among the weights: readers refuse them.
    if (kind == CodeKind::kE4M3 && (code & 0x7f) == 0x7f) code ^= 1;
    if (kind == CodeKind::kE5M2 && (code & 0x7c) == 0x7c) code ^= 4;
  }
  return codes;
}

Weight make_dense(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(n * k));
  for (float& v : values) {
    v = pattern == SamplePattern::kRandom    ? static_cast<float>(random.normal() * 0.05)
        : pattern == SamplePattern::kLargest ? 448.0f
        : pattern == SamplePattern::kZero    ? 0.0f
                                             : -448.0f;
  }
  if (form.dtype == DType::kF32) return Tensor::from_f32({n, k}, std::move(values));
  if (form.dtype == DType::kF64) {
    return *Tensor::make(DType::kF64, {n, k}, Buffer::own(std::vector<double>(values.begin(), values.end())));
  }
  if (form.dtype == DType::kF8E4M3) {
    return *Tensor::make(DType::kF8E4M3, {n, k}, encode_grid(GridType::kE4M3, values));
  }
  const GridType type = form.dtype == DType::kF16 ? GridType::kF16 : GridType::kBF16;
  return *Tensor::make(form.dtype, {n, k}, encode_grid(type, values));
}

// Codes with scales of one level, and zeros or minima.
Weight make_scaled(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  const int64_t tile_n = form.group_n == 0 ? std::max<int64_t>(n, 1) : form.group_n;
  const int64_t tile_k = form.group_size == 0 ? std::max<int64_t>(k, 1) : form.group_size;
  const auto middle = static_cast<float>(1 << (form.bits - 1));
  QuantizedFields f{.n = n, .k = k, .kind = form.kind, .bits = form.bits};
  const uint32_t zero_code = form.kind == CodeKind::kUint && form.zero != ZeroKind::kNone
                                 ? static_cast<uint32_t>(form.zero == ZeroKind::kConstant ? form.zero_constant : middle)
                                 : 0;
  f.codes = pack_codes(n, k, form.bits, draw_codes(random, form.kind, form.bits, n * k, pattern, zero_code));
  if (form.kind == CodeKind::kLut) {
    for (int i = 0; i < 1 << form.bits; ++i) {
      const double x = (2.0 * i + 1) / (1 << form.bits) - 1;
      f.lut.push_back(static_cast<float>(x * std::fabs(x) + 0.1 * x));
    }
  }
  f.a = draw_grid(random, form.scale, n, k, tile_n, tile_k, pattern);
  const int64_t tiles = ceil_div(n, tile_n) * ceil_div(k, tile_k);
  if (form.zero == ZeroKind::kConstant) f.z = form.zero_constant;
  if (form.zero == ZeroKind::kInteger || form.zero == ZeroKind::kFloat) {
    std::vector<float> zeros(static_cast<size_t>(tiles), middle);
    // GPTQ's first version stores zero - 1 and so knows a zero of 2^bits.
    if (pattern == SamplePattern::kRandom) {
      for (float& z : zeros) z = static_cast<float>(random.below((int64_t{1} << form.bits) + 1));
    }
    if (form.zero == ZeroKind::kFloat) {
      for (float& z : zeros) z += 0.375f;
      f.z = *Grid::make(GridType::kF16, n, k, tile_n, tile_k, encode_grid(GridType::kF16, zeros));
    } else {
      std::vector<int16_t> integers(zeros.begin(), zeros.end());
      f.z = *Grid::make(GridType::kS16, n, k, tile_n, tile_k, Buffer::own(std::move(integers)));
    }
  }
  if (form.minimum) f.b = draw_grid(random, GridType::kF16, n, k, tile_n, tile_k, pattern, -middle);
  if (form.act_order) {
    std::vector<int32_t> map(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) map[static_cast<size_t>(i)] = static_cast<int32_t>(i / tile_k);
    for (int64_t i = k - 1; i > 0; --i)
      std::swap(map[static_cast<size_t>(i)], map[static_cast<size_t>(random.below(i + 1))]);
    f.group_of_k = std::make_shared<const std::vector<int32_t>>(std::move(map));
  }
  return *QuantizedTensor::make(std::move(f));
}

// QoQ progressive groups: a u8 per group, b s8 per group with a*c + b inside [-128, 127], A f16 per row.
Weight make_progressive(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  const int64_t tile = form.group_size == 0 ? k : form.group_size;
  QuantizedFields f{.n = n, .k = k, .kind = CodeKind::kUint, .bits = 4, .rule = Rule::kIntegerFirst};
  f.codes = pack_codes(n, k, 4, draw_codes(random, CodeKind::kUint, 4, n * k, pattern, 0));
  const auto tiles = static_cast<size_t>(n * ceil_div(k, tile));
  std::vector<uint8_t> scale(tiles);
  std::vector<int8_t> minimum(tiles);
  for (size_t i = 0; i < tiles; ++i) {
    const int64_t s = pattern == SamplePattern::kRandom ? 1 + random.below(16) : 16;
    scale[i] = static_cast<uint8_t>(s);
    // -128 <= b and 15 s + b <= 127
    const int64_t highest = 127 - 15 * s;
    minimum[i] = static_cast<int8_t>(pattern == SamplePattern::kRandom    ? -128 + random.below(highest + 129)
                                     : pattern == SamplePattern::kLargest ? highest
                                                                          : -128);
  }
  f.a = *Grid::make(GridType::kU8, n, k, 1, tile, Buffer::own(std::move(scale)));
  f.b = *Grid::make(GridType::kS8, n, k, 1, tile, Buffer::own(std::move(minimum)));
  f.A = draw_grid(random, GridType::kF16, n, k, 1, k, pattern);
  return *QuantizedTensor::make(std::move(f));
}

// QQQ per group: the bracket is rounded to a whole number.
Weight make_rounded(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  QuantizedFields f{.n = n, .k = k, .kind = CodeKind::kUint, .bits = 4, .rule = Rule::kIntegerFirst};
  f.codes = pack_codes(n, k, 4, draw_codes(random, CodeKind::kUint, 4, n * k, pattern, 8));
  f.a = draw_grid(random, GridType::kF16, n, k, 1, form.group_size, pattern, 300);
  f.z = 8.0f;
  f.A = draw_grid(random, GridType::kF32, n, k, 1, k, pattern);
  f.round_inner = true;
  return *QuantizedTensor::make(std::move(f));
}

// GGUF K-quants: inner integer scales under one f16 per 256.
Weight make_super_block(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  QuantizedFields f{.n = n, .k = k, .kind = form.kind, .bits = form.bits};
  f.codes = pack_codes(n, k, form.bits, draw_codes(random, form.kind, form.bits, n * k, pattern, 0));
  if (form.kind == CodeKind::kLut) {
    for (int i = 0; i < 1 << form.bits; ++i) f.lut.push_back(static_cast<float>(i * i - 100));
  }
  f.a = draw_grid(random, form.scale, n, k, 1, form.group_size, pattern);
  f.A = draw_grid(random, GridType::kF16, n, k, 1, 256, pattern);
  if (form.zero == ZeroKind::kConstant) f.z = form.zero_constant;
  if (form.minimum) {
    f.b = draw_grid(random, form.scale, n, k, 1, form.group_size, pattern);
    f.B = draw_grid(random, GridType::kF16, n, k, 1, 256, pattern, -1);
  }
  return *QuantizedTensor::make(std::move(f));
}

// NF4 / FP4 with double quantization.
Weight make_nested(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  QuantizedFields f{.n = n, .k = k, .kind = CodeKind::kLut, .bits = 4, .rule = Rule::kNested};
  f.codes = pack_codes(n, k, 4, draw_codes(random, CodeKind::kLut, 4, n * k, pattern, 7));
  for (int i = 0; i < 16; ++i) f.lut.push_back(i == 7 ? 0.0f : static_cast<float>((i - 7) / 8.5));
  f.a = draw_grid(random, GridType::kLut256, n, k, 1, form.group_size, pattern);
  f.A = draw_grid(random, GridType::kF32, n, k, 1, form.group_size * 4, pattern);
  std::vector<float> table(256);
  for (int i = 0; i < 256; ++i) table[static_cast<size_t>(i)] = static_cast<float>((i - 127) / 128.0);
  f.scale_lut = std::make_shared<const std::vector<float>>(std::move(table));
  f.nested_offset = 0.04f;
  return *QuantizedTensor::make(std::move(f));
}

// NVFP4: e4m3 per 16 over (or times) one f32 of the tensor.
Weight make_nvfp4(const SampleForm& form, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  QuantizedFields f{.n = n, .k = k, .kind = CodeKind::kE2M1, .bits = 4};
  f.codes = pack_codes(n, k, 4, draw_codes(random, CodeKind::kE2M1, 4, n * k, pattern, 0));
  f.a = draw_grid(random, GridType::kE4M3, n, k, 1, 16, pattern);
  f.A = *Grid::make(GridType::kF32, n, k, n, k, Buffer::own(std::vector<float>{form.minimum ? 37.5f : 0.0123f}));
  f.A_divides = form.minimum;
  return *QuantizedTensor::make(std::move(f));
}

Weight make_vq(const SampleForm&, int64_t n, int64_t k, SamplePattern pattern, uint64_t seed) {
  Random random(seed);
  QuantizedFields f{.n = n, .k = k, .kind = CodeKind::kVq, .bits = 8};
  f.vq = VectorCodebooks{.count = 2, .out_group = 1, .in_group = 8};
  std::vector<float> books(2 * 256 * 8);
  for (float& v : books) v = static_cast<float>(random.normal());
  f.vq->books = encode_grid(GridType::kF16, books);
  f.codes = pack_codes(n, k / 8 * 2, 8, draw_codes(random, CodeKind::kVq, 8, n * (k / 8 * 2), pattern, 0));
  f.a = draw_grid(random, GridType::kF16, n, k, 1, k, pattern);
  return *QuantizedTensor::make(std::move(f));
}

}  // namespace

std::vector<SampleForm> sample_forms() {
  std::vector<SampleForm> forms = {
      {.name = "f32", .make = make_dense, .dtype = DType::kF32},
      {.name = "bf16", .make = make_dense, .dtype = DType::kBF16},
      {.name = "f16", .make = make_dense, .dtype = DType::kF16},
      {.name = "f64", .make = make_dense, .dtype = DType::kF64},
      {.name = "dense-e4m3", .make = make_dense, .dtype = DType::kF8E4M3},
      {.name = "qoq-g128", .make = make_progressive, .group_size = 128},
      {.name = "qoq-g64", .make = make_progressive, .group_size = 64},
      {.name = "qoq-g32", .make = make_progressive, .group_size = 32},
      {.name = "qoq-channel", .make = make_scaled, .minimum = true},
      {.name = "qqq-channel", .make = make_scaled, .kind = CodeKind::kInt, .scale = GridType::kF32},
      {.name = "qqq-g128", .make = make_rounded, .group_size = 128},
      {.name = "w8-channel", .make = make_scaled, .kind = CodeKind::kInt, .bits = 8, .scale = GridType::kF32},
      {.name = "w8-tensor",
       .make = make_scaled,
       .kind = CodeKind::kInt,
       .bits = 8,
       .group_n = 0,
       .scale = GridType::kF32},
      {.name = "w8-bf16-scale", .make = make_scaled, .kind = CodeKind::kInt, .bits = 8, .scale = GridType::kBF16},
      {.name = "u8-channel-zero", .make = make_scaled, .bits = 8, .zero = ZeroKind::kInteger},
      {.name = "u4-channel-zero", .make = make_scaled, .zero = ZeroKind::kInteger},
      {.name = "u4-channel-8", .make = make_scaled, .zero = ZeroKind::kConstant, .zero_constant = 8},
      {.name = "gptq-u4-g128", .make = make_scaled, .group_size = 128, .zero = ZeroKind::kInteger},
      {.name = "gptq-u4-g128-order",
       .make = make_scaled,
       .group_size = 128,
       .zero = ZeroKind::kInteger,
       .act_order = true},
      {.name = "gptq-u3-g96-order",
       .make = make_scaled,
       .bits = 3,
       .group_size = 96,
       .zero = ZeroKind::kInteger,
       .act_order = true},
      {.name = "gptq-u4-g128-8",
       .make = make_scaled,
       .group_size = 128,
       .zero = ZeroKind::kConstant,
       .zero_constant = 8},
      {.name = "ct-s4-g32", .make = make_scaled, .kind = CodeKind::kInt, .group_size = 32, .scale = GridType::kBF16},
      {.name = "hqq-u4-g64", .make = make_scaled, .group_size = 64, .zero = ZeroKind::kFloat},
      {.name = "q4_1-g32", .make = make_scaled, .group_size = 32, .minimum = true},
      {.name = "q4_0-g32", .make = make_scaled, .group_size = 32, .zero = ZeroKind::kConstant, .zero_constant = 8},
      {.name = "q8_0-g32", .make = make_scaled, .kind = CodeKind::kInt, .bits = 8, .group_size = 32},
      {.name = "u1-g128", .make = make_scaled, .bits = 1, .group_size = 128, .zero = ZeroKind::kFloat},
      {.name = "q4_k",
       .k_multiple = 256,
       .make = make_super_block,
       .group_size = 32,
       .scale = GridType::kU6,
       .minimum = true},
      {.name = "q2_k",
       .k_multiple = 256,
       .make = make_super_block,
       .bits = 2,
       .group_size = 16,
       .scale = GridType::kU4,
       .minimum = true},
      {.name = "q6_k",
       .k_multiple = 256,
       .make = make_super_block,
       .bits = 6,
       .group_size = 16,
       .scale = GridType::kS8,
       .zero = ZeroKind::kConstant,
       .zero_constant = 32},
      {.name = "q3_k",
       .k_multiple = 256,
       .make = make_super_block,
       .bits = 3,
       .group_size = 16,
       .scale = GridType::kS6,
       .zero = ZeroKind::kConstant,
       .zero_constant = 4},
      {.name = "iq4_xs",
       .k_multiple = 256,
       .make = make_super_block,
       .kind = CodeKind::kLut,
       .group_size = 32,
       .scale = GridType::kS6},
      {.name = "nf4-dq-g64", .make = make_nested, .group_size = 64},
      {.name = "nf4-g64", .make = make_scaled, .kind = CodeKind::kLut, .group_size = 64, .scale = GridType::kF32},
      {.name = "nvfp4", .make = make_nvfp4},
      {.name = "nvfp4-divides", .make = make_nvfp4, .minimum = true},
      {.name = "mxfp4", .make = make_scaled, .kind = CodeKind::kE2M1, .group_size = 32, .scale = GridType::kE8M0},
      {.name = "mxfp8",
       .make = make_scaled,
       .kind = CodeKind::kE4M3,
       .bits = 8,
       .group_size = 32,
       .scale = GridType::kE8M0},
      {.name = "fp8-tensor",
       .make = make_scaled,
       .kind = CodeKind::kE4M3,
       .bits = 8,
       .group_n = 0,
       .scale = GridType::kF32},
      {.name = "fp8-channel", .make = make_scaled, .kind = CodeKind::kE4M3, .bits = 8, .scale = GridType::kF32},
      {.name = "fp8-block",
       .make = make_scaled,
       .kind = CodeKind::kE4M3,
       .bits = 8,
       .group_n = 128,
       .group_size = 128,
       .scale = GridType::kF32},
      {.name = "e5m2-channel", .make = make_scaled, .kind = CodeKind::kE5M2, .bits = 8, .scale = GridType::kF32},
      {.name = "aqlm", .k_multiple = 8, .make = make_vq},
  };
  for (const int bits : {2, 3, 5, 6, 8}) {
    for (const int group : {16, 64, 128, 256}) {
      forms.push_back({.name = "u" + std::to_string(bits) + "-g" + std::to_string(group),
                       .make = make_scaled,
                       .bits = bits,
                       .group_size = group,
                       .zero = ZeroKind::kInteger});
    }
    forms.push_back(
        {.name = "s" + std::to_string(bits) + "-channel", .make = make_scaled, .kind = CodeKind::kInt, .bits = bits});
  }
  return forms;
}

std::vector<ActivationSpec> sample_activations() {
  using T = ActivationType;
  using G = ActivationGranularity;
  return {
      {},
      {.type = T::kS8},
      {.type = T::kS8, .symmetric = false},
      {.type = T::kS8, .granularity = G::kTensor, .dynamic = false, .scale = 0.021f},
      {.type = T::kS8, .granularity = G::kTensor, .dynamic = false, .scale = 0.021f, .zero = -17},
      {.type = T::kS8, .outlier_threshold = 6},
      {.type = T::kS8, .granularity = G::kTokenGroup, .group_size = 128},
      {.type = T::kU8, .symmetric = false},
      {.type = T::kS4},
      {.type = T::kE4M3},
      {.type = T::kE4M3, .cap = 3},
      {.type = T::kE4M3, .granularity = G::kTensor, .dynamic = false, .scale = 0.03f},
      {.type = T::kE4M3, .granularity = G::kTokenGroup, .group_size = 128},
      {.type = T::kE2M1, .granularity = G::kTokenGroup, .group_size = 16},
  };
}

LinearProblem problem_of(const Weight& weight, const ActivationSpec& activation, bool bias) {
  const Shape shape = shape_of(weight);
  LinearProblem problem{.n = shape[0], .k = shape[1], .activation = activation, .bias = bias};
  if (const auto* dense = std::get_if<Tensor>(&weight)) {
    problem.weight = dense->dtype;
  } else {
    problem.weight = std::get<QuantizedTensor>(weight).spec();
  }
  return problem;
}

std::vector<float> sample_tokens(int64_t m, int64_t k, uint64_t seed) {
  Random random(seed);
  std::vector<float> x(static_cast<size_t>(m * k));
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const double value = random.normal();
      x[static_cast<size_t>(row * k + i)] = static_cast<float>(i % 97 == 5 ? value * 8 : value);
    }
  }
  return x;
}

ExpectedProduct expected_product(const LinearProblem& problem, const Weight& weight, const std::vector<float>& bias,
                                 const std::vector<float>& x, int64_t m, ThreadPool& pool) {
  ExpectedProduct out;
  machine::Capabilities caps;
  out.y = *run_linear(kGemmReference, problem, {&weight, 1}, bias, x, m, caps.isa, pool);
  // sum |x| |w|: the same product of magnitudes. Activations as given bound those quantized, but for half a step of
  // their scale; the factor 2 below covers it.
  std::vector<float> w = *to_f32(weight);
  if (const auto* quantized = std::get_if<QuantizedTensor>(&weight)) {
    const QuantizedFields& whole = quantized->fields();
    if (whole.b || !std::holds_alternative<std::monostate>(whole.z) || whole.kind == CodeKind::kUint) {
      QuantizedFields f = whole;
      f.b.reset();
      f.B.reset();
      if (f.rule == Rule::kScaleFirst && f.kind == CodeKind::kUint) f.z = static_cast<float>(1 << (f.bits - 1));
      const std::vector<float> scaled = dequantize(*QuantizedTensor::make(std::move(f)));
      for (size_t i = 0; i < w.size(); ++i) w[i] = std::fabs(scaled[i]) + std::fabs(w[i] - scaled[i]);
    }
  }
  const int64_t n = problem.n, k = problem.k;
  out.bound.resize(static_cast<size_t>(m * n));
  const double steps = accumulation_bound(static_cast<double>(k) + 8);
  pool.parallel_for(n, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t t = 0; t < m; ++t) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum +=
              std::fabs(static_cast<double>(x[static_cast<size_t>(t * k + i)]) * w[static_cast<size_t>(row * k + i)]);
        }
        const auto index = static_cast<size_t>(t * n + row);
        const double offset = bias.empty() ? 0 : std::fabs(bias[static_cast<size_t>(row)]);
        out.bound[index] = steps * (problem.activation.type == ActivationType::kNone ? 1 : 2) * (sum + offset) +
                           2 * kUnitF32 * std::fabs(out.y[index]) + 1e-37;
      }
    }
  });
  return out;
}

Result<std::vector<float>> run_linear(const LinearKernel& kernel, const LinearProblem& problem,
                                      std::span<const Weight> parts, std::span<const float> bias,
                                      const std::vector<float>& x, int64_t m, machine::Isa isa, ThreadPool& pool) {
  TARE_ASSIGN(const std::unique_ptr<PackedLinear> packed, kernel.prepack(problem, parts, bias, pool));
  const ActivationForm form = kernel.form(problem);
  const int64_t k = problem.k;
  std::vector<std::byte> storage(static_cast<size_t>(activation_bytes(form, m, k) + 64));
  Activations tokens = f32_activations(x.data(), m, k, k);
  if (form.dtype != DType::kF32) {
    const auto start = static_cast<size_t>(-reinterpret_cast<uintptr_t>(storage.data()) & 63);
    const ActivationStorage carved = carve_activations(form, m, k, std::span(storage).subspan(start));
    write_activations(carved, x.data(), k, 0, m, isa);
    tokens = carved.view();
  }
  std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem, m, pool.size()) + 64));
  const auto start = static_cast<size_t>(-reinterpret_cast<uintptr_t>(workspace.data()) & 63);
  std::vector<float> out(static_cast<size_t>(m * problem.n));
  kernel.run(*packed, tokens, out.data(), problem.n, std::span(workspace).subspan(start), pool);
  return out;
}

bool is_exact(const LinearKernel& kernel, const LinearProblem& problem) {
  if (&kernel == &kGemmReference) return true;
  if (kernel.op == "gemm_llm_int8") return true;
  return kernel.form(problem).dtype == DType::kI8 && kernel.op != "gemm_wna8";
}

}  // namespace tare::kernels
