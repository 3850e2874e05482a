#include "model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <map>

#include "model/layer_runner.h"
#include "model/step_buffers.h"
#include "model/weight_plan.h"

namespace tare::model {

namespace {

using tensor::ModelWeights;
using tensor::Tensor;
using tensor::Weight;

Result<std::vector<float>> load_vector(const ModelWeights& weights, const std::string& name) {
  TARE_ASSIGN(const Weight weight, weights.load(name));
  const Tensor* dense = std::get_if<Tensor>(&weight);
  if (!dense) return invalid_input("expected a dense tensor", {.where = name, .found = "a quantized one"});
  return tensor::to_f32(*dense);
}

Result<Linear> load_linear(const ModelWeights& weights, const LayerLinear& linear, int64_t layer) {
  const std::string name = linear.name + ".weight";
  Linear out{.name = linear.name, .role = {.layer = layer, .kind = linear.kind}};
  const tensor::WeightInfo* info = weights.find(name);
  if (!info) return invalid_input("weight is missing", {.where = name});
  out.activation = info->activation;
  TARE_ASSIGN(Weight weight, weights.load(name));
  out.parts.push_back(std::move(weight));
  if (linear.bias) {
    TARE_ASSIGN(out.bias, load_vector(weights, linear.name + ".bias"));
  }
  return out;
}

Result<LinearGroup> load_group(const ModelWeights& weights, const std::vector<LayerLinear>& linears, int64_t layer,
                               const BindOptions& options, ThreadPool& pool) {
  std::vector<Linear> loaded;
  for (const LayerLinear& linear : linears) {
    TARE_ASSIGN(Linear one, load_linear(weights, linear, layer));
    loaded.push_back(std::move(one));
  }
  return bind_group(std::move(loaded), options, pool);
}

}  // namespace

Result<BoundLayer> bind_layer(const ModelWeights& weights, const Architecture& arch, int64_t layer,
                              const BindOptions& options, ThreadPool& pool) {
  BoundLayer out;
  const auto norm = [&](const std::string& name, std::vector<float>& into) -> Status {
    if (name.empty()) return {};
    TARE_ASSIGN(into, load_vector(weights, norm_name(layer, name)));
    return {};
  };
  TARE_TRY(norm(arch.attention_norm_in, out.attention_norm_in));
  TARE_TRY(norm(arch.attention_norm_out, out.attention_norm_out));
  TARE_TRY(norm(arch.mlp_norm_in, out.mlp_norm_in));
  TARE_TRY(norm(arch.mlp_norm_out, out.mlp_norm_out));
  if (arch.qk_norm != QkNorm::kNone) {
    TARE_TRY(norm("self_attn.q_norm", out.q_norm));
    TARE_TRY(norm("self_attn.k_norm", out.k_norm));
  }
  const LayerLinears linears = layer_linears(arch, layer);
  TARE_ASSIGN(out.qkv, load_group(weights, linears.qkv, layer, options, pool));
  TARE_ASSIGN(out.o, load_group(weights, linears.o, layer, options, pool));
  TARE_ASSIGN(out.gate_up, load_group(weights, linears.gate_up, layer, options, pool));
  TARE_ASSIGN(out.down, load_group(weights, linears.down, layer, options, pool));
  return out;
}

struct Transformer::Impl {
  Architecture arch;
  Options options;
  ThreadPool* pool = nullptr;
  Weight embedding;
  std::vector<std::shared_ptr<const BoundLayer>> layers;
  std::vector<float> final_norm;
  LinearGroup head;
  std::vector<std::string> notes;

  LayerRunner runner;

  void embed(std::span<const int32_t> tokens, float* h) const;
};

Transformer::Transformer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() = default;

const Architecture& Transformer::architecture() const {
  return impl_->arch;
}
int64_t Transformer::max_batch_tokens() const {
  return impl_->options.max_batch_tokens;
}
const std::vector<std::string>& Transformer::notes() const {
  return impl_->notes;
}
int64_t Transformer::workspace_bytes() const {
  return impl_->runner.buffers().bytes();
}

void Transformer::set_profile(StepProfile* profile) {
  impl_->runner.buffers().set_profile(profile);
}

std::shared_ptr<const BoundLayer> Transformer::layer(int64_t index) const {
  return impl_->layers.at(static_cast<size_t>(index));
}

Status Transformer::set_layer(int64_t index, const Architecture& from, std::shared_ptr<const BoundLayer> layer) {
  const Architecture& arch = impl_->arch;
  if (arch.layers != from.layers || arch.hidden != from.hidden || arch.heads != from.heads ||
      arch.kv_heads != from.kv_heads || arch.head_dim != from.head_dim || arch.intermediate != from.intermediate) {
    return invalid_input("models have different shapes",
                         {.expected = fmt::format("{} layers of {}", arch.layers, arch.hidden),
                          .found = fmt::format("{} layers of {}", from.layers, from.hidden)});
  }
  impl_->runner.require(*layer);
  impl_->layers.at(static_cast<size_t>(index)) = std::move(layer);
  return {};
}

std::vector<LinearRecord> Transformer::records() const {
  std::vector<LinearRecord> out;
  const auto add = [&](const LinearGroup& group) {
    for (const BoundLinear& linear : group) out.push_back(linear.record());
  };
  for (const auto& layer : impl_->layers) {
    add(layer->qkv);
    add(layer->o);
    add(layer->gate_up);
    add(layer->down);
  }
  add(impl_->head);
  return out;
}

int64_t Transformer::packed_bytes() const {
  int64_t total = 0;
  for (const LinearRecord& record : records()) total += record.packed_bytes;
  return total;
}

Result<Transformer> Transformer::load(const ModelWeights& weights, Architecture arch, Options options,
                                      ThreadPool& pool) {
  auto impl = std::make_unique<Impl>();
  TARE_ASSIGN(std::vector<std::string> leftovers, account_weights(weights, arch));
  for (const std::string& name : leftovers) impl->notes.push_back(fmt::format("known leftover, not read: {}", name));
  TARE_ASSIGN(const bool tied, head_is_tied(weights, arch));
  if (tied != arch.tied_head) {
    impl->notes.push_back(tied ? "the head is the embedding table, as the file says"
                               : "the file holds its own head although the config ties it: the file's head is used");
  }
  if (options.context <= 0) options.context = arch.max_positions;

  TARE_ASSIGN(impl->embedding, weights.load(kEmbedding));
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    TARE_ASSIGN(BoundLayer bound, bind_layer(weights, arch, layer, options.bind, pool));
    impl->layers.push_back(std::make_shared<const BoundLayer>(std::move(bound)));
    if (options.progress) options.progress(layer + 1, arch.layers + 1);
  }
  TARE_ASSIGN(impl->final_norm, load_vector(weights, kFinalNorm));
  const tensor::WeightInfo* head_info = weights.find(tied ? kEmbedding : kHead);
  Linear head{.name = "lm_head", .activation = head_info->activation, .role = {.kind = "lm_head"}};
  if (tied) {
    head.parts.push_back(impl->embedding);
  } else {
    TARE_ASSIGN(Weight weight, weights.load(kHead));
    head.parts.push_back(std::move(weight));
  }
  std::vector<Linear> heads;
  heads.push_back(std::move(head));
  TARE_ASSIGN(impl->head, bind_group(std::move(heads), options.bind, pool));
  if (options.progress) options.progress(arch.layers + 1, arch.layers + 1);

