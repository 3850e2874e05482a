#include "quantize/transforms/rotate.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/release.h"
#include "model/weight_plan.h"
#include "quantize/transforms/fold.h"
#include "quantize/transforms/hadamard.h"

namespace tare::quantize {

using model::Architecture;
using model::LayerLinear;
using tensor::ModelWeights;

namespace {

using Source = std::shared_ptr<const ModelWeights>;

Result<std::vector<float>> load_floats(const ModelWeights& source, const std::string& name) {
  TARE_ASSIGN(const tensor::Weight weight, source.load(name));
  return tensor::to_f32(weight);
}

float norm_offset(const Architecture& arch) {
  return arch.norm_plus_one ? 1.0f : 0.0f;
}

// What a norm of this name multiplies by.
Result<std::vector<float>> norm_factors(const ModelWeights& source, const Architecture& arch, const std::string& name) {
  TARE_ASSIGN(std::vector<float> g, load_floats(source, name));
  for (float& v : g) v += norm_offset(arch);
  return g;
}

bool all_ones(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return v == 1.0f; });
}

// Norms before matrices, by name, with the matrices that read them.
struct Reader {
  std::string norm;
  std::vector<LayerLinear> linears;
};
std::vector<Reader> readers(const Architecture& arch) {
  std::vector<Reader> out;
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const model::LayerLinears linears = model::layer_linears(arch, layer);
    if (!arch.attention_norm_in.empty()) {
      out.push_back({model::norm_name(layer, arch.attention_norm_in), linears.qkv});
    }
    if (!arch.mlp_norm_in.empty()) out.push_back({model::norm_name(layer, arch.mlp_norm_in), linears.gate_up});
  }
  return out;
}

// Gives a tied model a head of its own.
Status untie(std::shared_ptr<ModelWeights>& weights, Architecture& arch, TransformReport& report) {
  const tensor::WeightInfo* embedding = weights->find(model::kEmbedding);
  if (!embedding) return invalid_input("weight is missing", {.where = model::kEmbedding});
  // The loader must not hold the view that it becomes part of.
  const auto before = std::make_shared<const ModelWeights>(*weights);
  TARE_TRY(weights->add(model::kHead, *embedding, [before] { return before->load(model::kEmbedding); }));
  weights->config["tie_word_embeddings"] = false;
  arch.tied_head = false;
  report.notes.push_back(fmt::format(
      "the head was the embedding table; it becomes a table of its own ({} x {}), because the final norm goes into it",
      arch.vocab_size, arch.hidden));
  return {};
}

}  // namespace

Result<Source> fold_norms(Source source, Architecture& arch, const TransformContext&, TransformReport& report) {
  TARE_ASSIGN(const bool tied, model::head_is_tied(*source, arch));
  std::map<std::string, WeightChange> changes;
  const auto fold = [&](const std::string& norm, const std::vector<std::string>& names) -> Result<bool> {
    TARE_ASSIGN(std::vector<float> g, norm_factors(*source, arch, norm));
    if (all_ones(g)) return false;
    const auto factors = std::make_shared<const std::vector<float>>(std::move(g));
    for (const std::string& name : names) {
      changes[name] = [factors](const std::string&, std::vector<float>& w, int64_t rows, int64_t columns) -> Status {
        scale_columns(w.data(), rows, columns, *factors);
        return {};
      };
    }
    const float one = 1.0f - norm_offset(arch);
    changes[norm] = [one](const std::string&, std::vector<float>& w, int64_t, int64_t) -> Status {
      std::fill(w.begin(), w.end(), one);
      return {};
    };
    return true;
  };
  int64_t folded = 0;
  for (const Reader& reader : readers(arch)) {
    std::vector<std::string> names;
    for (const LayerLinear& linear : reader.linears) names.push_back(linear.name + ".weight");
    TARE_ASSIGN(const bool changed, fold(reader.norm, names));
    folded += changed ? 1 : 0;
  }
  TARE_ASSIGN(const bool final_changed, fold(model::kFinalNorm, {model::kHead}));
  folded += final_changed ? 1 : 0;
  Source base = source;
  if (final_changed && tied) {
    auto untied = std::make_shared<ModelWeights>(*source);
    TARE_TRY(untie(untied, arch, report));
    base = std::move(untied);
  }
  report.summary = fmt::format("{} norms folded into what reads them", folded);
  report.numbers.emplace_back("norms", static_cast<double>(folded));
  TARE_ASSIGN(std::shared_ptr<ModelWeights> out, with_changes(std::move(base), changes));
  return Source(std::move(out));
}

