#include "cli/quantize_run.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/size_text.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/text_assets.h"
#include "checkpoints/write.h"
#include "cli/event_log.h"
#include "cli/known_answer.h"
#include "cli/quantize_calibration.h"
#include "cli/quantize_flags.h"
#include "cli/quantize_format.h"
#include "cli/quantize_journal.h"
#include "cli/quantize_plugin.h"
#include "eval/report.h"
#include "plugin/plugins.h"
#include "quantize/forms/form.h"
#include "quantize/pipeline.h"

namespace tare::cli {

namespace {

namespace fs = std::filesystem;

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

// One `tare quantize`, step by step; each step takes what those before it left.
class QuantizeRun {
 public:
  QuantizeRun(Context& context, QuantizeFlags& flags) : context_(context), flags_(flags) {}
  Status run();

 private:
  Status steps();
  Status settle_method();
  Status settle_scheme();
  Status open_source();
  Status read_data();
  quantize::PrecisionRequest request() const;
  Status settle_plan();
  Status take_place();
  Status measure_plan();
  Status solve();
  Status write();
  Status judge();
  Status commit();
  Status report();

  Context& context_;
  QuantizeFlags& flags_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();

  // What is asked for.
  quantize::PipelineOptions options_;
  const checkpoints::CheckpointWriter* writer_ = nullptr;
  int64_t target_ = 0;  // bytes; 0: none
  std::optional<quantize::PrecisionPlan> plan_;
  std::string plan_given_;  // the text of --plan
  json::object made_from_;  // identity of a plan
  std::vector<std::string> plan_notes_;

  // What it is made from.
  std::shared_ptr<const tensor::ModelWeights> source_;
  model::Architecture arch_;
  CalibrationInput calibration_;

  // Where it goes.
  std::optional<GatePlan> gate_;
  std::string rejected_;  // the name of a result that fails the gate
  std::string journal_folder_;
  std::optional<AtomicDirectory> folder_;
  std::optional<quantize::Journal> journal_;
  EventLog log_;
  std::unique_ptr<Progress> progress_;

