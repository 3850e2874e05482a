#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
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
  std::vector<int64_t> lengths = {512, 2048};
};

// Bounds of the verdict, in nats: round-to-nearest W8 weights cost about 0.003 on small models, W4 about 0.3.
constexpr double kNegligible = 0.005;
constexpr double kSmall = 0.05;

std::string verdict_of(const std::string& format, const std::vector<eval::Divergence>& points) {
  double worst = 0;
  for (const eval::Divergence& point : points) worst = std::max(worst, point.kl_mean);
  const std::string word = worst < kNegligible ? "negligible" : worst < kSmall ? "small" : "visible";
  std::string out = fmt::format("{}: {} loss (KL at most {:.5f} nats; negligible below {}, small below {})", format,
                                word, worst, kNegligible, kSmall);
  const double first = points.front().kl_mean, last = points.back().kl_mean;
  if (points.size() > 1 && first > 0) out += fmt::format(", {:.2f}x from the first length to the last", last / first);
  return out;
}

Status eval_kv(Context& context, Flags& flags) {
  for (const int64_t length : flags.lengths) {
    if (length < 2 || length > (1 << 24)) {
      return invalid_input(
          "a length is out of range",
          {.where = "--lengths", .expected = fmt::format("2 to {}", 1 << 24), .found = fmt::format("{}", length)});
    }
  }
  TARE_ASSIGN(const std::vector<int32_t> tokens, eval_tokens(flags.model.model, flags.eval));
  const int64_t longest = *std::max_element(flags.lengths.begin(), flags.lengths.end());
  // One model, two caches: only the cache can differ.
  TARE_ASSIGN(runtime::LoadedModel model, open_model(context, flags.model.model, flags.model, 128, longest));
  TARE_ASSIGN(const model::AttentionCache::Options cache, cache_settings(context, model, flags.model, "f32"));
  ModelFlags plain = flags.model;
  plain.kv_cache_dtype = "f32";
  plain.kv_skip_layers.clear();
  TARE_ASSIGN(const model::AttentionCache::Options reference_cache, cache_settings(context, model, plain, "f32"));
  const std::string format = kvcache::describe(cache.format);
  TARE_ASSIGN(const int64_t token_bytes,
              kvcache::kv_bytes_per_token(model::cache_options(model.transformer->architecture(), cache)));
  boost::json::array points;
  std::vector<eval::Divergence> results;
  for (const int64_t length : flags.lengths) {
    eval::Protocol protocol = flags.eval.protocol;
    protocol.context = length;
    TARE_ASSIGN(runtime::Scorer scorer, runtime::Scorer::make(*model.transformer, cache, length, context.pool()));
    TARE_ASSIGN(runtime::Scorer reference,
                runtime::Scorer::make(*model.transformer, reference_cache, length, context.pool()));
    std::unique_ptr<Progress> progress;
    TARE_ASSIGN(eval::Divergence result,
                eval::divergence(scorer, reference, tokens, protocol, context.pool(), [&](int64_t, int64_t total) {
                  if (!progress)
                    progress = std::make_unique<Progress>(context.progress(), fmt::format("length {}", length), total,
                                                          "windows");
                  progress->advance();
                }));
    progress.reset();
    context.say(
        fmt::format("length {:6}: KL {:.6f} +- {:.6f} nats (p99 {:.4f}, max {:.4f}), top-1 agreement {:.2f} %, "
                    "perplexity {:.4f} against {:.4f} ({} windows)",
                    length, result.kl_mean, result.kl_stderr, result.kl_p99, result.kl_max, 100 * result.top1_agreement,
                    result.model.perplexity, result.reference.perplexity, result.window_kl.size()));
    boost::json::object point = eval::divergence_json(result);
    point["length"] = length;
    points.push_back(std::move(point));
    results.push_back(std::move(result));
  }
  const std::string verdict = verdict_of(format, results);
  context.say(verdict);
  context.emit({{"points", std::move(points)},
                {"verdict", verdict},
                {"kv_cache_dtype", format},
                {"reference_kv_cache_dtype", "f32"},
                {"kv_bytes_per_token", token_bytes},
                {"protocol", flags.eval.protocol.name},
                {"kernels", kernel_names(*model.transformer)},
                {"notes", boost::json::array(model.notes.begin(), model.notes.end())}});
  return {};
}

}  // namespace

extern const Command kEvalKv;
const Command kEvalKv = {
    .name = "eval kv",
    .summary = "what a KV cache format costs: KL divergence from an f32 cache, by length",
    .examples = "tare eval kv model.gguf --kv-cache-dtype int4 --text wiki.test.txt --lengths 512,2048",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      flags->eval.protocol.windows = 10;
      declare_model(app, flags->model);
      declare_kv_cache(app, flags->model);
      declare_eval(app, flags->eval);
      app.remove_option(app.get_option("--context"));
      add_list(app, "--lengths", flags->lengths, "tokens of a window, several");
      return [flags](Context& context) { return eval_kv(context, *flags); };
    },
};

}  // namespace tare::cli
