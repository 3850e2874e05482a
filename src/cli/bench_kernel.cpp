#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <functional>

#include "base/interrupt.h"
#include "cli/bench_clock.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "kernels/measure_attention.h"
#include "kernels/reference/samples.h"
#include "machine/isa.h"
#include "plugin/plugins.h"

namespace tare::cli {

namespace {

namespace json = boost::json;
using kernels::LinearKernel;

struct Flags {
  std::vector<std::string> ops, formats;
  std::vector<int64_t> m = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  int64_t n = 2048, k = 2048;
  int64_t cold_mib = 384;
  double seconds = 0.2;
  bool twin = false;
  std::vector<int64_t> context = {8192}, batch = {1, 8}, queries = {1};
  std::string records;
  std::string clock = "wall";
};

/// What `bench kernel` times when nothing else is asked: an operation, forms of kernels/reference/samples.h and what
/// their activations are.
struct Row {
  std::string_view op;
  std::vector<std::string_view> formats;
  tensor::ActivationType activation = tensor::ActivationType::kNone;
};
const std::vector<Row>& rows() {
  using T = tensor::ActivationType;
  static const std::vector<Row> table = {
      {"gemm_w4a8", {"qoq-g128", "qoq-channel"}, T::kS8},
      {"gemm_w8a8", {"w8-channel"}, T::kS8},
      {"gemm_wna8", {"gptq-u4-g128", "q4_0-g32", "q8_0-g32", "u3-g64"}, T::kS8},
      {"gemm_wna16",
       {"gptq-u4-g128", "gptq-u4-g128-order", "q4_0-g32", "q4_k", "q8_0-g32", "u3-g64", "nf4-g64", "mxfp4", "nvfp4",
        "fp8-tensor", "fp8-channel", "fp8-block"},
       T::kNone},
      {"gemm_fp8", {"fp8-channel"}, T::kE4M3},
      {"gemm", {"bf16", "f16", "f32"}, T::kNone},
      {"gemm_dequant_then_gemm", {"gptq-u4-g128"}, T::kNone},
  };
  return table;
}

struct Machine {
  kernels::Peaks peaks;
  double read = 0;  // bytes a second
};

/// Operations a second of the instruction that the kernel multiplies with.
double peak_of(const LinearKernel& kernel, const kernels::LinearProblem& problem, const kernels::Peaks& peaks) {
  if (kernel.form(problem).dtype != tensor::DType::kI8) return peaks.f32_gflops * 1e9;
  const auto* spec = std::get_if<tensor::QuantSpec>(&problem.weight);
  return 1e12 * (spec && spec->bits <= 4 ? peaks.u4s8_tops : peaks.s8s8_tops);
}

class Bench {
 public:
  Bench(Context& context, const Flags& flags, kernels::BenchClock clock)
      : context_(context), flags_(flags), clock_(clock) {
    measure_machine();
  }

  Status run() {
    for (const Row& row : rows()) {
      if (!wanted(flags_.ops, row.op)) continue;
      for (const std::string_view format : row.formats) {
        if (wanted(flags_.formats, format)) TARE_TRY(linear(row, format));
      }
    }
    if (wanted(flags_.ops, "attention")) {
      for (const auto type : {kernels::KvType::kF16, kernels::KvType::kBF16, kernels::KvType::kE4M3,
                              kernels::KvType::kInt8, kernels::KvType::kInt4}) {
        if (wanted(flags_.formats, kernels::kv_type_name(type))) TARE_TRY(attention(type));
      }
    }
    if (points_.empty()) {
      return invalid_input("nothing to measure",
                           {.where = "bench kernel", .hint = "see `tare bench kernel --help` for operations"});
    }
    finish();
    return {};
  }

  json::object document() {
    return {{"machine", machine_},
            {"settings",
             {{"cold_mib", flags_.cold_mib}, {"seconds", flags_.seconds}, {"statistic", "median; min beside it"}}},
            {"points", points_}};
  }
  const json::array& points() const { return points_; }
  const json::object& machine() const { return machine_; }
  /// What is above its ceiling: measured wrongly.
  const std::vector<std::string>& impossible() const { return impossible_; }

 private:
  static bool wanted(const std::vector<std::string>& list, std::string_view name) {
    return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
  }

