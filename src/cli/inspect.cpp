#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/size_text.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/text_assets.h"
#include "cli/command.h"
#include "eval/weight_histogram.h"
#include "model/weight_plan.h"
#include "runtime/end_ids.h"
#include "runtime/token_roles.h"

namespace tare::cli {

namespace {

struct Options {
  std::string model;
  std::string quantization;
  bool tensors = false;
  std::string histogram;
  std::string plot;
};

// One tensor as headers tell it.
struct Row {
  std::string name;
  tensor::Shape shape;
  std::string code;        // "u4", "bf16"
  std::string scheme;      // "u4 g128 +zero"
  int64_t group_size = 0;  // 0: no groups
  int bits = 0;
  int64_t weights = 0;
  int64_t bytes = 0;
  std::string activation;

  double bpw() const { return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0; }
};

Result<Row> make_row(const std::string& name, const tensor::WeightInfo& info) {
  Row row{.name = name, .shape = info.shape, .bytes = info.stored_bytes};
  TARE_ASSIGN(row.weights, tensor::element_count(info.shape));
  if (const auto* dtype = std::get_if<tensor::DType>(&info.form)) {
    row.code = tensor::dtype_name(*dtype);
    std::transform(row.code.begin(), row.code.end(), row.code.begin(), [](unsigned char c) { return std::tolower(c); });
    row.scheme = row.code;
    row.bits = tensor::dtype_bits(*dtype);
  } else {
    const auto& spec = std::get<tensor::QuantSpec>(info.form);
    row.scheme = tensor::describe(spec);
    row.code = row.scheme.substr(0, row.scheme.find(' '));
    row.group_size = spec.group_size;
    row.bits = spec.bits;
  }
  if (info.activation.type != tensor::ActivationType::kNone) row.activation = tensor::describe(info.activation);
  return row;
}

json::object declared_by(const json::object& config) {
  json::object out;
  for (const char* key :
       {"architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
        "torch_dtype", "dtype", "quantization_config", "compression_config"}) {
    if (const json::value* value = json::find(config, key)) out[key] = *value;
  }
  return out;
}

// What the files hold, in sums.
struct Found {
  int64_t weights = 0;
  int64_t bytes = 0;
  std::map<std::string, int64_t> schemes;  // of the matrices, by number of weights

