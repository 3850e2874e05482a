#include "cli/known_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/interrupt.h"
#include "checkpoints/manifest.h"
#include "cli/model_flags.h"
#include "eval/windows.h"
#include "runtime/scorer.h"

namespace tare::cli {

namespace {

constexpr std::string_view kKey = "known_answer";
constexpr int64_t kTokens = 24;
// Instruction sets may round differently (docs/decisions); a wrong tensor moves the mean by far more.
constexpr double kTolerance = 5e-3;

// Mean negative log-likelihood, in nats, of each token after the first.
Result<double> nll_of(Context& context, const std::string& folder, const std::vector<int32_t>& given,
                      std::vector<int32_t>& ids) {
  ModelFlags flags;
  flags.kv_cache_dtype = "f32";
  TARE_ASSIGN(ScoredModel scored, open_scored(context, folder, flags, 64, 64));
  const auto vocab = static_cast<size_t>(scored.scorer.vocab_size());
  ids = given;
  // Any ids do, as long as they are stored; these reach over the first thousand.
  for (int64_t i = 0; given.empty() && i < kTokens; ++i)
    ids.push_back(static_cast<int32_t>((1 + 37 * static_cast<size_t>(i)) % std::min<size_t>(vocab, 1000)));
  double sum = 0;
  TARE_TRY(scored.scorer.run(ids, [&](int64_t first, int64_t rows, const float* logits) -> Status {
    for (int64_t row = 0; row < rows; ++row) {
      const auto next = static_cast<size_t>(first + row + 1);
      if (next >= ids.size()) continue;
      sum += eval::negative_log_likelihood({logits + static_cast<size_t>(row) * vocab, vocab}, ids[next]);
    }
    return {};
  }));
  return sum / static_cast<double>(ids.size() - 1);
}

}  // namespace

Result<json::object> known_answer(Context& context, const std::string& folder) {
  std::vector<int32_t> ids;
  const auto nll = nll_of(context, folder, {}, ids);
  TARE_TRY(check_interrupt("known answer"));
  if (!nll.ok() && nll.error().kind == ErrorKind::kInterrupted) return nll.error();
  if (!nll.ok()) return json::object{{"why", nll.error().message()}};
  return json::object{{"ids", json::array(ids.begin(), ids.end())}, {"nll_mean", *nll}, {"tolerance", kTolerance}};
}

Result<std::optional<std::string>> check_known_answer(Context& context, const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / checkpoints::kManifestName).string();
  TARE_ASSIGN(const json::value manifest, json::parse_file(path));
  const json::value* stored = manifest.is_object() ? json::find(manifest.get_object(), kKey) : nullptr;
  if (!stored || !stored->is_object() || stored->get_object().contains("why")) return std::optional<std::string>();
  const json::object& answer = stored->get_object();
  TARE_ASSIGN(const double expected, json::get_number_or(answer, "nll_mean", std::nan(""), path));
  TARE_ASSIGN(const double tolerance, json::get_number_or(answer, "tolerance", kTolerance, path));
  const json::value* list = json::find(answer, "ids");
  std::vector<int32_t> ids;
  for (const json::value& id : list && list->is_array() ? list->get_array() : json::array()) {
    const auto value = json::as_int(id);
    if (!value || *value < 0 || *value > INT32_MAX)
      return std::optional<std::string>("the stored known answer is damaged");
    ids.push_back(static_cast<int32_t>(*value));
  }
  if (ids.size() < 2 || !std::isfinite(expected))
    return std::optional<std::string>("the stored known answer is damaged");
  std::vector<int32_t> used;
  TARE_ASSIGN(const double nll, nll_of(context, folder, ids, used));
  if (std::abs(nll - expected) <= tolerance) return std::optional<std::string>();
  return std::optional<std::string>(fmt::format(
      "known answer: expected a mean NLL of {:.5f} over {} tokens, found {:.5f}", expected, ids.size(), nll));
}

}  // namespace tare::cli
