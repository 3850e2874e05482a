#include "quantize/sensitivity.h"

#include <algorithm>
#include <numeric>

#include "base/interrupt.h"
#include "model/weight_plan.h"
#include "numerics/softmax.h"

namespace tare::quantize {

using model::Site;

namespace {

constexpr int64_t kLogitRows = 32;  // whose logits stand in memory at a time

model::LinearGroup& group_at(model::BoundLayer& layer, Site site) {
  return site == Site::kQkv      ? layer.qkv
         : site == Site::kOut    ? layer.o
         : site == Site::kGateUp ? layer.gate_up
                                 : layer.down;
}

}  // namespace

Result<Probes> Probes::start(const tensor::ModelWeights& source, const model::Architecture& arch,
                             const CalibrationData& data, const ProbeOptions& options, Products& products) {
  Probes out;
  out.arch_ = &arch;
  out.products_ = &products;
  out.grid_ = options.grid;
  out.tokens_ = std::make_unique<CalibrationData>();
  for (const std::vector<int32_t>& sequence : data.sequences) {
    const int64_t left = std::min(options.tokens - out.tokens_->tokens, options.sequence_length);
    const auto count = std::min<int64_t>(left, static_cast<int64_t>(sequence.size()));
    if (count <= 0) continue;
    out.tokens_->sequences.emplace_back(sequence.begin(), sequence.begin() + count);
    out.tokens_->tokens += count;
  }
  TARE_ASSIGN(BlockData started,
              BlockData::start(source, arch, *out.tokens_,
                               {.spill_folder = options.spill_folder, .budget = options.budget}, products));
  out.data_ = std::make_unique<BlockData>(std::move(started));
  return out;
}

Status Probes::run(Block& block) {
  TARE_TRY(data_->open(block, false));
  TARE_ASSIGN(model::BoundLayer bound, bind_block(block, *products_));
  TARE_ASSIGN(model::AttentionCache cache, data_->cache(16));
  model::LayerRunner& runner = data_->runner();
  runner.require(bound);
  const size_t before = differences_.size();
  for (size_t i = 0; i < block.matrices.size(); ++i) {
    TARE_ASSIGN(TokenStore store, data_->store(arch_->hidden));
    differences_.push_back(std::move(store));
  }
  std::vector<float> in, clean, difference;
  return data_->each([&](const BlockData::Span& span, const model::Batch& batch) -> Status {
    const auto count = static_cast<size_t>(span.count * arch_->hidden);
    in.resize(count);
    difference.resize(count);
    const auto pass = [&] {
      runner.attention(bound, 0, batch, cache);
      runner.mlp(bound, 0, span.count);
    };
    const auto keep = [&](TokenStore& store) {
      for (size_t i = 0; i < count; ++i) difference[i] = runner.hidden()[i] - clean[i];
      return store.write(span.first, span.count, difference.data());
    };
    TARE_TRY(data_->hidden(BlockData::Stream::kQuantized).read(span.first, span.count, in.data()));
    std::copy_n(in.data(), count, runner.hidden());
    pass();
    clean.assign(runner.hidden(), runner.hidden() + count);
    for (size_t p = 0; p < before; ++p) {
      TARE_TRY(check_interrupt("quantize"));
      TARE_TRY(differences_[p].read(span.first, span.count, difference.data()));
      for (size_t i = 0; i < count; ++i) runner.hidden()[i] = in[i] + difference[i];
      pass();
      TARE_TRY(keep(differences_[p]));
    }
    for (size_t m = 0; m < block.matrices.size(); ++m) {
      TARE_TRY(check_interrupt("quantize"));
      BlockMatrix& matrix = block.matrices[m];
      MatrixScheme coarse;
      coarse.grid = grid_;
      BlockMatrix rough{.name = matrix.name, .site = matrix.site, .n = matrix.n, .k = matrix.k, .scheme = coarse};
      rough.w.resize(matrix.w.size());
      TARE_TRY(round_matrix(rough, matrix.w.data(), rough.w.data(), products_->pool()));
      model::LinearGroup& group = group_at(bound, matrix.site);
      matrix.w.swap(rough.w);
      auto swapped = bind_site(block, matrix.site, *products_);
      matrix.w.swap(rough.w);
      if (!swapped.ok()) return swapped.error();
      std::swap(group, *swapped);
      std::copy_n(in.data(), count, runner.hidden());
      pass();
      std::swap(group, *swapped);
      TARE_TRY(keep(differences_[before + m]));
    }
    return data_->hidden(BlockData::Stream::kQuantized).write(span.first, span.count, clean.data());
  });
}

Result<std::vector<double>> Probes::finish(const tensor::ModelWeights& source) {
  TARE_ASSIGN(const bool tied, model::head_is_tied(source, *arch_));
  const std::string name = tied ? model::kEmbedding : model::kHead;
  model::Linear linear{.name = "lm_head", .role = {.kind = "lm_head"}};
  TARE_ASSIGN(tensor::Weight table, source.load(name));
  linear.parts.push_back(std::move(table));
  std::vector<model::Linear> heads;
  heads.push_back(std::move(linear));
  TARE_ASSIGN(const model::LinearGroup head,
              model::bind_group(std::move(heads), {.registry = products_->registry(), .caps = products_->caps()},
                                products_->pool()));
  TARE_ASSIGN(const tensor::Weight norm_weight, source.load(model::kFinalNorm));
  TARE_ASSIGN(const std::vector<float> norm, tensor::to_f32(norm_weight));
  model::LayerRunner& runner = data_->runner();
  runner.require(head);

  const auto vocab = static_cast<size_t>(arch_->vocab_size);
  std::vector<float> clean, difference, reference, logits;
  std::vector<double> sums(differences_.size());
  for (int64_t first = 0; first < data_->tokens(); first += kLogitRows) {
    TARE_TRY(check_interrupt("quantize"));
    const int64_t rows = std::min(kLogitRows, data_->tokens() - first);
    const auto count = static_cast<size_t>(rows * arch_->hidden);
    std::vector<int32_t> order(static_cast<size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    clean.resize(count);
    difference.resize(count);
    TARE_TRY(data_->hidden(BlockData::Stream::kQuantized).read(first, rows, clean.data()));
    const auto predict = [&](std::vector<float>& out) {
      out.resize(static_cast<size_t>(rows) * vocab);
      model::StepBuffers& buffers = runner.buffers();
      buffers.run_group(head, buffers.gather_norm(order, norm, *arch_), rows, out.data(), arch_->vocab_size,
                        products_->pool(), model::StepOp::kLogitProduct);
      model::finish_logits(out.data(), rows * arch_->vocab_size, *arch_, products_->pool());
    };
    std::copy_n(clean.data(), count, runner.hidden());
    predict(reference);
    const auto row_of = [vocab](const std::vector<float>& all, int64_t i) {
      return std::span<const float>(all).subspan(static_cast<size_t>(i) * vocab, vocab);
    };
    std::vector<double> kl(static_cast<size_t>(rows)), norms(static_cast<size_t>(rows));
    products_->pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) norms[static_cast<size_t>(i)] = numerics::log_sum_exp(row_of(reference, i));
    });
    for (size_t p = 0; p < differences_.size(); ++p) {
      TARE_TRY(differences_[p].read(first, rows, difference.data()));
      for (size_t i = 0; i < count; ++i) runner.hidden()[i] = clean[i] + difference[i];
      predict(logits);
      products_->pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto at = static_cast<size_t>(i);
          kl[at] = numerics::kl_divergence(row_of(reference, i), norms[at], row_of(logits, i));
        }
      });
      for (const double v : kl) sums[p] += v;
    }
  }
  for (double& v : sums) v /= static_cast<double>(data_->tokens());
  return sums;
}

}  // namespace tare::quantize
