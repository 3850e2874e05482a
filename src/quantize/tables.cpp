#include <fmt/format.h>

#include "model/weight_plan.h"
#include "numerics/mini_float.h"
#include "quantize/matrix_plan.h"

namespace tare::quantize {

using tensor::DType;
using tensor::QuantizedTensor;
using tensor::Tensor;
using tensor::Weight;
using tensor::WeightInfo;

namespace {

constexpr std::pair<std::string_view, HeadChoice> kHeads[] = {
    {"source", HeadChoice::kSource}, {"bfloat16", HeadChoice::kBF16}, {"float16", HeadChoice::kF16},
    {"float32", HeadChoice::kF32},   {"int8", HeadChoice::kInt8},     {"int8-a8", HeadChoice::kInt8A8},
};

Result<Tensor> as_dtype(const Weight& weight, DType dtype) {
  TARE_ASSIGN(std::vector<float> values, tensor::to_f32(weight));
  const tensor::Shape shape = tensor::shape_of(weight);
  if (dtype == DType::kF32) return Tensor::from_f32(shape, std::move(values));
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (const float v : values) out.push_back(dtype == DType::kF16 ? numerics::f32_to_f16(v) : numerics::f32_to_bf16(v));
  return Tensor::make(dtype, shape, Buffer::own(std::move(out)));
}

std::string form_name(const WeightInfo& info) {
  if (const DType* dtype = std::get_if<DType>(&info.form)) return std::string(tensor::dtype_name(*dtype));
  return describe(std::get<tensor::QuantSpec>(info.form));
}

}  // namespace

Status add_tables(const tensor::ModelWeights& source, const model::Architecture& arch, HeadChoice head,
                  tensor::ModelWeights& out, std::vector<std::string>& substitutions, ThreadPool& pool) {
  TARE_ASSIGN(const bool tied, model::head_is_tied(source, arch));
  if (head == HeadChoice::kSource) return {};
  for (const std::string& name : {std::string(model::kEmbedding), std::string(model::kHead)}) {
    if (!source.contains(name)) continue;
    const bool shared = tied && name == model::kEmbedding;
    TARE_ASSIGN(const Weight weight, source.load(name));
    const WeightInfo& info = *source.find(name);
    if (head == HeadChoice::kInt8 || head == HeadChoice::kInt8A8) {
      const GridSpec grid{.bits = 8, .group_size = 0, .scale_dtype = DType::kF32};
      TARE_ASSIGN(const std::vector<float> w, tensor::to_f32(weight));
      TARE_ASSIGN(QuantizedTensor made, round_to_nearest(grid, w.data(), info.shape[0], info.shape[1], "tare", pool));
      tensor::ActivationSpec activation;
      if (head == HeadChoice::kInt8A8 && (shared || name == model::kHead)) {
        activation.type = tensor::ActivationType::kS8;
      }
      substitutions.push_back(fmt::format("{}: {} becomes {}{}", name, form_name(info), describe(grid),
                                          shared ? ", one table for embedding and head" : ""));
      TARE_TRY(out.add(name, std::move(made), activation));
      continue;
    }
    const DType dtype = head == HeadChoice::kBF16 ? DType::kBF16 : head == HeadChoice::kF16 ? DType::kF16 : DType::kF32;
    if (const DType* same = std::get_if<DType>(&info.form); same && *same == dtype) continue;
    TARE_ASSIGN(Tensor made, as_dtype(weight, dtype));
    substitutions.push_back(fmt::format("{}: {} stored as {}", name, form_name(info), tensor::dtype_name(dtype)));
    TARE_TRY(out.add(name, std::move(made)));
  }
  return {};
}

Result<HeadChoice> parse_head(std::string_view text) {
  std::string known;
  for (const auto& [name, head] : kHeads) {
    if (name == text) return head;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return invalid_input("unknown choice", {.where = "--head", .expected = known, .found = fmt::format("'{}'", text)});
}

std::string_view head_name(HeadChoice head) {
  for (const auto& [name, value] : kHeads) {
    if (value == head) return name;
  }
  return "?";
}

}  // namespace tare::quantize
