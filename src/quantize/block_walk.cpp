#include "quantize/block_walk.h"

#include <algorithm>

namespace tare::quantize {

using model::Site;
using Stream = BlockData::Stream;

namespace {

// out[i, j] += sum over t of a[t, i] b[t, j]; a: [M, rows], b: [M, columns].
class CrossSum {
 public:
  Status add(const float* a, int64_t rows, const float* b, int64_t columns, int64_t m, Products& products,
             std::vector<float>& out) {
    a_.resize(static_cast<size_t>(rows * m));
    b_.resize(static_cast<size_t>(columns * m));
    transpose(a, rows, m, rows, a_.data(), products.pool());
    transpose(b, columns, m, columns, b_.data(), products.pool());
    constexpr int64_t kColumns = 512;
    product_.resize(static_cast<size_t>(rows * std::min(kColumns, columns)));
    for (int64_t first = 0; first < columns; first += kColumns) {
      const int64_t count = std::min(kColumns, columns - first);
      TARE_TRY(products.multiply(a_.data(), m, rows, m, b_.data() + first * m, count, product_.data(), count));
      products.pool().parallel_for(rows, 32, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float* into = out.data() + i * columns + first;
          const float* add = product_.data() + i * count;
          for (int64_t j = 0; j < count; ++j) into[j] += add[j];
        }
      });
    }
    return {};
  }

 private:
  std::vector<float> a_, b_, product_;
};

}  // namespace

model::LinearGroup& BlockWalk::group(model::BoundLayer& layer, Site site) {
  return site == Site::kQkv      ? layer.qkv
         : site == Site::kOut    ? layer.o
         : site == Site::kGateUp ? layer.gate_up
                                 : layer.down;
}

Result<BlockWalk> BlockWalk::begin(BlockData& data, const Block& dense, int kv_bits, bool correct) {
  BlockWalk walk(data, dense);
  walk.correct_ = correct && data.has_reference();
  walk.rounder_.emplace(dense, data.products().caps().isa, data.pool());
  walk.bound_[0] = bind_norms(dense);
  TARE_ASSIGN(walk.caches_[0], data.cache(kv_bits));
  if (data.has_reference()) {
    walk.bound_[1] = bind_norms(dense);
    TARE_ASSIGN(walk.caches_[1], data.cache(16));
  }
  return walk;
}

Status BlockWalk::set(Site site, const Block& solved) {
  // Only what the next step multiplies with stays packed.
  for (model::BoundLayer& layer : bound_) {
    for (const Site before : {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown}) group(layer, before).clear();
  }
  TARE_ASSIGN(group(bound_[0], site), bind_site(solved, site, data_->products()));
  data_->runner().require(group(bound_[0], site));
  if (data_->has_reference()) {
    TARE_ASSIGN(group(bound_[1], site), bind_site(*dense_, site, data_->products()));
    data_->runner().require(group(bound_[1], site));
  }
  return {};
}

Result<const float*> BlockWalk::advance(Site site, Stream stream, const BlockData::Span& span,
                                        const model::Batch& batch) {
  const auto s = static_cast<size_t>(stream);
  const model::BoundLayer& layer = bound_[s];
  model::LayerRunner& runner = data_->runner();
  model::StepBuffers& buffers = runner.buffers();
  TokenStore& hidden = data_->hidden(stream);
  model::Observer observer;
  if (stream == Stream::kQuantized && rounder_->any()) {
    observer.replace = [&](int64_t, Site at, const float* x, int64_t m, int64_t k) { return (*rounder_)(at, x, m, k); };
  }
  const auto rows_of = [&](model::RowSource source) { return buffers.materialize(source, span.count, data_->pool()); };
  TARE_TRY(hidden.read(span.first, span.count, runner.hidden()));
  switch (site) {
    case Site::kQkv:
      return rows_of(buffers.normed(layer.attention_norm_in, data_->one_layer()));
    case Site::kOut:
      runner.attend(layer, 0, batch, *caches_[s], &observer);
      TARE_TRY(inner_[s].write(span.first, span.count, buffers.attention()));
      return buffers.attention();
    case Site::kGateUp:
      TARE_TRY(inner_[s].read(span.first, span.count, buffers.attention()));
      runner.attention_out(layer, 0, span.count, &observer);
      TARE_TRY(hidden.write(span.first, span.count, runner.hidden()));
      return rows_of(buffers.normed(layer.mlp_norm_in, data_->one_layer()));
    default: {
      runner.mlp_inner(layer, 0, span.count, &observer);
      const float* x = rows_of(buffers.activated(data_->one_layer()));
      TARE_TRY(inner_[s].write(span.first, span.count, x));
      return x;
    }
  }
}

