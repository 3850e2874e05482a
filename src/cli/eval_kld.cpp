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
  std::string reference_kv = "f32";
};

Status eval_kld(Context& context, Flags& flags) {
  TARE_ASSIGN(const std::vector<int32_t> tokens, eval_tokens(flags.reference, flags.eval));
  const eval::Protocol& protocol = flags.eval.protocol;
  TARE_ASSIGN(ScoredModel model, open_scored(context, flags.model.model, flags.model, protocol.context));
  const ModelFlags reference_flags{.model = flags.reference, .kv_cache_dtype = flags.reference_kv};
  TARE_ASSIGN(ScoredModel reference, open_scored(context, flags.reference, reference_flags, protocol.context));

  std::unique_ptr<Progress> progress;
  TARE_ASSIGN(
      const eval::Divergence result,
      eval::divergence(model.scorer, reference.scorer, tokens, protocol, context.pool(), [&](int64_t, int64_t total) {
        if (!progress) progress = std::make_unique<Progress>(context.progress(), "compare", total, "windows");
        progress->advance();
      }));
  progress.reset();
  context.say(fmt::format("KL {:.6f} +- {:.6f} nats  (p99 {:.4f}, max {:.4f}), top-1 agreement {:.2f} %",
                          result.kl_mean, result.kl_stderr, result.kl_p99, result.kl_max, 100 * result.top1_agreement));
  context.say(fmt::format("perplexity {:.4f}, reference {:.4f}  ({} windows of {}, protocol {})",
                          result.model.perplexity, result.reference.perplexity, result.window_kl.size(),
                          protocol.context, protocol.name));
  boost::json::object document = eval::divergence_json(result);
  document.insert({{"protocol", protocol.name},
                   {"context", protocol.context},
                   {"tokens", result.model.tokens},
                   {"nll_mean", result.model.nll_mean},
                   {"nll_stderr", result.model.nll_stderr},
                   {"window_nll", boost::json::array(result.model.window_nll.begin(), result.model.window_nll.end())},
                   {"window_kl", boost::json::array(result.window_kl.begin(), result.window_kl.end())},
                   {"kv_cache_dtype", kvcache::describe(model.scorer.cache().pages().options().format)},
                   {"kernels", kernel_names(*model.model.transformer)},
                   {"reference_kernels", kernel_names(*reference.model.transformer)}});
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kEvalKld;
const Command kEvalKld = {
    .name = "eval kld",
    .summary = "KL divergence from a reference model, with perplexity of both",
    .examples =
        "tare eval kld out/ --reference model.gguf --text wiki.test.txt --windows 10\n"
        "tare eval kld model.gguf --reference model.gguf --text t.txt --kv-cache-dtype int4",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      declare_model(app, flags->model);
      declare_kv_cache(app, flags->model);
      declare_eval(app, flags->eval);
      app.add_option("--reference", flags->reference, "the model to compare with")->required();
      app.add_option("--reference-kv-cache-dtype", flags->reference_kv, "KV cache of the reference")
          ->capture_default_str();
      return [flags](Context& context) { return eval_kld(context, *flags); };
    },
};

}  // namespace tare::cli
