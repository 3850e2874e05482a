#include "quantize/baselines/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/weight_plan.h"
#include "numerics/rounding.h"

namespace tare::quantize {

namespace {

struct Row {
  const char* name;
  Result<Baseline> (*make)(std::shared_ptr<const tensor::ModelWeights>, const model::Architecture&,
                           const CalibrationData&, const BaselineOptions&, Products&);
};
constexpr Row kRows[] = {{"quarot", quarot_baseline}, {"atom", atom_baseline}};

}  // namespace

Result<Baseline> make_baseline(const std::string& name, std::shared_ptr<const tensor::ModelWeights> source,
                               const model::Architecture& arch, const CalibrationData& data,
                               const BaselineOptions& options, Products& products) {
  std::string known;
  for (const Row& row : kRows) {
    if (name == row.name) return row.make(std::move(source), arch, data, options, products);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_input("unknown baseline", {.where = "--baseline", .expected = known, .found = "'" + name + "'"});
}

void round_signed(float* x, int64_t n, int bits, float ratio) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  if (most == 0) return;
  const int top = (1 << (bits - 1)) - 1;
  const float scale = most * ratio / static_cast<float>(top);
  for (int64_t i = 0; i < n; ++i) x[i] = scale * static_cast<float>(numerics::round_clamp(x[i] / scale, -top - 1, top));
}

Status advance(BlockData& data, const Block& block) {
  TARE_ASSIGN(const model::BoundLayer bound, bind_block(block, data.products()));
  TARE_ASSIGN(model::AttentionCache cache, data.cache(16));
  data.runner().require(bound);
  TokenStore& stream = data.hidden(BlockData::Stream::kQuantized);
  return data.each([&](const BlockData::Span& span, const model::Batch& batch) -> Status {
    model::LayerRunner& runner = data.runner();
    TARE_TRY(stream.read(span.first, span.count, runner.hidden()));
    runner.attention(bound, 0, batch, cache);
    runner.mlp(bound, 0, span.count);
    return stream.write(span.first, span.count, runner.hidden());
  });
}

Status add_block(const Block& block, tensor::ModelWeights& out) {
  const auto put = [&](const std::string& name, tensor::Shape shape, const std::vector<float>& values) -> Status {
    if (values.empty()) return {};
    return out.add(name, tensor::Tensor::from_f32(std::move(shape), values));
  };
  for (const BlockMatrix& m : block.matrices) {
    TARE_TRY(put(m.name + ".weight", {m.n, m.k}, m.w));
    TARE_TRY(put(m.name + ".bias", {m.n}, m.bias));
  }
  return {};
}

Status add_rest(std::shared_ptr<const tensor::ModelWeights> source, tensor::ModelWeights& out) {
  for (const std::string& name : source->names()) {
    if (out.contains(name)) continue;
    TARE_TRY(out.add(name, *source->find(name), [source, name] { return source->load(name); }));
  }
  return {};
}

}  // namespace tare::quantize