Result<SiteInputs> BlockWalk::collect(Site site) {
  const int64_t k = dense_->width(site);
  const int64_t hidden = dense_->arch->hidden;
  const bool writes_stream = site == Site::kOut || site == Site::kDown;
  SiteInputs out;
  out.gram = Gram(k);
  if (correct_) out.cross.resize(static_cast<size_t>(k * k));
  if (correct_ && writes_stream) out.residual.resize(static_cast<size_t>(hidden * k));
  if (writes_stream) {
    for (size_t s = 0; s < 2; ++s) {
      if (s == 1 && !data_->has_reference()) continue;
      inner_[s] = {};
      TARE_ASSIGN(inner_[s], data_->store(k));
    }
  }
  CrossSum cross, residual;
  std::vector<float> input, difference, stream;
  const Status ran = data_->each([&](const BlockData::Span& span, const model::Batch& batch) -> Status {
    TARE_ASSIGN(const float* x, advance(site, Stream::kQuantized, span, batch));
    x = (*rounder_)(site, x, span.count, k);
    for (int64_t i = 0; i < span.count; ++i) {
      if (std::all_of(x + i * k, x + (i + 1) * k, [](float v) { return v == 0; })) ++out.zero_tokens;
    }
    TARE_TRY(out.gram.add(x, span.count, data_->products()));
    if (!data_->has_reference()) return {};
    if (correct_) {
      input.assign(x, x + span.count * k);
      if (writes_stream) stream.assign(data_->runner().hidden(), data_->runner().hidden() + span.count * hidden);
    }
    TARE_ASSIGN(const float* reference, advance(site, Stream::kReference, span, batch));
    if (!correct_) return {};
    difference.resize(input.size());
    for (size_t i = 0; i < input.size(); ++i) difference[i] = reference[i] - input[i];
    TARE_TRY(cross.add(difference.data(), k, input.data(), k, span.count, data_->products(), out.cross));
    if (writes_stream) {
      const float* h = data_->runner().hidden();
      for (size_t i = 0; i < stream.size(); ++i) stream[i] = h[i] - stream[i];
      TARE_TRY(residual.add(stream.data(), hidden, input.data(), k, span.count, data_->products(), out.residual));
    }
    return {};
  });
  if (!ran.ok()) return ran.error();
  return out;
}

Status BlockWalk::finish() {
  const int64_t k = dense_->width(Site::kDown);
  const int64_t hidden = dense_->arch->hidden;
  std::vector<float> rows;
  return data_->each([&](const BlockData::Span& span, const model::Batch&) -> Status {
    for (const Stream stream : {Stream::kQuantized, Stream::kReference}) {
      if (stream == Stream::kReference && !data_->has_reference()) continue;
      const auto s = static_cast<size_t>(stream);
      model::LayerRunner& runner = data_->runner();
      TARE_TRY(data_->hidden(stream).read(span.first, span.count, runner.hidden()));
      rows.resize(static_cast<size_t>(span.count * k));
      TARE_TRY(inner_[s].read(span.first, span.count, rows.data()));
      const float* x = rows.data();
      if (stream == Stream::kQuantized) x = (*rounder_)(Site::kDown, x, span.count, k);
      model::StepBuffers& buffers = runner.buffers();
      buffers.run_group(bound_[s].down, {.rows = x, .k = k}, span.count, buffers.branch(), hidden, data_->pool(),
                        model::StepOp::kDown);
      buffers.add_branch(bound_[s].mlp_norm_out, data_->one_layer(), span.count, data_->pool());
      TARE_TRY(data_->hidden(stream).write(span.first, span.count, runner.hidden()));
    }
    return {};
  });
}

}  // namespace tare::quantize
