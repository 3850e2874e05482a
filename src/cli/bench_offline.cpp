#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/memory_budget.h"
#include "cli/bench_record.h"
#include "cli/engine_flags.h"
#include "eval/offline.h"

namespace tare::cli {

namespace {

struct Flags {
  ModelFlags model;
  EngineFlags engine;
  int64_t input_len = 0;
  int64_t output_len = 128;
  std::string output_file;
};

void declare_offline(CLI::App& app, Flags& flags) {
  declare_model(app, flags.model);
  declare_kv_cache(app, flags.model);
  app.add_option("--input-len", flags.input_len, "tokens of a prompt (random)")->capture_default_str();
  app.add_option("--output-len", flags.output_len, "tokens of an answer")->capture_default_str();
  app.add_option("--kv-cache-memory-bytes", flags.engine.kv_cache_memory_bytes,
                 "most memory for the KV cache, as 2GiB");
  app.add_option("--max-num-batched-tokens", flags.engine.max_num_batched_tokens, "tokens of a step");
  app.add_option("--output-file", flags.output_file, "append each record to this file, one JSON line each");
}

Status check_count(const char* flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid_input(
      "count is out of range",
      {.where = flag, .expected = fmt::format("{} to {}", least, most), .found = fmt::format("{}", value)});
}

constexpr int64_t kMostTokens = 1 << 20;
constexpr int64_t kMostSequences = 4096;

Result<runtime::LoadedModel> open_for(Context& context, Flags& flags, int64_t widest, int64_t longest) {
  TARE_TRY(check_count("--input-len", flags.input_len, 1, kMostTokens));
  TARE_TRY(check_count("--output-len", flags.output_len, 1, kMostTokens));
  EngineFlags most = flags.engine;
  most.max_num_seqs = widest;
  TARE_ASSIGN(const int64_t tokens, batched_tokens(most));
  return open_model(context, flags.model.model, flags.model, std::max(tokens, widest), longest);
}

EngineFlags engine_flags_for(const Flags& flags, int64_t batch) {
  EngineFlags out = flags.engine;
  out.max_num_seqs = batch;
  out.no_prefix_caching = true;
  return out;
}

// Whether the pages hold `batch` sequences of full length. Errors: not, with the numbers.
Status check_batch(Context& context, const runtime::LoadedModel& model, const Flags& flags, int64_t batch) {
  TARE_ASSIGN(const PlannedEngine planned, plan_engine(context, model, flags.model, engine_flags_for(flags, batch),
                                                       flags.input_len + flags.output_len));
  const double fit = planned.plan.capacity.concurrency();
  if (fit >= static_cast<double>(batch)) return {};
  return does_not_fit("the KV cache does not hold this many sequences",
                      {.where = "--batch",
                       .expected = fmt::format("at most {:.0f}", std::floor(fit)),
                       .found = fmt::format("{}", batch)});
}

Result<ReadyEngine> engine_for(Context& context, const runtime::LoadedModel& model, const Flags& flags, int64_t batch) {
  TARE_TRY(check_batch(context, model, flags, batch));
  return make_engine(context, model, std::nullopt, flags.model, engine_flags_for(flags, batch), {},
                     flags.input_len + flags.output_len);
}

// --- throughput ---

struct ThroughputFlags : Flags {
  std::vector<int64_t> batches;
  int64_t num_prompts = 0;
};

// The batches to try: as given, or doubling up to the widest that fits.
Result<std::vector<int64_t>> batches_of(Context& context, const runtime::LoadedModel& model,
                                        const ThroughputFlags& flags, int64_t widest) {
  if (!flags.batches.empty()) return flags.batches;
  // What fits shrinks with the width (logits, scratch), so the widest is searched for.
  const auto fits = [&](int64_t batch) { return check_batch(context, model, flags, batch).ok(); };
  int64_t low = 0, high = widest + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  if (low == 0) TARE_TRY(check_batch(context, model, flags, 1));
  std::vector<int64_t> out;
  for (int64_t batch = 1; batch < low; batch *= 2) out.push_back(batch);
  out.push_back(low);
  return out;
}

Status throughput(Context& context, ThroughputFlags& flags) {
  for (const int64_t batch : flags.batches) TARE_TRY(check_count("--batch", batch, 1, kMostSequences));
  TARE_TRY(check_count("--num-prompts", flags.num_prompts, 0, 1 << 20));
  const int64_t widest = flags.batches.empty() ? 512 : *std::max_element(flags.batches.begin(), flags.batches.end());
  TARE_ASSIGN(const runtime::LoadedModel model, open_for(context, flags, widest, flags.input_len + flags.output_len));
  TARE_ASSIGN(const std::vector<int64_t> batches, batches_of(context, model, flags, widest));
  boost::json::array points;
  boost::json::object best;
  double best_rate = 0;
  for (const int64_t batch : batches) {
    TARE_ASSIGN(ReadyEngine ready, engine_for(context, model, flags, batch));
    const eval::OfflineShape shape{.input_tokens = flags.input_len,
                                   .output_tokens = flags.output_len,
                                   .requests = flags.num_prompts > 0 ? flags.num_prompts : batch,
                                   .seed = context.options().seed.value_or(0)};
    TARE_ASSIGN(
        const eval::OfflineRun run,
        eval::run_offline(ready.engine, eval::offline_requests(shape, model.transformer->architecture().vocab_size)));
    boost::json::object record = bench_conditions(context, "throughput", model, ready.plan);
    record["batch"] = batch;
    record["input_len"] = flags.input_len;
    record["output_len"] = flags.output_len;
    record["elapsed_time"] = run.seconds;
    record["num_requests"] = shape.requests;
    record["total_num_tokens"] = run.prompt_tokens + run.output_tokens;
    record["requests_per_second"] = static_cast<double>(shape.requests) / run.seconds;
    record["tokens_per_second"] = run.total_tokens_per_s();
    record["output_tokens_per_second"] = run.output_tokens_per_s();
    record["preemptions"] = run.preemptions;
    record["peak_rss_bytes"] = peak_rss_bytes();
    context.say(
        fmt::format("batch {:4}: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s, KV {:.0f} "
                    "MiB, peak memory {:.0f} MiB",
                    batch, record["requests_per_second"].as_double(), run.total_tokens_per_s(),
                    run.output_tokens_per_s(), static_cast<double>(ready.plan.capacity.kv_bytes) / (1 << 20),
                    static_cast<double>(peak_rss_bytes()) / (1 << 20)));
    TARE_TRY(append_record(flags.output_file, record));
    if (run.output_tokens_per_s() > best_rate) {
      best_rate = run.output_tokens_per_s();
      best = record;
    }
    points.push_back(std::move(record));
  }
  context.say(fmt::format("Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s at batch {}",
                          best["requests_per_second"].as_double(), best["tokens_per_second"].as_double(), best_rate,
                          best["batch"].as_int64()));
  boost::json::object document = best;
  document["points"] = std::move(points);
  context.emit(document);
  return {};
}

// --- latency ---

struct LatencyFlags : Flags {
  int64_t batch_size = 8;
  int64_t warmups = 10;
  int64_t iterations = 30;
};

Status latency(Context& context, LatencyFlags& flags) {
  TARE_TRY(check_count("--batch-size", flags.batch_size, 1, kMostSequences));
  TARE_TRY(check_count("--num-iters-warmup", flags.warmups, 0, 100000));
  TARE_TRY(check_count("--num-iters", flags.iterations, 1, 100000));
  TARE_ASSIGN(const runtime::LoadedModel model,
              open_for(context, flags, flags.batch_size, flags.input_len + flags.output_len));
  TARE_ASSIGN(ReadyEngine ready, engine_for(context, model, flags, flags.batch_size));
  const eval::OfflineShape shape{.input_tokens = flags.input_len,
                                 .output_tokens = flags.output_len,
                                 .requests = flags.batch_size,
                                 .seed = context.options().seed.value_or(0)};
  std::vector<double> seconds;
  for (int64_t i = -flags.warmups; i < flags.iterations; ++i) {
    TARE_ASSIGN(
        const eval::OfflineRun run,
        eval::run_offline(ready.engine, eval::offline_requests(shape, model.transformer->architecture().vocab_size)));
    if (i >= 0) seconds.push_back(run.seconds);
  }
  double mean = 0, variance = 0;
  for (const double s : seconds) mean += s / static_cast<double>(seconds.size());
  for (const double s : seconds) variance += (s - mean) * (s - mean) / static_cast<double>(seconds.size());
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  context.say(fmt::format("Avg latency: {:.4f} seconds, standard deviation {:.4f}", mean, std::sqrt(variance)));
  boost::json::object percentiles;
  for (const int percent : {10, 25, 50, 75, 90, 99}) {
    const double value = eval::Interference::quantile(sorted, percent / 100.0);
    percentiles[std::to_string(percent)] = value;
    context.say(fmt::format("{}% percentile latency: {:.4f} seconds", percent, value));
  }
  boost::json::object record = bench_conditions(context, "latency", model, ready.plan);
  record["batch"] = flags.batch_size;
  record["input_len"] = flags.input_len;
  record["output_len"] = flags.output_len;
  record["avg_latency"] = mean;
  record["std_latency"] = std::sqrt(variance);
  record["latencies"] = boost::json::array(seconds.begin(), seconds.end());
  record["percentiles"] = std::move(percentiles);
  record["peak_rss_bytes"] = peak_rss_bytes();
  TARE_TRY(append_record(flags.output_file, record));
  context.emit(record);
  return {};
}

// --- interference ---

struct InterferenceFlags : Flags {
  int64_t streams = 4;
};

Status interference(Context& context, InterferenceFlags& flags) {
  TARE_TRY(check_count("--streams", flags.streams, 1, kMostSequences));
  flags.output_len = 1;
  // Streams run on while two prompts pass, a piece of 1 token at worst.
  const int64_t longest = 2 * flags.input_len + 512;
  TARE_ASSIGN(const runtime::LoadedModel model, open_for(context, flags, flags.streams + 1, longest));
  if (flags.engine.max_num_batched_tokens.empty()) flags.engine.max_num_batched_tokens = "auto";
  boost::json::array points;
  // The same steps without pacing tell what it is worth.
  std::vector<std::string> modes = {flags.engine.max_num_batched_tokens};
  if (modes[0] == "auto") modes.push_back("512");
  for (const std::string& mode : modes) {
    EngineFlags engine = engine_flags_for(flags, flags.streams + 1);
    engine.max_num_batched_tokens = mode;
    TARE_ASSIGN(ReadyEngine ready, make_engine(context, model, std::nullopt, flags.model, engine, {}, longest));
    TARE_ASSIGN(
        const eval::Interference result,
        eval::measure_interference(
            ready.engine,
            {.streams = flags.streams, .prompt_tokens = flags.input_len, .seed = context.options().seed.value_or(0)},
            model.transformer->architecture().vocab_size));
    const double plain_ms = 1e3 * eval::Interference::quantile(result.plain_s, 0.5);
    context.say(
        fmt::format("{:>5} tokens a step: plain step {:.2f} ms; beside a prompt of {}: gap median {:.2f}x, 90 "
                    "% {:.2f}x, most {:.2f}x of it, chunks of at most {} tokens, first token after {:.0f} ms",
                    mode, plain_ms, flags.input_len, result.ratio(0.5), result.ratio(0.9), result.ratio(1),
                    result.largest_chunk, 1e3 * result.ttft_s));
    boost::json::object record = bench_conditions(context, "interference", model, ready.plan);
    record["max_num_batched_tokens"] = mode;
    record["streams"] = flags.streams;
    record["input_len"] = flags.input_len;
    record["plain_step_ms"] = plain_ms;
    record["mixed_steps"] = result.mixed_s.size();
    record["largest_chunk"] = result.largest_chunk;
    record["gap_ratio_median"] = result.ratio(0.5);
    record["gap_ratio_p90"] = result.ratio(0.9);
    record["gap_ratio_max"] = result.ratio(1);
    record["ttft_ms"] = 1e3 * result.ttft_s;
    TARE_TRY(append_record(flags.output_file, record));
    points.push_back(std::move(record));
  }
  context.emit({{"points", std::move(points)}});
  return {};
}

}  // namespace

extern const Command kBenchThroughput;
const Command kBenchThroughput = {
    .name = "bench throughput",
    .summary = "requests and tokens per second of the engine, the best over batch sizes",
    .examples =
        "tare bench throughput out/ --memory 3GiB --input-len 1024 --output-len 128 --kv-cache-dtype int4\n"
        "tare bench throughput out/ --batch 1,8,32 --input-len 256 --output-file records.jsonl",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<ThroughputFlags>();
      flags->input_len = 1024;
      declare_offline(app, *flags);
      add_list(app, "--batch", flags->batches, "sequences at a time (default: doubling, up to the most that fit)");
      app.add_option("--num-prompts", flags->num_prompts, "requests of each run (0 = as many as the batch)")
          ->capture_default_str();
      return [flags](Context& context) { return throughput(context, *flags); };
    },
};

extern const Command kBenchLatency;
const Command kBenchLatency = {
    .name = "bench latency",
    .summary = "seconds that one batch of requests takes, with percentiles",
    .examples = "tare bench latency out/ --input-len 32 --output-len 128 --batch-size 8",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<LatencyFlags>();
      flags->input_len = 32;
      declare_offline(app, *flags);
      app.add_option("--batch-size", flags->batch_size, "requests")->capture_default_str();
      app.add_option("--num-iters-warmup", flags->warmups, "runs that do not count")->capture_default_str();
      app.add_option("--num-iters", flags->iterations, "runs that count")->capture_default_str();
      return [flags](Context& context) { return latency(context, *flags); };
    },
};

extern const Command kBenchInterference;
const Command kBenchInterference = {
    .name = "bench interference",
    .summary = "how much a long prompt slows the outputs that run beside it",
    .examples = "tare bench interference out/ --streams 4 --input-len 1024",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<InterferenceFlags>();
      flags->input_len = 1024;
      declare_offline(app, *flags);
      app.add_option("--streams", flags->streams, "outputs that run while the prompt comes")->capture_default_str();
      return [flags](Context& context) { return interference(context, *flags); };
    },
};

}  // namespace tare::cli
