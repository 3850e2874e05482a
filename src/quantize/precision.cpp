#include "quantize/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "quantize/allocate.h"
#include "tensor/parameter_count.h"

namespace tare::quantize {

namespace {

// A matrix of a unit in one form; form -1: as the source has it.
struct Choice {
  int form = -1;
  MatrixScheme scheme;
};

// What the target is in bytes. The same parameters as the report's bits per weight.
Result<int64_t> bytes_of_target(const PrecisionRequest& request) {
  if (!request.target_bpw) return request.target_bytes;
  TARE_ASSIGN(const int64_t parameters, tensor::parameter_count(*request.source));
  return static_cast<int64_t>(std::floor(*request.target_bpw * static_cast<double>(parameters) / 8));
}

class Planner {
 public:
  Planner(const PrecisionRequest& request, ThreadPool& pool)
      : request_(request),
        source_(*request.source),
        pool_(pool),
        storage_(*request.writer, request.source->config, request.allow_loss, request.options.kernels,
                 request.options.caps, pool) {}

  Result<PrecisionPlan> run(std::vector<std::string>& notes) {
    const checkpoints::CheckpointWriter& writer = *request_.writer;
    if (!writer.mixed.held) {
      return unsupported("format does not hold matrices of different forms",
                         {.where = "--format",
                          .found = std::string(writer.name),
                          .hint = "use --format tare, compressed-tensors or gptq"});
    }
    TARE_ASSIGN(matrices_, plan_matrices(*request_.arch, request_.options));
    std::vector<std::string> said;  // the pipeline says it again
    TARE_TRY(check_source(source_, matrices_, request_.options, said));
    TARE_ASSIGN(target_, bytes_of_target(request_));
    TARE_ASSIGN(rest_,
                rest_of(source_, *request_.arch, request_.options.head, matrices_, writer, request_.allow_loss, pool_));
    schemes_ = candidate_schemes(*request_.options.recipe, request_.flags, writer.mixed.bits);
    candidates_ = schemes_.size();
    for (const PlannedMatrix& planned : matrices_) {
      if (!planned.excepted || planned.scheme.keep) continue;
      if (std::find(schemes_.begin(), schemes_.end(), planned.scheme) == schemes_.end()) {
        schemes_.push_back(planned.scheme);
      }
    }
    TARE_TRY(collect_units());
    TARE_TRY(check_smallest());
    TARE_ASSIGN(measured_, measure_forms(request_.source, *request_.arch, matrices_, schemes_, wanted_,
                                         request_.options, request_.measure, pool_));
    return choose(notes);
  }

 private:
  bool fixed(size_t matrix) const { return matrices_[matrix].excepted; }

  // A group that covers the row, where the row itself is a candidate too.
  bool whole_row_twice(size_t matrix, size_t form) const {
    MatrixScheme whole = schemes_[form];
    if (whole.grid.group_size < matrices_[matrix].linear.k) return false;
    whole.grid.group_size = 0;
    const auto end = schemes_.begin() + static_cast<ptrdiff_t>(candidates_);
    return std::find(schemes_.begin(), end, whole) != end;
  }

  // Why a matrix cannot have a form; empty: it can.
  std::string refusal(size_t i, const MatrixScheme& scheme) {
    const model::LayerLinear& linear = matrices_[i].linear;
    auto tensors = storage_.tensors(linear.name, linear.n, linear.k, scheme);
    if (!tensors.ok()) return tensors.error().message();
    auto kernel = storage_.kernel(linear.n, linear.k, linear.bias, scheme);
    if (!kernel.ok()) return kernel.error().message();
    if ((*kernel)->isa == machine::Isa::kReference) {
      return fmt::format("{}: only the reference kernel takes it on this machine", describe(scheme));
    }
    return {};
  }

  Result<AllocationOption> option(const std::pair<size_t, size_t>& unit, const Choice& choice) {
    AllocationOption out;
    for (size_t i = unit.first; i < unit.second; ++i) {
      const model::LayerLinear& linear = matrices_[i].linear;
      TARE_ASSIGN(const auto tensors, storage_.tensors(source_, linear, choice.scheme));
      TARE_ASSIGN(const int64_t bytes, bytes_with_entries(tensors, target_));
      out.bytes += bytes;
    }
    return out;
  }

