#include "checkpoints/sparse_bitmask.h"

#include <fmt/format.h>

#include <cstring>

#include "base/checked.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Tensor;

Result<SparseParts> take_sparse(Parts& parts, std::initializer_list<DType> dtypes) {
  SparseParts out;
  TARE_ASSIGN(const Tensor shape, parts.take_shaped("shape", {DType::kI64, DType::kI32}, {{2, 1}, {2}}));
  TARE_ASSIGN(const std::vector<int64_t> extents, integers(shape, parts.name("shape")));
  out.n = extents[0];
  out.k = extents[1];
  if (out.n <= 0 || out.k <= 0 || out.k % 4 != 0 || out.n > INT32_MAX || out.k > INT32_MAX) {
    return invalid_input("bad shape of a sparse tensor", {.where = parts.name("shape"),
                                                          .expected = "rows, and columns in fours",
                                                          .found = fmt::format("[{}, {}]", out.n, out.k)});
  }
  TARE_ASSIGN(out.compressed, parts.take("compressed", dtypes, {out.n, out.k / 2}));
  TARE_ASSIGN(out.bitmask, parts.take("bitmask", {DType::kU8}, {out.n, ceil_div(out.k, 8)}));
  return out;
}

Result<Buffer> expand_sparse(const SparseParts& s, std::string_view name) {
  const auto element = static_cast<size_t>(tensor::dtype_bits(s.compressed.dtype) / 8);
  std::vector<std::byte> out(static_cast<size_t>(s.n * s.k) * element);
  const int64_t mask_stride = ceil_div(s.k, 8);
  for (int64_t n = 0; n < s.n; ++n) {
    const std::byte* from = s.compressed.data.data() + static_cast<size_t>(n * s.k / 2) * element;
    const std::byte* mask = s.bitmask.data.data() + n * mask_stride;
    std::byte* to = out.data() + static_cast<size_t>(n * s.k) * element;
    int64_t kept = 0;
    for (int64_t k = 0; k < mask_stride * 8; ++k) {
      if (((static_cast<uint8_t>(mask[k / 8]) >> (k % 8)) & 1) == 0) continue;
      if (k >= s.k || kept == s.k / 2) {
        kept = s.k;  // too many, or beyond the end
        break;
      }
      std::memcpy(to + static_cast<size_t>(k) * element, from + static_cast<size_t>(kept++) * element, element);
    }
    if (kept != s.k / 2) {
      return invalid_input("mask of a sparse tensor does not fit its values",
                           {.where = fmt::format("{}, row {}", name, n),
                            .expected = fmt::format("{} of {} columns kept", s.k / 2, s.k)});
    }
  }
  return Buffer::own(std::move(out));
}

Status read_sparse_dense(Parts& parts, tensor::ModelWeights& out) {
  TARE_ASSIGN(SparseParts sparse, take_sparse(parts, kFloats));
  const std::string name = parts.name("weight");
  const tensor::Shape shape{sparse.n, sparse.k};
  tensor::WeightInfo info{.shape = shape, .form = sparse.compressed.dtype, .stored_bytes = parts.bytes()};
  return out.add(name, std::move(info), [sparse = std::move(sparse), shape, name]() -> Result<tensor::Weight> {
    TARE_TRY(check_finite(sparse.compressed, name));
    TARE_ASSIGN(Buffer data, expand_sparse(sparse, name));
    TARE_ASSIGN(Tensor dense, Tensor::make(sparse.compressed.dtype, shape, std::move(data)));
    return tensor::Weight(std::move(dense));
  });
}

}  // namespace tare::checkpoints