  // What was made, and what has to be said of it.
  std::string method_, grid_, scheme_;
  bool calibrated_ = false;
  std::vector<std::string> substitutions_;
  std::optional<quantize::Outcome> outcome_;
  checkpoints::SideFiles side_;
  checkpoints::WriteReport written_;
  json::array matrices_;
  json::object record_;
  double bpw_ = 0;
  int64_t bytes_ = 0;
  std::optional<eval::GateVerdict> verdict_;
  std::string out_;  // flags.out, or rejected_
};

Status QuantizeRun::steps() {
  TARE_TRY(settle_method());
  if (const TareAlgorithm* algorithm = plugin::find_algorithm(context_.registries(), flags_.method)) {
    if (flags_.format.empty()) flags_.format = "tare";
    return quantize_by_plugin(context_, *algorithm, flags_);
  }
  TARE_TRY(settle_scheme());
  TARE_TRY(open_source());
  TARE_TRY(read_data());
  TARE_TRY(settle_plan());
  if (!flags_.precision.plan_only.empty()) return {};
  TARE_TRY(take_place());
  TARE_TRY(measure_plan());
  TARE_TRY(solve());
  TARE_TRY(write());
  TARE_TRY(judge());
  TARE_TRY(commit());
  return report();
}

// The method and what a plan file decides.
Status QuantizeRun::settle_method() {
  TARE_TRY(check_precision(flags_.precision, scheme_flags_given(flags_)));
  if (flags_.out.empty() && flags_.precision.plan_only.empty()) {
    return invalid_input("the result needs a place", {.where = "--out", .expected = "a folder"});
  }
  if (!flags_.precision.plan.empty()) {
    TARE_ASSIGN(plan_given_, read_text_file(flags_.precision.plan));
    TARE_ASSIGN(plan_, quantize::parse_plan(plan_given_, flags_.precision.plan));
    if (flags_.format.empty()) flags_.format = plan_->format;
    if (flags_.head == "source") flags_.head = plan_->head;
    if (flags_.head != plan_->head) {
      return invalid_input("the plan says another head",
                           {.where = "--head", .expected = plan_->head, .found = flags_.head});
    }
  }
  if (flags_.method.empty()) {
    flags_.method = flags_.precision.measures() || (plan_ && plan_->needs_data()) ? "gptq" : "rtn";
  }
  return {};
}

// What matrices become, in which format.
Status QuantizeRun::settle_scheme() {
  TARE_ASSIGN(options_.recipe, quantize::find_recipe(flags_.method));
  TARE_ASSIGN(flags_.format, settle_format(*options_.recipe, flags_.format, flags_.allow_loss));
  if (flags_.symmetric || flags_.asymmetric) flags_.scheme.symmetric = flags_.symmetric;
  TARE_ASSIGN(options_.scheme, quantize::resolve_scheme(*options_.recipe, flags_.scheme, &options_.widths));
  for (const std::string& text : flags_.set) {
    TARE_ASSIGN(quantize::SchemeException exception, quantize::parse_exception(text));
    options_.exceptions.push_back(std::move(exception));
  }
  TARE_ASSIGN(writer_, checkpoints::find_writer(flags_.format));
  TARE_ASSIGN(target_, target_bytes(flags_.precision));
  options_.ignore = flags_.ignore;
  options_.dequantize_first = flags_.dequantize_first;
  options_.budget = &context_.memory();
  return {};
}

// The source, and whether the format holds what will be made of it.
Status QuantizeRun::open_source() {
  TARE_ASSIGN(tensor::ModelWeights loaded, checkpoints::load_checkpoint(flags_.model, context_.load_options()));
  source_ = std::make_shared<const tensor::ModelWeights>(std::move(loaded));
  TARE_ASSIGN(arch_, model::describe_architecture(source_->config));
  substitutions_ = source_->notes;
  substitutions_.insert(substitutions_.end(), arch_.notes.begin(), arch_.notes.end());
  // Others load a compressed-tensors scale in the type of the model, so it is made in that type.
  const quantize::Form* form = options_.scheme.grid.form;
  if (flags_.format == "compressed-tensors" && flags_.scheme.scale_dtype.empty() && options_.scheme.grid.bits < 8 &&
      (!form || form->typed_scales)) {
    for (const char* key : {"torch_dtype", "dtype"}) {
      const json::value* dtype = json::find(source_->config, key);
      if (dtype && dtype->is_string() && dtype->get_string() == "bfloat16") {
        options_.scheme.grid.scale_dtype = tensor::DType::kBF16;
        if (flags_.precision.measures()) flags_.scheme.scale_dtype = "bfloat16";
      }
    }
  }
  // A plan is held against the format by itself.
  if (!flags_.allow_loss && !flags_.precision.any()) {
    TARE_TRY(check_format(flags_.format, *source_, arch_, options_, context_.pool()));
  }
  return {};
}

// Calibration data, where somebody looks at it.
Status QuantizeRun::read_data() {
  TARE_ASSIGN(options_.head, head_choice(flags_, *source_, substitutions_));
  options_.caps = context_.capabilities();
  if (options_.recipe->calibrated || flags_.precision.measures()) {
    TARE_ASSIGN(calibration_,
                read_calibration(flags_.model, flags_.calibration, flags_.samples, flags_.sequence_length));
    options_.calibration = calibration_.data;
    options_.kernels = context_.registries().linear;
  } else if (!flags_.calibration.empty() && !plan_) {
    substitutions_.push_back(fmt::format("--calibration {}: {} sees no data, so it was not read", flags_.calibration,
                                         options_.recipe->name));
  }

  if (flags_.precision.any()) {
    TARE_ASSIGN(made_from_, plan_identity(flags_.model, calibration_.sha256));
  }
  return {};
}

quantize::PrecisionRequest QuantizeRun::request() const {
  return quantize::PrecisionRequest{.source = source_,
                                    .arch = &arch_,
                                    .options = options_,
                                    .flags = flags_.scheme,
                                    .writer = writer_,
                                    .allow_loss = flags_.allow_loss,
                                    .target_bytes = target_,
                                    .target_bpw = flags_.precision.target_bpw};
}

// A plan from a file, or one that is the result.
Status QuantizeRun::settle_plan() {
  if (plan_) {
    TARE_ASSIGN(plan_, plan_from_file(flags_.precision.plan, request(), made_from_, context_.pool(), plan_notes_));
  } else if (!flags_.precision.plan_only.empty()) {
    TARE_ASSIGN(const auto made, measured_plan(context_, request(), std::move(made_from_), {}, plan_notes_));
    TARE_TRY(write_plan_only(context_, flags_.precision.plan_only, made, plan_notes_));
  }
  return {};
}

// The names of the result, its gate and its journal.
Status QuantizeRun::take_place() {
  TARE_ASSIGN(gate_, plan_gate(flags_.gate, flags_.model, arch_.max_positions, options_.widths.weight));
  // Made before the work: a name that is taken is told now, also the one of a result that will fail the gate.
  rejected_ = flags_.out + ".rejected";
  journal_folder_ = journal_of(flags_.out);
  std::error_code ec;
  // A run that ended after its last step has left its journal and its result: what stands there is this run's own.
  const bool finished_before = flags_.resume && fs::exists(journal_folder_, ec) &&
                               (fs::exists(flags_.out, ec) || (gate_ && fs::exists(rejected_, ec)));
  const bool replace = flags_.overwrite || finished_before;
  if (replace) {
    TARE_TRY(checkpoints::check_replaceable(flags_.out, flags_.model));
    if (gate_) TARE_TRY(checkpoints::check_replaceable(rejected_, flags_.model));
  } else if (gate_ && fs::exists(rejected_, ec)) {
    return invalid_input("a rejected result is in the way",
                         {.where = rejected_, .hint = "remove it or pass --overwrite"});
  }
  if (flags_.resume) remove_leftovers(flags_.out);
  TARE_ASSIGN(AtomicDirectory folder, AtomicDirectory::create(flags_.out, replace));
  folder_.emplace(std::move(folder));
  TARE_ASSIGN(json::object identity, fingerprint(flags_, options_, calibration_, plan_given_, context_));
  TARE_ASSIGN(journal_, quantize::Journal::open(journal_folder_, std::move(identity), flags_.resume));
  options_.journal = &*journal_;
  options_.spill_folder = journal_folder_;
  if (journal_->blocks() > 0) {
    context_.say(fmt::format("resumed: {} of {} blocks were done", journal_->blocks(), arch_.layers));
  }
  return {};
}

// A plan to a budget, and the words for what is made.
Status QuantizeRun::measure_plan() {
  if (flags_.precision.measures()) {
    auto made = measured_plan(context_, request(), std::move(made_from_), journal_folder_ + "/plan.json", plan_notes_);
    if (!made.ok()) {
      TARE_TRY(journal_->remove());
      return std::move(made).error();
    }
    plan_ = std::move(*made);
  }
  method_ = flags_.method;
  grid_ = quantize::describe(options_.scheme);
  scheme_ = quantize::describe(options_.widths);
  calibrated_ = options_.recipe->calibrated;
  if (plan_) {
    // The same words for the run that made a plan and for one that takes it.
    method_ = "mixed";
    grid_ = fmt::format("as {} says", checkpoints::kPlanName);
    calibrated_ = plan_->needs_data();
    const double bits = quantize::mean_bits(*plan_);
    scheme_ = describe_plan(*plan_, bits);
    options_.widths = {
        .weight = std::clamp(static_cast<int>(bits), 2, 8), .activation = plan_->activation, .kv = plan_->kv};
    options_.plan = plan_->schemes();
    if (gate_ && flags_.gate.limits.empty()) gate_->limits = eval::default_gate(options_.widths.weight);
    substitutions_.insert(substitutions_.end(), plan_notes_.begin(), plan_notes_.end());
  }
  if (calibrated_) {
    substitutions_.insert(substitutions_.end(), calibration_.notes.begin(), calibration_.notes.end());
  } else {
    // It measured a plan that needs none: not a part of the result.
    for (const std::string& note : calibration_.notes) context_.say("note: " + note);
  }
  return {};
}

// The work itself, block by block.
Status QuantizeRun::solve() {
  if (!flags_.log_json.empty()) TARE_TRY(log_.open(flags_.log_json));
  options_.progress = [&](const quantize::MatrixReport& matrix, int64_t done, int64_t total) {
    if (!progress_) progress_ = std::make_unique<Progress>(context_.progress(), "quantize", total, "matrices");
    progress_->note(fmt::format("{}  error {:.2e}, to nearest {:.2e}", matrix.name, matrix.error, matrix.error_rtn));
    progress_->advance(done - progress_->done());
    if (log_) log_.line(matrix_json(matrix));
  };
  options_.transform_progress = [&](const quantize::TransformReport& transform) {
    if (progress_) progress_->note(fmt::format("layer {} {}: {}", transform.layer, transform.name, transform.summary));
    if (log_) log_.line({{"transform", transform.name}, {"layer", transform.layer}, {"summary", transform.summary}});
  };
  auto quantized = quantize::quantize_model(source_, arch_, options_, context_.pool());
  if (!quantized.ok()) {
    Error error = std::move(quantized).error();
    if (journal_->blocks() == 0) {
      TARE_TRY(journal_->remove());
    } else if (error.hint.empty()) {
      error.hint =
          fmt::format("{} blocks are kept in {}: --resume goes on with them", journal_->blocks(), journal_folder_);
    }
    return error;
  }
  outcome_ = std::move(*quantized);
  progress_.reset();
  substitutions_.insert(substitutions_.end(), outcome_->substitutions.begin(), outcome_->substitutions.end());
  return {};
}

// The result, in a folder that is not yet there for others.
Status QuantizeRun::write() {
  json::value data;
  if (calibrated_) data = calibration_.record;
  json::value group = options_.scheme.grid.group_size > 0 ? options_.scheme.grid.group_size : -1;
  if (plan_) group = nullptr;
  json::array transforms;
  for (const std::string_view name : options_.recipe->transforms) transforms.emplace_back(name);
  TARE_TRY(journal_->phase("write"));
  TARE_ASSIGN(side_, checkpoints::copy_side_files(flags_.model, folder_->path(), flags_.format));
  progress_ = std::make_unique<Progress>(context_.progress(), "write",
                                         static_cast<int64_t>(outcome_->weights.names().size()), "tensors");
  TARE_ASSIGN(written_, checkpoints::write_checkpoint({.folder = folder_->path(),
                                                       .format = flags_.format,
                                                       .source = flags_.model,
                                                       .weights = &outcome_->weights,
                                                       .settings = {{"scheme", scheme_},
                                                                    {"method", method_},
                                                                    {"group_size", group},
                                                                    {"head", quantize::head_name(options_.head)},
                                                                    {"transforms", transforms},
                                                                    {"calibration", data}},
                                                       .allow_loss = flags_.allow_loss,
                                                       .progress = [&](const std::string&) -> Status {
                                                         progress_->advance();
                                                         return check_interrupt("quantize");
                                                       }}));
  progress_.reset();
  substitutions_.insert(substitutions_.end(), side_.notes.begin(), side_.notes.end());
  for (const std::string& name : side_.left_out) substitutions_.push_back("left out " + name);
  substitutions_.insert(substitutions_.end(), written_.losses.begin(), written_.losses.end());
  return {};
}

// What the result says of itself, and how it compares with its source.
Status QuantizeRun::judge() {
  for (const quantize::MatrixReport& matrix : outcome_->matrices) matrices_.push_back(matrix_json(matrix));
  bpw_ = 8.0 * static_cast<double>(outcome_->stored_bytes) / static_cast<double>(outcome_->parameters);
  TARE_ASSIGN(json::object answer, known_answer(context_, folder_->path()));
  record_ = json::object{{"known_answer", std::move(answer)},
                         {"method", method_},
                         {"scheme", scheme_},
                         {"grid", grid_},
                         {"source", flags_.model},
                         {"source_format", source_->format},
                         {"bpw", bpw_},
                         {"error_kind", outcome_->error_kind},
                         {"substitutions", json::array(substitutions_.begin(), substitutions_.end())},
                         {"copied", json::array(side_.copied.begin(), side_.copied.end())},
                         {"layers", matrices_}};
  for (const io::WrittenFile& file : written_.files) bytes_ += static_cast<int64_t>(file.bytes);
  if (plan_) {
    record_["plan"] = plan_json(*plan_);
    TARE_TRY(write_file_atomically((fs::path(folder_->path()) / checkpoints::kPlanName).string(),
                                   quantize::plan_text(*plan_)));
    if (flags_.precision.measures() && bytes_ > plan_->target_bytes) {
      return internal_error("the result is larger than its target", {.where = folder_->path(),
                                                                     .expected = fmt::format("{} bytes", plan_->bytes),
                                                                     .found = fmt::format("{}", bytes_)});
    }
  }
  out_ = flags_.out;
  if (gate_) {
    TARE_ASSIGN(verdict_, run_gate(context_, *gate_, flags_.model, folder_->path()));
    record_["gate"] = eval::gate_json(*verdict_);
    if (!verdict_->passed) out_ = rejected_;
  } else {
    record_["gate"] = nullptr;
    substitutions_.push_back("the result was not compared with its source (--gate off)");
  }
  return {};
}

// The result under its name; nothing to resume.
Status QuantizeRun::commit() {
  TARE_TRY(checkpoints::write_manifest(folder_->path(), record_, written_.files));
  TARE_TRY(check_interrupt("quantize"));
  TARE_TRY(journal_->phase("rename"));
  TARE_TRY(folder_->commit_as(out_));
  TARE_TRY(journal_->remove());
  return {};
}

// Ends with an error when the gate failed.
Status QuantizeRun::report() {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  double worst = 0;
  std::string worst_name;
  for (const quantize::MatrixReport& matrix : outcome_->matrices) {
    if (matrix.error < worst) continue;
    worst = matrix.error;
    worst_name = matrix.name;
  }
  context_.say(fmt::format("{}: {} {}, {} matrices, {:.3f} bits per weight over the whole model, {}", out_, scheme_,
                           method_, outcome_->matrices.size(), bpw_, size_text(static_cast<uint64_t>(bytes_))));
  context_.say(fmt::format("largest {} error {:.3e} in {}", outcome_->error_kind, worst, worst_name));
  for (const std::string& text : substitutions_) context_.say("note: " + text);
  context_.say(fmt::format("{:.1f} s, peak memory {}", seconds, size_text(peak_rss_bytes())));
  if (verdict_) {
    const eval::Divergence& d = verdict_->measured;
    context_.say(
        fmt::format("gate {}: KL {:.4f} +- {:.4f}, top-1 agreement {:.2f} %, perplexity {:.3f} (source {:.3f})",
                    verdict_->passed ? "passed" : "failed", d.kl_mean, d.kl_stderr, 100 * d.top1_agreement,
                    d.model.perplexity, d.reference.perplexity));
    for (const std::string& reason : verdict_->reasons) context_.say("gate: " + reason);
  }
  json::object document{{"out", out_},
                        {"format", flags_.format},
                        {"method", method_},
                        {"scheme", scheme_},
                        {"bpw", bpw_},
                        {"bytes", bytes_},
                        {"seconds", seconds},
                        {"peak_rss_bytes", peak_rss_bytes()},
                        {"error_kind", outcome_->error_kind},
                        {"layers", std::move(matrices_)},
                        {"substitutions", json::array(substitutions_.begin(), substitutions_.end())},
                        {"copied", json::array(side_.copied.begin(), side_.copied.end())},
                        {"gate", record_["gate"]}};
  if (plan_) document["plan"] = plan_json(*plan_);
  if (!flags_.report.empty()) TARE_TRY(write_file_atomically(flags_.report, eval::quantize_report_html(document)));
  context_.emit(document);
  if (!verdict_ || verdict_->passed) return {};
  return make_error(ErrorKind::kGateFailed, "the result fails the gate",
                    {.where = out_, .found = verdict_->reasons.empty() ? "" : verdict_->reasons.front()});
}

Status QuantizeRun::run() {
  Status status = steps();
  if (status.ok() || !journal_) return status;
  // What going on would not mend leaves no journal.
  const ErrorKind kind = status.error().kind;
  if (kind == ErrorKind::kInvalidInput || kind == ErrorKind::kUnsupported || kind == ErrorKind::kNotFinite) {
    TARE_TRY(journal_->remove());
  }
  return status;
}

}  // namespace

Status run_quantize(Context& context, QuantizeFlags& flags) {
  return QuantizeRun(context, flags).run();
}

}  // namespace tare::cli