  Status collect_units() {
    wanted_.assign(matrices_.size(), std::vector<bool>(schemes_.size(), false));
    // What an exception fixes stands alone, whatever it is joined with; settle_plan holds them against each other.
    for (const auto& [first, last] : joined(matrices_, request_.writer->mixed.joined_alike)) {
      std::vector<std::pair<size_t, size_t>> parts;
      bool any_fixed = false;
      for (size_t i = first; i < last; ++i) any_fixed = any_fixed || fixed(i);
      if (!any_fixed) parts.emplace_back(first, last);
      for (size_t i = first; any_fixed && i < last; ++i) parts.emplace_back(i, i + 1);
      for (const auto& part : parts) TARE_TRY(add_unit(part));
    }
    return {};
  }

  Status add_unit(const std::pair<size_t, size_t>& unit) {
    std::vector<Choice> choices;
    std::vector<AllocationOption> options;
    const auto add = [&](Choice choice) -> Status {
      TARE_ASSIGN(const AllocationOption made, option(unit, choice));
      choices.push_back(std::move(choice));
      options.push_back(made);
      return {};
    };
    if (fixed(unit.first)) {
      const MatrixScheme& scheme = matrices_[unit.first].scheme;
      Choice choice{.scheme = scheme};
      if (!scheme.keep) {
        const auto at = static_cast<size_t>(std::find(schemes_.begin(), schemes_.end(), scheme) - schemes_.begin());
        wanted_[unit.first][at] = true;
        choice.form = static_cast<int>(at);
      }
      TARE_TRY(add(std::move(choice)));
    } else {
      std::string why;
      for (size_t f = 0; f < candidates_; ++f) {
        if (whole_row_twice(unit.first, f)) continue;
        std::string refused;
        for (size_t i = unit.first; i < unit.second && refused.empty(); ++i) refused = refusal(i, schemes_[f]);
        if (!refused.empty()) {
          if (why.empty()) why = refused;
          continue;
        }
        for (size_t i = unit.first; i < unit.second; ++i) wanted_[i][f] = true;
        TARE_TRY(add({.form = static_cast<int>(f), .scheme = schemes_[f]}));
      }
      if (choices.empty()) {
        return unsupported("no form that a kernel of this machine runs and the format holds",
                           {.where = matrices_[unit.first].linear.name, .found = why});
      }
      // A matrix that the source has rounded already is no better for staying so.
      MatrixScheme kept = matrices_[unit.first].scheme;
      kept.keep = true;
      bool dense = true;
      for (size_t i = unit.first; i < unit.second; ++i) {
        const tensor::WeightInfo* info = source_.find(matrices_[i].linear.name + ".weight");
        dense = dense && info && std::holds_alternative<tensor::DType>(info->form);
      }
      if (dense) TARE_TRY(add({.form = -1, .scheme = std::move(kept)}));
    }
    units_.push_back(unit);
    choices_.push_back(std::move(choices));
    options_.push_back(std::move(options));
    return {};
  }

