#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <regex>

#include "base/interrupt.h"
#include "base/log.h"
#include "checkpoints/checkpoint.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "kernels/measure.h"
#include "kernels/peaks.h"
#include "kernels/reference/gemm.h"
#include "kernels/thresholds.h"
#include "machine/isa.h"
#include "model/linear_plan.h"
#include "numerics/mini_float.h"
#include "plugin/plugins.h"

namespace tare::cli {

namespace {

namespace json = boost::json;
using kernels::LinearProblem;

struct Flags {
  ModelFlags model;
  std::string layer;
  std::vector<int64_t> m = {1, 16, 512};
  bool no_measure = false;
};

/// Times of one problem and of its bf16 twin, for the M of the flags.
struct Timed {
  std::vector<kernels::LinearTiming> mine, twin;
  std::string_view twin_kernel;
};

class Explain {
 public:
  Explain(Context& context, const Flags& flags, const tensor::ModelWeights& weights)
      : context_(context), flags_(flags), weights_(weights) {
    const machine::Isa isa = context.capabilities().isa;
    peaks_ = kernels::measure_peaks(isa, context.pool());
    read_ = kernels::measure_read_bytes_per_s(isa, context.pool(), int64_t{256} << 20, 4);
  }

  Status add(const model::PlannedLinear& linear) {
    TARE_TRY(check_interrupt("explain"));
    TARE_ASSIGN(
        const kernels::Selection selection,
        kernels::select_linear(registry_, linear.problem, context_.capabilities(), context_.options().kernel, tests_));
    const kernels::LinearKernel& kernel = *selection.kernel;
    const Timed* timed = nullptr;
    if (!flags_.no_measure) {
      TARE_ASSIGN(timed, times_of(linear, kernel));
    }
    json::array rejected;
    for (const kernels::Rejection& row : selection.rejected) {
      rejected.push_back({{"kernel", row.kernel}, {"reason", row.reason}});
    }
    const std::string scheme = describe(linear.problem);
    const std::string_view thresholds = kernels::thresholds(kernel.name);
    std::string line =
        fmt::format("{:44} [{}, {}] {:34} {}", linear.name, linear.problem.n, linear.problem.k, scheme, kernel.name);
    for (size_t i = 0; i < flags_.m.size(); ++i) {
      const int64_t m = flags_.m[i];
      const bool compute =
          compute_seconds(linear.problem, kernel, m) > static_cast<double>(linear.stored_bytes) / read_;
      json::object one{{"name", linear.name},
                       {"scheme", scheme},
                       {"n", linear.problem.n},
                       {"k", linear.problem.k},
                       {"m", m},
                       {"kernel", kernel.name},
                       {"rejected", rejected},
                       {"thresholds", thresholds},
                       {"reference", &kernel == &kernels::kGemmReference},
                       {"bound", compute ? "compute" : "memory"}};
      line += fmt::format("  M {}: {}", m, compute ? "compute" : "memory");
      if (timed) {
        const double us = timed->mine[i].min_s * 1e6, twin_us = timed->twin[i].min_s * 1e6;
        one["us"] = us;
        one["twin_us"] = twin_us;
        one["twin_kernel"] = timed->twin_kernel;
        one["twin_ratio"] = twin_us / us;
        one["slower_than_unquantized"] = us > twin_us;
        line += fmt::format(" {:.2f}x bf16{}", twin_us / us, us > twin_us ? " SLOWER than unquantized" : "");
        if (us > twin_us) ++slower_;
      }
      layers_.push_back(std::move(one));
    }
    // Layers repeat; people read each kind of line once.
    const std::string key = line.substr(44);
    if (said_[key]++ == 0) {
      context_.say(line);
      if (!thresholds.empty()) context_.say(fmt::format("    {}", thresholds));
      for (const kernels::Rejection& row : selection.rejected) {
        context_.say(fmt::format("    not {}: {}", row.kernel, row.reason));
      }
    }
    return {};
  }

  json::object document() {
    return {{"machine",
             {{"cpu", machine::cpu_model()},
              {"isa", machine::isa_name(context_.capabilities().isa)},
              {"threads", context_.threads()},
              {"read_gbps", read_ / 1e9}}},
            {"slower_than_unquantized", slower_},
            {"layers", layers_}};
  }
  int64_t slower() const { return slower_; }

 private:
  static std::string describe(const LinearProblem& problem) {
    const auto* spec = std::get_if<tensor::QuantSpec>(&problem.weight);
    return fmt::format(
        "{}, activations {}",
        spec ? tensor::describe(*spec) : std::string(tensor::dtype_name(std::get<tensor::DType>(problem.weight))),
        tensor::describe(problem.activation));
  }

  double compute_seconds(const LinearProblem& problem, const kernels::LinearKernel& kernel, int64_t m) const {
    const bool integers = kernel.form(problem).dtype == tensor::DType::kI8;
    const auto* spec = std::get_if<tensor::QuantSpec>(&problem.weight);
    const double peak = !integers                 ? peaks_.f32_gflops * 1e9
                        : spec && spec->bits <= 4 ? peaks_.u4s8_tops * 1e12
                                                  : peaks_.s8s8_tops * 1e12;
    return peak == 0 ? 1e9 : 2.0 * static_cast<double>(m * problem.n * problem.k) / peak;
  }

