// int-, float- and naive-quantized, mxfp8: one code in a byte (docs/formats.md 3.5, 3.6), with or without the 2:4 mask.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/compressed_tensors.h"
#include "checkpoints/sparse_bitmask.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct Plain {
  std::string module;
  CtArgs args;
  int64_t n = 0, k = 0;
  CtScaleShape scale_shape;
  GridType scale_type = GridType::kF16;
  Tensor codes;  // [N, K]; unset when sparse
  std::optional<SparseParts> sparse;
  Tensor scale;
  std::optional<Tensor> zero_point;
  int64_t bytes = 0;
};

// Signed codes of fewer than 8 bits come one in a byte; packed they say their width.
Result<Buffer> narrow_codes(const Plain& p, const Buffer& bytes) {
  const int bits = p.args.bits;
  const int64_t stride = numerics::packed_bytes(p.k, bits);
  std::vector<std::byte> out(static_cast<size_t>(p.n * stride));
  const int middle = 1 << (bits - 1);
  for (int64_t n = 0; n < p.n; ++n) {
    for (int64_t k = 0; k < p.k; ++k) {
      const int code = static_cast<int8_t>(bytes.data()[n * p.k + k]);
      if (code < -middle || code >= middle) {
        return invalid_input("configuration and weights contradict each other",
                             {.where = fmt::format("{}.weight[{}, {}]", p.module, n, k),
                              .expected = fmt::format("a code of {} bits", bits),
                              .found = fmt::format("{}", code)});
      }
      numerics::write_code(out.data() + n * stride, k * bits, bits, static_cast<uint32_t>(code));
    }
  }
  return Buffer::own(std::move(out));
}

Result<tensor::QuantizedTensor> build(const Plain& p) {
  tensor::QuantizedFields f{.n = p.n, .k = p.k};
  Buffer codes = p.codes.data;
  if (p.sparse) {
    TARE_ASSIGN(codes, expand_sparse(*p.sparse, p.module + ".bitmask"));
    f.origin.sparse_2_4 = true;
  }
  if (p.args.floating) {
    f.kind = tensor::CodeKind::kE4M3;
    f.bits = 8;
    TARE_TRY(check_e4m3(codes, p.module + ".weight"));
    f.codes = std::move(codes);
  } else {
    f.kind = tensor::CodeKind::kInt;
    f.bits = p.args.bits;
    if (f.bits == 8) {
      f.codes = std::move(codes);
    } else {
      TARE_ASSIGN(f.codes, narrow_codes(p, codes));
    }
  }
  const auto& [shape, tile_n, tile_k] = p.scale_shape;
  TARE_ASSIGN(f.a, Grid::make(p.scale_type, p.n, p.k, tile_n, tile_k, p.scale.data));
  if (p.zero_point) {
    TARE_ASSIGN(Grid z, Grid::make(GridType::kS8, p.n, p.k, tile_n, tile_k, p.zero_point->data));
    f.z = std::move(z);
  }
  f.origin.format = "compressed-tensors";
  f.origin.bytes = p.bytes;
  return tensor::QuantizedTensor::make(std::move(f));
}

}  // namespace

Status read_ct_plain(CtModule& m) {
  const CtArgs& args = m.weights;
  Plain p{.module = m.parts.module(), .args = args};
  const bool mx = m.format == "mxfp8-quantized";
  if (args.floating && args.bits != 8) {
    return m.parts.contradiction("weight", fmt::format("float weights of 8 bits in {}", m.format),
                                 fmt::format("{} bits", args.bits));
  }
  if ((m.format == "int-quantized" && args.floating) || ((m.format == "float-quantized" || mx) && !args.floating)) {
    return m.parts.contradiction("weight", "the type that " + m.format + " names", args.floating ? "float" : "int");
  }
  const DType code_type = args.floating ? DType::kF8E4M3 : DType::kI8;
  if (m.parts.has("compressed")) {
    if (m.config.sparsity_format != "sparse-24-bitmask") {
      return m.parts.contradiction("compressed", "whole weights, since sparsity_config names no 2:4 mask",
                                   "a sparse weight");
    }
    TARE_ASSIGN(p.sparse, take_sparse(m.parts, {code_type}));
    p.n = p.sparse->n;
    p.k = p.sparse->k;
  } else {
    TARE_ASSIGN(const tensor::Shape shape, m.parts.shape("weight", 2));
    p.n = shape[0];
    p.k = shape[1];
    TARE_ASSIGN(p.codes, m.parts.take("weight", {code_type}, shape));
  }
  TARE_ASSIGN(p.scale_shape, ct_scale_shape(args, p.n, p.k, m.parts));
  if (mx) {
    TARE_ASSIGN(p.scale, m.parts.take("weight_scale", {DType::kU8, DType::kF8E8M0}, p.scale_shape.shape));
  } else if (args.strategy == CtArgs::Strategy::kTensor) {
    TARE_ASSIGN(p.scale, m.parts.take_shaped("weight_scale", kFloats, {{1}, {}}));
  } else if (args.strategy == CtArgs::Strategy::kChannel) {
    TARE_ASSIGN(p.scale, m.parts.take_shaped("weight_scale", kFloats, {{p.n, 1}, {p.n}}));
  } else {
    TARE_ASSIGN(p.scale, m.parts.take("weight_scale", kFloats, p.scale_shape.shape));
  }
  p.scale_type = grid_type(p.scale.dtype);
  if (!args.symmetric) {
    TARE_ASSIGN(p.zero_point, m.parts.take("weight_zero_point", {DType::kI8}, p.scale.shape));
  }
  p.bytes = m.parts.bytes();
  tensor::QuantSpec spec{.kind = args.floating ? tensor::CodeKind::kE4M3 : tensor::CodeKind::kInt, .bits = args.bits};
  spec.group_n = std::min(p.scale_shape.tile_n, p.n);
  spec.group_size = std::min(p.scale_shape.tile_k, p.k);
  if (!args.symmetric) spec.zero = tensor::ZeroKind::kInteger;
  const tensor::Shape matrix{p.n, p.k};
  const int64_t bytes = p.bytes;
  return add_quantized(m.out, m.weight(), matrix, spec, m.activation, bytes, [p = std::move(p)] { return build(p); });
}

}  // namespace tare::checkpoints
