#include "runtime/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "runtime/step_pacer.h"
#include "runtime/text_stream.h"

namespace tare::runtime {

namespace {

// Rows of logits of a prompt are wanted in full: pieces of this many tokens keep them small.
constexpr int64_t kPromptLogprobChunk = 32;

bool holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The longest look back of any layer; 0 when one of them sees everything.
int64_t widest_window(const model::Architecture& arch) {
  int64_t widest = 0;
  for (const model::LayerPlan& layer : arch.plan) {
    if (layer.window == 0) return 0;
    widest = std::max(widest, layer.window);
  }
  return widest;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  constexpr std::string_view kNames[] = {"stop", "length", "abort", "deadline", "error"};
  return kNames[static_cast<size_t>(reason)];
}

struct Engine::Impl {
  struct RequestState {
    Request request;
    RequestTiming timing;
    int64_t cached_tokens = 0;
    bool scheduled = false;
    bool cancelled = false;
    std::vector<SequenceKey> outputs;  // unfinished ones
  };
  struct Output {
    RequestId request = 0;
    int64_t index = 0;
    SamplingParams params;  // with its own seed
    std::optional<TextStream> text;
    bool forked = false;  // the other outputs of its request exist
  };

  Impl(model::Transformer& t, std::optional<text::Tokenizer> k, EngineOptions o, ThreadPool& p)
      : transformer(t), pool(p), tokenizer(std::move(k)), options(std::move(o)) {}

  model::Transformer& transformer;
  ThreadPool& pool;
  std::optional<text::Tokenizer> tokenizer;
  EngineOptions options;
  std::unique_ptr<model::AttentionCache> cache;
  std::unique_ptr<kvcache::BlockManager> blocks;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<StepPacer> pacer;
  RequestId next_id = 1;
  std::map<RequestId, RequestState> requests;
  std::unordered_map<SequenceKey, Output> outputs;
  EngineStats stats;
  std::vector<float> logits;

  int64_t vocab() const { return transformer.architecture().vocab_size; }
  std::span<float> row(size_t i) {
    return std::span(logits).subspan(i * static_cast<size_t>(vocab()), static_cast<size_t>(vocab()));
  }
  std::optional<TextStream> text_stream(const SamplingParams& params) const {
    if (!tokenizer) return std::nullopt;
    return TextStream(*tokenizer, params.skip_special_tokens, params.stop, params.include_stop_str_in_output);
  }
  SamplingHistory history(SequenceKey key, const Request& request) const {
    const std::span<const int32_t> tokens = scheduler->tokens(key);
    return {.prompt = tokens.first(request.prompt.size()),
            .output = tokens.subspan(request.prompt.size()),
            .end_ids = options.end_ids};
  }

