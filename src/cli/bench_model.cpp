#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <limits>

#include "base/checked.h"
#include "base/log.h"
#include "base/size_text.h"
#include "cli/bench_clock.h"
#include "cli/command.h"
#include "cli/model_flags.h"
#include "eval/speed.h"
#include "kernels/peaks.h"
#include "kvcache/kv_format.h"
#include "machine/host.h"
#include "machine/isa.h"

namespace tare::cli {

namespace {

struct Flags {
  ModelFlags model;
  int64_t prompt_tokens = 512;
  int64_t gen_tokens = 64;
  std::vector<int64_t> depths = {0};
  std::vector<int64_t> batches = {1};
  int repeats = 5;
  std::string twin;
  std::string records;
  std::string clock = "wall";
  bool profile = false;
};

struct MachinePeaks {
  double read_bytes_per_s = 0;
  kernels::Peaks units;

  static MachinePeaks measure(Context& context, kernels::BenchClock clock) {
    const machine::Isa isa = context.capabilities().isa;
    return {kernels::measure_read_bytes_per_s(isa, context.pool(), int64_t{1} << 30, 10, clock),
            kernels::measure_peaks(isa, context.pool(), clock)};
  }
  void raise(const MachinePeaks& other) {
    read_bytes_per_s = std::max(read_bytes_per_s, other.read_bytes_per_s);
    units.u4s8_tops = std::max(units.u4s8_tops, other.units.u4s8_tops);
    units.s8s8_tops = std::max(units.s8s8_tops, other.units.s8s8_tops);
    units.f32_gflops = std::max(units.f32_gflops, other.units.f32_gflops);
  }
  /// Operations a second of the instruction that a kernel multiplies with.
  double of(std::string_view kernel) const {
    if (kernel.starts_with("gemm_w4a8")) return units.u4s8_tops * 1e12;
    if (kernel.starts_with("gemm_w8a8") || kernel.starts_with("gemm_wna8") || kernel.starts_with("gemm_llm_int8")) {
      return units.s8s8_tops * 1e12;
    }
    return units.f32_gflops * 1e9;
  }
};

/// Seconds that the products of one token take at the ceilings, in the layers and in the head.
struct IdealToken {
  double body_s = 0;
  double head_s = 0;
};
IdealToken ideal_token(const model::Transformer& transformer, const MachinePeaks& peaks) {
  IdealToken out;
  for (const model::LinearRecord& record : transformer.records()) {
    const double seconds = 2.0 * static_cast<double>(record.n * record.k) / peaks.of(record.kernel);
    (record.name == "lm_head" ? out.head_s : out.body_s) += seconds;
  }
  return out;
}

// cache_bytes: of the last-level cache. A step whose bytes fit there reads them from it and not from memory, so it has
// no share of the memory's bandwidth: the key is null.
boost::json::object point(const runtime::LoadedModel& model, const eval::SpeedRequest& request,
                          const eval::Speed& speed, const kvcache::KvFormat& kv, const MachinePeaks& peaks,
                          int64_t cache_bytes) {
  const model::Architecture& arch = model.transformer->architecture();
  const eval::TrafficOf traffic = eval::traffic(*model.transformer);
  const auto tokens = static_cast<double>(request.tokens * request.batch);
  const double rate = tokens / speed.median_s();
  boost::json::object out{
      {"kind", request.decode ? "decode" : "prefill"},
      {"model", model.path},
      {"format", model.format},
      {"tokens", request.tokens},
      {"depth", request.depth},
      {"batch", request.batch},
      {"repeats", speed.seconds.size()},
      {"tokens_per_s", rate},
      {"min", tokens / speed.slowest_s()},
      {"max", tokens / speed.fastest_s()},
      {"ttft_ms", request.decode ? 0.0 : 1e3 * speed.median_s() / static_cast<double>(request.batch)},
      {"itl_ms", request.decode ? 1e3 * speed.median_s() / static_cast<double>(request.tokens) : 0.0},
      {"kv_cache_dtype", kvcache::describe(kv)},
      {"body_bytes", traffic.body_bytes},
      {"head_bytes", traffic.head_bytes},
      {"kernels", kernel_names(*model.transformer)}};
  if (request.decode) {
    // Every step reads the stored weights once and each sequence's whole cache; prepacked padding does not count.
    const double kv_bytes =
        static_cast<double>(request.batch * arch.layers * arch.kv_heads * kv.bytes_per_token(arch.head_dim)) *
        (static_cast<double>(request.depth) + static_cast<double>(request.tokens) / 2);
    const double step_bytes = static_cast<double>(traffic.body_bytes + traffic.head_bytes) + kv_bytes;
    const double bytes_per_s = step_bytes * static_cast<double>(request.tokens) / speed.median_s();
    out["bytes_per_step"] = step_bytes;
    const IdealToken ideal = ideal_token(*model.transformer, peaks);
    const double step_s = speed.median_s() / static_cast<double>(request.tokens);
    const double compute_s = static_cast<double>(request.batch) * (ideal.body_s + ideal.head_s);
    out["peak_share"] = compute_s / step_s;
    if (step_bytes <= static_cast<double>(cache_bytes)) {
      out["bandwidth_share"] = nullptr;
      out["roofline_share"] = out["peak_share"];
    } else {
      out["bandwidth_share"] = bytes_per_s / peaks.read_bytes_per_s;
      out["roofline_share"] = std::max(compute_s, step_bytes / peaks.read_bytes_per_s) / step_s;
    }
  } else {
    // The head runs for the last token only and does not count.
    out["peak_share"] = ideal_token(*model.transformer, peaks).body_s * rate;
    out["roofline_share"] = out["peak_share"];
  }
  out["gops"] = 2e-9 * static_cast<double>(traffic.body_weights) * rate;
  return out;
}

// One row an operation: what it took a pass, in wall time, and how much of the pass that is.
boost::json::array profile_rows(const model::StepProfile& profile) {
  const model::StepProfile::Row& pass = profile.rows[static_cast<size_t>(model::StepOp::kPass)];
  const auto passes = static_cast<double>(std::max<int64_t>(1, pass.calls));
  boost::json::array out;
  for (int i = 0; i < model::kStepOps; ++i) {
    const model::StepProfile::Row& row = profile.rows[static_cast<size_t>(i)];
    if (row.calls == 0) continue;
    out.push_back({{"op", step_op_name(static_cast<model::StepOp>(i))},
                   {"calls", static_cast<double>(row.calls) / passes},
                   {"ms", 1e3 * row.seconds / passes},
                   {"gbps", static_cast<double>(row.bytes) / row.seconds / 1e9},
                   {"share", row.seconds / pass.seconds}});
  }
  return out;
}

std::string profile_line(const boost::json::object& row) {
  const double gbps = row.at("gbps").as_double();
  return fmt::format("    {:24}{:5.0f} calls {:9.3f} ms {}  {:5.1f} %", row.at("op").as_string().c_str(),
                     row.at("calls").as_double(), row.at("ms").as_double(),
                     gbps > 0 ? fmt::format("{:6.1f} GB/s", gbps) : std::string(11, ' '),
                     100 * row.at("share").as_double());
}

// A prompt is computed in pieces of at most this many tokens, as in serving.
constexpr int64_t kLargestChunk = 4096;

// The memory of one measurement's cache, asked for before it is taken. Without --memory the machine is the limit.
Result<MemoryBudget::Reservation> hold_cache(Context& context, const runtime::LoadedModel& model,
                                             const model::AttentionCache::Options& cache,
                                             const eval::SpeedRequest& request) {
  TARE_ASSIGN(const int64_t per_token,
              kvcache::kv_bytes_per_token(model::cache_options(model.transformer->architecture(), cache)));
  const int64_t blocks = request.batch * ceil_div(request.depth + request.tokens, cache.block_size);
  const int64_t largest = std::numeric_limits<int64_t>::max() / (per_token * cache.block_size);
  const int64_t bytes = blocks > largest ? std::numeric_limits<int64_t>::max() : blocks * cache.block_size * per_token;
  const auto available = static_cast<int64_t>(machine::inspect_host().available_bytes);
  if (available > 0 && bytes > available) {
    return does_not_fit(
        "the KV cache of this measurement does not fit the machine",
        {.where = fmt::format("depth {}, {} tokens, batch {}", request.depth, request.tokens, request.batch),
         .expected = fmt::format("at most {} bytes", available),
         .found = fmt::format("{} bytes", bytes)});
  }
  return context.memory().reserve("KV cache", static_cast<uint64_t>(bytes));
}

Status bench_model(Context& context, Flags& flags) {
  const int64_t deepest = *std::max_element(flags.depths.begin(), flags.depths.end());
  const int64_t longest = deepest + std::max(flags.prompt_tokens, flags.gen_tokens);
  const int64_t widest = *std::max_element(flags.batches.begin(), flags.batches.end());
  constexpr int64_t kMostTokens = 1 << 24, kMostSequences = 1 << 16;
  if (flags.prompt_tokens > kMostTokens || flags.gen_tokens > kMostTokens || deepest > kMostTokens ||
      widest > kMostSequences || flags.repeats > 100000) {
    return invalid_input(
        "too much to measure",
        {.where = "bench model",
         .expected = fmt::format("at most {} tokens, {} sequences, 100000 repeats", kMostTokens, kMostSequences),
         .found = fmt::format("{} prompt tokens, {} generated, depth {}, batch {}, {} repeats", flags.prompt_tokens,
                              flags.gen_tokens, deepest, widest, flags.repeats)});
  }
  if (flags.prompt_tokens < 1 || flags.gen_tokens < 1 || deepest < 0 || widest < 1 || flags.repeats < 1) {
    return invalid_input("nothing to measure", {.where = "bench model", .expected = "positive counts"});
  }
  TARE_ASSIGN(const kernels::BenchClock clock, bench_clock(context, flags.clock));
  MachinePeaks peaks = MachinePeaks::measure(context, clock);
  context.say(fmt::format("machine: {} threads, {}, reads {:.1f} GB/s, u4 x s8 {:.3f} TOP/s, s8 x s8 {:.3f}",
                          context.threads(), machine::isa_name(context.capabilities().isa),
                          peaks.read_bytes_per_s / 1e9, peaks.units.u4s8_tops, peaks.units.s8s8_tops));
  const int64_t cache_bytes = machine::inspect_host().l3_bytes;
  boost::json::array points;
  bool impossible = false;  // a share above 100 %
  std::vector<std::string> models = {flags.model.model};
  if (!flags.twin.empty()) models.push_back(flags.twin);
  for (const std::string& path : models) {
    TARE_ASSIGN(runtime::LoadedModel model,
                open_model(context, path, flags.model, std::max(std::min(flags.prompt_tokens, kLargestChunk), widest),
                           longest));
    TARE_ASSIGN(const model::AttentionCache::Options cache, cache_settings(context, model, flags.model, "f16"));
    context.say(fmt::format("{}: {} weights, KV {}", path, model.format, kvcache::describe(cache.format)));
    for (const bool decode : {false, true}) {
      for (const int64_t depth : flags.depths) {
        for (const int64_t batch : flags.batches) {
          model::StepProfile profile;
          const eval::SpeedRequest request{.decode = decode,
                                           .tokens = decode ? flags.gen_tokens : flags.prompt_tokens,
                                           .depth = depth,
                                           .batch = batch,
                                           .repeats = flags.repeats,
                                           .clock = clock,
                                           .profile = flags.profile ? &profile : nullptr};
          if (!decode && batch > 1) continue;  // a prefill of several prompts is several prefills
          TARE_ASSIGN(const auto held, hold_cache(context, model, cache, request));
          TARE_ASSIGN(const eval::Speed speed, eval::measure_speed(*model.transformer, cache, request, context.pool()));
          boost::json::object one = point(model, request, speed, cache.format, peaks, cache_bytes);
          if (one["roofline_share"].as_double() > 1) {
            // The ceilings were measured while the machine was busy: once more.
            peaks.raise(MachinePeaks::measure(context, clock));
            one = point(model, request, speed, cache.format, peaks, cache_bytes);
          }
          impossible = impossible || one["roofline_share"].as_double() > 1;
          std::string line = fmt::format("  {:8} depth {:6} batch {:3}  {:10.1f} tokens/s",
                                         decode ? "decode" : "prefill", depth, batch, one["tokens_per_s"].as_double());
          line += fmt::format("  {:5.1f} % of the arithmetic ceiling", 100 * one["peak_share"].as_double());
          if (decode && one["bandwidth_share"].is_null()) {
            line += fmt::format("  {} a step stay in the last-level cache: no share of read bandwidth",
                                size_text(static_cast<uint64_t>(one["bytes_per_step"].as_double())));
          } else if (decode) {
            line += fmt::format("  {:5.1f} % of read bandwidth, {:5.1f} % of the nearer limit",
                                100 * one["bandwidth_share"].as_double(), 100 * one["roofline_share"].as_double());
          }
          for (const auto& name : one["kernels"].as_array()) line += fmt::format("  {}", name.as_string().c_str());
          context.say(line);
          if (flags.profile) {
            boost::json::array rows = profile_rows(profile);
            for (const boost::json::value& row : rows) context.say(profile_line(row.as_object()));
            one["profile"] = std::move(rows);
          }
          points.push_back(std::move(one));
        }
      }
    }
  }
  const boost::json::object machine{{"cpu", machine::cpu_model()},
                                    {"isa", machine::isa_name(context.capabilities().isa)},
                                    {"threads", context.threads()},
                                    {"clock", flags.clock},
                                    {"read_gbps", peaks.read_bytes_per_s / 1e9},
                                    {"int8_u4s8_tops", peaks.units.u4s8_tops},
                                    {"int8_s8s8_tops", peaks.units.s8s8_tops},
                                    {"fp32_gflops", peaks.units.f32_gflops}};
  if (!flags.records.empty()) {
    std::ofstream file(flags.records, std::ios::app);
    for (const boost::json::value& one : points) {
      boost::json::object line{{"record", "model"}, {"machine", machine}};
      for (const auto& pair : one.as_object()) line[pair.key()] = pair.value();
      file << boost::json::serialize(line) << "\n";
    }
    if (!file.flush()) return invalid_input("cannot write the records", {.where = flags.records});
  }
  context.emit({{"machine", machine}, {"points", std::move(points)}, {"peak_rss_bytes", peak_rss_bytes()}});
  if (impossible) {
    return make_error(ErrorKind::kGateFailed,
                      "a share above 100 %: the ceiling was measured while the machine was busy",
                      {.where = "bench model", .hint = "run again on a quiet machine"});
  }
  return {};
}

}  // namespace

extern const Command kBenchModel;
const Command kBenchModel = {
    .name = "bench model",
    .summary = "prefill and decode speed, with the share of the machine's limit",
    .examples =
        "tare bench model out/ --twin model.gguf\n"
        "tare bench model out/ --prompt-tokens 512 --gen-tokens 64 --depth 0,4096 --batch 1,16 --json\n"
        "tare bench model out/ --profile",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      declare_model(app, flags->model);
      declare_kv_cache(app, flags->model);
      app.add_option("--prompt-tokens", flags->prompt_tokens, "tokens of a prefill")->capture_default_str();
      app.add_option("--gen-tokens", flags->gen_tokens, "tokens of a decode")->capture_default_str();
      add_list(app, "--depth", flags->depths, "tokens in the context before, e.g. 0,4096");
      add_list(app, "--batch", flags->batches, "sequences decoded together, e.g. 1,16");
      app.add_option("--repeats", flags->repeats, "measurements, after one warm-up")->capture_default_str();
      app.add_option("--clock", flags->clock, "wall, or cpu: time of one thread on a machine that others use too");
      app.add_flag("--profile", flags->profile, "also print what each operation of a step takes");
      app.add_option("--records", flags->records, "append one JSON line a point to this file");
      app.add_option("--twin", flags->twin, "the unquantized model, measured in the same run");
      return [flags](Context& context) { return bench_model(context, *flags); };
    },
};

}  // namespace tare::cli