  void measure_machine() {
    const machine::Isa isa = context_.capabilities().isa;
    const kernels::Peaks peaks = kernels::measure_peaks(isa, context_.pool(), clock_);
    limits_.peaks.u4s8_tops = std::max(limits_.peaks.u4s8_tops, peaks.u4s8_tops);
    limits_.peaks.s8s8_tops = std::max(limits_.peaks.s8s8_tops, peaks.s8s8_tops);
    limits_.peaks.f32_gflops = std::max(limits_.peaks.f32_gflops, peaks.f32_gflops);
    limits_.read =
        std::max(limits_.read, kernels::measure_read_bytes_per_s(isa, context_.pool(), int64_t{1} << 30, 10, clock_));
    machine_ = {{"cpu", machine::cpu_model()},
                {"isa", machine::isa_name(isa)},
                {"threads", context_.threads()},
                {"clock", flags_.clock},
                {"read_gbps", limits_.read / 1e9},
                {"int8_u4s8_tops", limits_.peaks.u4s8_tops},
                {"int8_s8s8_tops", limits_.peaks.s8s8_tops},
                {"fp32_gflops", limits_.peaks.f32_gflops}};
  }

  kernels::MeasureOptions measure_options() const {
    return {.cold_bytes = flags_.cold_mib << 20, .seconds = flags_.seconds, .repeats = 20, .clock = clock_};
  }

  /// What a point's shares are computed from, once all is measured.
  struct Work {
    double seconds, bytes, operations;
    std::function<double(const kernels::Peaks&)> peak;
    std::string text;
  };

  void add(json::object point, Work work) {
    points_.push_back(std::move(point));
    works_.push_back(std::move(work));
  }

  // The ceilings are the best that was seen before and after the points, and again while a share is above 100 %.
  void finish() {
    measure_machine();
    for (int turn = 0; turn < 3; ++turn) {
      impossible_.clear();
      for (size_t i = 0; i < works_.size(); ++i) {
        const Work& work = works_[i];
        json::object& point = points_[i].as_object();
        const double compute = work.operations / work.peak(limits_.peaks) / work.seconds;
        // Weights that stay in a cache are not read from memory.
        const double memory = flags_.cold_mib > 0 ? work.bytes / limits_.read / work.seconds : 0;
        point["peak_share"] = compute;
        point["bandwidth_share"] = memory;
        point["roofline_share"] = std::max(compute, memory);
        point["bound"] = compute > memory ? "compute" : "memory";
        if (std::max(compute, memory) > 1) {
          impossible_.push_back(fmt::format("{} M {} at {:.0f} %", point["kernel"].as_string().c_str(),
                                            point["m"].as_int64(), 100 * std::max(compute, memory)));
        }
      }
      if (impossible_.empty()) break;
      measure_machine();
    }
    context_.say(fmt::format(
        "{}, {}, {} threads, {} time: reads {:.1f} GB/s, u4 x s8 {:.3f} TOP/s, s8 x s8 {:.3f}, f32 "
        "{:.0f} GFLOP/s",
        machine::cpu_model(), machine::isa_name(context_.capabilities().isa), context_.threads(), flags_.clock,
        limits_.read / 1e9, limits_.peaks.u4s8_tops, limits_.peaks.s8s8_tops, limits_.peaks.f32_gflops));
    for (size_t i = 0; i < works_.size(); ++i) {
      const json::object& point = points_[i].as_object();
      std::string line =
          fmt::format("{}  {:5.1f} % of peak {:5.1f} % of bandwidth", works_[i].text,
                      100 * point.at("peak_share").as_double(), 100 * point.at("bandwidth_share").as_double());
      if (point.contains("twin_ratio")) line += fmt::format("  {:5.2f}x bf16", point.at("twin_ratio").as_double());
      context_.say(line);
    }
  }

  Result<const LinearKernel*> kernel_for(const Row& row, const kernels::LinearProblem& problem) {
    const std::string forced = row.op == "gemm_dequant_then_gemm" ? std::string(row.op) : context_.options().kernel;
    TARE_ASSIGN(const kernels::Selection selection,
                kernels::select_linear(context_.registries().linear, problem, context_.capabilities(), forced, tests_));
    return selection.kernel;
  }

