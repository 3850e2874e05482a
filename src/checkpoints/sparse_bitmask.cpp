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

Status read_bitmask_dense(Parts& parts, tensor::ModelWeights& out) {
  TARE_ASSIGN(const Tensor extents_tensor,
              parts.take_shaped("weight.shape", {DType::kI64, DType::kI32}, {{2}, {2, 1}}));
  TARE_ASSIGN(const std::vector<int64_t> extents, integers(extents_tensor, parts.name("weight.shape")));
  const int64_t n = extents[0], k = extents[1];
  if (n <= 0 || k <= 0 || n > INT32_MAX || k > INT32_MAX) {
    return invalid_input(
        "bad shape of a sparse tensor",
        {.where = parts.name("weight.shape"), .expected = "rows and columns", .found = fmt::format("[{}, {}]", n, k)});
  }
  TARE_ASSIGN(const tensor::Shape kept, parts.shape("weight.compressed", 1));
  TARE_ASSIGN(const Tensor values, parts.take("weight.compressed", kFloats, kept));
  TARE_ASSIGN(const Tensor mask, parts.take("weight.bitmask", {DType::kU8}, {n, ceil_div(k, 8)}));
  TARE_ASSIGN(const Tensor offsets, parts.take_shaped("weight.row_offsets", {DType::kI64, DType::kI32}, {{n}, {n, 1}}));
  const std::string name = parts.name("weight");
  const tensor::Shape shape{n, k};
  tensor::WeightInfo info{.shape = shape, .form = values.dtype, .stored_bytes = parts.bytes()};
  return out.add(name, std::move(info), [=]() -> Result<tensor::Weight> {
    TARE_TRY(check_finite(values, name));
    TARE_ASSIGN(const std::vector<int64_t> starts, integers(offsets, name + ".row_offsets"));
    const auto element = static_cast<size_t>(tensor::dtype_bits(values.dtype) / 8);
    std::vector<std::byte> dense(static_cast<size_t>(n * k) * element);
    const int64_t stride = ceil_div(k, 8);
    int64_t next = 0;
    for (int64_t row = 0; row < n; ++row) {
      if (starts[static_cast<size_t>(row)] != next) {
        return invalid_input("offset of a sparse row is not where its mask puts it",
                             {.where = fmt::format("{}.row_offsets[{}]", name, row),
                              .expected = fmt::format("{}", next),
                              .found = fmt::format("{}", starts[static_cast<size_t>(row)])});
      }
      for (int64_t i = 0; i < stride * 8; ++i) {
        if (((static_cast<uint8_t>(mask.data.data()[row * stride + i / 8]) >> (i % 8)) & 1) == 0) continue;
        if (i >= k || next == kept[0]) {
          return invalid_input(
              "mask of a sparse tensor does not fit its values",
              {.where = fmt::format("{}, row {}", name, row), .expected = fmt::format("{} values in all", kept[0])});
        }
        std::memcpy(dense.data() + static_cast<size_t>(row * k + i) * element,
                    values.data.data() + static_cast<size_t>(next++) * element, element);
      }
    }
    if (next != kept[0]) {
      return invalid_input(
          "mask of a sparse tensor does not fit its values",
          {.where = name, .expected = fmt::format("{} values", next), .found = fmt::format("{}", kept[0])});
    }
    TARE_ASSIGN(Tensor whole, Tensor::make(values.dtype, shape, Buffer::own(std::move(dense))));
    return tensor::Weight(std::move(whole));
  });
}

}  // namespace tare::checkpoints