Result<Source> rotate_stream(Source source, Architecture& arch, const TransformContext& context,
                             TransformReport& report) {
  if (!arch.attention_norm_out.empty() || !arch.mlp_norm_out.empty()) {
    return unsupported("the residual stream cannot be rotated: a norm stands between a half layer and the stream",
                       {.where = arch.family, .hint = "use a recipe without rotation"});
  }
  if (arch.attention_norm_in.empty() || arch.mlp_norm_in.empty()) {
    return unsupported("the residual stream cannot be rotated: a half layer reads it without a norm",
                       {.where = arch.family, .hint = "use a recipe without rotation"});
  }
  std::vector<std::string> norms = {model::kFinalNorm};
  for (const Reader& reader : readers(arch)) norms.push_back(reader.norm);
  for (const std::string& norm : norms) {
    TARE_ASSIGN(const std::vector<float> g, norm_factors(*source, arch, norm));
    if (!all_ones(g)) {
      return invalid_input("a norm that is not folded does not commute with a rotation",
                           {.where = norm, .expected = "weights of 1", .hint = "run fold_norms first"});
    }
  }
  std::optional<uint64_t> seed;
  if (context.setting("rotate.random", 0) != 0) {
    seed = static_cast<uint64_t>(context.setting("rotate.seed", 0));
  }
  TARE_ASSIGN(HadamardTransform made, HadamardTransform::make(arch.hidden, seed));
  const auto q = std::make_shared<const HadamardTransform>(std::move(made));
  ThreadPool* pool = &context.products->pool();
  const WeightChange reads = [q, pool](const std::string&, std::vector<float>& w, int64_t rows,
                                       int64_t columns) -> Status {
    q->apply_to_rows(w.data(), rows, columns, *pool);
    return {};
  };
  // A bias is one row of [1, N]: Q^T b as a column is b Q as a row.
  const WeightChange writes = [q, pool](const std::string&, std::vector<float>& w, int64_t rows,
                                        int64_t columns) -> Status {
    q->apply_to_columns(w.data(), rows, columns, *pool);
    return {};
  };
  TARE_ASSIGN(const bool tied, model::head_is_tied(*source, arch));
  std::map<std::string, WeightChange> changes;
  changes[model::kEmbedding] = reads;
  if (!tied) changes[model::kHead] = reads;  // a shared table is rotated once, for both uses
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const model::LayerLinears linears = model::layer_linears(arch, layer);
    for (const auto* group : {&linears.qkv, &linears.gate_up}) {
      for (const LayerLinear& linear : *group) changes[linear.name + ".weight"] = reads;
    }
    for (const auto* group : {&linears.o, &linears.down}) {
      for (const LayerLinear& linear : *group) {
        changes[linear.name + ".weight"] = writes;
        if (linear.bias) changes[linear.name + ".bias"] = reads;
      }
    }
  }
  report.summary = "residual stream rotated by Hadamard " + q->describe();
  TARE_ASSIGN(std::shared_ptr<ModelWeights> out, with_changes(std::move(source), changes));
  return Source(std::move(out));
}

Result<TransformReport> rotate_heads(Block& block, BlockData&, const TransformContext& context) {
  TransformReport report{.name = "rotate_heads", .layer = block.layer};
  TARE_ASSIGN(const HadamardTransform h, HadamardTransform::make(block.arch->head_dim));
  ThreadPool& pool = context.products->pool();  // there may be no data
  const RoleView v = block.view(Role::kV);
  h.apply_to_columns(v.w, v.n, v.k, pool);
  if (v.bias) h.apply_to_rows(v.bias, 1, v.n, pool);
  const RoleView o = block.view(Role::kO);
  h.apply_to_rows(o.w, o.n, o.k, pool);
  block.touch();
  report.summary = "values of each head rotated by Hadamard " + h.describe();
  return report;
}

}  // namespace tare::quantize
