#include "quantize/block_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/interrupt.h"
#include "kernels/activations.h"
#include "kernels/reference/activations.h"
#include "model/release.h"
#include "model/weight_plan.h"

namespace tare::quantize {

using model::Site;

namespace {

// Tokens that run together; a longer sequence runs alone. Fixed: sums over tokens follow it.
constexpr int64_t kBatchTokens = 1024;
constexpr int64_t kPage = 16;

void raise(std::vector<float>& absmax, const float* x, int64_t stride, int64_t m) {
  for (int64_t i = 0; i < m; ++i) {
    for (size_t c = 0; c < absmax.size(); ++c) {
      absmax[c] = std::max(absmax[c], std::abs(x[i * stride + static_cast<int64_t>(c)]));
    }
  }
}

}  // namespace

// Outputs of the opened block on the first tokens, f32 [tokens, hidden] each.
struct BlockData::Target {
  int64_t tokens = 0;
  std::vector<float> attention;  // what attention added
  std::vector<float> middle;     // stream after it
  std::vector<float> mlp;        // what the MLP added
  std::vector<float> out;
};

Result<BlockData> BlockData::start(const tensor::ModelWeights& source, const model::Architecture& arch,
                                   const CalibrationData& data, const Options& options, Products& products) {
  if (data.tokens == 0) return invalid_input("calibration saw no tokens", {.where = "--calibration"});
  BlockData out;
  out.arch_ = &arch;
  out.products_ = &products;
  out.options_ = options;
  out.data_ = &data;
  for (size_t s = 0; s < data.sequences.size(); ++s) {
    const auto length = static_cast<int64_t>(data.sequences[s].size());
    for (const int32_t id : data.sequences[s]) {
      if (id < 0 || id >= arch.vocab_size) {
        return invalid_input("calibration token out of range", {.where = "--calibration",
                                                                .expected = fmt::format("0..{}", arch.vocab_size - 1),
                                                                .found = fmt::format("{}", id)});
      }
    }
    out.starts_.push_back(out.tokens_);
    out.longest_ = std::max(out.longest_, length);
    if (out.spans_.empty() || out.spans_.back().count + length > kBatchTokens) {
      out.spans_.push_back({.first = out.tokens_, .first_sequence = s});
    }
    out.spans_.back().count += length;
    ++out.spans_.back().sequences;
    out.tokens_ += length;
    out.batch_tokens_ = std::max(out.batch_tokens_, out.spans_.back().count);
  }
  TARE_ASSIGN(out.quantized_, out.store(arch.hidden));
  if (options.reference) {
    TARE_ASSIGN(out.reference_, out.store(arch.hidden));
  }
  TARE_ASSIGN(const tensor::Weight embedding, source.load(model::kEmbedding));
  std::vector<float> row(static_cast<size_t>(arch.hidden));
  int64_t at = 0;
  for (const auto& sequence : data.sequences) {
    for (const int32_t id : sequence) {
      if (const auto* dense = std::get_if<tensor::Tensor>(&embedding)) {
        TARE_TRY(tensor::to_f32(*dense, int64_t{id} * arch.hidden, arch.hidden, row.data()));
      } else {
        tensor::dequantize(std::get<tensor::QuantizedTensor>(embedding), id, id + 1, row.data());
      }
      for (float& v : row) v *= arch.embedding_multiplier;
      TARE_TRY(out.quantized_.write(at, 1, row.data()));
      if (options.reference) TARE_TRY(out.reference_.write(at, 1, row.data()));
      ++at;
    }
  }
  model::release_pages(embedding);
  out.one_layer_ = arch;
  out.one_layer_.layers = 1;
  return out;
}

Result<TokenStore> BlockData::store(int64_t width) {
  return TokenStore::make(tokens_, width, options_.spill_folder, options_.budget, options_.working_bytes);
}

Result<model::AttentionCache> BlockData::cache(int kv_bits) {
  int64_t pages = 0;
  for (const Span& span : spans_) {
    int64_t here = 0;
    for (size_t s = 0; s < span.sequences; ++s) {
      here += ceil_div(static_cast<int64_t>(data_->sequences[span.first_sequence + s].size()), kPage);
    }
    pages = std::max(pages, here);
  }
  model::AttentionCache::Options options{.block_size = kPage,
                                         .num_blocks = pages,
                                         .max_batch_tokens = batch_tokens_,
                                         .context = longest_,
                                         .caps = products_->caps()};
  const std::string name = kv_bits == 16 ? "f32" : fmt::format("int{}", kv_bits);
  TARE_ASSIGN(options.format, kvcache::parse_kv_format(name, {}, kvcache::KvScaleRule::kCheckpoint));
  return model::AttentionCache::make(one_layer_, options, products_->pool().size());
}

Status BlockData::each(const std::function<Status(const Span&, const model::Batch&)>& body, int64_t max_tokens) {
  std::vector<int32_t> pages;
  for (const Span& span : spans_) {
    if (max_tokens > 0 && span.first >= max_tokens) break;
    TARE_TRY(check_interrupt("quantize"));
    std::vector<int32_t> tokens;
    std::vector<model::SequenceSlice> slices;
    std::vector<size_t> first_page;
    pages.clear();
    for (size_t s = 0; s < span.sequences; ++s) {
      const auto& sequence = data_->sequences[span.first_sequence + s];
      tokens.insert(tokens.end(), sequence.begin(), sequence.end());
      first_page.push_back(pages.size());
      const auto count = ceil_div(static_cast<int64_t>(sequence.size()), kPage);
      for (int64_t i = 0; i < count; ++i) pages.push_back(static_cast<int32_t>(pages.size()));
    }
    for (size_t s = 0; s < span.sequences; ++s) {
      const auto& sequence = data_->sequences[span.first_sequence + s];
      slices.push_back({.block_table = {pages.data() + first_page[s], pages.size() - first_page[s]},
                        .first_position = 0,
                        .count = static_cast<int64_t>(sequence.size())});
    }
    const model::Batch batch{.tokens = tokens, .sequences = slices, .logit_rows = {}};
    runner_->begin(batch);
    TARE_TRY(body(span, batch));
  }
  return {};
}

Status BlockData::open(const Block& block, bool trials) {
  one_layer_.plan = {arch_->plan[static_cast<size_t>(block.layer)]};
  runner_ = std::make_unique<model::LayerRunner>(one_layer_, batch_tokens_, longest_, products_->caps().isa, pool());
  opened_.reset();
  if (trials) opened_ = block;
  target_.reset();
  statistics_revision_ = -1;
  gram_revision_.fill(-1);
  for (Gram& gram : grams_) gram = {};
  return {};
}

Result<const BlockStatistics*> BlockData::statistics(const Block& block) {
  if (statistics_revision_ == block.revision()) return &statistics_;
  const model::Architecture& arch = *arch_;
  BlockStatistics now;
  for (const Site site : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) {
    SiteStatistics& s = now.sites[static_cast<size_t>(site)];
    s.absmax.resize(static_cast<size_t>(block.width(site)));
    s.absmean.resize(s.absmax.size());
  }
  now.q_absmax.resize(static_cast<size_t>(arch.q_size()));
  now.k_absmax.resize(static_cast<size_t>(arch.kv_size()));
  now.v_absmax.resize(static_cast<size_t>(arch.kv_size()));

  std::array<std::vector<double>, 4> sums;
  for (size_t s = 0; s < sums.size(); ++s) sums[s].resize(now.sites[s].absmax.size());
  model::Observer observer;
  observer.input = [&](int64_t, Site site, const float* x, int64_t m, int64_t k) {
    SiteStatistics& s = now.sites[static_cast<size_t>(site)];
    std::vector<double>& sum = sums[static_cast<size_t>(site)];
    for (int64_t i = 0; i < m; ++i) {
      float most = 0;
      for (int64_t c = 0; c < k; ++c) {
        const float v = std::abs(x[i * k + c]);
        const auto at = static_cast<size_t>(c);
        s.absmax[at] = std::max(s.absmax[at], v);
        sum[at] += static_cast<double>(v);
        most = std::max(most, v);
      }
      s.zero_tokens += most == 0 ? 1 : 0;
    }
    s.tokens += m;
  };
  TARE_ASSIGN(const model::BoundLayer bound, bind_block(block, *products_));
  TARE_ASSIGN(model::AttentionCache cache, this->cache(16));
  runner_->require(bound);
  const int64_t stride = arch.q_size() + 2 * arch.kv_size();
  const Status ran = each([&](const Span& span, const model::Batch& batch) -> Status {
    TARE_TRY(quantized_.read(span.first, span.count, runner_->hidden()));
    runner_->attend(bound, 0, batch, cache, &observer);
    const float* qkv = runner_->buffers().qkv();
    raise(now.q_absmax, qkv, stride, span.count);
    raise(now.k_absmax, qkv + arch.q_size(), stride, span.count);
    raise(now.v_absmax, qkv + arch.q_size() + arch.kv_size(), stride, span.count);
    runner_->attention_out(bound, 0, span.count, &observer);
    runner_->mlp(bound, 0, span.count, &observer);
    return {};
  });
  if (!ran.ok()) return ran.error();
  for (size_t s = 0; s < sums.size(); ++s) {
    for (size_t c = 0; c < sums[s].size(); ++c) {
      now.sites[s].absmean[c] = static_cast<float>(sums[s][c] / static_cast<double>(now.sites[s].tokens));
    }
  }
  statistics_ = std::move(now);
  statistics_revision_ = block.revision();
  return &statistics_;
}

Result<const Gram*> BlockData::gram(const Block& block, Site site) {
  const auto index = static_cast<size_t>(site);
  if (gram_revision_[index] == block.revision()) return &grams_[index];
  grams_[index] = Gram(block.width(site));
  Status failed;
  model::Observer observer;
  observer.input = [&](int64_t, Site at, const float* x, int64_t m, int64_t) {
    if (at == site && failed.ok()) failed = grams_[index].add(x, m, *products_);
  };
  TARE_ASSIGN(const model::BoundLayer bound, bind_block(block, *products_));
  TARE_ASSIGN(model::AttentionCache cache, this->cache(16));
  runner_->require(bound);
  const Status ran = each([&](const Span& span, const model::Batch& batch) -> Status {
    TARE_TRY(quantized_.read(span.first, span.count, runner_->hidden()));
    runner_->attention(bound, 0, batch, cache, &observer);
    if (site == Site::kGateUp || site == Site::kDown) runner_->mlp(bound, 0, span.count, &observer);
    return failed.ok() ? Status{} : Status(failed.error());
  });
  if (!ran.ok()) return ran.error();
  gram_revision_[index] = block.revision();
  return &grams_[index];
}

Result<std::vector<float>> BlockData::inputs(const Block& block, Site site, int64_t tokens, int64_t* m) {
  std::vector<float> out;
  model::Observer observer;
  observer.input = [&](int64_t, Site at, const float* x, int64_t rows, int64_t k) {
    if (at == site) out.insert(out.end(), x, x + rows * k);
  };
  TARE_ASSIGN(const model::BoundLayer bound, bind_block(block, *products_));
  TARE_ASSIGN(model::AttentionCache cache, this->cache(16));
  runner_->require(bound);
  const Status ran = each(
      [&](const Span& span, const model::Batch& batch) -> Status {
        TARE_TRY(quantized_.read(span.first, span.count, runner_->hidden()));
        runner_->attention(bound, 0, batch, cache, &observer);
        if (site == Site::kGateUp || site == Site::kDown) runner_->mlp(bound, 0, span.count, &observer);
        return {};
      },
      tokens);
  if (!ran.ok()) return ran.error();
  *m = static_cast<int64_t>(out.size()) / block.width(site);
  return out;
}

Result<double> BlockData::error(const Block& candidate, const Trial& trial) {
  const int64_t hidden = arch_->hidden;
  if (!opened_) return internal_error("trials need an opened block");
  if (!target_ || target_->tokens < std::min(trial.tokens, tokens_)) {
    auto target = std::make_shared<Target>();
    TARE_ASSIGN(const model::BoundLayer bound, bind_block(*opened_, *products_));
    TARE_ASSIGN(model::AttentionCache cache, this->cache(16));
    runner_->require(bound);
    const Status ran = each(
        [&](const Span& span, const model::Batch& batch) -> Status {
          const auto keep = [&](const float* rows, std::vector<float>& into) {
            into.insert(into.end(), rows, rows + span.count * hidden);
          };
          TARE_TRY(quantized_.read(span.first, span.count, runner_->hidden()));
          runner_->attention(bound, 0, batch, cache);
          keep(runner_->branch(), target->attention);
          keep(runner_->hidden(), target->middle);
          runner_->mlp(bound, 0, span.count);
          keep(runner_->branch(), target->mlp);
          keep(runner_->hidden(), target->out);
          target->tokens += span.count;
          return {};
        },
        trial.tokens);
    if (!ran.ok()) return ran.error();
    target_ = std::move(target);
  }
  const Target& target = *target_;
  ActivationRounder rounder(candidate, products_->caps().isa, pool());
  model::Observer observer;
  if (trial.round_activations && rounder.any()) {
    observer.replace = [&](int64_t, Site site, const float* x, int64_t m, int64_t k) { return rounder(site, x, m, k); };
  }
  model::BoundLayer bound = bind_norms(candidate);
  if (trial.half != Half::kMlp) {
    TARE_ASSIGN(bound.qkv, bind_site(candidate, Site::kQkv, *products_));
    TARE_ASSIGN(bound.o, bind_site(candidate, Site::kOut, *products_));
  }
  if (trial.half != Half::kAttention) {
    TARE_ASSIGN(bound.gate_up, bind_site(candidate, Site::kGateUp, *products_));
    TARE_ASSIGN(bound.down, bind_site(candidate, Site::kDown, *products_));
  }
  TARE_ASSIGN(model::AttentionCache cache, this->cache(trial.kv_bits));
  runner_->require(bound);
  double difference = 0;
  double power = 0;
  const Status ran = each(
      [&](const Span& span, const model::Batch& batch) -> Status {
        if (trial.half == Half::kMlp) {
          std::copy_n(target.middle.data() + span.first * hidden, span.count * hidden, runner_->hidden());
        } else {
          TARE_TRY(quantized_.read(span.first, span.count, runner_->hidden()));
          runner_->attention(bound, 0, batch, cache, &observer);
        }
        if (trial.half != Half::kAttention) runner_->mlp(bound, 0, span.count, &observer);
        const float* got = trial.half == Half::kBlock ? runner_->hidden() : runner_->branch();
        const std::vector<float>& all = trial.half == Half::kAttention ? target.attention
                                        : trial.half == Half::kMlp     ? target.mlp
                                                                       : target.out;
        const float* want = all.data() + span.first * hidden;
        for (int64_t i = 0; i < span.count * hidden; ++i) {
          const double w = static_cast<double>(want[i]);
          const double d = static_cast<double>(got[i]) - w;
          difference += d * d;
          power += w * w;
        }
        return {};
      },
      trial.tokens);
  if (!ran.ok()) return ran.error();
  return power > 0 ? difference / power : difference;
}

ActivationRounder::ActivationRounder(const Block& block, machine::Isa isa, ThreadPool& pool) : isa_(isa), pool_(&pool) {
  for (const Site site : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) {
    specs_[static_cast<size_t>(site)] = block.activation(site);
  }
}

bool ActivationRounder::any() const {
  return std::any_of(specs_.begin(), specs_.end(),
                     [](const auto& spec) { return spec.type != tensor::ActivationType::kNone; });
}

const float* ActivationRounder::operator()(Site site, const float* x, int64_t m, int64_t k) {
  const tensor::ActivationSpec& spec = specs_[static_cast<size_t>(site)];
  if (spec.type == tensor::ActivationType::kNone) return x;
  rounded_.resize(static_cast<size_t>(m * k));
  const bool plain = spec.type == tensor::ActivationType::kS8 && spec.dynamic && spec.symmetric &&
                     spec.granularity != tensor::ActivationGranularity::kTokenGroup && spec.outlier_threshold == 0;
  if (plain) {
    const kernels::ActivationForm form{.dtype = tensor::DType::kI8, .quantizer = spec};
    const auto bytes = static_cast<size_t>(kernels::activation_bytes(form, m, k));
    if (bytes > codes_.size()) codes_ = AlignedBytes(bytes);
    const kernels::ActivationStorage storage = kernels::carve_activations(form, m, k, codes_.bytes());
    pool_->parallel_for(m, 4, [&](int64_t begin, int64_t end) {
      kernels::write_activations(storage, x, k, begin, end, isa_);
      for (int64_t i = begin; i < end; ++i) {
        const int8_t* codes = static_cast<const int8_t*>(storage.data) + i * storage.row_stride;
        for (int64_t c = 0; c < k; ++c) {
          rounded_[static_cast<size_t>(i * k + c)] = storage.scale[i] * static_cast<float>(codes[c]);
        }
      }
    });
    return rounded_.data();
  }
  pool_->parallel_for(m, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const kernels::ReferenceActivations one = kernels::quantize_reference(spec, x + i * k, 1, k, k);
      for (int64_t c = 0; c < k; ++c) {
        const auto group = static_cast<size_t>(c / std::max<int64_t>(one.group_size, 1));
        float value = one.scale[group] * one.unscaled(spec, 0, c);
        if (!one.outliers.empty() && one.outliers[static_cast<size_t>(c)] != 0) {
          value = one.outliers[static_cast<size_t>(c)];
        }
        rounded_[static_cast<size_t>(i * k + c)] = value;
      }
    }
  });
  return rounded_.data();
}

}  // namespace tare::quantize
