#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoints/affine.h"
#include "checkpoints/awq.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Tensor;

namespace {

// Channel of nibble i of a word.
constexpr std::array<int, 8> kChannelOf = {0, 2, 4, 6, 1, 3, 5, 7};

// Rows of N numbers to words of eight channels each: [rows, N/8].
std::vector<uint32_t> interleave(const std::vector<uint8_t>& in, int64_t rows, int64_t n) {
  std::vector<uint32_t> out(static_cast<size_t>(rows * n / 8));
  for (size_t w = 0; w < out.size(); ++w) {
    uint32_t word = 0;
    for (size_t i = 0; i < 8; ++i) word |= uint32_t{in[w * 8 + static_cast<size_t>(kChannelOf[i])]} << 4 * i;
    out[w] = word;
  }
  return out;
}

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses) {
  const std::string where = matrix.name();
  if (is_embedding(matrix.module) || matrix.module == "lm_head") {
    return store_dense(matrix, "a quantized embedding table or head", losses);
  }
  TARE_TRY(lose_activation(matrix, losses));
  const int64_t k = matrix.weight->k();
  const int64_t group = k % 128 == 0 ? 128 : k % 64 == 0 ? 64 : 32;
  TARE_ASSIGN(AffineMatrix m, affine_or_rounded(*matrix.weight, where, 4, group, losses));
  if (m.n % 8 != 0 || k % 8 != 0)
    return losses.refuse(where, fmt::format("[{}, {}]: both must be multiples of 8", m.n, k));
  std::string why;
  if (k % m.group != 0) why = fmt::format("groups of {} over {} columns: the last one is short", m.group, k);
  if (!m.group_of_k.empty()) why = "an order of groups (act-order)";
  const auto outside = [](int32_t z) { return z < 0 || z > 15; };
  if (m.zero ? outside(*m.zero) : std::any_of(m.zeros.begin(), m.zeros.end(), outside)) {
    why = "zero points outside 0..15";
  }
  if (m.bits != 4) why = fmt::format("{} bits, where AWQ has 4", m.bits);
  if (!why.empty()) {
    TARE_ASSIGN(m, round_again(*matrix.weight, where, 4, group, why, losses));
  }
  const DType dtype = m.scale_dtype == DType::kBF16 ? DType::kBF16 : DType::kF16;
  TARE_ASSIGN(const std::vector<uint16_t> scales, half_scales(m, dtype, where, losses));
  std::vector<uint8_t> zeros(static_cast<size_t>(m.groups * m.n));
  for (int64_t g = 0; g < m.groups; ++g) {
    for (int64_t n = 0; n < m.n; ++n) zeros[static_cast<size_t>(g * m.n + n)] = static_cast<uint8_t>(m.zero_at(n, g));
  }
  StoredMatrix out;
  const auto add = [&](std::string_view suffix, Result<Tensor> tensor) -> Status {
    return out.add(matrix, suffix, std::move(tensor));
  };
  TARE_TRY(add("qweight",
               Tensor::make(DType::kI32, {k, m.n / 8}, Buffer::own(interleave(transposed(m.codes, m.n, k), k, m.n)))));
  TARE_TRY(
      add("qzeros", Tensor::make(DType::kI32, {m.groups, m.n / 8}, Buffer::own(interleave(zeros, m.groups, m.n)))));
  TARE_TRY(add("scales", Tensor::make(dtype, {m.groups, m.n}, Buffer::own(transposed(scales, m.n, m.groups)))));
  out.scheme = {{"group_size", m.groups == 1 ? int64_t{-1} : m.group}, {"columns", k}};
  return out;
}

// One group size for the whole file; "all columns" fits any that is at least as large.
Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   const WriteRequest&) {
  int64_t group = -1;
  std::string first;
  for (const WrittenModule& module : modules) {
    const int64_t own = module.scheme.at("group_size").to_number<int64_t>();
    if (own == -1) continue;
    if (group == -1) {
      group = own;
      first = module.module;
    } else if (own != group) {
      return unsupported("AWQ has one group size for the whole file",
                         {.where = module.module + ".weight",
                          .expected = fmt::format("{} as in {}", group, first),
                          .found = fmt::format("{}", own),
                          .hint = "write it as gptq_v2, compressed-tensors or tare"});
    }
  }
  for (const WrittenModule& module : modules) {
    const bool whole = module.scheme.at("group_size") == json::value(int64_t{-1});
    const int64_t columns = module.scheme.at("columns").to_number<int64_t>();
    if (!whole || group == -1 || columns == group) continue;
    return unsupported("AWQ has one group size for the whole file",
                       {.where = module.module + ".weight",
                        .expected = fmt::format("{} as in {}", group, first),
                        .found = fmt::format("one group of {}", columns),
                        .hint = "write it as gptq_v2, compressed-tensors or tare"});
  }
  json::array skipped;
  for (const std::string& name : dense) {
    if (!is_embedding(name) && name != "lm_head") skipped.emplace_back(name);
  }
  json::object out{{"quant_method", "awq"}, {"bits", 4},         {"group_size", group},
                   {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", nullptr}};
  if (!skipped.empty()) out["modules_to_not_convert"] = std::move(skipped);
  return out;
}

}  // namespace

CheckpointWriter awq_writer() {
  return {.name = "awq",
          .writes = "4 bit gemm: groups in order, zero points 0..15, one group size",
          .store = store,
          .configuration = configuration};
}

}  // namespace tare::checkpoints