  std::vector<size_t> smallest() const {
    std::vector<size_t> out;
    for (const auto& options : options_) {
      const auto at = std::min_element(options.begin(), options.end(),
                                       [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
      out.push_back(static_cast<size_t>(at - options.begin()));
    }
    return out;
  }

  // Before hours of measuring.
  Status check_smallest() {
    std::vector<std::string> ignored;
    TARE_ASSIGN(const PrecisionPlan plan, settled(smallest(), ignored));
    if (plan.bytes <= target_) return {};
    return invalid_input("the target is below the smallest forms",
                         {.where = request_.target_bpw ? "--target-bpw" : "--target-bytes",
                          .expected = fmt::format("at least {} bytes", plan.bytes),
                          .found = fmt::format("{}", target_)});
  }

  Result<PrecisionPlan> settled(const std::vector<size_t>& choice, std::vector<std::string>& notes) {
    PrecisionPlan plan{.format = std::string(request_.writer->name),
                       .activation = request_.options.widths.activation,
                       .kv = request_.options.widths.kv,
                       .head = std::string(head_name(request_.options.head)),
                       .target_bytes = target_};
    for (size_t u = 0; u < units_.size(); ++u) {
      const Choice& chosen = choices_[u][choice[u]];
      for (size_t i = units_[u].first; i < units_[u].second; ++i) {
        PlanRow row{.name = matrices_[i].linear.name, .scheme = chosen.scheme};
        if (chosen.scheme.keep) row.divergence = 0;
        if (chosen.form >= 0 && !measured_.empty()) {
          const auto form = static_cast<size_t>(chosen.form);
          row.scheme.algorithm = measured_[i].methods[form];
          row.divergence = measured_[i].divergence(form);
        }
        TARE_ASSIGN(const auto tensors, storage_.tensors(source_, matrices_[i].linear, chosen.scheme));
        TARE_ASSIGN(row.bytes, data_bytes(tensors));
        plan.rows.push_back(std::move(row));
      }
    }
    TARE_TRY(settle_plan(plan, matrices_, source_, *request_.writer, storage_, rest_, notes));
    return plan;
  }

  Result<PrecisionPlan> choose(std::vector<std::string>& notes) {
    for (size_t u = 0; u < units_.size(); ++u) {
      for (size_t c = 0; c < choices_[u].size(); ++c) {
        if (choices_[u][c].form < 0) continue;
        for (size_t i = units_[u].first; i < units_[u].second; ++i) {
          options_[u][c].cost += measured_[i].divergence(static_cast<size_t>(choices_[u][c].form));
        }
      }
    }
    int64_t base = 0;
    for (const auto& [name, tensors] : rest_) {
      TARE_ASSIGN(const int64_t bytes, bytes_with_entries(tensors, target_));
      base += bytes;
    }
    // Entries of the header are counted a few bytes too high, so what is left over is handed out again.
    std::optional<PrecisionPlan> best;
    double best_cost = 0;
    int64_t budget = target_ - base;
    for (int round = 0; round < 8; ++round) {
      auto made = allocate(options_, budget);
      if (!made.ok()) break;
      std::vector<std::string> said;
      TARE_ASSIGN(PrecisionPlan plan, settled(made->choice, said));
      const int64_t left = target_ - plan.bytes;
      if (left >= 0 && (!best || made->cost < best_cost)) {
        best = std::move(plan);
        best_cost = made->cost;
        notes = std::move(said);
      } else if (left >= 0) {
        break;
      }
      budget = made->bytes + left;
    }
    if (best) return std::move(*best);
    // The smallest forms fit by their exact size, but not with the estimate of the header.
    return settled(smallest(), notes);
  }

  const PrecisionRequest& request_;
  const tensor::ModelWeights& source_;
  ThreadPool& pool_;
  Storage storage_;
  int64_t target_ = 0;
  std::vector<PlannedMatrix> matrices_;
  WeightTensors rest_;
  std::vector<MatrixScheme> schemes_;  // candidates, then those of exceptions
  size_t candidates_ = 0;
  std::vector<std::vector<bool>> wanted_;  // by matrix and scheme
  std::vector<std::pair<size_t, size_t>> units_;
  std::vector<std::vector<Choice>> choices_;
  std::vector<std::vector<AllocationOption>> options_;
  std::vector<MeasuredMatrix> measured_;
};

}  // namespace

Result<WeightTensors> rest_of(const tensor::ModelWeights& source, const model::Architecture& arch, HeadChoice head,
                              const std::vector<PlannedMatrix>& matrices, const checkpoints::CheckpointWriter& writer,
                              bool allow_loss, ThreadPool& pool) {
  tensor::ModelWeights tables;
  tables.config = source.config;
  std::vector<std::string> said;
  TARE_TRY(add_tables(source, arch, head, tables, said, pool));
  std::set<std::string> planned;
  for (const PlannedMatrix& m : matrices) planned.insert(m.linear.name + ".weight");
  WeightTensors out;
  for (const std::string& name : source.names()) {
    if (planned.count(name) != 0) continue;
    TARE_ASSIGN(out[name], stored_tensors(tables.contains(name) ? tables : source, name, writer, allow_loss));
  }
  return out;
}

Result<PrecisionPlan> make_plan(const PrecisionRequest& request, std::vector<std::string>& notes, ThreadPool& pool) {
  if (request.options.recipe && !request.options.recipe->transforms.empty()) {
    return unsupported("methods with transforms change the matrices after they were measured",
                       {.where = fmt::format("--method {}", request.options.recipe->name),
                        .expected = "gptq or rtn beside a target size"});
  }
  return Planner(request, pool).run(notes);
}

}  // namespace tare::quantize