  Status linear(const Row& row, std::string_view format) {
    TARE_TRY(check_interrupt("bench"));
    const auto forms = kernels::sample_forms();
    const auto form = std::find_if(forms.begin(), forms.end(), [&](const auto& f) { return f.name == format; });
    const tensor::Weight weight = form->make(*form, flags_.n, flags_.k, kernels::SamplePattern::kRandom, 1);
    const kernels::LinearProblem problem = kernels::problem_of(weight, {.type = row.activation}, false);
    TARE_ASSIGN(const LinearKernel* kernel, kernel_for(row, problem));
    const machine::Isa isa = context_.capabilities().isa;
    TARE_ASSIGN(const auto timings,
                kernels::measure_linear(*kernel, problem, weight, flags_.m, isa, context_.pool(), measure_options()));
    std::vector<kernels::LinearTiming> twin;
    const LinearKernel* twin_kernel = nullptr;
    if (flags_.twin && format != "bf16") TARE_TRY(measure_twin(twin, twin_kernel));
    const auto bytes = static_cast<double>(kernels::stored_bytes(weight));
    for (size_t i = 0; i < timings.size(); ++i) {
      const kernels::LinearTiming& t = timings[i];
      const double operations = 2.0 * static_cast<double>(t.m * flags_.n * flags_.k);
      json::object point{{"op", row.op},
                         {"format", format},
                         {"activations", tensor::describe(problem.activation)},
                         {"kernel", kernel->name},
                         {"m", t.m},
                         {"n", flags_.n},
                         {"k", flags_.k},
                         {"us", t.median_s * 1e6},
                         {"min_us", t.min_s * 1e6},
                         {"max_us", t.max_s * 1e6},
                         {"repeats", t.repeats},
                         {"stored_bytes", bytes},
                         {"gops", operations / t.median_s / 1e9},
                         {"gbps", bytes / t.median_s / 1e9}};
      if (!twin.empty()) {
        point["twin_kernel"] = twin_kernel->name;
        point["twin_us"] = twin[i].median_s * 1e6;
        point["twin_ratio"] = twin[i].median_s / t.median_s;
      }
      add(std::move(point),
          {t.median_s, bytes, operations, [=](const kernels::Peaks& peaks) { return peak_of(*kernel, problem, peaks); },
           fmt::format("{:20} {:28} M {:4} {:9.1f} us", format, kernel->name, t.m, t.median_s * 1e6)});
    }
    return {};
  }

  // The same shape in bf16, next to each format: a noisy machine then hits both.
  Status measure_twin(std::vector<kernels::LinearTiming>& out, const LinearKernel*& kernel) {
    const auto forms = kernels::sample_forms();
    const auto form = std::find_if(forms.begin(), forms.end(), [](const auto& f) { return f.name == "bf16"; });
    const tensor::Weight weight = form->make(*form, flags_.n, flags_.k, kernels::SamplePattern::kRandom, 1);
    const kernels::LinearProblem problem = kernels::problem_of(weight, {}, false);
    TARE_ASSIGN(const kernels::Selection selection,
                kernels::select_linear(context_.registries().linear, problem, context_.capabilities(), {}, tests_));
    kernel = selection.kernel;
    TARE_ASSIGN(out, kernels::measure_linear(*kernel, problem, weight, flags_.m, context_.capabilities().isa,
                                             context_.pool(), measure_options()));
    return {};
  }

  Status attention(kernels::KvType type) {
    // 32 query heads over 4 heads of keys, 64 channels: the 1.1B model.
    const kernels::AttentionProblem problem{
        .heads = 32, .kv_heads = 4, .head_dim = 64, .scale = 0.125f, .k = {type}, .v = {type}};
    TARE_ASSIGN(const kernels::AttentionSelection selection,
                kernels::select_attention(kernels::builtin_attention_kernels(), problem, context_.capabilities()));
    for (const int64_t queries : flags_.queries) {
      for (const int64_t context : flags_.context) {
        for (const int64_t batch : flags_.batch) {
          if (queries > context) continue;
          TARE_TRY(check_interrupt("bench"));
          auto options = measure_options();
          options.repeats = 5;
          TARE_ASSIGN(const kernels::AttentionTiming t,
                      kernels::measure_attention(*selection.kernel, problem,
                                                 {.batch = batch, .context = context, .queries = queries},
                                                 context_.pool(), options));
          json::object point{{"op", "attention"},
                             {"format", kernels::kv_type_name(type)},
                             {"kernel", selection.kernel->name},
                             {"m", queries},
                             {"batch", batch},
                             {"context", context},
                             {"n", problem.heads * problem.head_dim},
                             {"k", problem.kv_heads * problem.head_dim},
                             {"us", t.median_s * 1e6},
                             {"min_us", t.min_s * 1e6},
                             {"repeats", t.repeats},
                             {"bytes", t.bytes},
                             {"gops", t.operations / t.median_s / 1e9},
                             {"gbps", t.bytes / t.median_s / 1e9}};
          add(std::move(point),
              {t.median_s, t.bytes, t.operations,
               [=](const kernels::Peaks& peaks) { return kernels::attention_peak({type}, peaks); },
               fmt::format("{:20} {:28} {} queries, {} keys, batch {} {:9.1f} us", kernels::kv_type_name(type),
                           selection.kernel->name, queries, context, batch, t.median_s * 1e6)});
        }
      }
    }
    return {};
  }

