#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "base/size_text.h"
#include "base/version.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/text_assets.h"
#include "checkpoints/write.h"
#include "cli/command.h"
#include "cli/known_answer.h"
#include "cli/quantize_calibration.h"
#include "cli/quantize_flags.h"
#include "cli/quantize_format.h"
#include "cli/quantize_plugin.h"
#include "eval/report.h"
#include "plugin/plugins.h"
#include "quantize/forms/form.h"
#include "quantize/pipeline.h"

namespace tare::cli {

namespace {

namespace fs = std::filesystem;

// JSON lines of what happens, for --log-json.
class EventLog {
 public:
  Status open(const std::string& path) {
    file_.open(path, std::ios::app);
    if (!file_) return io_error("cannot write the log", {.where = path});
    return {};
  }
  explicit operator bool() const { return file_.is_open(); }
  void line(json::object event) {
    event["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    file_ << boost::json::serialize(event) << std::endl;
  }

 private:
  std::ofstream file_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

std::string journal_of(std::string out) {
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out + ".journal";
}

// Half-written folders of runs that were killed; a run that lives keeps its own.
void remove_leftovers(std::string out) {
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  const fs::path path(out);
  const std::string prefix = path.filename().string() + ".partial-";
  std::error_code ec;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(parent, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string pid = name.substr(prefix.size());
    if (pid.empty() || pid.find_first_not_of("0123456789") != pid.npos || fs::exists("/proc/" + pid, ec)) continue;
    fs::remove_all(entry.path(), ec);
  }
}

// Everything that decides the bytes of the result.
Result<json::object> fingerprint(const QuantizeFlags& flags, const quantize::PipelineOptions& options,
                                 const CalibrationInput& calibration, const std::string& plan, const Context& context) {
  TARE_ASSIGN(json::object model, quantize::model_fingerprint(flags.model));
  json::object settings{{"method", flags.method},
                        {"scheme", quantize::describe(options.widths)},
                        {"grid", quantize::describe(options.scheme)},
                        {"scale_rule", flags.scheme.scale_rule},
                        {"scale_dtype", flags.scheme.scale_dtype},
                        {"format", flags.format},
                        {"head", quantize::head_name(options.head)},
                        {"ignore", json::array(flags.ignore.begin(), flags.ignore.end())},
                        {"set", json::array(flags.set.begin(), flags.set.end())},
                        {"dequantize_first", flags.dequantize_first},
                        {"allow_loss", flags.allow_loss},
                        {"gate", flags.gate.limits},
                        {"gate_text", flags.gate.text_file},
                        {"isa", machine::isa_name(context.capabilities().isa)}};
  if (flags.precision.any()) {
    settings["target_bytes"] = flags.precision.target_bytes;
    settings["target_bpw"] = flags.precision.target_bpw.value_or(0);
    settings["plan"] = sha256_hex(std::as_bytes(std::span(plan)));
  }
  json::object data;
  if (calibration.data.tokens > 0) data = {{"tokens", calibration.data.tokens}, {"sha256", calibration.sha256}};
  return json::object{
      {"version", kVersion}, {"model", std::move(model)}, {"data", std::move(data)}, {"settings", std::move(settings)}};
}

// What a plan was made from.
Result<json::object> plan_identity(const std::string& model, const std::string& data) {
  TARE_ASSIGN(json::object files, quantize::model_fingerprint(model));
  json::object out{{"model", std::move(files)}};
  if (!data.empty()) out["calibration"] = data;
  return out;
}

json::object matrix_json(const quantize::MatrixReport& m) {
  return {{"name", m.name},           {"scheme", m.scheme}, {"bpw", m.bpw},      {"error", m.error},
          {"error_rtn", m.error_rtn}, {"tokens", m.tokens}, {"status", m.status}};
}

// The head as the format can hold it. Only tare's own file has a quantized embedding table.
Result<quantize::HeadChoice> head_choice(const QuantizeFlags& flags, const tensor::ModelWeights& source,
                                         std::vector<std::string>& substitutions) {
  TARE_ASSIGN(const quantize::HeadChoice head, quantize::parse_head(flags.head));
  if (flags.format == "tare") return head;
  if (head == quantize::HeadChoice::kInt8 || head == quantize::HeadChoice::kInt8A8) {
    return unsupported("format has no quantized embedding table",
                       {.where = "--head " + flags.head, .found = flags.format, .hint = "use --format tare"});
  }
  if (head != quantize::HeadChoice::kSource) return head;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const tensor::WeightInfo* info = source.find(name);
    if (!info || !std::holds_alternative<tensor::QuantSpec>(info->form)) continue;
    substitutions.push_back(
        fmt::format("{}: {} holds no quantized table, so --head bfloat16 is used", name, flags.format));
    return quantize::HeadChoice::kBF16;
  }
  return head;
}

Status run_with(Context& context, QuantizeFlags& flags, std::optional<quantize::Journal>& kept) {
  const auto started = std::chrono::steady_clock::now();
  quantize::PipelineOptions options;
  const PrecisionFlags& precision = flags.precision;
  TARE_TRY(check_precision(precision, scheme_flags_given(flags)));
  if (flags.out.empty() && precision.plan_only.empty()) {
    return invalid_input("the result needs a place", {.where = "--out", .expected = "a folder"});
  }
  std::optional<quantize::PrecisionPlan> plan;
  std::string plan_given;
  if (!precision.plan.empty()) {
    TARE_ASSIGN(plan_given, read_text_file(precision.plan));
    TARE_ASSIGN(plan, quantize::parse_plan(plan_given, precision.plan));
    if (flags.format.empty()) flags.format = plan->format;
    if (flags.head == "source") flags.head = plan->head;
    if (flags.head != plan->head) {
      return invalid_input("the plan says another head",
                           {.where = "--head", .expected = plan->head, .found = flags.head});
    }
  }
  if (flags.method.empty()) {
    flags.method = precision.measures() || (plan && plan->needs_data()) ? "gptq" : "rtn";
  }
  if (const TareAlgorithm* algorithm = plugin::find_algorithm(context.registries(), flags.method)) {
    if (flags.format.empty()) flags.format = "tare";
    return quantize_by_plugin(context, *algorithm, flags);
  }
  TARE_ASSIGN(options.recipe, quantize::find_recipe(flags.method));
  TARE_ASSIGN(flags.format, settle_format(*options.recipe, flags.format, flags.allow_loss));
  if (flags.symmetric || flags.asymmetric) flags.scheme.symmetric = flags.symmetric;
  TARE_ASSIGN(options.scheme, quantize::resolve_scheme(*options.recipe, flags.scheme, &options.widths));
  for (const std::string& text : flags.set) {
    TARE_ASSIGN(quantize::SchemeException exception, quantize::parse_exception(text));
    options.exceptions.push_back(std::move(exception));
  }
  TARE_ASSIGN(const checkpoints::CheckpointWriter* writer, checkpoints::find_writer(flags.format));
  TARE_ASSIGN(const int64_t target, target_bytes(precision));
  options.ignore = flags.ignore;
  options.dequantize_first = flags.dequantize_first;
  options.budget = &context.memory();

  TARE_ASSIGN(tensor::ModelWeights loaded, checkpoints::load_checkpoint(flags.model, context.load_options()));
  const auto source = std::make_shared<const tensor::ModelWeights>(std::move(loaded));
  TARE_ASSIGN(const model::Architecture arch, model::describe_architecture(source->config));
  std::vector<std::string> substitutions = source->notes;
  substitutions.insert(substitutions.end(), arch.notes.begin(), arch.notes.end());
  // Others load a compressed-tensors scale in the type of the model, so it is made in that type.
  const quantize::Form* form = options.scheme.grid.form;
  if (flags.format == "compressed-tensors" && flags.scheme.scale_dtype.empty() && options.scheme.grid.bits < 8 &&
      (!form || form->typed_scales)) {
    for (const char* key : {"torch_dtype", "dtype"}) {
      const json::value* dtype = json::find(source->config, key);
      if (dtype && dtype->is_string() && dtype->get_string() == "bfloat16") {
        options.scheme.grid.scale_dtype = tensor::DType::kBF16;
        if (precision.measures()) flags.scheme.scale_dtype = "bfloat16";
      }
    }
  }
  // A plan is held against the format by itself.
  if (!flags.allow_loss && !precision.any()) {
    TARE_TRY(check_format(flags.format, *source, arch, options, context.pool()));
  }
  TARE_ASSIGN(options.head, head_choice(flags, *source, substitutions));
  options.caps = context.capabilities();
  CalibrationInput calibration;
  if (options.recipe->calibrated || precision.measures()) {
    TARE_ASSIGN(calibration, read_calibration(flags.model, flags.calibration, flags.samples, flags.sequence_length));
    options.calibration = calibration.data;
    options.kernels = context.registries().linear;
  } else if (!flags.calibration.empty() && !plan) {
    substitutions.push_back(
        fmt::format("--calibration {}: {} sees no data, so it was not read", flags.calibration, options.recipe->name));
  }
  const quantize::PrecisionRequest request{.source = source,
                                           .arch = &arch,
                                           .options = options,
                                           .flags = flags.scheme,
                                           .writer = writer,
                                           .allow_loss = flags.allow_loss,
                                           .target_bytes = target,
                                           .target_bpw = precision.target_bpw};
  json::object made_from;
  if (precision.any()) {
    TARE_ASSIGN(made_from, plan_identity(flags.model, calibration.sha256));
  }
  std::vector<std::string> plan_notes;
  if (plan) {
    TARE_ASSIGN(plan, plan_from_file(precision.plan, request, made_from, context.pool(), plan_notes));
  } else if (!precision.plan_only.empty()) {
    TARE_ASSIGN(const auto made, measured_plan(context, request, std::move(made_from), {}, plan_notes));
    return write_plan_only(context, precision.plan_only, made, plan_notes);
  }
  TARE_ASSIGN(std::optional<GatePlan> gate,
              plan_gate(flags.gate, flags.model, arch.max_positions, options.widths.weight));
  // Made before the work: a name that is taken is told now, also the one of a result that will fail the gate.
  const std::string rejected = flags.out + ".rejected";
  const std::string journal_folder = journal_of(flags.out);
  std::error_code ec;
  // A run that ended after its last step has left its journal and its result: what stands there is this run's own.
  const bool finished_before = flags.resume && fs::exists(journal_folder, ec) &&
                               (fs::exists(flags.out, ec) || (gate && fs::exists(rejected, ec)));
  const bool replace = flags.overwrite || finished_before;
  if (replace) {
    TARE_TRY(checkpoints::check_replaceable(flags.out, flags.model));
    if (gate) TARE_TRY(checkpoints::check_replaceable(rejected, flags.model));
  } else if (gate && fs::exists(rejected, ec)) {
    return invalid_input("a rejected result is in the way",
                         {.where = rejected, .hint = "remove it or pass --overwrite"});
  }
  if (flags.resume) remove_leftovers(flags.out);
  TARE_ASSIGN(AtomicDirectory folder, AtomicDirectory::create(flags.out, replace));
  TARE_ASSIGN(json::object identity, fingerprint(flags, options, calibration, plan_given, context));
  TARE_ASSIGN(kept, quantize::Journal::open(journal_folder, std::move(identity), flags.resume));
  quantize::Journal& journal = *kept;
  options.journal = &journal;
  options.spill_folder = journal_folder;
  if (journal.blocks() > 0) {
    context.say(fmt::format("resumed: {} of {} blocks were done", journal.blocks(), arch.layers));
  }

  if (precision.measures()) {
    auto made = measured_plan(context, request, std::move(made_from), journal_folder + "/plan.json", plan_notes);
    if (!made.ok()) {
      TARE_TRY(journal.remove());
      return std::move(made).error();
    }
    plan = std::move(*made);
  }
  std::string method = flags.method;
  std::string grid = quantize::describe(options.scheme);
  std::string scheme = quantize::describe(options.widths);
  bool calibrated = options.recipe->calibrated;
  if (plan) {
    // The same words for the run that made a plan and for one that takes it.
    method = "mixed";
    grid = fmt::format("as {} says", checkpoints::kPlanName);
    calibrated = plan->needs_data();
    const double bits = quantize::mean_bits(*plan);
    scheme = describe_plan(*plan, bits);
    options.widths = {
        .weight = std::clamp(static_cast<int>(bits), 2, 8), .activation = plan->activation, .kv = plan->kv};
    options.plan = plan->schemes();
    if (gate && flags.gate.limits.empty()) gate->limits = eval::default_gate(options.widths.weight);
    substitutions.insert(substitutions.end(), plan_notes.begin(), plan_notes.end());
  }
  if (calibrated) {
    substitutions.insert(substitutions.end(), calibration.notes.begin(), calibration.notes.end());
  } else {
    // It measured a plan that needs none: not a part of the result.
    for (const std::string& note : calibration.notes) context.say("note: " + note);
  }

  EventLog log;
  if (!flags.log_json.empty()) TARE_TRY(log.open(flags.log_json));
  std::unique_ptr<Progress> progress;
  options.progress = [&](const quantize::MatrixReport& matrix, int64_t done, int64_t total) {
    if (!progress) progress = std::make_unique<Progress>(context.progress(), "quantize", total, "matrices");
    progress->note(fmt::format("{}  error {:.2e}, to nearest {:.2e}", matrix.name, matrix.error, matrix.error_rtn));
    progress->advance(done - progress->done());
    if (log) log.line(matrix_json(matrix));
  };
  options.transform_progress = [&](const quantize::TransformReport& transform) {
    if (progress) progress->note(fmt::format("layer {} {}: {}", transform.layer, transform.name, transform.summary));
    if (log) log.line({{"transform", transform.name}, {"layer", transform.layer}, {"summary", transform.summary}});
  };
  auto quantized = quantize::quantize_model(source, arch, options, context.pool());
  if (!quantized.ok()) {
    Error error = std::move(quantized).error();
    if (journal.blocks() == 0) {
      TARE_TRY(journal.remove());
    } else if (error.hint.empty()) {
      error.hint =
          fmt::format("{} blocks are kept in {}: --resume goes on with them", journal.blocks(), journal_folder);
    }
    return error;
  }
  const quantize::Outcome& outcome = *quantized;
  progress.reset();
  substitutions.insert(substitutions.end(), outcome.substitutions.begin(), outcome.substitutions.end());

  json::value data;
  if (calibrated) data = calibration.record;
  json::value group = options.scheme.grid.group_size > 0 ? options.scheme.grid.group_size : -1;
  if (plan) group = nullptr;
  json::array transforms;
  for (const std::string_view name : options.recipe->transforms) transforms.emplace_back(name);
  TARE_TRY(journal.phase("write"));
  TARE_ASSIGN(const checkpoints::SideFiles side,
              checkpoints::copy_side_files(flags.model, folder.path(), flags.format));
  progress = std::make_unique<Progress>(context.progress(), "write",
                                        static_cast<int64_t>(outcome.weights.names().size()), "tensors");
  TARE_ASSIGN(const checkpoints::WriteReport written,
              checkpoints::write_checkpoint({.folder = folder.path(),
                                             .format = flags.format,
                                             .source = flags.model,
                                             .weights = &outcome.weights,
                                             .settings = {{"scheme", scheme},
                                                          {"method", method},
                                                          {"group_size", group},
                                                          {"head", quantize::head_name(options.head)},
                                                          {"transforms", transforms},
                                                          {"calibration", data}},
                                             .allow_loss = flags.allow_loss,
                                             .progress = [&](const std::string&) -> Status {
                                               progress->advance();
                                               return check_interrupt("quantize");
                                             }}));
  progress.reset();
  substitutions.insert(substitutions.end(), side.notes.begin(), side.notes.end());
  for (const std::string& name : side.left_out) substitutions.push_back("left out " + name);
  substitutions.insert(substitutions.end(), written.losses.begin(), written.losses.end());

  json::array matrices;
  for (const quantize::MatrixReport& matrix : outcome.matrices) matrices.push_back(matrix_json(matrix));
  const double bpw = 8.0 * static_cast<double>(outcome.stored_bytes) / static_cast<double>(outcome.parameters);
  TARE_ASSIGN(json::object answer, known_answer(context, folder.path()));
  json::object record{{"known_answer", std::move(answer)},
                      {"method", method},
                      {"scheme", scheme},
                      {"grid", grid},
                      {"source", flags.model},
                      {"source_format", source->format},
                      {"bpw", bpw},
                      {"error_kind", outcome.error_kind},
                      {"substitutions", json::array(substitutions.begin(), substitutions.end())},
                      {"copied", json::array(side.copied.begin(), side.copied.end())},
                      {"layers", matrices}};
  int64_t bytes = 0;
  for (const io::WrittenFile& file : written.files) bytes += static_cast<int64_t>(file.bytes);
  if (plan) {
    record["plan"] = plan_json(*plan);
    TARE_TRY(
        write_file_atomically((fs::path(folder.path()) / checkpoints::kPlanName).string(), quantize::plan_text(*plan)));
    if (precision.measures() && bytes > plan->target_bytes) {
      return internal_error("the result is larger than its target", {.where = folder.path(),
                                                                     .expected = fmt::format("{} bytes", plan->bytes),
                                                                     .found = fmt::format("{}", bytes)});
    }
  }
  std::string out = flags.out;
  std::optional<eval::GateVerdict> verdict;
  if (gate) {
    TARE_ASSIGN(verdict, run_gate(context, *gate, flags.model, folder.path()));
    record["gate"] = eval::gate_json(*verdict);
    if (!verdict->passed) out = rejected;
  } else {
    record["gate"] = nullptr;
    substitutions.push_back("the result was not compared with its source (--gate off)");
  }
  TARE_TRY(checkpoints::write_manifest(folder.path(), record, written.files));
  TARE_TRY(check_interrupt("quantize"));
  TARE_TRY(journal.phase("rename"));
  TARE_TRY(folder.commit_as(out));
  TARE_TRY(journal.remove());

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  double worst = 0;
  std::string worst_name;
  for (const quantize::MatrixReport& matrix : outcome.matrices) {
    if (matrix.error < worst) continue;
    worst = matrix.error;
    worst_name = matrix.name;
  }
  context.say(fmt::format("{}: {} {}, {} matrices, {:.3f} bits per weight over the whole model, {}", out, scheme,
                          method, outcome.matrices.size(), bpw, size_text(static_cast<uint64_t>(bytes))));
  context.say(fmt::format("largest {} error {:.3e} in {}", outcome.error_kind, worst, worst_name));
  for (const std::string& text : substitutions) context.say("note: " + text);
  context.say(fmt::format("{:.1f} s, peak memory {}", seconds, size_text(peak_rss_bytes())));
  if (verdict) {
    const eval::Divergence& d = verdict->measured;
    context.say(fmt::format("gate {}: KL {:.4f} +- {:.4f}, top-1 agreement {:.2f} %, perplexity {:.3f} (source {:.3f})",
                            verdict->passed ? "passed" : "failed", d.kl_mean, d.kl_stderr, 100 * d.top1_agreement,
                            d.model.perplexity, d.reference.perplexity));
    for (const std::string& reason : verdict->reasons) context.say("gate: " + reason);
  }
  json::object document{{"out", out},
                        {"format", flags.format},
                        {"method", method},
                        {"scheme", scheme},
                        {"bpw", bpw},
                        {"bytes", bytes},
                        {"seconds", seconds},
                        {"peak_rss_bytes", peak_rss_bytes()},
                        {"error_kind", outcome.error_kind},
                        {"layers", std::move(matrices)},
                        {"substitutions", json::array(substitutions.begin(), substitutions.end())},
                        {"copied", json::array(side.copied.begin(), side.copied.end())},
                        {"gate", record["gate"]}};
  if (plan) document["plan"] = plan_json(*plan);
  if (!flags.report.empty()) TARE_TRY(write_file_atomically(flags.report, eval::quantize_report_html(document)));
  context.emit(document);
  if (!verdict || verdict->passed) return {};
  return make_error(ErrorKind::kGateFailed, "the result fails the gate",
                    {.where = out, .found = verdict->reasons.empty() ? "" : verdict->reasons.front()});
}

Status run(Context& context, QuantizeFlags& flags) {
  std::optional<quantize::Journal> journal;
  Status status = run_with(context, flags, journal);
  if (status.ok() || !journal) return status;
  // What going on would not mend leaves no journal.
  const ErrorKind kind = status.error().kind;
  if (kind == ErrorKind::kInvalidInput || kind == ErrorKind::kUnsupported || kind == ErrorKind::kNotFinite) {
    TARE_TRY(journal->remove());
  }
  return status;
}

}  // namespace

extern const Command kQuantize;
const Command kQuantize = {
    .name = "quantize",
    .summary = "make a smaller model and say what it cost",
    .examples =
        "tare quantize model/ --out out/ --scheme W4A8 --group-size 128\n"
        "tare quantize model.gguf --out out/ --scheme W8A8 --format compressed-tensors\n"
        "tare quantize model/ --out out/ --target-bpw 4.5 --calibration text.txt\n"
        "tare quantize model/ --out out/ --bits 3 --set '.*down_proj:bits=4' --ignore '.*layers\\.0\\..*'",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<QuantizeFlags>();
      declare_quantize(app, *flags);
      add_repeated(app, "--ignore", flags->ignore,
                   "modules that stay as they are (pattern from the start of the name)");
      add_repeated(app, "--set", flags->set, "exception, as 'RE:bits=8,group_size=32'");
      return [flags](Context& context) { return run(context, *flags); };
    },
};

}  // namespace tare::cli
