#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantize/baselines/baseline.h"
#include "quantize/gptq.h"
#include "quantize/transforms/clip.h"
#include "quantize/transforms/hadamard.h"
#include "quantize/transforms/rotate.h"

namespace tare::quantize {

using model::Site;

namespace {

constexpr float kActivationRange = 0.9f;
constexpr double kClipNorm = 2.4;

// What turns while the model runs.
struct Turns {
  HadamardTransform head;                  // queries and keys
  std::optional<HadamardTransform> heads;  // across heads, before o_proj
  HadamardTransform down;
};

// x [heads * d] seen as [heads, d]: the matrix acts on the first axis.
void turn_across_heads(const HadamardTransform& h, float* x, int64_t d) {
  std::vector<double> column(static_cast<size_t>(h.n()));
  for (int64_t c = 0; c < d; ++c) {
    for (int64_t i = 0; i < h.n(); ++i) column[static_cast<size_t>(i)] = static_cast<double>(x[i * d + c]);
    h.apply(column.data());
    for (int64_t i = 0; i < h.n(); ++i) x[i * d + c] = static_cast<float>(column[static_cast<size_t>(i)]);
  }
}

// Rows of x [m, k] as the site turns them: activations and, being x Q and w Q, the rows of the weights behind.
void turn(const Turns& turns, Site site, float* x, int64_t m, int64_t k, int64_t head_dim, ThreadPool& pool) {
  if (site == Site::kDown) turns.down.apply_to_rows(x, m, k, pool);
  if (site == Site::kOut && turns.heads) {
    pool.parallel_for(m, 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) turn_across_heads(*turns.heads, x + i * k, head_dim);
    });
  }
}

// Per row, the share of the range of least sum |error|^2.4, 1 down to 0.8.
Status search_ranges(BlockMatrix& m, ThreadPool& pool) {
  const auto rows = static_cast<size_t>(m.n);
  std::vector<float> best(rows, 1.0f);
  std::vector<double> least(rows, 0.0);
  std::vector<float> back(m.w.size());
  for (const float ratio : clip_ratios(40, 0.8f)) {
    m.clip.assign(rows, ratio);
    TARE_TRY(round_matrix(m, m.w.data(), back.data(), pool));
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (size_t i = row * static_cast<size_t>(m.k); i < (row + 1) * static_cast<size_t>(m.k); ++i) {
        sum += std::pow(static_cast<double>(std::abs(m.w[i] - back[i])), kClipNorm);
      }
      if (ratio == 1.0f || sum < least[row]) {
        least[row] = sum;
        best[row] = ratio;
      }
    }
  }
  m.clip = std::move(best);
  return {};
}

Status round_weights(BlockMatrix& m, const Gram& gram, Products& products) {
  m.scheme = {.grid = {.group_size = 0}};
  TARE_TRY(search_ranges(m, products.pool()));
  TARE_ASSIGN(const ChosenGrid grid, ChosenGrid::choose(m.scheme.grid, m.w.data(), m.n, m.k, products.pool(), m.clip));
  TARE_ASSIGN(const GptqResult solved, gptq(grid, m.w.data(), gram, {}, products));
  for (int64_t i = 0; i < m.n * m.k; ++i) {
    m.w[static_cast<size_t>(i)] = grid.decode(i / m.k, i % m.k, solved.codes[static_cast<size_t>(i)]);
  }
  return {};
}

}  // namespace

Result<Baseline> quarot_baseline(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                                 const CalibrationData& calibration, const BaselineOptions& options,
                                 Products& products) {
  Baseline out{.name = "quarot", .scheme = "W4A4KV4", .arch = arch, .kv_bits = options.round ? 4 : 16};
  TransformContext context{.arch = &out.arch, .products = &products, .settings = {{"rotate.random", 1}}};
  TransformReport report;
  TARE_ASSIGN(source, fold_norms(std::move(source), out.arch, context, report));
  TARE_ASSIGN(source, rotate_stream(std::move(source), out.arch, context, report));
  out.notes = report.notes;
  TARE_ASSIGN(HadamardTransform head, HadamardTransform::make(arch.head_dim));
  TARE_ASSIGN(HadamardTransform down, HadamardTransform::make(arch.intermediate));
  const auto turns = std::make_shared<Turns>(Turns{.head = std::move(head), .down = std::move(down)});
  if (auto heads = HadamardTransform::make(arch.heads); heads.ok()) {
    turns->heads = std::move(*heads);
  } else {
    out.notes.push_back(fmt::format("no Hadamard matrix across {} heads: each head turns alone", arch.heads));
  }
  out.notes.push_back("keys and values use tare's 4-bit cache (whole range, not 0.95 of it)");

  ThreadPool* pool = &products.pool();
  const int64_t d = arch.head_dim;
  TARE_ASSIGN(BlockData data, BlockData::start(*source, out.arch, calibration, {}, products));
  auto weights = std::make_shared<tensor::ModelWeights>();
  weights->config = source->config;
  weights->format = source->format;
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    TARE_ASSIGN(Block block, Block::load(*source, out.arch, layer));
    TARE_ASSIGN([[maybe_unused]] const TransformReport turned, rotate_heads(block, data, context));
    TARE_TRY(data.open(block));
    Block rounded_block = block;
    for (const Site site : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) {
      Gram gram(block.width(site));
      if (options.round) {
        int64_t m = 0;
        TARE_ASSIGN(std::vector<float> x, data.inputs(block, site, data.tokens(), &m));
        turn(*turns, site, x.data(), m, block.width(site), d, *pool);
        TARE_TRY(gram.add(x.data(), m, products));
      }
      for (const size_t i : block.reading(site)) {
        BlockMatrix& matrix = rounded_block.matrices[i];
        turn(*turns, site, matrix.w.data(), matrix.n, matrix.k, d, *pool);
        if (options.round) TARE_TRY(round_weights(matrix, gram, products));
      }
    }
    TARE_TRY(add_block(rounded_block, *weights));
    TARE_TRY(advance(data, block));
  }
  TARE_TRY(add_rest(source, *weights));
  out.weights = std::move(weights);

  const auto buffer = std::make_shared<std::vector<float>>();
  const bool round = options.round;
  out.observer.replace = [=](int64_t, Site site, const float* x, int64_t m, int64_t k) -> const float* {
    buffer->assign(x, x + m * k);
    turn(*turns, site, buffer->data(), m, k, d, *pool);
    if (round) {
      for (int64_t i = 0; i < m; ++i) round_signed(buffer->data() + i * k, k, 4, kActivationRange);
    }
    return buffer->data();
  };
  out.observer.change_keys = [=, q_size = arch.q_size(), kv_size = arch.kv_size()](
                                 int64_t, float* q, int64_t q_stride, float* k, int64_t k_stride, int64_t m) {
    for (int64_t i = 0; i < m; ++i) {
      turns->head.apply_to_rows(q + i * q_stride, 1, q_size, *pool);
      turns->head.apply_to_rows(k + i * k_stride, 1, kv_size, *pool);
    }
  };
  return out;
}

}  // namespace tare::quantize
