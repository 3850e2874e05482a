// pack-quantized: integers of 1..8 bits in rows of 32-bit words (docs/formats.md 3.4).
#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "checkpoints/compressed_tensors.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct Packed {
  std::string module;
  CtArgs args;
  int64_t n = 0, k = 0;
  CtScaleShape scale_shape;
  bool fields_per_word = false;  // the older layout: 32 / bits whole fields in a word
  Tensor codes, scale;
  std::optional<Tensor> zero_point;
  std::shared_ptr<const std::vector<int32_t>> group_of_k;
  int64_t bytes = 0;
};

int64_t word_count(int64_t codes, int bits, bool fields_per_word) {
  return fields_per_word ? ceil_div(codes, 32 / bits) : ceil_div(codes * bits, 32);
}

// Both layouts have the same width where the shapes agree; then only the version can tell.
Result<bool> is_older_layout(const CtModule& m, int64_t words, int64_t k) {
  const int bits = m.weights.bits;
  const bool stream = words == word_count(k, bits, false);
  const bool fields = words == word_count(k, bits, true);
  if (!stream && !fields) {
    return m.parts.contradiction("weight_packed",
                                 fmt::format("{} words for {} columns of {} bits", word_count(k, bits, false), k, bits),
                                 fmt::format("{}", words));
  }
  if (stream && fields && 32 % bits != 0) return m.config.version < std::pair{0, 13};
  return fields && !stream;
}

// Stored fields (z + 2^(bits-1)) of the packed zero points, [N, G]: words run along N.
std::vector<uint8_t> packed_zeros(const Packed& p, int64_t groups) {
  std::vector<uint8_t> out(static_cast<size_t>(p.n * groups));
  const int bits = p.args.bits;
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t n = 0; n < p.n; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      uint32_t field;
      if (p.fields_per_word) {
        const int per_word = 32 / bits;
        field = word_at(p.zero_point->data, n / per_word * groups + g) >> bits * (n % per_word);
      } else {
        const int64_t bit = n * bits;
        const int shift = static_cast<int>(bit % 32);
        field = word_at(p.zero_point->data, bit / 32 * groups + g) >> shift;
        if (shift + bits > 32) field |= word_at(p.zero_point->data, (bit / 32 + 1) * groups + g) << (32 - shift);
      }
      out[static_cast<size_t>(n * groups + g)] = static_cast<uint8_t>(field & mask);
    }
  }
  return out;
}

Buffer stream_from_fields(const Packed& p) {
  const int bits = p.args.bits;
  const int per_word = 32 / bits;
  const int64_t words = word_count(p.k, bits, true);
  const int64_t stride = numerics::packed_bytes(p.k, bits);
  std::vector<std::byte> out(static_cast<size_t>(p.n * stride));
  for (int64_t n = 0; n < p.n; ++n) {
    for (int64_t k = 0; k < p.k; ++k) {
      const uint32_t code = word_at(p.codes.data, n * words + k / per_word) >> bits * (k % per_word);
      numerics::write_code(out.data() + n * stride, k * bits, bits, code);
    }
  }
  return Buffer::own(std::move(out));
}

