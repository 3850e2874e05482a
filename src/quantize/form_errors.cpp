#include "quantize/form_errors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/interrupt.h"
#include "quantize/block_walk.h"

namespace tare::quantize {

using model::Site;

namespace {

constexpr Site kSites[] = {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown};

// Evenly spread rows of a matrix, as a matrix of their own.
BlockMatrix sample(const BlockMatrix& matrix, int64_t rows) {
  BlockMatrix out{.name = matrix.name, .site = matrix.site, .n = std::min(rows, matrix.n), .k = matrix.k};
  for (int64_t i = 0; i < out.n; ++i) {
    const int64_t row = (2 * i + 1) * matrix.n / (2 * out.n);
    out.w.insert(out.w.end(), matrix.w.begin() + row * matrix.k, matrix.w.begin() + (row + 1) * matrix.k);
  }
  return out;
}

// The first sequences, to choose codes on, and about a quarter of all, to judge them on; one sequence is both.
std::pair<CalibrationData, CalibrationData> split(const CalibrationData& data) {
  const size_t count = data.sequences.size();
  const size_t judging = count < 2 ? 0 : std::max<size_t>(1, count / 4);
  CalibrationData fitting, judged;
  for (size_t s = 0; s < count; ++s) {
    CalibrationData& into = s < count - judging ? fitting : judged;
    into.tokens += static_cast<int64_t>(data.sequences[s].size());
    into.sequences.push_back(data.sequences[s]);
  }
  return {std::move(fitting), std::move(judged)};
}

// What measuring one block takes at its worst: the block, its packed copy and a rounded matrix; at the widest input two
// Grams, a factor and products; hidden states and logits of the probes.
int64_t working_bytes(const model::Architecture& arch, const std::vector<PlannedMatrix>& matrices,
                      const MeasureOptions& measure) {
  const auto [block, largest, widest] = block_sizes(matrices);
  const int64_t rows = std::max<int64_t>(1024, measure.probes.tokens);
  const int64_t probes = measure.probes.tokens * static_cast<int64_t>(matrices.size()) * arch.hidden / 2;
  return 4 * (2 * block + 2 * largest + 6 * widest * widest + 6 * measure.rows * widest + probes +
              rows * (8 * arch.hidden + 4 * arch.intermediate) + 64 * arch.vocab_size);
}

// What the codes of a sample change at the output, on tokens of another Gram, as a share of the output.
Result<double> error_on(const Gram& gram, const BlockMatrix& part, const Solved& solved, double power,
                        Products& products) {
  std::vector<float> d(part.w.size());
  for (size_t i = 0; i < d.size(); ++i) d[i] = part.w[i] - solved.decoded[i];
  TARE_ASSIGN(const double error, output_error(gram, d.data(), part.n, products));
  return power > 0 ? error / power : 0.0;
}

}  // namespace

double MeasuredMatrix::divergence(size_t form) const {
  if (!(probe_error > 0) || !(probe_kl > 0)) return 0;
  return probe_kl * errors[form] / probe_error;
}

Result<std::vector<MeasuredMatrix>> measure_forms(const std::shared_ptr<const tensor::ModelWeights>& source,
                                                  const model::Architecture& arch,
                                                  const std::vector<PlannedMatrix>& matrices,
                                                  const std::vector<MatrixScheme>& forms,
                                                  const std::vector<std::vector<bool>>& wanted,
                                                  const PipelineOptions& options, const MeasureOptions& measure,
                                                  ThreadPool& pool) {
  MemoryBudget::Reservation working;
  if (options.budget) {
    const auto bytes = static_cast<uint64_t>(working_bytes(arch, matrices, measure));
    TARE_ASSIGN(working, options.budget->reserve("one block in f32, its statistics and the probes", bytes));
  }
  Products products(options.kernels, options.caps, pool);
  // Codes that fit their tokens too closely must not look better than they are.
  const auto [fitting, judging] = split(options.calibration);
  const BlockData::Options stores{.spill_folder = options.spill_folder, .budget = options.budget};
  TARE_ASSIGN(BlockData data, BlockData::start(*source, arch, fitting, stores, products));
  std::optional<BlockData> judge;
  if (judging.tokens > 0) {
    TARE_ASSIGN(judge, BlockData::start(*source, arch, judging, stores, products));
  }
  TARE_ASSIGN(Probes probes, Probes::start(*source, arch, options.calibration, measure.probes, products));
  SolveOptions solve = options.solve;
  solve.correction = 0;
  solve.sweeps = std::min(solve.sweeps, measure.sweeps);
  std::vector<MeasuredMatrix> out(matrices.size());
  size_t first = 0;
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    TARE_ASSIGN(Block block, Block::load(*source, arch, layer));
    for (size_t i = 0; i < block.matrices.size(); ++i) block.matrices[i].scheme = matrices[first + i].scheme;
    TARE_TRY(probes.run(block));
    TARE_TRY(data.open(block, false));
    TARE_ASSIGN(BlockWalk walk, BlockWalk::begin(data, block, options.widths.kv, false));
    std::optional<BlockWalk> judge_walk;
    if (judge) {
      TARE_TRY(judge->open(block, false));
      TARE_ASSIGN(judge_walk, BlockWalk::begin(*judge, block, options.widths.kv, false));
    }
    for (const Site site : kSites) {
      TARE_TRY(check_interrupt("quantize"));
      TARE_ASSIGN(const SiteInputs inputs, walk.collect(site));
      std::optional<SiteInputs> judged;
      if (judge_walk) {
        TARE_ASSIGN(judged, judge_walk->collect(site));
      }
      const Gram& gram = judged ? judged->gram : inputs.gram;
      TARE_ASSIGN(SiteSolver solver, SiteSolver::make(inputs, solve, products));
      for (const size_t index : block.reading(site)) {
        MeasuredMatrix& row = out[first + index];
        BlockMatrix part = sample(block.matrices[index], measure.rows);
        part.scheme = {};
        part.scheme.grid = measure.probes.grid;
        TARE_ASSIGN(const double power, output_error(gram, part.w.data(), part.n, products));
        TARE_ASSIGN(const Solved probe, solver.solve(part, 0));
        TARE_ASSIGN(row.probe_error, error_on(gram, part, probe, power, products));
        row.errors.assign(forms.size(), std::numeric_limits<double>::quiet_NaN());
        row.methods.resize(forms.size());
        for (size_t f = 0; f < forms.size(); ++f) {
          if (!wanted[first + index][f]) continue;
          TARE_TRY(check_interrupt("quantize"));
          part.scheme = forms[f];
          TARE_ASSIGN(const Solved solved, solver.solve(part, 0));
          TARE_ASSIGN(row.errors[f], error_on(gram, part, solved, power, products));
          row.methods[f] = solved.status.starts_with("gptq") ? "gptq" : "rtn";
        }
      }
      TARE_TRY(walk.set(site, block));
      if (judge_walk) TARE_TRY(judge_walk->set(site, block));
    }
    TARE_TRY(walk.finish());
    if (judge_walk) TARE_TRY(judge_walk->finish());
    first += block.matrices.size();
    if (measure.progress) measure.progress(layer + 1, arch.layers);
  }
  TARE_ASSIGN(const std::vector<double> kl, probes.finish(*source));
  for (size_t i = 0; i < out.size(); ++i) out[i].probe_kl = kl[i];
  return out;
}

}  // namespace tare::quantize
