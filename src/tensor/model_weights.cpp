#include "tensor/model_weights.h"

#include <fmt/format.h>

namespace tare::tensor {

Status ModelWeights::add(std::string name, WeightInfo info, Loader loader) {
  const auto [at, inserted] = entries_.emplace(std::move(name), Entry{std::move(info), std::move(loader)});
  if (!inserted) return invalid_input("weight appears twice", {.where = at->first});
  return {};
}

Status ModelWeights::add(std::string name, Weight weight, ActivationSpec activation) {
  WeightInfo info{.shape = shape_of(weight), .activation = activation};
  if (const Tensor* dense = std::get_if<Tensor>(&weight)) {
    info.form = dense->dtype;
    info.stored_bytes = static_cast<int64_t>(dense->data.size());
  } else {
    const auto& quantized = std::get<QuantizedTensor>(weight);
    info.form = quantized.spec();
    info.stored_bytes = quantized->origin.bytes;
  }
  return add(std::move(name), std::move(info), [weight = std::move(weight)]() -> Result<Weight> { return weight; });
}

const WeightInfo* ModelWeights::find(const std::string& name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second.info;
}

std::vector<std::string> ModelWeights::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

Result<Weight> ModelWeights::load(const std::string& name) const {
  const auto at = entries_.find(name);
  if (at == entries_.end()) return invalid_input("weight is missing", {.where = name});
  return at->second.loader();
}

int64_t ModelWeights::stored_bytes() const {
  int64_t total = 0;
  for (const auto& [name, entry] : entries_) total += entry.info.stored_bytes;
  return total;
}

}  // namespace tare::tensor
