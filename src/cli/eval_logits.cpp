#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/eval_flags.h"
#include "cli/model_flags.h"
#include "io/npy.h"

namespace tare::cli {

namespace {

struct Flags {
  ModelFlags model;
  std::string token_ids;
  std::string out;
};

Status eval_logits(Context& context, Flags& flags) {
  TARE_ASSIGN(const std::vector<int32_t> tokens, parse_token_ids(flags.token_ids, "--token-ids"));
  if (tokens.empty()) return invalid_input("no token ids", {.where = "--token-ids"});
  const auto count = static_cast<int64_t>(tokens.size());
  TARE_ASSIGN(ScoredModel scored, open_scored(context, flags.model.model, flags.model, count));
  const model::Transformer& transformer = *scored.model.transformer;
  const int64_t vocab = scored.scorer.vocab_size();
  std::optional<io::NpyWriter> file;
  if (!flags.out.empty()) {
    TARE_ASSIGN(file, io::NpyWriter::create(flags.out, count, vocab));
  }
  boost::json::array best;
  TARE_TRY(scored.scorer.run(tokens, [&](int64_t, int64_t rows, const float* logits) -> Status {
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = logits + i * vocab;
      best.push_back(std::max_element(row, row + vocab) - row);
    }
    if (!file) return {};
    return file->append({logits, static_cast<size_t>(rows * vocab)});
  }));
  if (file) TARE_TRY(file->finish());
  context.say(fmt::format("logits [{}, {}]{}", count, vocab, flags.out.empty() ? "" : " written to " + flags.out));
  context.emit({{"shape", {count, vocab}},
                {"argmax", std::move(best)},
                {"out", flags.out},
                {"kernels", kernel_names(transformer)},
                {"linears", linear_records(transformer)}});
  return {};
}

}  // namespace

extern const Command kEvalLogits;
const Command kEvalLogits = {
    .name = "eval logits",
    .summary = "logits of every position of a token list, as a .npy file",
    .examples = "tare eval logits model.gguf --token-ids 504,3575,282 --out logits.npy",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      declare_model(app, flags->model);
      declare_kv_cache(app, flags->model);
      app.add_option("--token-ids", flags->token_ids, "ids separated by commas")->required();
      app.add_option("--out", flags->out, "file for float32 [T, vocab]");
      return [flags](Context& context) { return eval_logits(context, *flags); };
    },
};

}  // namespace tare::cli
