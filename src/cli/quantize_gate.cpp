#include "cli/quantize_gate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/file.h"
#include "checkpoints/text_assets.h"
#include "cli/model_flags.h"
#include "eval/judging_text.h"

namespace tare::cli {

namespace {

constexpr int64_t kContext = 512;
constexpr int64_t kWindows = 4;

}  // namespace

void declare_gate(CLI::App& app, GateFlags& flags) {
  app.add_option("--gate", flags.limits,
                 "limits for the result, as kl=0.5,top1=0.7,ppl_ratio=1.5, or off (default: by weight bits, enough to "
                 "find a damaged model)");
  app.add_option("--gate-text", flags.text_file,
                 "text to judge on; not the calibration text (default: built in, English)")
      ->type_name("FILE");
}

Result<std::optional<GatePlan>> plan_gate(const GateFlags& flags, const std::string& source, int64_t max_positions,
                                          int weight_bits) {
  if (flags.limits == "off") return std::optional<GatePlan>();
  GatePlan plan{.limits = eval::default_gate(weight_bits)};
  if (!flags.limits.empty()) {
    TARE_ASSIGN(plan.limits, eval::parse_gate(flags.limits));
  }
  plan.protocol = {.context = max_positions > 0 ? std::min(kContext, max_positions) : kContext, .windows = kWindows};
  auto tokenizer = checkpoints::load_tokenizer(source);
  if (!tokenizer.ok()) {
    return invalid_input("the gate needs a tokenizer", {.where = source,
                                                        .found = tokenizer.error().message(),
                                                        .hint = "pass --gate off to leave the result unjudged"});
  }
  std::string text(eval::judging_text());
  if (!flags.text_file.empty()) {
    TARE_ASSIGN(text, read_text_file(flags.text_file));
  }
  TARE_ASSIGN(const text::Encoding encoded, tokenizer->encode(text, {.add_special = false, .specials_as_text = true}));
  plan.tokens = encoded.ids;
  const auto count = static_cast<int64_t>(plan.tokens.size());
  if (count < plan.protocol.context) {
    return invalid_input("text is too short to judge on",
                         {.where = flags.text_file.empty() ? "the built-in text" : "--gate-text " + flags.text_file,
                          .expected = fmt::format("at least {} tokens", plan.protocol.context),
                          .found = fmt::format("{}", count)});
  }
  return std::optional<GatePlan>(std::move(plan));
}

Result<eval::GateVerdict> run_gate(Context& context, const GatePlan& plan, const std::string& source,
                                   const std::string& result) {
  const ModelFlags flags{.model = result};
  const ModelFlags source_flags{.model = source, .kv_cache_dtype = "f32"};
  const int64_t length = plan.protocol.context;
  TARE_ASSIGN(ScoredModel model, open_scored(context, result, flags, length));
  TARE_ASSIGN(ScoredModel reference, open_scored(context, source, source_flags, length));
  std::unique_ptr<Progress> progress;
  int64_t shown = 0;
  return eval::judge(model.scorer, reference.scorer, plan.tokens, plan.protocol, plan.limits, context.pool(),
                     [&](int64_t done, int64_t total) {
                       if (!progress || done < shown) {
                         progress = std::make_unique<Progress>(context.progress(), "judge", total, "windows");
                       }
                       shown = done;
                       progress->advance();
                     });
}

}  // namespace tare::cli