  impl->arch = std::move(arch);
  impl->options = std::move(options);
  impl->pool = &pool;
  impl->runner =
      LayerRunner(impl->arch, impl->options.max_batch_tokens, impl->options.context, impl->options.bind.caps.isa, pool);
  impl->runner.require(impl->head);
  for (const auto& layer : impl->layers) impl->runner.require(*layer);
  return Transformer(std::move(impl));
}

void Transformer::Impl::embed(std::span<const int32_t> tokens, float* h) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* row = h + static_cast<int64_t>(i) * arch.hidden;
    if (const Tensor* dense = std::get_if<Tensor>(&embedding)) {
      // The dtype was checked when the head or the reader converted it; a failure here is our own mistake.
      [[maybe_unused]] const Status status = tensor::to_f32(*dense, int64_t{tokens[i]} * arch.hidden, arch.hidden, row);
      assert(status.ok());
    } else {
      tensor::dequantize(std::get<tensor::QuantizedTensor>(embedding), tokens[i], tokens[i] + 1, row);
    }
    if (arch.embedding_multiplier != 1.0f) {
      for (int64_t k = 0; k < arch.hidden; ++k) row[k] *= arch.embedding_multiplier;
    }
  }
}

Status Transformer::forward(const Batch& batch, AttentionCache& cache, float* logits, const Observer* observer) {
  Impl& s = *impl_;
  const auto m = static_cast<int64_t>(batch.tokens.size());
  if (m > s.options.max_batch_tokens) {
    return internal_error(
        "batch larger than the workspace",
        {.expected = fmt::format("at most {} tokens", s.options.max_batch_tokens), .found = fmt::format("{}", m)});
  }
  for (const int32_t id : batch.tokens) {
    if (id < 0 || id >= s.arch.vocab_size) {
      return invalid_input("token id out of range",
                           {.expected = fmt::format("0..{}", s.arch.vocab_size - 1), .found = fmt::format("{}", id)});
    }
  }
  int64_t covered = 0;
  for (const SequenceSlice& slice : batch.sequences) {
    covered += slice.count;
    if (slice.first_position < 0 || slice.first_position + slice.count > s.options.context) {
      return invalid_input("sequence longer than the context",
                           {.expected = fmt::format("at most {} tokens", s.options.context),
                            .found = fmt::format("{}", slice.first_position + slice.count)});
    }
  }
  if (covered != m) return internal_error("batch slices do not cover its tokens");
  if (m == 0) return {};

  StepProfile* const profile = s.runner.buffers().profile();
  const StepTimer whole(profile, StepOp::kPass);
  {
    const StepTimer timer(profile, StepOp::kPositions);
    s.runner.begin(batch);
  }
  {
    const StepTimer timer(profile, StepOp::kEmbed);
    s.embed(batch.tokens, s.runner.hidden());
  }
  for (int64_t layer = 0; layer < s.arch.layers; ++layer) {
    const BoundLayer& bound = *s.layers[static_cast<size_t>(layer)];
    s.runner.attention(bound, layer, batch, cache, observer);
    s.runner.mlp(bound, layer, m, observer);
  }

  // The head runs for the wanted rows only, in pieces that fit the workspace.
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  if (rows == 0) return {};
  RowSource x = s.runner.buffers().gather_norm(batch.logit_rows, s.final_norm, s.arch);
  if (observer && observer->input) {
    const float* seen = s.runner.buffers().materialize(x, rows, *s.pool);
    observer->input(s.arch.layers, Site::kLogits, seen, rows, s.arch.hidden);
  }
  s.runner.buffers().run_group(s.head, std::move(x), rows, logits, s.arch.vocab_size, *s.pool, StepOp::kLogitProduct);
  const StepTimer timer(profile, StepOp::kLogits);
  finish_logits(logits, rows * s.arch.vocab_size, s.arch, *s.pool);
  return {};
}

}  // namespace tare::model
