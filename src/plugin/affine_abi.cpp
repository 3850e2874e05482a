#include "plugin/affine_abi.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "numerics/packing.h"

namespace tare::plugin {

using tensor::Grid;
using tensor::GridType;

std::string text_of(const char* text) {
  std::string out = text ? text : "";
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return out.empty() ? "no reason given" : out;
}

namespace {

int64_t groups_of(const TareAffineInfo& info) {
  return ceil_div(info.k, info.group_size);
}

}  // namespace

Status check_info(const TareAffineInfo& info, const std::string& where) {
  const bool sizes = info.n > 0 && info.k > 0 && info.n <= INT32_MAX && info.k <= INT32_MAX;
  if (info.struct_bytes < sizeof(TareAffineInfo) || !sizes || info.bits < 1 || info.bits > 8 || info.group_size < 1) {
    return invalid_input(
        "plugin declares a matrix that cannot be",
        {.where = where,
         .expected = "N, K and group_size above 0, bits 1..8",
         .found = fmt::format("[{}, {}], {} bits in groups of {}", info.n, info.k, info.bits, info.group_size)});
  }
  return {};
}

tensor::QuantSpec spec_of(const TareAffineInfo& info) {
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = info.bits};
  spec.group_size = std::min(info.group_size, info.k);
  spec.zero = info.has_zeros ? tensor::ZeroKind::kInteger : tensor::ZeroKind::kConstant;
  spec.zero_constant = info.has_zeros ? 0 : static_cast<float>(info.zero);
  return spec;
}

int64_t stored_bytes(const TareAffineInfo& info) {
  return info.n * (numerics::packed_bytes(info.k, info.bits) + groups_of(info) * (info.has_zeros ? 6 : 4));
}

AffineRoom::AffineRoom(const TareAffineInfo& info)
    : codes(static_cast<size_t>(info.n * info.k)),
      scales(static_cast<size_t>(info.n * groups_of(info))),
      zeros(info.has_zeros ? scales.size() : 0) {}

TareAffineData AffineRoom::c() {
  return {codes.data(), scales.data(), zeros.empty() ? nullptr : zeros.data()};
}

Result<tensor::QuantizedTensor> make_affine(const TareAffineInfo& info, AffineRoom room, const std::string& origin,
                                            const std::string& where) {
  const int64_t stride = numerics::packed_bytes(info.k, info.bits);
  std::vector<std::byte> packed(static_cast<size_t>(info.n * stride));
  for (int64_t row = 0; row < info.n; ++row) {
    for (int64_t i = 0; i < info.k; ++i) {
      const uint8_t code = room.codes[static_cast<size_t>(row * info.k + i)];
      if (code >> info.bits != 0) {
        return invalid_input("plugin gave a code beyond its width", {.where = fmt::format("{} [{}, {}]", where, row, i),
                                                                     .expected = fmt::format("{} bits", info.bits),
                                                                     .found = fmt::format("{}", code)});
      }
      numerics::write_code(packed.data() + row * stride, i * info.bits, info.bits, code);
    }
  }
  tensor::QuantizedFields f{.n = info.n, .k = info.k, .kind = tensor::CodeKind::kUint, .bits = info.bits};
  f.codes = Buffer::own(std::move(packed));
  const int64_t group = std::min(info.group_size, info.k);
  auto scales = Grid::make(GridType::kF32, info.n, info.k, 1, group, Buffer::own(std::move(room.scales)));
  if (!scales.ok()) {
    Error error = std::move(scales).error();
    error.where = where + ", " + error.where;
    return error;
  }
  f.a = std::move(scales).value();
  if (info.has_zeros) {
    TARE_ASSIGN(Grid zeros, Grid::make(GridType::kS16, info.n, info.k, 1, group, Buffer::own(std::move(room.zeros))));
    f.z = std::move(zeros);
  } else {
    f.z = static_cast<float>(info.zero);
  }
  f.origin = {.format = origin, .bytes = stored_bytes(info)};
  return tensor::QuantizedTensor::make(std::move(f));
}

}  // namespace tare::plugin
