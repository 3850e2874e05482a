// nvfp4- and mxfp4-pack-quantized: two E2M1 codes in a byte (docs/formats.md 3.6).
#include <fmt/format.h>

#include "checkpoints/compressed_tensors.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct Fp4 {
  int64_t n = 0, k = 0, group = 16;
  Tensor codes, scale;
  std::optional<float> global_scale;  // divides
  int64_t bytes = 0;
};

Result<tensor::QuantizedTensor> build(const Fp4& p) {
  tensor::QuantizedFields f{.n = p.n, .k = p.k, .kind = tensor::CodeKind::kE2M1, .bits = 4};
  f.codes = p.codes.data;
  TARE_ASSIGN(f.a, Grid::make(grid_type(p.scale.dtype), p.n, p.k, 1, p.group, p.scale.data));
  if (p.global_scale) {
    TARE_ASSIGN(f.A, Grid::make(GridType::kF32, p.n, p.k, p.n, p.k, Buffer::own(std::vector<float>{*p.global_scale})));
    f.A_divides = true;
    f.code_first = true;  // one rounding: code * scale is exact in f32
  }
  f.origin = {.format = p.global_scale ? "compressed-tensors nvfp4" : "compressed-tensors mxfp4", .bytes = p.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

}  // namespace

Status read_ct_fp4(CtModule& m) {
  const CtArgs& args = m.weights;
  const bool nv = m.format == "nvfp4-pack-quantized";
  const int64_t group = nv ? 16 : 32;
  if (!args.floating || args.bits != 4 || args.group_size != group || !args.symmetric) {
    return m.parts.contradiction(
        "weight_packed", fmt::format("symmetric 4-bit float in groups of {}", group),
        fmt::format("{} {} bits in groups of {}", args.floating ? "float" : "int", args.bits, args.group_size));
  }
  Fp4 p{.group = group};
  TARE_ASSIGN(const tensor::Shape packed, m.parts.shape("weight_packed", 2));
  p.n = packed[0];
  p.k = packed[1] * 2;
  if (p.k % group != 0 || p.k == 0 || p.n == 0) {
    return m.parts.contradiction("weight_packed", fmt::format("columns in groups of {}", group),
                                 fmt::format("{}", p.k));
  }
  TARE_ASSIGN(p.codes, m.parts.take("weight_packed", {DType::kU8}, packed));
  const tensor::Shape scales{p.n, p.k / group};
  if (nv) {
    TARE_ASSIGN(p.scale, m.parts.take("weight_scale", {DType::kF8E4M3}, scales));
    TARE_ASSIGN(p.global_scale, m.parts.take_scalar("weight_global_scale", {DType::kF32}));
    if (!(*p.global_scale > 0)) {
      return make_error(ErrorKind::kNotFinite, "bad global scale",
                        {.where = m.parts.name("weight_global_scale"),
                         .expected = "above 0, since it divides",
                         .found = fmt::format("{}", *p.global_scale)});
    }
  } else {
    TARE_ASSIGN(p.scale, m.parts.take("weight_scale", {DType::kU8, DType::kF8E8M0}, scales));
  }
  p.bytes = m.parts.bytes();
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kE2M1, .bits = 4, .group_size = group};
  if (nv) {
    spec.has_outer_scale = true;
    spec.outer_group_n = p.n;
    spec.outer_group_size = p.k;
  }
  const tensor::Shape matrix{p.n, p.k};
  const int64_t bytes = p.bytes;
  return add_quantized(m.out, m.weight(), matrix, spec, m.activation, bytes, [p = std::move(p)] { return build(p); });
}

}  // namespace tare::checkpoints
