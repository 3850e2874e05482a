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
};

Status eval_ppl(Context& context, Flags& flags) {
  TARE_ASSIGN(const std::vector<int32_t> tokens, eval_tokens(flags.model.model, flags.eval));
  const eval::Protocol& protocol = flags.eval.protocol;
  TARE_ASSIGN(ScoredModel scored, open_scored(context, flags.model.model, flags.model, protocol.context));
  const runtime::LoadedModel& model = scored.model;

  std::unique_ptr<Progress> progress;
  TARE_ASSIGN(const eval::Perplexity result,
              eval::perplexity(scored.scorer, tokens, protocol, context.pool(), [&](int64_t, int64_t total) {
                if (!progress) progress = std::make_unique<Progress>(context.progress(), "score", total, "windows");
                progress->advance();
              }));
  progress.reset();
  context.say(fmt::format("perplexity {:.4f}  (nll {:.6f} +- {:.6f} over {} windows of {}, {} targets, protocol {})",
                          result.perplexity, result.nll_mean, result.nll_stderr, result.window_nll.size(),
                          protocol.context, result.tokens, protocol.name));
  context.emit({{"protocol", protocol.name},
                {"context", protocol.context},
                {"windows", result.window_nll.size()},
                {"perplexity", result.perplexity},
                {"nll_mean", result.nll_mean},
                {"nll_stderr", result.nll_stderr},
                {"tokens", result.tokens},
                {"window_nll", boost::json::array(result.window_nll.begin(), result.window_nll.end())},
                {"kv_cache_dtype", kvcache::describe(scored.scorer.cache().pages().options().format)},
                {"kernels", kernel_names(*model.transformer)},
                {"format", model.format},
                {"notes", boost::json::array(model.notes.begin(), model.notes.end())}});
  return {};
}

}  // namespace

extern const Command kEvalPpl;
const Command kEvalPpl = {
    .name = "eval ppl",
    .summary = "perplexity of a text",
    .examples =
        "tare eval ppl model.gguf --text wiki.test.txt --context 512 --windows 10\n"
        "tare eval ppl out/ --text wiki.test.txt --kv-cache-dtype int4 --json",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      declare_model(app, flags->model);
      declare_kv_cache(app, flags->model);
      declare_eval(app, flags->eval);
      return [flags](Context& context) { return eval_ppl(context, *flags); };
    },
};

}  // namespace tare::cli