  void end_cancelled_and_late(std::vector<Event>& events);
  void close(SequenceKey key, Event& event);
  void fork_outputs(SequenceKey key);
  Event take_token(SequenceKey key, Result<Sample> chosen);
  bool score_prompt(const Chunk& chunk, size_t first_row, std::vector<Event>& events);
  struct StepBatch;
  StepBatch lay_out(const StepPlan& plan) const;
  struct Due {
    SequenceKey key = 0;
    size_t row = 0;
    Result<Sample> chosen = Sample{};
  };
  void add_due(SequenceKey key, size_t row, std::vector<Due>& due, std::vector<Event>& events);
  void choose(std::vector<Due>& due);
  void end_request(RequestId id, FinishReason reason, const std::optional<Error>& error, std::vector<Event>& events);
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

bool Engine::idle() const {
  return impl_->scheduler->idle();
}
int64_t Engine::max_model_len() const {
  return impl_->options.max_model_len;
}
int64_t Engine::kv_bytes() const {
  return impl_->cache->pages().total_bytes();
}
const model::AttentionCache& Engine::cache() const {
  return *impl_->cache;
}

EngineStats Engine::stats() const {
  EngineStats out = impl_->stats;
  out.running = impl_->scheduler->running();
  out.waiting = impl_->scheduler->waiting();
  out.blocks_referenced = impl_->blocks->referenced();
  out.kv_usage = static_cast<double>(out.blocks_referenced) / static_cast<double>(impl_->options.cache.num_blocks);
  out.scheduler = impl_->scheduler->counters();
  out.blocks = impl_->blocks->counters();
  return out;
}

Result<Engine> Engine::make(model::Transformer& transformer, std::optional<text::Tokenizer> tokenizer,
                            EngineOptions options, ThreadPool& pool) {
  const int64_t capacity = options.cache.num_blocks * options.cache.block_size;
  if (options.max_model_len <= 0) options.max_model_len = capacity;
  if (options.max_batched_tokens <= 0) options.max_batched_tokens = transformer.max_batch_tokens();
  if (options.max_batched_tokens > transformer.max_batch_tokens()) {
    return internal_error("steps are larger than the workspace",
                          {.expected = fmt::format("at most {} tokens", transformer.max_batch_tokens()),
                           .found = fmt::format("{}", options.max_batched_tokens)});
  }
  const SchedulerOptions scheduling{.max_num_seqs = options.max_num_seqs,
                                    .max_batched_tokens = options.max_batched_tokens,
                                    .max_model_len = options.max_model_len,
                                    .chunked_prefill = options.chunked_prefill,
                                    .policy = options.policy,
                                    .window = widest_window(transformer.architecture())};
  TARE_TRY(check(scheduling, capacity));
  options.cache.max_batch_tokens = options.max_batched_tokens;
  options.cache.context = options.max_model_len;
  auto impl = std::make_unique<Impl>(transformer, std::move(tokenizer), std::move(options), pool);
  Impl& s = *impl;
  TARE_ASSIGN(model::AttentionCache cache,
              model::AttentionCache::make(transformer.architecture(), s.options.cache, pool.size()));
  s.cache = std::make_unique<model::AttentionCache>(std::move(cache));
  std::string format = kvcache::describe(s.options.cache.format);
  for (const kvcache::KvFormat& layer : s.options.cache.layer_formats) format += ";" + kvcache::describe(layer);
  s.blocks =
      std::make_unique<kvcache::BlockManager>(kvcache::BlockManagerOptions{.num_blocks = s.options.cache.num_blocks,
                                                                           .block_size = s.options.cache.block_size,
                                                                           .prefix_caching = s.options.prefix_caching,
                                                                           .model = s.options.model_key,
                                                                           .kv_format = std::move(format)});
  s.scheduler = std::make_unique<Scheduler>(scheduling, *s.blocks);
  s.pacer = std::make_unique<StepPacer>(StepPacer::Options{
      .largest = s.options.max_batched_tokens, .automatic = s.options.pace_steps, .target_s = s.options.target_itl_s});
  return Engine(std::move(impl));
}

Result<RequestId> Engine::submit(Request request) {
  Impl& s = *impl_;
  TARE_TRY(check(request.params, s.vocab()));
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= s.vocab()) {
      return invalid_input("prompt holds a token id out of range",
                           {.expected = fmt::format("0..{}", s.vocab() - 1), .found = fmt::format("{}", id)});
    }
  }
  if (!request.params.stop.empty() && !s.tokenizer) {
    return invalid_input("a stop string needs a tokenizer, and the model has none",
                         {.where = "stop", .hint = "use stop_token_ids"});
  }
  TARE_TRY(s.scheduler->admissible(static_cast<int64_t>(request.prompt.size()), request.n));
  const RequestId id = s.next_id++;
  const bool scored = request.params.prompt_logprobs >= 0;
  const SequenceKey key = s.scheduler->add({.tokens = request.prompt,
                                            .width = request.n,
                                            .priority = request.priority,
                                            .salt = request.cache_salt,
                                            .reuse_prefix = !scored,
                                            .largest_chunk = scored ? kPromptLogprobChunk : 0});
  s.outputs.emplace(
      key,
      Impl::Output{
          .request = id, .params = request.params, .text = s.text_stream(request.params), .forked = request.n == 1});
  s.stats.prompt_tokens += static_cast<int64_t>(request.prompt.size());
  s.requests.emplace(
      id, Impl::RequestState{.request = std::move(request), .timing = {.arrival = Clock::now()}, .outputs = {key}});
  return id;
}

void Engine::cancel(RequestId id) {
  const auto found = impl_->requests.find(id);
  if (found != impl_->requests.end()) found->second.cancelled = true;
}

// The last event of an output: its blocks go back, and the request goes with its last output.
void Engine::Impl::close(SequenceKey key, Event& event) {
  const RequestId id = outputs.at(key).request;
  RequestState& state = requests.at(id);
  event.cached_tokens = state.cached_tokens;
  event.timing = state.timing;
  scheduler->finish(key);
  outputs.erase(key);
  std::erase(state.outputs, key);
  if (state.outputs.empty()) requests.erase(id);
}

// Ends all outputs of a request. Those that were not forked yet end too: a client waits for all of them.
void Engine::Impl::end_request(RequestId id, FinishReason reason, const std::optional<Error>& error,
                               std::vector<Event>& events) {
  const RequestState& state = requests.at(id);
  const std::vector<SequenceKey> keys = state.outputs;
  if (!outputs.at(keys[0]).forked) {
    for (int64_t i = 1; i < state.request.n; ++i) {
      events.push_back({.id = id, .index = i, .finish = reason, .error = error, .timing = state.timing});
    }
  }
  for (const SequenceKey key : keys) {
    Event event{.id = id, .index = outputs.at(key).index, .finish = reason, .error = error};
    close(key, event);
    events.push_back(std::move(event));
  }
}

void Engine::Impl::end_cancelled_and_late(std::vector<Event>& events) {
  std::vector<std::pair<RequestId, FinishReason>> ended;
  const Clock::time_point now = Clock::now();
  for (const auto& [id, state] : requests) {
    if (state.cancelled) {
      ended.emplace_back(id, FinishReason::kAborted);
    } else if (state.request.deadline && *state.request.deadline <= now) {
      ended.emplace_back(id, FinishReason::kDeadline);
    }
  }
  for (const auto& [id, reason] : ended) {
    std::optional<Error> error;
    if (reason == FinishReason::kDeadline) error = make_error(ErrorKind::kInterrupted, "the deadline passed");
    end_request(id, reason, error, events);
  }
}

// The prompt of a request is computed: its other outputs start from the same blocks.
void Engine::Impl::fork_outputs(SequenceKey key) {
  const RequestId id = outputs.at(key).request;
  RequestState& state = requests.at(id);
  for (int64_t i = 1; i < state.request.n; ++i) {
    const SequenceKey copy = scheduler->fork(key);
    Output output{.request = id, .index = i, .params = state.request.params, .forked = true};
    output.params.seed = output_seed(output.params.seed, i);
    output.text = text_stream(output.params);
    outputs.emplace(copy, std::move(output));
    state.outputs.push_back(copy);
  }
  outputs.at(key).forked = true;
}

Event Engine::Impl::take_token(SequenceKey key, Result<Sample> chosen) {
  Output& output = outputs.at(key);
  const SamplingParams& params = output.params;
  Event event{.id = output.request, .index = output.index};
  const auto fail = [&](Error error) {
    if (error.kind == ErrorKind::kNotFinite) ++stats.not_finite;
    event.finish = FinishReason::kError;
    event.error = std::move(error);
  };
  if (!chosen.ok()) {
    fail(std::move(chosen).error());
    return event;
  }
  const int32_t id = chosen->id;
  event.tokens.push_back(std::move(*chosen));
  scheduler->append(key, id);
  ++stats.generation_tokens;
  const bool end = !params.ignore_eos && holds(options.end_ids, id);
  const bool stop_id = holds(params.stop_token_ids, id);
  if (output.text && !end) {
    Result<std::string> piece = output.text->push(id);
    if (!piece.ok()) {
      fail(piece.error());
      return event;
    }
    event.text = std::move(*piece);
  }
  const auto length = static_cast<int64_t>(scheduler->tokens(key).size());
  const int64_t produced = length - static_cast<int64_t>(requests.at(output.request).request.prompt.size());
  if (output.text && output.text->stopped()) {
    event.finish = FinishReason::kStop;
    event.stop_reason = *output.text->stopped();
  } else if (end || stop_id) {
    event.finish = FinishReason::kStop;
    if (stop_id) event.stop_reason = std::to_string(id);
  } else if (produced >= params.max_tokens || length >= options.max_model_len) {
    event.finish = FinishReason::kLength;
  }
  if (event.finish && output.text) event.text += output.text->finish();
  return event;
}

// Log-probabilities of prompt tokens that follow those of the chunk. false: the request ended.
bool Engine::Impl::score_prompt(const Chunk& chunk, size_t first_row, std::vector<Event>& events) {
  const Output& output = outputs.at(chunk.sequence);
  const Request& request = requests.at(output.request).request;
  Event event{.id = output.request};
  for (int64_t i = 0; i < chunk.count; ++i) {
    const auto next = static_cast<size_t>(chunk.first + i + 1);
    if (next >= request.prompt.size()) break;
    Result<Sample> one =
        score(row(first_row + static_cast<size_t>(i)), request.prompt[next], request.params.prompt_logprobs);
    if (!one.ok()) {
      ++stats.not_finite;
      end_request(event.id, FinishReason::kError, one.error(), events);
      return false;
    }
    event.prompt.push_back(std::move(*one));
  }
  if (!event.prompt.empty()) events.push_back(std::move(event));
  return true;
}

// The outputs whose next token comes from this row: one, or all of a request whose prompt is computed now.
void Engine::Impl::add_due(SequenceKey key, size_t row, std::vector<Due>& due, std::vector<Event>& events) {
  const Output& output = outputs.at(key);
  const RequestId id = output.request;
  const bool first = !output.forked;
  if (output.params.max_tokens == 0) {
    end_request(id, FinishReason::kLength, std::nullopt, events);
    return;
  }
  if (first) fork_outputs(key);
  if (!first) {
    due.push_back({key, row});
  } else {
    for (const SequenceKey one : requests.at(id).outputs) due.push_back({one, row});
  }
}

void Engine::Impl::choose(std::vector<Due>& due) {
  pool.parallel_for(static_cast<int64_t>(due.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Due& one = due[static_cast<size_t>(i)];
      const Output& output = outputs.at(one.key);
      const Request& request = requests.at(output.request).request;
      // Outputs of one prompt share its row, and choosing changes it.
      const std::span<float> shared = row(one.row);
      std::vector<float> own(shared.begin(), shared.end());
      one.chosen = sample(output.params, history(one.key, request), own, request.processors);
    }
  });
}

