#include "runtime/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/checked.h"
#include "runtime/text_stream.h"

namespace tare::runtime {

namespace {

struct Sequence {
  RequestId id = 0;
  Request request;
  std::vector<int32_t> tokens;  // prompt and output
  std::vector<int32_t> blocks;
  int64_t computed = 0;  // tokens whose keys and values are stored
  bool cancelled = false;
  std::optional<TextStream> text;

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t output_size() const { return static_cast<int64_t>(tokens.size()) - prompt_size(); }
  std::span<const int32_t> output() const { return std::span(tokens).subspan(request.prompt.size()); }
  // One new token is due once all others are computed.
  int64_t pending() const { return static_cast<int64_t>(tokens.size()) - computed; }
};

bool holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

struct Engine::Impl {
  model::Transformer* transformer = nullptr;
  std::optional<text::Tokenizer> tokenizer;
  EngineOptions options;
  std::unique_ptr<model::AttentionCache> cache;
  RequestId next_id = 1;
  std::deque<Sequence> waiting;
  std::vector<Sequence> running;  // oldest first
  std::vector<int32_t> free_blocks;
  std::vector<float> logits;

  int64_t vocab() const { return transformer->architecture().vocab_size; }
  int64_t blocks_for(int64_t tokens) const { return ceil_div(tokens, cache->block_size()); }
  int64_t longest(const Request& request) const {
    const auto prompt = static_cast<int64_t>(request.prompt.size());
    return prompt + std::min(options.max_model_len - prompt, request.params.max_tokens);
  }
  void admit();
  void release(Sequence& sequence);
  Event finish_token(Sequence& sequence, std::span<float> row);
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

bool Engine::idle() const {
  return impl_->waiting.empty() && impl_->running.empty();
}
int64_t Engine::kv_bytes() const {
  return impl_->cache->pages().total_bytes();
}
const model::AttentionCache& Engine::cache() const {
  return *impl_->cache;
}

Result<Engine> Engine::make(model::Transformer& transformer, std::optional<text::Tokenizer> tokenizer,
                            EngineOptions options, ThreadPool& pool) {
  auto impl = std::make_unique<Impl>();
  const int64_t capacity = options.cache.num_blocks * options.cache.block_size;
  if (options.max_model_len <= 0 || options.max_model_len > capacity) options.max_model_len = capacity;
  options.cache.max_batch_tokens = transformer.max_batch_tokens();
  options.cache.context = options.max_model_len;
  TARE_ASSIGN(model::AttentionCache cache,
              model::AttentionCache::make(transformer.architecture(), options.cache, pool.size()));
  impl->cache = std::make_unique<model::AttentionCache>(std::move(cache));
  for (int64_t block = options.cache.num_blocks; block-- > 0;) impl->free_blocks.push_back(static_cast<int32_t>(block));
  impl->transformer = &transformer;
  impl->tokenizer = std::move(tokenizer);
  impl->options = std::move(options);
  return Engine(std::move(impl));
}

Result<RequestId> Engine::submit(Request request) {
  Impl& s = *impl_;
  TARE_TRY(check(request.params, s.vocab()));
  if (request.prompt.empty()) return invalid_input("prompt is empty", {.expected = "at least one token"});
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= s.vocab()) {
      return invalid_input("prompt holds a token id out of range",
                           {.expected = fmt::format("0..{}", s.vocab() - 1), .found = fmt::format("{}", id)});
    }
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt >= s.options.max_model_len) {
    return invalid_input(
        "prompt is longer than the context",
        {.expected = fmt::format("less than {} tokens", s.options.max_model_len), .found = fmt::format("{}", prompt)});
  }
  Sequence sequence{.id = s.next_id++, .request = std::move(request)};
  sequence.tokens = sequence.request.prompt;
  if (s.tokenizer) {
    sequence.text.emplace(*s.tokenizer, sequence.request.params.skip_special_tokens, sequence.request.params.stop,
                          sequence.request.params.include_stop_str_in_output);
  }
  const RequestId id = sequence.id;
  s.waiting.push_back(std::move(sequence));
  return id;
}

void Engine::cancel(RequestId id) {
  for (auto* list : {&impl_->running}) {
    for (Sequence& sequence : *list) sequence.cancelled |= sequence.id == id;
  }
  for (Sequence& sequence : impl_->waiting) sequence.cancelled |= sequence.id == id;
}

// First come, first served; a request starts when all blocks it may ever need are free, so that nothing must be taken
// back.
void Engine::Impl::admit() {
  while (!waiting.empty() && static_cast<int64_t>(running.size()) < options.max_num_seqs) {
    const int64_t needed = blocks_for(longest(waiting.front().request));
    if (needed > static_cast<int64_t>(free_blocks.size())) return;
    Sequence sequence = std::move(waiting.front());
    waiting.pop_front();
    sequence.blocks.assign(free_blocks.end() - needed, free_blocks.end());
    free_blocks.resize(free_blocks.size() - static_cast<size_t>(needed));
    running.push_back(std::move(sequence));
  }
}

void Engine::Impl::release(Sequence& sequence) {
  free_blocks.insert(free_blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  sequence.blocks.clear();
}

Event Engine::Impl::finish_token(Sequence& sequence, std::span<float> row) {
  Event event{.id = sequence.id};
  const SamplingParams& params = sequence.request.params;
  const SamplingHistory history{
      .prompt = sequence.request.prompt, .output = sequence.output(), .end_ids = options.end_ids};
  Result<Sample> chosen = sample(params, history, row);
  if (!chosen.ok()) {
    event.finish = FinishReason::kError;
    event.error = chosen.error();
    return event;
  }
  const int32_t id = chosen->id;
  event.tokens.push_back(std::move(*chosen));
  sequence.tokens.push_back(id);
  const bool end = !params.ignore_eos && holds(options.end_ids, id);
  const bool stop_id = holds(params.stop_token_ids, id);
  if (sequence.text && !end) {
    Result<std::string> piece = sequence.text->push(id);
    if (!piece.ok()) {
      event.finish = FinishReason::kError;
      event.error = piece.error();
      return event;
    }
    event.text = std::move(*piece);
  }
  if (end || stop_id) {
    event.finish = FinishReason::kStop;
    if (stop_id) event.stop_reason = std::to_string(id);
  } else if (sequence.text && sequence.text->stopped()) {
    event.finish = FinishReason::kStop;
    event.stop_reason = *sequence.text->stopped();
  } else if (sequence.output_size() >= params.max_tokens ||
             static_cast<int64_t>(sequence.tokens.size()) >= options.max_model_len) {
    event.finish = FinishReason::kLength;
  }
  if (event.finish && sequence.text) event.text += sequence.text->finish();
  return event;
}

Result<std::vector<Event>> Engine::step() {
  Impl& s = *impl_;
  std::vector<Event> events;
  const auto abort_cancelled = [&](auto& list) {
    for (auto at = list.begin(); at != list.end();) {
      if (!at->cancelled) {
        ++at;
        continue;
      }
      events.push_back({.id = at->id, .finish = FinishReason::kAborted});
      s.release(*at);
      at = list.erase(at);
    }
  };
  abort_cancelled(s.running);
  abort_cancelled(s.waiting);
  s.admit();

  // Decodes first, so that a long prompt never stops the others; then prompt chunks, oldest first.
  int64_t budget = s.transformer->max_batch_tokens();
  std::vector<std::pair<size_t, int64_t>> plan;  // running index, tokens
  for (const bool decodes : {true, false}) {
    for (size_t i = 0; i < s.running.size() && budget > 0; ++i) {
      const int64_t pending = s.running[i].pending();
      if ((pending == 1) != decodes) continue;
      const int64_t count = std::min(pending, budget);
      plan.emplace_back(i, count);
      budget -= count;
    }
  }
  if (plan.empty()) return events;

  std::vector<int32_t> tokens, rows;
  std::vector<model::SequenceSlice> slices;
  std::vector<size_t> sampled;
  for (const auto& [index, count] : plan) {
    const Sequence& sequence = s.running[index];
    const auto first = sequence.tokens.begin() + sequence.computed;
    tokens.insert(tokens.end(), first, first + count);
    slices.push_back({.block_table = sequence.blocks, .first_position = sequence.computed, .count = count});
    if (count == sequence.pending()) {
      rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
      sampled.push_back(index);
    }
  }
  s.logits.resize(rows.size() * static_cast<size_t>(s.vocab()));
  TARE_TRY(
      s.transformer->forward({.tokens = tokens, .sequences = slices, .logit_rows = rows}, *s.cache, s.logits.data()));
  for (const auto& [index, count] : plan) s.running[index].computed += count;

  std::vector<bool> finished(s.running.size(), false);
  for (size_t i = 0; i < sampled.size(); ++i) {
    Sequence& sequence = s.running[sampled[i]];
    const std::span<float> row(s.logits.data() + i * static_cast<size_t>(s.vocab()), static_cast<size_t>(s.vocab()));
    if (sequence.request.params.max_tokens == 0) {
      events.push_back({.id = sequence.id, .finish = FinishReason::kLength});
    } else {
      events.push_back(s.finish_token(sequence, row));
    }
    finished[sampled[i]] = events.back().finish.has_value();
  }
  for (size_t i = s.running.size(); i-- > 0;) {
    if (!finished[i]) continue;
    s.release(s.running[i]);
    s.running.erase(s.running.begin() + static_cast<ptrdiff_t>(i));
  }
  return events;
}

}  // namespace tare::runtime
