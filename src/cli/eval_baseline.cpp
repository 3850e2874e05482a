#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>

#include "base/file.h"
#include "base/progress.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/text_assets.h"
#include "cli/command.h"
#include "cli/eval_flags.h"
#include "cli/model_flags.h"
#include "plugin/plugins.h"
#include "quantize/baselines/baseline.h"

namespace tare::cli {

namespace {

struct Flags {
  std::string model;
  std::string method = "quarot";
  std::string calibration;
  int64_t samples = 16;
  int64_t sequence_length = 512;
  EvalFlags eval;
};

Status eval_baseline(Context& context, Flags& flags) {
  TARE_ASSIGN(const std::vector<int32_t> tokens, eval_tokens(flags.model, flags.eval));
  const eval::Protocol& protocol = flags.eval.protocol;
  TARE_ASSIGN(tensor::ModelWeights loaded, checkpoints::load_checkpoint(flags.model, context.load_options()));
  const auto source = std::make_shared<const tensor::ModelWeights>(std::move(loaded));
  TARE_ASSIGN(const model::Architecture arch, model::describe_architecture(source->config));
  TARE_ASSIGN(const text::Tokenizer tokenizer, checkpoints::load_tokenizer(flags.model));
  TARE_ASSIGN(const std::string text, read_text_file(flags.calibration));
  TARE_ASSIGN(const text::Encoding encoded, tokenizer.encode(text, {.add_special = false, .specials_as_text = true}));
  TARE_ASSIGN(const quantize::CalibrationData data,
              quantize::calibration_windows(encoded.ids, flags.samples, flags.sequence_length));

  const kernels::LinearRegistry& kernels = context.registries().linear;
  quantize::Products products(kernels, context.capabilities(), context.pool());
  TARE_ASSIGN(const quantize::Baseline baseline,
              quantize::make_baseline(flags.method, source, arch, data, {}, products));
  const model::Transformer::Options options{.bind = {.registry = kernels, .caps = context.capabilities()},
                                            .max_batch_tokens = 128,
                                            .context = protocol.context};
  TARE_ASSIGN(model::Transformer transformer,
              model::Transformer::load(*baseline.weights, baseline.arch, options, context.pool()));
  TARE_ASSIGN(model::Transformer plain, model::Transformer::load(*source, arch, options, context.pool()));
  const auto cache = [&](const std::string& dtype) -> Result<model::AttentionCache::Options> {
    model::AttentionCache::Options out{
        .max_batch_tokens = 128, .context = protocol.context, .caps = context.capabilities()};
    TARE_ASSIGN(out.format, kvcache::parse_kv_format(dtype, {}, kvcache::KvScaleRule::kCheckpoint));
    return out;
  };
  TARE_ASSIGN(const model::AttentionCache::Options narrow, cache(fmt::format("int{}", baseline.kv_bits)));
  TARE_ASSIGN(const model::AttentionCache::Options wide, cache("f32"));
  TARE_ASSIGN(runtime::Scorer scorer, runtime::Scorer::make(transformer, narrow, protocol.context, context.pool()));
  TARE_ASSIGN(runtime::Scorer reference, runtime::Scorer::make(plain, wide, protocol.context, context.pool()));
  std::unique_ptr<Progress> progress;
  TARE_ASSIGN(const eval::Divergence result, eval::divergence(
                                                 scorer, reference, tokens, protocol, context.pool(),
                                                 [&](int64_t, int64_t total) {
                                                   if (!progress) {
                                                     progress = std::make_unique<Progress>(context.progress(),
                                                                                           "compare", total, "windows");
                                                   }
                                                   progress->advance();
                                                 },
                                                 &baseline.observer));
  progress.reset();
  context.say(
      fmt::format("{} {}: KL {:.6f} +- {:.6f} nats, top-1 agreement {:.2f} %, perplexity {:.4f}, reference {:.4f}",
                  baseline.name, baseline.scheme, result.kl_mean, result.kl_stderr, 100 * result.top1_agreement,
                  result.model.perplexity, result.reference.perplexity));
  context.say("evaluated with rounded values in f32; tare does not run this form");
  for (const std::string& note : baseline.notes) context.say("note: " + note);
  boost::json::object document = eval::divergence_json(result);
  document.insert({{"method", baseline.name},
                   {"scheme", baseline.scheme},
                   {"protocol", protocol.name},
                   {"context", protocol.context},
                   {"calibration_tokens", data.tokens},
                   {"window_kl", boost::json::array(result.window_kl.begin(), result.window_kl.end())},
                   {"notes", boost::json::array(baseline.notes.begin(), baseline.notes.end())}});
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kEvalBaseline;
const Command kEvalBaseline = {
    .name = "eval baseline",
    .summary = "quality of published 4-bit forms that tare does not run (QuaRot, Atom), for tables",
    .examples = "tare eval baseline model/ --method quarot --calibration c.txt --text wiki.test.txt --windows 20",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      app.add_option("MODEL", flags->model, "Hugging Face directory, .gguf or .safetensors file")->required();
      app.add_option("--method", flags->method, "quarot or atom")->capture_default_str();
      app.add_option("--calibration", flags->calibration, "text that the method sees")->type_name("FILE")->required();
      app.add_option("--samples", flags->samples, "windows of calibration data, the first ones")->capture_default_str();
      app.add_option("--sequence-length", flags->sequence_length, "tokens of a window")->capture_default_str();
      declare_eval(app, flags->eval);
      return [flags](Context& context) { return eval_baseline(context, *flags); };
    },
};

}  // namespace tare::cli