  double bpw() const { return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0; }
};

Found sum_up(const std::vector<Row>& rows) {
  Found found;
  for (const Row& row : rows) {
    found.weights += row.weights;
    found.bytes += row.bytes;
    found.schemes[row.activation.empty() ? row.scheme : row.scheme + ", activations " + row.activation] += row.weights;
  }
  return found;
}

// What the configuration says and the files deny. Nothing is compared when there is no configuration.
struct Contradictions {
  std::vector<std::string> texts;
  bool cannot_run = false;  // weights are missing, misshapen or unknown: no command would load this
};

Contradictions contradictions_of(const std::string& path, const tensor::ModelWeights& weights) {
  Contradictions out;
  if (weights.config.empty()) return out;
  const auto arch = model::describe_architecture(weights.config);
  if (!arch.ok()) {
    out.texts.push_back(arch.error().message());
    return out;
  }
  for (const std::string& note : arch->notes) log::info("{}", note);
  const auto tokenizer = checkpoints::load_tokenizer(path);
  auto tokens =
      runtime::token_contradictions(path, weights.config, tokenizer.ok() ? &*tokenizer : nullptr, arch->vocab_size);
  if (!tokens.ok()) {
    out.texts.push_back(tokens.error().message());
  } else {
    out.texts = std::move(*tokens);
  }
  const auto ends = runtime::end_ids(path, weights.config, tokenizer.ok() ? &*tokenizer : nullptr, arch->vocab_size);
  if (!ends.ok()) {
    out.texts.push_back(ends.error().message());
  } else {
    out.texts.insert(out.texts.end(), ends->notes.begin(), ends->notes.end());
  }
  if (tokenizer.ok()) {
    for (const std::string& warning : tokenizer->warnings()) log::warn("{}", warning);
  }
  const auto leftovers = model::account_weights(weights, *arch);
  if (!leftovers.ok()) {
    out.texts.insert(out.texts.begin(), leftovers.error().message());
    out.cannot_run = true;
    return out;
  }
  for (const std::string& leftover : *leftovers) log::info("{}", leftover);
  const auto tied = model::head_is_tied(weights, *arch);
  if (tied.ok() && arch->tied_head && !*tied) {
    out.texts.emplace_back("tie_word_embeddings is true, but there is a head of its own (the file decides)");
  }
  return out;
}

void print_report(Context& context, const tensor::ModelWeights& weights, const std::vector<Row>& rows,
                  const Found& found, const std::vector<std::string>& contradictions, bool with_tensors) {
  context.say(fmt::format("format      {}", weights.format));
  for (const auto& member : declared_by(weights.config)) {
    if (!member.value().is_object()) {
      context.say(fmt::format("{:11} {}", std::string_view(member.key()), boost::json::serialize(member.value())));
    }
  }
  context.say(fmt::format("weights     {} in {} tensors, {}, {:.3f} bits each", found.weights, rows.size(),
                          size_text(static_cast<uint64_t>(found.bytes)), found.bpw()));
  for (const auto& [scheme, count] : found.schemes) context.say(fmt::format("  {:>13}  {}", count, scheme));
  if (!weights.kv.k_dtype.empty()) {
    context.say(fmt::format("KV cache    {} {}", weights.kv.k_dtype, weights.kv.v_dtype));
  }
  for (const std::string& text : contradictions) context.say("contradiction: " + text);
  if (!with_tensors) return;
  context.say("");
  for (const Row& row : rows) {
    context.say(
        fmt::format("{:60} {:16} {:8.3f} bpw  {}", row.name, tensor::shape_text(row.shape), row.bpw(), row.scheme));
  }
}

json::object histogram_json(const std::string& name, const eval::WeightHistogram& h) {
  json::array bounds;
  for (const eval::GranularityBound& b : h.bounds) {
    bounds.push_back({{"scales", b.name},
                      {"bits", b.bits},
                      {"bpw", b.bpw},
                      {"max_error", b.max_error},
                      {"relative_rms_error", b.relative_rms}});
  }
  return {{"name", name},
          {"mean", h.mean},
          {"rms", h.rms},
          {"amax", h.amax},
          {"kurtosis", h.kurtosis},
          {"outlier_ratio", h.outlier_ratio},
          {"outlier_share", h.outlier_share},
          {"worst_column_ratio", h.worst_column},
          {"bins", json::array(h.bins.begin(), h.bins.end())},
          {"bounds", std::move(bounds)},
          {"suggestion", h.suggestion},
          {"why", h.why}};
}

// The matrices that --histogram names: a module, a weight, or "all". The picture shows the first.
Result<json::array> histograms(Context& context, const Options& options, const tensor::ModelWeights& weights,
                               std::map<std::string, double>& outlier_ratios) {
  json::array out;
  for (const std::string& name : weights.names()) {
    const bool named = options.histogram == "all" || name == options.histogram || name == options.histogram + ".weight";
    if (!named || weights.find(name)->shape.size() != 2) continue;
    TARE_ASSIGN(const tensor::Weight weight, weights.load(name));
    TARE_ASSIGN(const eval::WeightHistogram h, eval::weight_histogram(weight));
    outlier_ratios[name] = h.outlier_ratio;
    context.say(
        fmt::format("{}: rms {:.4g}, largest {:.1f} rms, kurtosis {:.1f}, worst column {:.1f}; suggestion: {} ({})",
                    name, h.rms, h.outlier_ratio, h.kurtosis, h.worst_column, h.suggestion, h.why));
    if (options.histogram != "all") {
      for (const eval::GranularityBound& b : h.bounds) {
        context.say(fmt::format("  {} bits, {:10} {:8.3f} bpw  expected error {:6.2f}%  at most {:.3g}", b.bits, b.name,
                                b.bpw, 100 * b.relative_rms, b.max_error));
      }
    }
    if (!options.plot.empty() && out.empty()) {
      TARE_TRY(write_file_atomically(options.plot, eval::histogram_svg(name, h)));
    }
    out.push_back(histogram_json(name, h));
  }
  if (out.empty()) {
    return invalid_input(
        "no such matrix",
        {.where = "--histogram", .expected = "a name of --tensors or 'all'", .found = options.histogram});
  }
  return out;
}

Status inspect(Context& context, const Options& options) {
  if (!options.plot.empty() && options.histogram.empty()) {
    return invalid_input("nothing to draw", {.where = "--plot", .expected = "--histogram NAME beside it"});
  }
  TARE_ASSIGN(const tensor::ModelWeights weights,
              checkpoints::load_checkpoint(options.model, context.load_options(options.quantization)));
  for (const std::string& note : weights.notes) log::info("{}", note);
  std::vector<Row> rows;
  for (const std::string& name : weights.names()) {
    TARE_ASSIGN(Row row, make_row(name, *weights.find(name)));
    rows.push_back(std::move(row));
  }
  const Found found = sum_up(rows);
  const Contradictions contradictions = contradictions_of(options.model, weights);
  print_report(context, weights, rows, found, contradictions.texts, options.tensors);

  std::map<std::string, double> outlier_ratios;
  json::array drawn;
  if (!options.histogram.empty()) {
    TARE_ASSIGN(drawn, histograms(context, options, weights, outlier_ratios));
  }
  json::array tensors;
  for (const Row& row : rows) {
    const auto ratio = outlier_ratios.find(row.name);
    json::object item{{"name", row.name},
                      {"shape", json::array(row.shape.begin(), row.shape.end())},
                      {"code", row.code},
                      {"scheme", row.scheme},
                      {"group_size", row.group_size > 0 ? json::value(row.group_size) : json::value()},
                      {"bits", row.bits},
                      {"bpw", row.bpw()},
                      {"bytes", row.bytes},
                      // needs the values, which only --histogram reads
                      {"outlier_ratio", ratio == outlier_ratios.end() ? json::value() : json::value(ratio->second)}};
    if (!row.activation.empty()) item["activation"] = row.activation;
    tensors.push_back(std::move(item));
  }
  json::object schemes;
  for (const auto& [scheme, count] : found.schemes) schemes[scheme] = count;
  json::object sums{{"tensors", rows.size()}, {"weights", found.weights}, {"bytes", found.bytes}, {"schemes", schemes}};
  if (!weights.kv.k_dtype.empty()) sums["kv"] = {{"k", weights.kv.k_dtype}, {"v", weights.kv.v_dtype}};
  context.emit({{"format", weights.format},
                {"declared", declared_by(weights.config)},
                {"found", std::move(sums)},
                {"contradictions", json::array(contradictions.texts.begin(), contradictions.texts.end())},
                {"notes", json::array(weights.notes.begin(), weights.notes.end())},
                {"bpw", found.bpw()},
                {"tensors", std::move(tensors)},
                {"histograms", std::move(drawn)}});
  if (contradictions.cannot_run) {
    return make_error(ErrorKind::kGateFailed, "this model cannot be run",
                      {.where = options.model, .found = contradictions.texts.front()});
  }
  return {};
}

}  // namespace

extern const Command kInspect;
const Command kInspect = {
    .name = "inspect",
    .summary = "what a model file declares, what it holds, and where the two differ",
    .examples =
        "tare inspect model/\ntare inspect model.gguf --tensors\ntare inspect model/ --json\n"
        "tare inspect model/ --histogram model.layers.0.mlp.down_proj --plot down.svg",
    .declare = [](CLI::App& app) -> Runner {
      auto options = std::make_shared<Options>();
      app.add_option("MODEL", options->model, "folder, .gguf or .safetensors file")->required();
      app.add_flag("--tensors", options->tensors, "a line for each tensor");
      app.add_option("--histogram", options->histogram, "distribution and error bounds of one matrix, or of all")
          ->type_name("NAME");
      app.add_option("--plot", options->plot, "picture of the histogram, as SVG")->type_name("FILE");
      app.add_option("--quantization", options->quantization, "insist on a checkpoint format")->type_name("NAME");
      return [options](Context& context) { return inspect(context, *options); };
    },
};

}  // namespace tare::cli
