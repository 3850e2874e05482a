#include "eval/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace tare::eval {

namespace {

constexpr double kEnough = 0.5;  // a layer with more than this share is the culprit
// Restoring layers may cost a little where errors cancelled each other; this much means that they do not belong
// together.
constexpr double kUnrelated = 3;

// Some layers of a model replaced by the reference's until the end of the scope.
class Restored {
 public:
  Restored(model::Transformer& model, const model::Transformer& reference) : model_(model), reference_(reference) {}
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
  ~Restored() {
    // The model's own layers fit it, so this cannot fail.
    for (auto& [index, layer] : own_)
      static_cast<void>(model_.set_layer(index, model_.architecture(), std::move(layer)));
  }

  Status restore(int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      std::shared_ptr<const model::BoundLayer> own = model_.layer(i);
      TARE_TRY(model_.set_layer(i, reference_.architecture(), reference_.layer(i)));
      own_.emplace_back(i, std::move(own));
    }
    return {};
  }

 private:
  model::Transformer& model_;
  const model::Transformer& reference_;
  std::vector<std::pair<int64_t, std::shared_ptr<const model::BoundLayer>>> own_;
};

}  // namespace

Result<Blame> blame_layers(model::Transformer& model, runtime::Scorer& scorer, const model::Transformer& reference,
                           runtime::Scorer& reference_scorer, std::span<const int32_t> tokens, const Protocol& protocol,
                           int64_t max_evaluations, ThreadPool& pool,
                           const std::function<void(int64_t evaluations)>& progress) {
  Blame out;
  const auto measure = [&](int64_t first, int64_t count) -> Result<double> {
    Restored restored(model, reference);
    TARE_TRY(restored.restore(first, count));
    TARE_ASSIGN(const Divergence d, divergence(scorer, reference_scorer, tokens, protocol, pool));
    ++out.evaluations;
    if (progress) progress(out.evaluations);
    return d.kl_mean;
  };
  // A layer of its own put back says whether the shapes agree.
  TARE_TRY(model.set_layer(0, reference.architecture(), model.layer(0)));
  const int64_t layers = model.architecture().layers;
  TARE_ASSIGN(out.kl_mean, measure(0, 0));
  out.groups.push_back({.first = 0, .count = layers, .kl_share = out.kl_mean > 0 ? 1.0 : 0.0, .measured = true});

  const auto by_share = [](const BlamedLayers& a, const BlamedLayers& b) {
    return a.kl_share != b.kl_share ? a.kl_share > b.kl_share : a.first < b.first;
  };
  while (out.kl_mean > 0 && out.evaluations < max_evaluations) {
    std::sort(out.groups.begin(), out.groups.end(), by_share);
    if (out.groups.front().count == 1 && out.groups.front().kl_share > kEnough) break;
    const auto worst = std::find_if(out.groups.begin(), out.groups.end(), [](const auto& g) { return g.count > 1; });
    if (worst == out.groups.end()) break;
    const BlamedLayers whole = *worst;
    const int64_t half = whole.count / 2;
    TARE_ASSIGN(const double without, measure(whole.first, half));
    if (without > kUnrelated * out.kl_mean) {
      return unsupported("layers of the reference do not fit into this model",
                         {.where = fmt::format("layers {} to {}", whole.first, whole.first + half - 1),
                          .expected = fmt::format("a KL below {:.4g} nats with them restored", out.kl_mean),
                          .found = fmt::format("{:.4g}", without),
                          .hint = "a rotated model has another residual stream: compare before rotation"});
    }
    const double share = (out.kl_mean - without) / out.kl_mean;
    *worst = {.first = whole.first, .count = half, .kl_share = share, .measured = true};
    out.groups.push_back({.first = whole.first + half,
                          .count = whole.count - half,
                          .kl_share = whole.kl_share - share,
                          .measured = false});
  }
  std::sort(out.groups.begin(), out.groups.end(), by_share);
  return out;
}

}  // namespace tare::eval