  Context& context_;
  const Flags& flags_;
  const kernels::BenchClock clock_;
  Machine limits_;
  kernels::SelfTests tests_;
  json::object machine_;
  json::array points_;
  std::vector<Work> works_;
  std::vector<std::string> impossible_;
};

Status bench_kernel(Context& context, Flags& flags) {
  if (flags.n < 1 || flags.k < 1 || flags.cold_mib < 0 || flags.seconds < 0 ||
      std::any_of(flags.m.begin(), flags.m.end(), [](int64_t m) { return m < 1; })) {
    return invalid_input("nothing to measure", {.where = "bench kernel", .expected = "positive counts"});
  }
  TARE_ASSIGN(const kernels::BenchClock clock, bench_clock(context, flags.clock));
  Bench bench(context, flags, clock);
  TARE_TRY(bench.run());
  const json::object document = bench.document();
  if (!flags.records.empty()) {
    std::ofstream file(flags.records, std::ios::app);
    for (const json::value& point : bench.points()) {
      json::object line{{"record", "kernel"}, {"machine", bench.machine()}};
      for (const auto& pair : point.as_object()) line[pair.key()] = pair.value();
      file << json::serialize(line) << "\n";
    }
    if (!file.flush()) return invalid_input("cannot write the records", {.where = flags.records});
  }
  context.emit(document);
  if (!bench.impossible().empty()) {
    return make_error(ErrorKind::kGateFailed,
                      "a share above 100 %: the ceiling was measured while the machine was busy",
                      {.where = bench.impossible().front(), .hint = "run again on a quiet machine"});
  }
  return {};
}

}  // namespace

extern const Command kBenchKernel;
const Command kBenchKernel = {
    .name = "bench kernel",
    .summary = "time of single matrix products and of attention, with shares of the machine's limits",
    .examples =
        "tare bench kernel --op gemm_w4a8 --m 1,16,512\n"
        "tare bench kernel --op gemm_wna16 --format nf4-g64,fp8-channel --twin --json\n"
        "tare bench kernel --op attention --context 8192 --batch 1,8 --isa avx2",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      app.add_option("--op", flags->ops, "operations, all by default: gemm_w4a8, gemm_w8a8, gemm_wna8, gemm_wna16, ...")
          ->delimiter(',');
      app.add_option("--format", flags->formats, "forms of weights or of keys and values, all by default")
          ->delimiter(',');
      add_list(app, "--m", flags->m, "tokens");
      app.add_option("--n", flags->n, "outputs")->capture_default_str();
      app.add_option("--k", flags->k, "inputs")->capture_default_str();
      app.add_option("--cold", flags->cold_mib, "MiB of weights cycled through; 0 = warm")->capture_default_str();
      app.add_option("--seconds", flags->seconds, "time for each point, at least")->capture_default_str();
      app.add_flag("--twin", flags->twin, "also time the same shape in bf16, and print the ratio");
      add_list(app, "--context", flags->context, "attention: keys of a sequence");
      add_list(app, "--batch", flags->batch, "attention: sequences");
      add_list(app, "--queries", flags->queries, "attention: new tokens of a sequence");
      app.add_option("--clock", flags->clock, "wall, or cpu: time of one thread on a machine that others use too");
      app.add_option("--records", flags->records, "append one JSON line a point to this file");
      return [flags](Context& context) { return bench_kernel(context, *flags); };
    },
};

}  // namespace tare::cli
