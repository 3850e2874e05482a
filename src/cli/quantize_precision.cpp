#include "cli/quantize_precision.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/size_text.h"

namespace tare::cli {

namespace {

// The matrices, the rest of the file and the storage of a request.
Status settle(quantize::PrecisionPlan& plan, const quantize::PrecisionRequest& request, std::vector<std::string>& notes,
              ThreadPool& pool) {
  quantize::PipelineOptions options = request.options;
  options.plan.clear();
  options.exceptions.clear();
  options.ignore.clear();
  TARE_ASSIGN(const auto matrices, quantize::plan_matrices(*request.arch, options));
  TARE_ASSIGN(const quantize::HeadChoice head, quantize::parse_head(plan.head));
  TARE_ASSIGN(const quantize::WeightTensors rest, quantize::rest_of(*request.source, *request.arch, head, matrices,
                                                                    *request.writer, request.allow_loss, pool));
  quantize::Storage storage(*request.writer, request.source->config, request.allow_loss, request.options.kernels,
                            request.options.caps, pool);
  return quantize::settle_plan(plan, matrices, *request.source, *request.writer, storage, rest, notes);
}

}  // namespace

void declare_precision(CLI::App& app, PrecisionFlags& flags) {
  app.add_option("--target-bytes", flags.target_bytes,
                 "mixed precision: largest size of the weight files, as 90000000 or 85MiB; each matrix gets the form "
                 "that costs the predictions least");
  app.add_option("--target-bpw", flags.target_bpw, "the same in bits for each parameter of the whole model");
  app.add_option("--plan", flags.plan, "take the form of every matrix from this file (made by a target; may be edited)")
      ->type_name("FILE");
  app.add_option("--plan-only", flags.plan_only, "with a target: write the plan here and stop")->type_name("FILE");
}

Status check_precision(const PrecisionFlags& flags, const std::vector<std::string>& said) {
  if (!flags.target_bytes.empty() && flags.target_bpw) {
    return invalid_input("two targets", {.where = "--target-bytes, --target-bpw", .expected = "one of them"});
  }
  if (flags.target_bpw && !(*flags.target_bpw > 0 && *flags.target_bpw <= 64)) {
    return invalid_input("impossible target", {.where = "--target-bpw",
                                               .expected = "bits for each parameter, up to 64",
                                               .found = fmt::format("{}", *flags.target_bpw)});
  }
  if (!flags.plan_only.empty() && !flags.measures()) {
    return invalid_input("a plan needs a target",
                         {.where = "--plan-only", .expected = "--target-bytes or --target-bpw beside it"});
  }
  if (flags.plan.empty()) return {};
  if (flags.measures()) {
    return invalid_input("a plan is given and a target too",
                         {.where = "--plan", .expected = "a plan or a target", .found = "both"});
  }
  if (said.empty()) return {};
  return invalid_input("the plan decides that",
                       {.where = said.front(), .found = "--plan beside it", .hint = "edit the plan instead"});
}

Result<int64_t> target_bytes(const PrecisionFlags& flags) {
  if (flags.target_bytes.empty()) return int64_t{0};
  TARE_ASSIGN(const uint64_t bytes, parse_size(flags.target_bytes, "--target-bytes"));
  return static_cast<int64_t>(bytes);
}

Result<quantize::PrecisionPlan> measured_plan(Context& context, quantize::PrecisionRequest request,
                                              json::object identity, const std::string& cached,
                                              std::vector<std::string>& notes) {
  std::error_code ec;
  if (!cached.empty() && std::filesystem::exists(cached, ec)) {
    TARE_ASSIGN(const std::string text, read_text_file(cached));
    TARE_ASSIGN(quantize::PrecisionPlan plan, quantize::parse_plan(text, cached));
    TARE_TRY(settle(plan, request, notes, context.pool()));
    return plan;
  }
  Progress progress(context.progress(), "measure", request.arch->layers, "blocks");
  request.measure.progress = [&](int64_t done, int64_t) { progress.advance(done - progress.done()); };
  TARE_ASSIGN(quantize::PrecisionPlan plan, quantize::make_plan(request, notes, context.pool()));
  plan.made_from = std::move(identity);
  if (!cached.empty()) TARE_TRY(write_file_atomically(cached, quantize::plan_text(plan)));
  return plan;
}

Result<quantize::PrecisionPlan> plan_from_file(const std::string& file, const quantize::PrecisionRequest& request,
                                               const json::object& identity, ThreadPool& pool,
                                               std::vector<std::string>& notes) {
  TARE_ASSIGN(const std::string text, read_text_file(file));
  TARE_ASSIGN(quantize::PrecisionPlan plan, quantize::parse_plan(text, file));
  const int64_t bytes = plan.bytes;
  if (Status settled = settle(plan, request, notes, pool); !settled.ok()) {
    Error error = settled.error();
    error.where = fmt::format("{}, {}", file, error.where);
    return error;
  }
  for (const auto& [key, value] : identity) {
    const json::value* then = plan.made_from.if_contains(key);
    if (then && *then != value) {
      notes.push_back(
          fmt::format("plan: made from another {}: the bytes are not those of its own run", std::string_view(key)));
    }
  }
  if (plan.bytes != bytes)
    notes.push_back(fmt::format("plan: was edited, {} bytes now and {} before", plan.bytes, bytes));
  if (plan.target_bytes > 0 && plan.bytes > plan.target_bytes) {
    notes.push_back(fmt::format("plan: {} bytes are more than its target of {}", plan.bytes, plan.target_bytes));
  }
  return plan;
}

std::string describe_plan(const quantize::PrecisionPlan& plan, double bits) {
  std::string text = fmt::format("W{:.2f}A{}", bits, plan.activation);
  if (plan.kv != 16) text += fmt::format("KV{}", plan.kv);
  return text;
}

json::object plan_json(const quantize::PrecisionPlan& plan) {
  std::map<std::string, int64_t> forms;
  for (const quantize::PlanRow& row : plan.rows) ++forms[quantize::describe(row.scheme)];
  json::object counts;
  for (const auto& [form, count] : forms) counts[form] = count;
  json::object out{{"target_bytes", plan.target_bytes}, {"bytes", plan.bytes}, {"divergence", nullptr}};
  if (plan.predicted) out["divergence"] = *plan.predicted;
  out["forms"] = std::move(counts);
  return out;
}

Status write_plan_only(Context& context, const std::string& file, const quantize::PrecisionPlan& plan,
                       const std::vector<std::string>& notes) {
  TARE_TRY(write_file_atomically(file, quantize::plan_text(plan)));
  json::object document = plan_json(plan);
  for (const auto& [form, count] : document["forms"].as_object()) {
    context.say(fmt::format("{:4} matrices: {}", count.as_int64(), std::string_view(form)));
  }
  context.say(fmt::format("{}: {} bytes of at most {}, predicted KL {:.4g} nats", file, plan.bytes, plan.target_bytes,
                          plan.predicted.value_or(0)));
  for (const std::string& note : notes) context.say("note: " + note);
  json::array layers;
  for (const quantize::PlanRow& row : plan.rows) {
    json::object layer{{"name", row.name}, {"scheme", quantize::describe(row.scheme)}, {"bytes", row.bytes}};
    if (row.divergence) layer["divergence"] = *row.divergence;
    layers.push_back(std::move(layer));
  }
  document["plan"] = file;
  document["format"] = plan.format;
  document["layers"] = std::move(layers);
  document["substitutions"] = json::array(notes.begin(), notes.end());
  context.emit(document);
  return {};
}

}  // namespace tare::cli
