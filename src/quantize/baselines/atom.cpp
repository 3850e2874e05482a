#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "quantize/baselines/baseline.h"
#include "quantize/gptq.h"
#include "quantize/transforms/reorder.h"

namespace tare::quantize {

using model::Site;

namespace {

constexpr float kActivationRange = 0.9f;
constexpr float kWeightRange = 0.85f;
constexpr int64_t kGroup = 128;

// Channels by rising square sum; the last `outliers` stay in 8 bits.
struct Order {
  std::vector<int32_t> channels;
  int64_t outliers = 0;
  int64_t narrow() const { return static_cast<int64_t>(channels.size()) - outliers; }
};

void round_activations(const Order& order, float* x) {
  std::vector<float> sorted;
  sorted.reserve(order.channels.size());
  for (const int32_t c : order.channels) sorted.push_back(x[c]);
  for (int64_t first = 0; first < order.narrow(); first += kGroup) {
    round_signed(sorted.data() + first, std::min(kGroup, order.narrow() - first), 4, kActivationRange);
  }
  round_signed(sorted.data() + order.narrow(), order.outliers, 8, 1.0f);
  for (size_t i = 0; i < sorted.size(); ++i) x[order.channels[i]] = sorted[i];
}

// gram: of the narrow channels, in their order.
Status round_weights(BlockMatrix& m, const Order& order, const Gram& gram, Products& products) {
  const int64_t narrow = order.narrow();
  std::vector<float> sorted;
  sorted.reserve(static_cast<size_t>(m.n * narrow));
  for (int64_t row = 0; row < m.n; ++row) {
    float* w = m.w.data() + row * m.k;
    for (int64_t i = 0; i < narrow; ++i) sorted.push_back(w[order.channels[static_cast<size_t>(i)]]);
    std::vector<float> wide;
    for (int64_t i = narrow; i < m.k; ++i) wide.push_back(w[order.channels[static_cast<size_t>(i)]]);
    round_signed(wide.data(), order.outliers, 8, 1.0f);
    for (int64_t i = narrow; i < m.k; ++i) {
      w[order.channels[static_cast<size_t>(i)]] = wide[static_cast<size_t>(i - narrow)];
    }
  }
  const GridSpec spec{.group_size = kGroup};
  const BlockMatrix shape{.n = m.n, .k = narrow, .scheme = {.grid = spec}};
  const std::vector<float> clip(static_cast<size_t>(m.n * shape.groups()), kWeightRange);
  TARE_ASSIGN(const ChosenGrid grid, ChosenGrid::choose(spec, sorted.data(), m.n, narrow, products.pool(), clip));
  TARE_ASSIGN(const GptqResult solved, gptq(grid, sorted.data(), gram, {.act_order = false}, products));
  for (int64_t row = 0; row < m.n; ++row) {
    for (int64_t i = 0; i < narrow; ++i) {
      m.w[static_cast<size_t>(row * m.k + order.channels[static_cast<size_t>(i)])] =
          grid.decode(row, i, solved.codes[static_cast<size_t>(row * narrow + i)]);
    }
  }
  return {};
}

}  // namespace

Result<Baseline> atom_baseline(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                               const CalibrationData& calibration, const BaselineOptions& options, Products& products) {
  Baseline out{.name = "atom", .scheme = "W4A4KV4", .arch = arch, .kv_bits = options.round ? 4 : 16};
  out.notes.emplace_back(
      "every row has its own weight scales (two rows share them in Atom), and GPTQ does not see the "
      "8-bit channels");
  TARE_ASSIGN(BlockData data, BlockData::start(*source, arch, calibration, {}, products));
  auto weights = std::make_shared<tensor::ModelWeights>();
  weights->config = source->config;
  weights->format = source->format;
  const auto orders = std::make_shared<std::vector<std::array<Order, 4>>>(static_cast<size_t>(arch.layers));
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    TARE_ASSIGN(Block block, Block::load(*source, arch, layer));
    TARE_TRY(data.open(block));
    Block rounded_block = block;
    for (const Site site : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) {
      const int64_t k = block.width(site);
      int64_t m = 0;
      TARE_ASSIGN(const std::vector<float> x, data.inputs(block, site, data.tokens(), &m));
      std::vector<float> squares(static_cast<size_t>(k), 0.0f);
      for (int64_t i = 0; i < m * k; ++i) {
        squares[static_cast<size_t>(i % k)] += x[static_cast<size_t>(i)] * x[static_cast<size_t>(i)];
      }
      Order& order = (*orders)[static_cast<size_t>(layer)][static_cast<size_t>(site)];
      order = {.channels = ascending_order(squares), .outliers = std::min(options.outliers, k / 4)};
      if (!options.round) continue;
      std::vector<float> narrow;
      narrow.reserve(static_cast<size_t>(m * order.narrow()));
      for (int64_t row = 0; row < m; ++row) {
        for (int64_t i = 0; i < order.narrow(); ++i) {
          narrow.push_back(x[static_cast<size_t>(row * k + order.channels[static_cast<size_t>(i)])]);
        }
      }
      Gram gram(order.narrow());
      TARE_TRY(gram.add(narrow.data(), m, products));
      for (const size_t i : block.reading(site)) {
        TARE_TRY(round_weights(rounded_block.matrices[i], order, gram, products));
      }
    }
    TARE_TRY(add_block(rounded_block, *weights));
    TARE_TRY(advance(data, block));
  }
  TARE_TRY(add_rest(source, *weights));
  out.weights = std::move(weights);
  const auto buffer = std::make_shared<std::vector<float>>();
  if (options.round) {
    out.observer.replace = [=](int64_t layer, Site site, const float* x, int64_t m, int64_t k) -> const float* {
      buffer->assign(x, x + m * k);
      const Order& order = (*orders)[static_cast<size_t>(layer)][static_cast<size_t>(site)];
      for (int64_t i = 0; i < m; ++i) round_activations(order, buffer->data() + i * k);
      return buffer->data();
    };
  }
  return out;
}

}  // namespace tare::quantize
