#include "quantize/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/interrupt.h"
#include "model/transformer.h"
#include "model/weight_plan.h"

namespace tare::quantize {

Result<CalibrationData> calibration_windows(const std::vector<int32_t>& tokens, int64_t samples, int64_t length) {
  if (samples < 1 || length < 1) {
    return invalid_input("calibration needs tokens", {.where = "--samples, --sequence-length"});
  }
  const int64_t windows = std::min(samples, static_cast<int64_t>(tokens.size()) / length);
  if (windows == 0) {
    return invalid_input("calibration data is shorter than one window",
                         {.where = "--calibration",
                          .expected = fmt::format("at least {} tokens", length),
                          .found = fmt::format("{}", tokens.size()),
                          .hint = "lower --sequence-length or give more data"});
  }
  CalibrationData out{.tokens = windows * length};
  for (int64_t w = 0; w < windows; ++w) {
    out.sequences.emplace_back(tokens.begin() + w * length, tokens.begin() + (w + 1) * length);
  }
  return out;
}

Result<GramTable> collect_grams(const tensor::ModelWeights& source, const model::Architecture& arch,
                                const CalibrationData& data, Products& products, MemoryBudget* budget,
                                const std::function<void(int64_t done, int64_t total)>& progress) {
  if (data.tokens == 0) return invalid_input("calibration saw no tokens", {.where = "--calibration"});
  ThreadPool& pool = products.pool();
  int64_t longest = 0;
  for (const auto& sequence : data.sequences) longest = std::max(longest, static_cast<int64_t>(sequence.size()));

  // [layer][site]
  const int64_t widths[] = {arch.hidden, arch.q_size(), arch.hidden, arch.intermediate};
  int64_t bytes = 0;
  for (const int64_t k : widths) bytes += k * k * 4 * arch.layers;
  MemoryBudget::Reservation held;
  if (budget) {
    TARE_ASSIGN(held, budget->reserve("calibration statistics", static_cast<uint64_t>(bytes)));
  }
  std::vector<std::vector<std::shared_ptr<Gram>>> grams(static_cast<size_t>(arch.layers));
  for (auto& sites : grams) {
    for (const int64_t k : widths) sites.push_back(std::make_shared<Gram>(k));
  }

  const int64_t batch_tokens = std::min<int64_t>(longest, 512);
  model::Transformer::Options options{.bind = {.registry = products.registry(), .caps = products.caps()},
                                      .max_batch_tokens = batch_tokens,
                                      .context = longest};
  TARE_ASSIGN(model::Transformer transformer, model::Transformer::load(source, arch, options, pool));
  model::AttentionCache::Options cache_options{.num_blocks = ceil_div(longest, 16),
                                               .max_batch_tokens = batch_tokens,
                                               .context = longest,
                                               .caps = products.caps()};
  TARE_ASSIGN(cache_options.format, kvcache::parse_kv_format("f32", {}, kvcache::KvScaleRule::kCheckpoint));
  TARE_ASSIGN(model::AttentionCache cache, model::AttentionCache::make(arch, cache_options, pool.size()));
  std::vector<int32_t> blocks(static_cast<size_t>(cache_options.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);

  Status failed;
  model::Observer observer;
  observer.input = [&](int64_t layer, model::Site site, const float* x, int64_t m, int64_t) {
    if (site == model::Site::kHead || !failed.ok()) return;
    failed = grams[static_cast<size_t>(layer)][static_cast<size_t>(site)]->add(x, m, products);
  };
  int64_t done = 0;
  for (const std::vector<int32_t>& sequence : data.sequences) {
    TARE_TRY(check_interrupt("calibration"));
    const auto length = static_cast<int64_t>(sequence.size());
    for (int64_t first = 0; first < length; first += batch_tokens) {
      const int64_t count = std::min(batch_tokens, length - first);
      const model::SequenceSlice slice{.block_table = blocks, .first_position = first, .count = count};
      const model::Batch batch{
          .tokens = {sequence.data() + first, static_cast<size_t>(count)}, .sequences = {&slice, 1}, .logit_rows = {}};
      TARE_TRY(transformer.forward(batch, cache, nullptr, &observer));
      if (!failed.ok()) return std::move(failed).error();
    }
    if (progress) progress(++done, static_cast<int64_t>(data.sequences.size()));
  }
  GramTable out;
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const model::LayerLinears linears = model::layer_linears(arch, layer);
    const auto& sites = grams[static_cast<size_t>(layer)];
    const std::vector<model::LayerLinear>* groups[] = {&linears.qkv, &linears.o, &linears.gate_up, &linears.down};
    for (size_t site = 0; site < 4; ++site) {
      for (const model::LayerLinear& linear : *groups[site]) out[linear.name] = sites[site];
    }
  }
  return out;
}

}  // namespace tare::quantize
