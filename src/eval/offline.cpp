#include "eval/offline.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/interrupt.h"

namespace tare::eval {

namespace {

using runtime::Clock;

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab_size, uint64_t& state) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
  }
  return out;
}

Result<std::vector<runtime::Event>> step(runtime::Engine& engine) {
  TARE_TRY(check_interrupt("bench"));
  TARE_ASSIGN(std::vector<runtime::Event> events, engine.step());
  for (runtime::Event& event : events) {
    if (event.error) return std::move(*event.error);
  }
  return events;
}

}  // namespace

std::vector<runtime::Request> offline_requests(const OfflineShape& shape, int64_t vocab_size) {
  std::vector<runtime::Request> out;
  uint64_t state = shape.seed + 1;
  for (int64_t i = 0; i < shape.requests; ++i) {
    out.push_back({.prompt = random_tokens(shape.input_tokens, vocab_size, state),
                   .params = {.temperature = 0, .max_tokens = shape.output_tokens, .ignore_eos = true}});
  }
  return out;
}

Result<OfflineRun> run_offline(runtime::Engine& engine, std::vector<runtime::Request> requests) {
  OfflineRun out;
  const int64_t before = engine.stats().scheduler.preemptions;
  const Clock::time_point start = Clock::now();
  for (runtime::Request& request : requests) {
    out.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    TARE_ASSIGN([[maybe_unused]] const runtime::RequestId id, engine.submit(std::move(request)));
  }
  while (!engine.idle()) {
    TARE_ASSIGN(const std::vector<runtime::Event> events, step(engine));
    for (const runtime::Event& event : events) out.output_tokens += static_cast<int64_t>(event.tokens.size());
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  out.preemptions = engine.stats().scheduler.preemptions - before;
  return out;
}

double Interference::quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<size_t>(std::ceil(q * last))];
}

Result<Interference> measure_interference(runtime::Engine& engine, const InterferenceShape& shape, int64_t vocab_size) {
  uint64_t state = shape.seed + 1;
  std::vector<runtime::RequestId> streams;
  const runtime::SamplingParams endless{.temperature = 0, .max_tokens = engine.max_model_len(), .ignore_eos = true};
  for (int64_t i = 0; i < shape.streams; ++i) {
    TARE_ASSIGN(
        const runtime::RequestId id,
        engine.submit({.prompt = random_tokens(shape.stream_prompt_tokens, vocab_size, state), .params = endless}));
    streams.push_back(id);
  }
  do {
    TARE_TRY(step(engine));
  } while (engine.stats().step_prompt_tokens > 0);
  Interference out;
  for (const bool measured : {false, true}) {
    for (int64_t i = 0; i < shape.plain_steps; ++i) {
      TARE_TRY(step(engine));
      if (measured) out.plain_s.push_back(engine.stats().step_s);
    }
    const Clock::time_point start = Clock::now();
    TARE_ASSIGN(const runtime::RequestId id,
                engine.submit({.prompt = random_tokens(shape.prompt_tokens, vocab_size, state),
                               .params = {.temperature = 0, .max_tokens = 1, .ignore_eos = true}}));
    for (bool done = false; !done;) {
      TARE_ASSIGN(const std::vector<runtime::Event> events, step(engine));
      const runtime::EngineStats stats = engine.stats();
      // The prompt's last token may come alone and then counts as a decode.
      if (measured && stats.step_prompt_tokens > 0) {
        out.mixed_s.push_back(stats.step_s);
        out.largest_chunk = std::max(out.largest_chunk, stats.step_prompt_tokens);
      }
      for (const runtime::Event& event : events) done |= event.id == id && event.finish.has_value();
    }
    if (measured) out.ttft_s = std::chrono::duration<double>(Clock::now() - start).count();
  }
  for (const runtime::RequestId id : streams) engine.cancel(id);
  while (!engine.idle()) TARE_TRY(step(engine));
  std::sort(out.plain_s.begin(), out.plain_s.end());
  std::sort(out.mixed_s.begin(), out.mixed_s.end());
  return out;
}

}  // namespace tare::eval
