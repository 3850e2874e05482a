#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/manifest.h"
#include "cli/command.h"
#include "cli/known_answer.h"
#include "model/weight_plan.h"

namespace tare::cli {

namespace {

struct Options {
  std::string model;
  std::string source;
};

struct Problem {
  std::string file;
  std::string tensor;
  std::string what;
};

// Reads every weight once: the readers check ranges, scales and finiteness as they go.
Status load_all(Context& context, const std::string& path, const tensor::ModelWeights& weights,
                std::vector<Problem>& problems) {
  const std::vector<std::string> names = weights.names();
  Progress progress(context.progress(), "verify", static_cast<int64_t>(names.size()), "tensors");
  for (const std::string& name : names) {
    TARE_TRY(check_interrupt("verify"));
    progress.note(name);
    const auto weight = weights.load(name);
    if (!weight.ok()) {
      problems.push_back({path, name, weight.error().message()});
    } else if (tensor::shape_of(*weight) != weights.find(name)->shape) {
      problems.push_back(
          {path, name,
           fmt::format("the header says {}, the tensor is {}", tensor::shape_text(weights.find(name)->shape),
                       tensor::shape_text(tensor::shape_of(*weight)))});
    }
    progress.advance();
  }
  return {};
}

void check_names(const std::string& path, const tensor::ModelWeights& weights, std::vector<Problem>& problems) {
  if (weights.config.empty()) {
    log::warn("{}: no configuration, so the tensors are not held against an architecture", path);
    return;
  }
  const auto arch = model::describe_architecture(weights.config);
  if (!arch.ok()) {
    problems.push_back({path, "", arch.error().message()});
    return;
  }
  const auto leftovers = model::account_weights(weights, *arch);
  if (!leftovers.ok()) problems.push_back({path, "", leftovers.error().message()});
}

// The same tensors with the same shapes: what a quantized copy of a model must have.
Status compare_with(const Context& context, const std::string& source_path, const std::string& path,
                    const tensor::ModelWeights& weights, std::vector<Problem>& problems) {
  TARE_ASSIGN(const tensor::ModelWeights source, checkpoints::load_checkpoint(source_path, context.load_options()));
  for (const std::string& name : source.names()) {
    const tensor::WeightInfo* mine = weights.find(name);
    if (!mine) {
      // A head that is the embedding may be written once or twice.
      if (name != model::kHead) problems.push_back({path, name, "is in the source, but not here"});
    } else if (mine->shape != source.find(name)->shape) {
      problems.push_back({path, name,
                          fmt::format("shape {} here, {} in the source", tensor::shape_text(mine->shape),
                                      tensor::shape_text(source.find(name)->shape))});
    }
  }
  for (const std::string& name : weights.names()) {
    if (!source.contains(name) && name != model::kHead)
      problems.push_back({path, name, "is here, but not in the source"});
  }
  return {};
}

// What tare wrote has a manifest with the hash of every file.
Status check_files(Context& context, const std::string& folder, std::vector<Problem>& problems) {
  Progress progress(context.progress(), "hash", 0, "files");
  TARE_ASSIGN(const auto found, checkpoints::check_manifest(folder, [&](const std::string& file) -> Status {
                TARE_TRY(check_interrupt("verify"));
                progress.note(file);
                progress.advance();
                return {};
              }));
  for (const checkpoints::ManifestProblem& problem : found) problems.push_back({problem.file, "", problem.what});
  return {};
}

Status verify(Context& context, const Options& options) {
  std::vector<Problem> problems;
  // A path that is not there is bad input; a model that cannot be read is a problem found.
  std::error_code ignored;
  if (!std::filesystem::exists(options.model, ignored)) return io_error("no such model", {.where = options.model});
  const bool has_manifest = checkpoints::has_manifest(options.model);
  if (has_manifest) TARE_TRY(check_files(context, options.model, problems));
  const auto opened = checkpoints::load_checkpoint(options.model, context.load_options());
  if (!opened.ok()) {
    problems.push_back({options.model, "", opened.error().message()});
  } else {
    for (const std::string& note : opened->notes) log::info("{}", note);
    check_names(options.model, *opened, problems);
    TARE_TRY(load_all(context, options.model, *opened, problems));
    if (has_manifest && problems.empty()) {
      TARE_ASSIGN(const std::optional<std::string> wrong, check_known_answer(context, options.model));
      if (wrong) problems.push_back({options.model, "", *wrong});
    }
    if (!options.source.empty()) TARE_TRY(compare_with(context, options.source, options.model, *opened, problems));
  }

  json::array list;
  for (const Problem& problem : problems) {
    list.push_back({{"file", problem.file},
                    {"tensor", problem.tensor.empty() ? json::value() : json::value(problem.tensor)},
                    {"what", problem.what}});
    context.say(fmt::format("problem: {}: {}", problem.tensor.empty() ? problem.file : problem.tensor, problem.what));
  }
  if (problems.empty()) {
    context.say(fmt::format("{}: all {} tensors are well{}", options.model, opened->names().size(),
                            has_manifest ? ", and every file is as tare wrote it" : ""));
  }
  context.emit({{"ok", problems.empty()}, {"problems", std::move(list)}, {"manifest", has_manifest}});
  if (problems.empty()) return {};
  return make_error(ErrorKind::kGateFailed, "verification failed",
                    {.where = options.model, .found = fmt::format("{} problems", problems.size())});
}

}  // namespace

extern const Command kVerify;
const Command kVerify = {
    .name = "verify",
    .summary = "read every byte of a model and say what is wrong with it",
    .examples = "tare verify model/\ntare verify quantized/ --source model/ --json",
    .declare = [](CLI::App& app) -> Runner {
      auto options = std::make_shared<Options>();
      app.add_option("MODEL", options->model, "folder, .gguf or .safetensors file")->required();
      app.add_option("--source", options->source, "the model it was made from: names and shapes are compared")
          ->type_name("MODEL");
      return [options](Context& context) { return verify(context, *options); };
    },
};

}  // namespace tare::cli