// One step as the transformer sees it.
struct Engine::Impl::StepBatch {
  std::vector<int32_t> tokens;
  std::vector<model::SequenceSlice> slices;
  std::vector<int32_t> rows;  // whose logits are wanted
  struct Rows {
    size_t prompt = 0;    // first row of a scored prompt chunk
    bool scored = false;  // rows of all its tokens are there
    size_t last = 0;      // row of its last token, when its next token is due
  };
  std::vector<Rows> of_chunk;
};

Engine::Impl::StepBatch Engine::Impl::lay_out(const StepPlan& plan) const {
  StepBatch batch;
  for (const Chunk& chunk : plan.chunks) {
    const auto part =
        scheduler->tokens(chunk.sequence).subspan(static_cast<size_t>(chunk.first), static_cast<size_t>(chunk.count));
    const auto first = static_cast<int32_t>(batch.tokens.size());
    batch.tokens.insert(batch.tokens.end(), part.begin(), part.end());
    batch.slices.push_back(
        {.block_table = scheduler->table(chunk.sequence), .first_position = chunk.first, .count = chunk.count});
    const Output& output = outputs.at(chunk.sequence);
    StepBatch::Rows rows{.prompt = batch.rows.size()};
    rows.scored = output.params.prompt_logprobs >= 0 && output.index == 0 &&
                  chunk.first < static_cast<int64_t>(requests.at(output.request).request.prompt.size());
    const auto end = static_cast<int32_t>(batch.tokens.size());
    for (int32_t i = rows.scored ? first : end - 1; i < end && (rows.scored || chunk.last); ++i)
      batch.rows.push_back(i);
    rows.last = batch.rows.size() - 1;
    batch.of_chunk.push_back(rows);
  }
  return batch;
}

