#include "plugin/algorithm_adapter.h"

#include <fmt/format.h>

#include <memory>

#include "checkpoints/online.h"
#include "plugin/affine_abi.h"
#include "plugin/plugins.h"

namespace tare::plugin {

Status quantize_with(const TareAlgorithm& algorithm, const TareAlgorithmOptions& options,
                     tensor::ModelWeights& weights) {
  const auto original = std::make_shared<const tensor::ModelWeights>(weights);
  int64_t quantized = 0;
  std::vector<std::string> kept;
  for (const std::string& name : original->names()) {
    const tensor::WeightInfo& before = *original->find(name);
    if (!checkpoints::is_linear_weight(name, before) || !std::holds_alternative<tensor::DType>(before.form)) continue;
    TareAffineInfo info{.struct_bytes = sizeof(TareAffineInfo), .n = before.shape[0], .k = before.shape[1]};
    ErrorText error;
    const int answer = algorithm.plan(name.c_str(), &options, &info, error.c());
    if (answer == TARE_NONE) {
      kept.push_back(name);
      continue;
    }
    if (answer != TARE_QUANTIZE) {
      return invalid_input(fmt::format("plugin algorithm {} refused a matrix", algorithm.name),
                           {.where = name, .found = error.text()});
    }
    if (info.n != before.shape[0] || info.k != before.shape[1]) {
      return invalid_input(fmt::format("plugin algorithm {} changed the shape of a matrix", algorithm.name),
                           {.where = name,
                            .expected = tensor::shape_text(before.shape),
                            .found = fmt::format("[{}, {}]", info.n, info.k)});
    }
    TARE_TRY(check_info(info, name));
    weights.erase(name);
    tensor::WeightInfo after{.shape = before.shape, .form = spec_of(info), .stored_bytes = stored_bytes(info)};
    TARE_TRY(weights.add(name, std::move(after), [original, name, info, &algorithm]() -> Result<tensor::Weight> {
      TARE_ASSIGN(const tensor::Weight weight, original->load(name));
      TARE_ASSIGN(const std::vector<float> values, tensor::to_f32(weight));
      TARE_ASSIGN(tensor::QuantizedTensor made,
                  make_affine(info, algorithm.name, name, [&](TareAffineData* data, TareError* why) {
                    return algorithm.quantize(name.c_str(), values.data(), &info, data, why);
                  }));
      return tensor::Weight(std::move(made));
    }));
    ++quantized;
  }
  if (quantized == 0) {
    return invalid_input(fmt::format("plugin algorithm {} quantized nothing", algorithm.name),
                         {.found = fmt::format("{} matrices left as they are", kept.size())});
  }
  if (!kept.empty()) {
    weights.notes.push_back(fmt::format("{} leaves {} matrices as they are: {}{}", algorithm.name, kept.size(),
                                        kept.front(), kept.size() > 1 ? ", ..." : ""));
  }
  return {};
}

checkpoints::CheckpointFormat adapt_algorithm(const TareAlgorithm& algorithm) {
  checkpoints::CheckpointFormat out;
  out.name = algorithm.name;
  out.min_capability = -1;
  out.activation_dtypes = {"float32"};
  out.reads = algorithm.summary;
  out.online = true;
  out.quantize = [&algorithm](tensor::ModelWeights& weights) {
    return quantize_with(algorithm, {.struct_bytes = sizeof(TareAlgorithmOptions)}, weights);
  };
  return out;
}

}  // namespace tare::plugin