Result<tensor::QuantizedTensor> build(const Packed& p) {
  tensor::QuantizedFields f{.n = p.n, .k = p.k, .kind = tensor::CodeKind::kUint, .bits = p.args.bits};
  if (p.fields_per_word) {
    f.codes = stream_from_fields(p);
  } else {
    f.codes = p.codes.data;  // rows of words are rows of codes
    f.code_stride = word_count(p.k, p.args.bits, false) * 4;
  }
  const auto& [shape, tile_n, tile_k] = p.scale_shape;
  const int64_t groups = shape.size() == 2 ? shape[1] : 1;
  const auto grid = [&](GridType type, Buffer values) {
    return p.group_of_k ? Grid::make_mapped(type, p.n, groups, tile_n, tile_k, std::move(values))
                        : Grid::make(type, p.n, p.k, tile_n, tile_k, std::move(values));
  };
  TARE_ASSIGN(f.a, grid(grid_type(p.scale.dtype), p.scale.data));
  // Codes and zeros are stored with 2^(bits-1) added: the difference is the same.
  const int middle = 1 << (p.args.bits - 1);
  if (p.zero_point && p.zero_point->dtype == DType::kI32) {
    TARE_ASSIGN(Grid z, grid(GridType::kU8, Buffer::own(packed_zeros(p, groups))));
    f.z = std::move(z);
  } else if (p.zero_point) {
    std::vector<int16_t> zeros(static_cast<size_t>(p.zero_point->count()));
    for (size_t i = 0; i < zeros.size(); ++i) {
      const int zero = static_cast<int8_t>(p.zero_point->data.data()[i]);
      if (zero < -middle || zero >= middle) {
        return invalid_input("zero point outside its width", {.where = p.module + ".weight_zero_point",
                                                              .expected = fmt::format("{} bits", p.args.bits),
                                                              .found = fmt::format("{}", zero)});
      }
      zeros[i] = static_cast<int16_t>(zero + middle);
    }
    TARE_ASSIGN(Grid z, grid(GridType::kS16, Buffer::own(std::move(zeros))));
    f.z = std::move(z);
  } else {
    f.z = static_cast<float>(middle);
  }
  f.group_of_k = p.group_of_k;
  f.origin = {.format = "compressed-tensors pack-quantized", .bytes = p.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

}  // namespace

Status read_ct_packed(CtModule& m) {
  const CtArgs& args = m.weights;
  Packed p{.module = m.parts.module(), .args = args};
  if (args.floating) return m.parts.contradiction("weight_packed", "integer weights in pack-quantized", "type float");
  TARE_ASSIGN(const Tensor shape, m.parts.take("weight_shape", {DType::kI64, DType::kI32}, {2}));
  TARE_ASSIGN(const std::vector<int64_t> extents, integers(shape, m.parts.name("weight_shape")));
  TARE_ASSIGN(const tensor::Shape packed, m.parts.shape("weight_packed", 2));
  p.n = extents[0];
  p.k = extents[1];
  if (p.n != packed[0] || p.k <= 0 || p.k > packed[1] * 32) {
    return m.parts.contradiction("weight_shape", fmt::format("{} rows", packed[0]), fmt::format("[{}, {}]", p.n, p.k));
  }
  TARE_ASSIGN(p.fields_per_word, is_older_layout(m, packed[1], p.k));
  TARE_ASSIGN(p.codes, m.parts.take("weight_packed", {DType::kI32}, packed));
  TARE_ASSIGN(p.scale_shape, ct_scale_shape(args, p.n, p.k, m.parts));
  TARE_ASSIGN(p.scale, m.parts.take("weight_scale", kFloats, p.scale_shape.shape));
  const int64_t groups = p.scale_shape.shape.size() == 2 ? p.scale_shape.shape[1] : 1;
  if (!args.symmetric) {
    TARE_ASSIGN(const DType dtype, m.parts.dtype("weight_zero_point"));
    if (dtype == DType::kI8) {  // before compressed-tensors 0.9.4
      TARE_ASSIGN(p.zero_point, m.parts.take("weight_zero_point", {DType::kI8}, p.scale_shape.shape));
    } else {
      const tensor::Shape zeros{word_count(p.n, args.bits, p.fields_per_word), groups};
      TARE_ASSIGN(p.zero_point, m.parts.take("weight_zero_point", {DType::kI32}, zeros));
    }
  }
  if (m.parts.has("weight_g_idx")) {
    TARE_ASSIGN(const Tensor g_idx, m.parts.take("weight_g_idx", {DType::kI32, DType::kI64}, {p.k}));
    TARE_ASSIGN(const std::vector<int64_t> map, integers(g_idx, m.parts.name("weight_g_idx")));
    const bool unset = std::all_of(map.begin(), map.end(), [](int64_t g) { return g == -1; });
    if (!unset && args.strategy != CtArgs::Strategy::kGroup) {
      return m.parts.contradiction("weight_g_idx", "no order of groups, since the strategy has none", "an order");
    }
    if (!unset) {
      TARE_ASSIGN(p.group_of_k, group_map(g_idx, p.k, args.group_size, m.parts.name("weight_g_idx")));
    }
    if (p.group_of_k && args.actorder != "group") {
      return m.parts.contradiction("weight_g_idx", "groups in order, since actorder is not group", "another order");
    }
  } else if (args.actorder == "group" && groups > 1) {
    return m.parts.contradiction("weight_g_idx", "an order of groups, since actorder is group", "no such tensor");
  }
  p.bytes = m.parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = args.bits};
  spec.group_n = std::min(p.scale_shape.tile_n, p.n);
  spec.group_size = std::min(p.scale_shape.tile_k, p.k);
  spec.zero = args.symmetric ? tensor::ZeroKind::kConstant : tensor::ZeroKind::kInteger;
  spec.zero_constant = args.symmetric ? static_cast<float>(1 << (args.bits - 1)) : 0;
  spec.act_order = p.group_of_k != nullptr;
  const tensor::Shape matrix{p.n, p.k};
  const int64_t bytes = p.bytes;
  return add_quantized(m.out, m.weight(), matrix, spec, m.activation, bytes, [p = std::move(p)] { return build(p); });
}

}  // namespace tare::checkpoints