Result<std::vector<Event>> Engine::step() {
  Impl& s = *impl_;
  std::vector<Event> events;
  s.end_cancelled_and_late(events);
  const Clock::time_point start = Clock::now();
  const StepPlan plan = s.scheduler->plan([&](int64_t decodes) { return s.pacer->prompt_tokens(decodes); });
  if (plan.chunks.empty()) return events;
  for (const Chunk& chunk : plan.chunks) {
    Impl::RequestState& state = s.requests.at(s.outputs.at(chunk.sequence).request);
    if (state.scheduled) continue;
    state.scheduled = true;
    state.timing.scheduled = start;
    state.cached_tokens = s.scheduler->cached_tokens(chunk.sequence);
  }
  for (const kvcache::BlockCopy& copy : plan.copies) s.cache->pages().copy_block(copy.from, copy.to);
  const Impl::StepBatch batch = s.lay_out(plan);
  s.logits.resize(batch.rows.size() * static_cast<size_t>(s.vocab()));
  TARE_TRY(s.transformer.forward({.tokens = batch.tokens, .sequences = batch.slices, .logit_rows = batch.rows},
                                 *s.cache, s.logits.data()));
  s.scheduler->computed(plan);

  std::vector<Impl::Due> due;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const Chunk& chunk = plan.chunks[i];
    if (batch.of_chunk[i].scored && !s.score_prompt(chunk, batch.of_chunk[i].prompt, events)) continue;
    if (chunk.last) s.add_due(chunk.sequence, batch.of_chunk[i].last, due, events);
  }
  s.choose(due);
  const Clock::time_point now = Clock::now();
  for (Impl::Due& one : due) {
    RequestTiming& timing = s.requests.at(s.outputs.at(one.key).request).timing;
    if (timing.first_token == Clock::time_point()) timing.first_token = now;
    Event event = s.take_token(one.key, std::move(one.chosen));
    if (event.finish) s.close(one.key, event);
    events.push_back(std::move(event));
  }
  ++s.stats.steps;
  s.stats.step_decodes = plan.decodes;
  s.stats.step_prompt_tokens = plan.prompt_tokens;
  s.stats.step_s = std::chrono::duration<double>(Clock::now() - start).count();
  s.pacer->observe(plan.decodes, plan.prompt_tokens, s.stats.step_s);
  return events;
}

}  // namespace tare::runtime
