#include "eval/blame.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/eval_flags.h"
#include "cli/model_flags.h"

namespace tare::cli {

namespace {

struct Flags {
  ModelFlags model;
  EvalFlags eval;
  std::string reference;
  int64_t evaluations = 16;
};

std::string layers_name(const eval::BlamedLayers& group) {
  if (group.count == 1) return fmt::format("model.layers.{}", group.first);
  return fmt::format("model.layers.{} .. {}", group.first, group.first + group.count - 1);
}

Status blame(Context& context, Flags& flags) {
  TARE_ASSIGN(const std::vector<int32_t> tokens, eval_tokens(flags.reference, flags.eval));
  const eval::Protocol& protocol = flags.eval.protocol;
  TARE_ASSIGN(ScoredModel model, open_scored(context, flags.model.model, flags.model, protocol.context));
  const ModelFlags reference_flags{.model = flags.reference, .kv_cache_dtype = "f32"};
  TARE_ASSIGN(ScoredModel reference, open_scored(context, flags.reference, reference_flags, protocol.context));
  Progress progress(context.progress(), "blame", flags.evaluations, "evaluations");
  TARE_ASSIGN(
      const eval::Blame result,
      eval::blame_layers(*model.model.transformer, model.scorer, *reference.model.transformer, reference.scorer, tokens,
                         protocol, flags.evaluations, context.pool(), [&](int64_t) { progress.advance(); }));
  context.say(fmt::format("KL {:.6f} nats, {} evaluations; share of it that goes away with the source's weights:",
                          result.kl_mean, result.evaluations));
  boost::json::array layers;
  for (const eval::BlamedLayers& group : result.groups) {
    layers.push_back({{"name", layers_name(group)},
                      {"first", group.first},
                      {"count", group.count},
                      {"kl_share", group.kl_share},
                      {"measured", group.measured}});
    context.say(fmt::format("  {:6.1f} %  {}{}", 100 * group.kl_share, layers_name(group),
                            group.measured ? "" : "  (the rest of its group)"));
  }
  if (!result.groups.empty() && result.groups.front().count == 1) {
    context.say(fmt::format("to spend more bits there: tare quantize ... --set 'model\\.layers\\.{}\\..*:bits=8'",
                            result.groups.front().first));
  }
  context.emit({{"kl_mean", result.kl_mean},
                {"layers", std::move(layers)},
                {"evaluations", result.evaluations},
                {"windows", protocol.windows},
                {"context", protocol.context}});
  return {};
}

}  // namespace

extern const Command kBlame;
const Command kBlame = {
    .name = "blame",
    .summary = "find the layers that cost most, by restoring them group by group",
    .examples =
        "tare blame out/ --reference model.gguf --text wiki.test.txt\n"
        "tare blame out/ --reference model/ --text wiki.test.txt --windows 2 --evaluations 32 --json",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      flags->eval.protocol.windows = 4;
      declare_model(app, flags->model);
      declare_kv_cache(app, flags->model);
      declare_eval(app, flags->eval);
      app.add_option("--reference", flags->reference, "the model to compare with")->required();
      app.add_option("--evaluations", flags->evaluations, "measure at most this often")
          ->check(CLI::Range(int64_t{2}, int64_t{100000}))
          ->capture_default_str();
      return [flags](Context& context) { return blame(context, *flags); };
    },
};

}  // namespace tare::cli
