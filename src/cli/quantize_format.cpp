#include "cli/quantize_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "checkpoints/write.h"
#include "quantize/matrix_plan.h"

namespace tare::cli {

namespace {

// Rows enough that packings by rows see what they would see of all.
constexpr int64_t kRows = 256;

std::vector<float> stand_in(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& v : out) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return out;
}

}  // namespace

Result<std::string> settle_format(const quantize::Recipe& recipe, const std::string& wanted, bool allow_loss) {
  const auto& fitting = recipe.formats;
  const std::string format = !wanted.empty() ? wanted : fitting.empty() ? "tare" : std::string(fitting.front());
  TARE_ASSIGN([[maybe_unused]] const auto* writer, checkpoints::find_writer(format));
  const bool fits = fitting.empty() || std::find(fitting.begin(), fitting.end(), format) != fitting.end();
  if (fits || allow_loss) return format;
  return unsupported(fmt::format("{} does not hold what {} makes", format, recipe.name),
                     {.where = "--format",
                      .expected = fmt::format("{}", fmt::join(fitting, ", ")),
                      .found = format,
                      .hint = "--allow-loss writes what it can and lists the rest"});
}

Status check_format(const std::string& format, const tensor::ModelWeights& source, const model::Architecture& arch,
                    const quantize::PipelineOptions& options, ThreadPool& pool) {
  TARE_ASSIGN(const checkpoints::CheckpointWriter* writer, checkpoints::find_writer(format));
  if (writer->write || !writer->store) return {};
  checkpoints::Losses losses(format, false);
  TARE_ASSIGN(const std::vector<quantize::PlannedMatrix> plan, quantize::plan_matrices(arch, options));
  struct Form {
    tensor::QuantSpec spec;
    json::object scheme;
  };
  std::map<std::string, Form> known;
  std::vector<checkpoints::WrittenModule> modules;
  std::vector<std::string> dense;
  for (const quantize::PlannedMatrix& planned : plan) {
    const std::string& name = planned.linear.name;
    if (planned.scheme.keep) {
      dense.push_back(name);
      continue;
    }
    const int64_t n = planned.linear.n < 2 * kRows ? planned.linear.n : kRows + planned.linear.n % kRows;
    const int64_t k = planned.linear.k;
    const auto [at, first] = known.try_emplace(fmt::format("{} {} {}", n, k, describe(planned.scheme)));
    if (first) {
      const std::vector<float> w = stand_in(n * k);
      TARE_ASSIGN(const tensor::QuantizedTensor made,
                  quantize::round_to_nearest(planned.scheme.grid, w.data(), n, k, "tare", pool));
      TARE_ASSIGN(
          checkpoints::StoredMatrix stored,
          writer->store(
              {.module = name, .weight = &made, .activation = planned.scheme.activation, .config = &source.config},
              losses));
      at->second = {made.spec(), std::move(stored.scheme)};
    }
    modules.push_back({.module = name,
                       .shape = {planned.linear.n, k},
                       .spec = at->second.spec,
                       .activation = planned.scheme.activation,
                       .scheme = at->second.scheme});
  }
  if (modules.empty() || !writer->configuration) return {};
  const auto config = writer->configuration(modules, dense, {.format = format, .weights = &source});
  return config.ok() ? Status() : Status(config.error());
}

}  // namespace tare::cli
