#include "checkpoints/mxfp4.h"

#include <fmt/format.h>

#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

constexpr int64_t kGroup = 32;

// "....experts.gate_up_proj_blocks" [E, N, K/32, 16] -> one matrix an expert.
Status read_stack(Source& source, const std::string& stem, tensor::ModelWeights& out) {
  const std::string blocks_name = stem + "_blocks";
  const std::string scales_name = stem + "_scales";
  TARE_ASSIGN(const Tensor blocks, source.tensors.take(blocks_name));
  TARE_TRY(expect_rank(blocks, blocks_name, 4));
  const int64_t experts = blocks.shape[0], n = blocks.shape[1], groups = blocks.shape[2];
  TARE_TRY(expect(blocks, blocks_name, DType::kU8, {experts, n, groups, kGroup / 2}));
  TARE_ASSIGN(const Tensor scales, source.tensors.take(scales_name));
  TARE_TRY(expect_one_of(scales, scales_name, {DType::kU8, DType::kF8E8M0}, {experts, n, groups}));
  if (experts < 1 || n < 1 || groups < 1) {
    return invalid_input("empty stack of experts", {.where = blocks_name, .found = tensor::shape_text(blocks.shape)});
  }
  const int64_t k = groups * kGroup;
  const std::string parent(parent_module(stem));
  const std::string part(last_part(stem));
  const auto code_bytes = static_cast<size_t>(n * k / 2);
  const auto scale_bytes = static_cast<size_t>(n * groups);
  for (int64_t e = 0; e < experts; ++e) {
    const Buffer codes = blocks.data.slice(static_cast<size_t>(e) * code_bytes, code_bytes);
    const Buffer scale = scales.data.slice(static_cast<size_t>(e) * scale_bytes, scale_bytes);
    const auto bytes = static_cast<int64_t>(code_bytes + scale_bytes);
    const tensor::QuantSpec spec{.kind = tensor::CodeKind::kE2M1, .bits = 4, .group_size = kGroup};
    TARE_TRY(add_quantized(out, fmt::format("{}.{}.{}.weight", parent, e, part), {n, k}, spec, {}, bytes,
                           [=]() -> Result<tensor::QuantizedTensor> {
                             tensor::QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kE2M1, .bits = 4};
                             f.codes = codes;  // the low nibble is the even element, as here
                             TARE_ASSIGN(f.a, Grid::make(GridType::kE8M0, n, k, 1, kGroup, scale));
                             f.origin = {.format = "mxfp4", .bytes = bytes};
                             return tensor::QuantizedTensor::make(std::move(f));
                           }));
  }
  return {};
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && *method == json::value("mxfp4") ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  constexpr std::string_view kSuffix = "_blocks";
  size_t count = 0;
  for (const std::string& name : source.tensors.names()) {
    if (!name.ends_with(kSuffix)) continue;
    TARE_TRY(read_stack(source, name.substr(0, name.size() - kSuffix.size()), out));
    ++count;
  }
  if (count == 0) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "MXFP4 experts (_blocks)", .found = "none"});
  }
  source.notes.push_back("gate_up_proj of each expert: even rows are the gate, odd rows up");
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat mxfp4_format() {
  return {
      .name = "mxfp4",
      .activation_dtypes = {"bfloat16"},
      .reads = "experts of gpt-oss: e2m1 with a power of two for each 32",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
