#include "checkpoints/dense.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>

#include "checkpoints/kv_scales.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Tensor;

namespace {

// True if any of the elements has all exponent bits set. The loop has no exit, so that it becomes vector code.
template <class Word>
bool any_exponent_full(const std::byte* data, size_t count, Word exponent_mask) {
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    Word bad = 0;
    for (size_t i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
      bad |= static_cast<Word>((word & exponent_mask) == exponent_mask);
    }
    if (bad != 0) return true;
  }
  return false;
}

bool has_non_finite(const Tensor& t) {
  const auto count = static_cast<size_t>(t.count());
  switch (t.dtype) {
    case DType::kF16:
      return any_exponent_full<uint16_t>(t.data.data(), count, 0x7c00);
    case DType::kBF16:
      return any_exponent_full<uint16_t>(t.data.data(), count, 0x7f80);
    case DType::kF32:
      return any_exponent_full<uint32_t>(t.data.data(), count, 0x7f800000u);
    case DType::kF64:
      return any_exponent_full<uint64_t>(t.data.data(), count, 0x7ff0000000000000ull);
    default:
      return false;
  }
}

// Last parts of the names of parameters that models keep dense. A name outside it is not taken for a weight.
constexpr std::array<std::string_view, 10> kDenseParts = {
    "weight",
    "bias",
    "sinks",                    // gpt-oss attention sinks
    "e_score_correction_bias",  // DeepSeek router
    "gate_up_proj",
    "down_proj",  // stacked experts
    "gate_up_proj_bias",
    "down_proj_bias",
    "layer_scalar",
    "logit_scale",
};

bool is_dense_part(std::string_view part) {
  for (const std::string_view known : kDenseParts) {
    if (part == known) return true;
  }
  return false;
}

const KnownLeftover* find_leftover(std::string_view name) {
  for (const KnownLeftover& row : known_leftovers()) {
    if (name.ends_with(row.suffix)) return &row;
  }
  return nullptr;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Match detect(const Source& source) {
  return source.gguf.empty() && !source.has_quantization() ? Match::kYes : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  return take_dense_rest(source, out);
}

}  // namespace

const std::vector<KnownLeftover>& known_leftovers() {
  static const std::vector<KnownLeftover> table = {
      {"rotary_emb.inv_freq", "computed from rope_theta"},
      {"rotary_emb.cos_cached", "computed from rope_theta"},
      {"rotary_emb.sin_cached", "computed from rope_theta"},
      {".attn.masked_bias", "constant of the attention mask"},
      {".workspace", "scratch of a GPU kernel"},
  };
  return table;
}

Status check_finite(const Tensor& t, const std::string& name) {
  if (!has_non_finite(t)) return {};
  int64_t at = 0;
  float value = 0;
  for (; at < t.count(); ++at) {
    TARE_TRY(tensor::to_f32(t, at, 1, &value));
    if ((std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u) break;
  }
  return make_error(ErrorKind::kNotFinite, "weight holds NaN or inf",
                    {.where = name, .expected = "finite numbers", .found = fmt::format("{} at element {}", value, at)});
}

Status add_dense(tensor::ModelWeights& out, const std::string& name, Tensor t) {
  tensor::WeightInfo info{.shape = t.shape, .form = t.dtype, .stored_bytes = static_cast<int64_t>(t.data.size())};
  auto checked = std::make_shared<std::atomic<bool>>(false);
  return out.add(name, std::move(info), [t = std::move(t), name, checked]() -> Result<tensor::Weight> {
    if (!checked->load(std::memory_order_acquire)) {
      TARE_TRY(check_finite(t, name));
      checked->store(true, std::memory_order_release);
    }
    return tensor::Weight(t);
  });
}

Status take_dense_rest(Source& source, tensor::ModelWeights& out) {
  TARE_TRY(take_kv_scales(source, out));
  for (const std::string& name : source.tensors.remaining()) {
    if (const KnownLeftover* leftover = find_leftover(name)) {
      TARE_TRY(source.tensors.take(name));
      source.notes.push_back(fmt::format("left out {}: {}", name, leftover->why));
      continue;
    }
    const Tensor& t = *source.tensors.find(name);
    if (!is_dense_part(last_part(name)) || !is_float(t.dtype)) {
      return invalid_input(
          "tensor is no part of this format",
          {.where = fmt::format("{}: {}", source.tensors.file_of(name), name),
           .expected = source.has_quantization() ? "only the tensors that " + source.quantization_where + " implies"
                                                 : "dense weights, since no configuration names a quantization",
           .found = fmt::format("{} {}", tensor::dtype_name(t.dtype), tensor::shape_text(t.shape))});
    }
    TARE_ASSIGN(Tensor taken, source.tensors.take(name));
    TARE_TRY(add_dense(out, name, std::move(taken)));
  }
  return {};
}

CheckpointFormat dense_format() {
  return {
      .name = "safetensors",
      .aliases = {"dense", "hf", "none"},
      .activation_dtypes = {"float32", "float16", "bfloat16"},
      .reads = "dense f32, f16 and bf16 weights of a Hugging Face directory",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