  // The first matrix of each kind stands for all: its own weight, and bf16 of the same shape.
  Result<const Timed*> times_of(const model::PlannedLinear& linear, const kernels::LinearKernel& kernel) {
    TARE_ASSIGN(const tensor::Weight weight, weights_.load(linear.weight));
    LinearProblem problem = linear.problem;
    const tensor::Shape shape = tensor::shape_of(weight);
    problem.n = shape[0];
    problem.bias = false;
    const std::string key = fmt::format("{} {} {} {}", problem.n, problem.k, describe(problem), kernel.name);
    const auto found = times_.find(key);
    if (found != times_.end()) return &found->second;
    const machine::Isa isa = context_.capabilities().isa;
    const kernels::MeasureOptions options{.cold_bytes = int64_t{64} << 20, .seconds = 0.02, .repeats = 3};
    Timed timed;
    TARE_ASSIGN(timed.mine, kernels::measure_linear(kernel, problem, weight, flags_.m, isa, context_.pool(), options));
    std::vector<std::byte> zeros(static_cast<size_t>(problem.n * problem.k * 2));
    const tensor::Weight dense =
        tensor::Tensor{tensor::DType::kBF16, {problem.n, problem.k}, Buffer::own(std::move(zeros))};
    const LinearProblem twin{.n = problem.n, .k = problem.k, .weight = tensor::DType::kBF16};
    TARE_ASSIGN(const kernels::Selection selection,
                kernels::select_linear(registry_, twin, context_.capabilities(), {}, tests_));
    timed.twin_kernel = selection.kernel->name;
    TARE_ASSIGN(timed.twin,
                kernels::measure_linear(*selection.kernel, twin, dense, flags_.m, isa, context_.pool(), options));
    return &times_.emplace(key, std::move(timed)).first->second;
  }

  Context& context_;
  const Flags& flags_;
  const tensor::ModelWeights& weights_;
  const kernels::LinearRegistry& registry_ = context_.registries().linear;
  kernels::SelfTests tests_;
  kernels::Peaks peaks_;
  double read_ = 1;
  std::map<std::string, Timed> times_;
  std::map<std::string, int> said_;
  json::array layers_;
  int64_t slower_ = 0;
};

Status explain(Context& context, Flags& flags) {
  if (std::any_of(flags.m.begin(), flags.m.end(), [](int64_t m) { return m < 1 || m > 65536; })) {
    return invalid_input("impossible number of tokens", {.where = "--m", .expected = "1..65536"});
  }
  std::regex wanted;
  try {
    wanted = std::regex(flags.layer.empty() ? "" : flags.layer);
  } catch (const std::regex_error& error) {
    return invalid_input("not a regular expression", {.where = "--layer", .found = error.what()});
  }
  TARE_ASSIGN(const tensor::ModelWeights weights,
              checkpoints::load_checkpoint(flags.model.model, context.load_options(flags.model.quantization)));
  TARE_ASSIGN(const model::Architecture arch, model::describe_architecture(weights.config));
  TARE_ASSIGN(const std::vector<model::PlannedLinear> plan,
              model::plan_linears(weights, arch, activation_policy(context.options())));
  std::vector<std::string> notes = weights.notes;
  if (std::string left = model::activation_note(weights, activation_policy(context.options())); !left.empty()) {
    notes.push_back(std::move(left));
  }
  for (const std::string& note : notes) log::info("{}: {}", flags.model.model, note);
  Explain report(context, flags, weights);
  bool any = false;
  for (const model::PlannedLinear& linear : plan) {
    if (!std::regex_search(linear.name, wanted)) continue;
    any = true;
    TARE_TRY(report.add(linear));
  }
  if (!any) return invalid_input("no matrix has such a name", {.where = "--layer", .found = flags.layer});
  if (!flags.no_measure) {
    context.say(fmt::format("{} cells are slower than the unquantized twin", report.slower()));
  }
  json::object document = report.document();
  document["notes"] = json::array(notes.begin(), notes.end());
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kExplain;
const Command kExplain = {
    .name = "explain",
    .summary = "which kernel runs each matrix at each number of tokens, which were refused and why",
    .examples =
        "tare explain out/\n"
        "tare explain model.gguf --activations int8 --layer 'layers\\.0\\.' --m 1,16,512\n"
        "tare explain out/ --no-measure --json",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      declare_model(app, flags->model);
      app.add_option("--layer", flags->layer, "only matrices whose name matches this regular expression");
      add_list(app, "--m", flags->m, "tokens, e.g. 1,16,512");
      app.add_flag("--no-measure", flags->no_measure, "do not time the kernels against bf16");
      return [flags](Context& context) { return explain(context, *flags); };
    },
};

}  // namespace tare::cli
