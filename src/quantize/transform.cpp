#include "quantize/transform.h"

#include "model/release.h"

namespace tare::quantize {

Result<std::shared_ptr<tensor::ModelWeights>> with_changes(std::shared_ptr<const tensor::ModelWeights> source,
                                                           const std::map<std::string, WeightChange>& changed) {
  auto out = std::make_shared<tensor::ModelWeights>();
  out->config = source->config;
  out->kv = source->kv;
  out->format = source->format;
  out->notes = source->notes;
  for (const std::string& name : source->names()) {
    tensor::WeightInfo info = *source->find(name);
    const auto at = changed.find(name);
    if (at == changed.end()) {
      TARE_TRY(out->add(name, std::move(info), [source, name] { return source->load(name); }));
      continue;
    }
    const tensor::Shape shape = info.shape;
    info.form = tensor::DType::kF32;
    TARE_ASSIGN(const int64_t count, tensor::element_count(shape));
    info.stored_bytes = count * 4;
    const auto load = [source, name, shape, change = at->second]() -> Result<tensor::Weight> {
      TARE_ASSIGN(const tensor::Weight weight, source->load(name));
      TARE_ASSIGN(std::vector<float> values, tensor::to_f32(weight));
      model::release_pages(weight);
      const int64_t columns = shape.empty() ? 1 : shape.back();
      const int64_t rows = columns == 0 ? 0 : static_cast<int64_t>(values.size()) / columns;
      TARE_TRY(change(name, values, rows, columns));
      return tensor::Weight(tensor::Tensor::from_f32(shape, std::move(values)));
    };
    TARE_TRY(out->add(name, std::move(info), load));
  }
  return out;
}

}  // namespace tare::quantize
