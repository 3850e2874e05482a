#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/thread_pool.h"
#include "checkpoints/text_assets.h"
#include "runtime/end_ids.h"
#include "runtime/engine.h"
#include "runtime/engine_plan.h"
#include "runtime/kv_settings.h"
#include "tare/engine.h"

namespace tare::embed {

struct Engine::Impl {
  std::unique_ptr<ThreadPool> pool;
  runtime::LoadedModel model;
  std::optional<text::Tokenizer> tokenizer;
  std::optional<runtime::Engine> engine;
  std::vector<std::string> notes;
  std::map<uint64_t, int64_t> open;  // requests and their unfinished outputs
  bool broken = false;

  static Result<std::unique_ptr<Impl>> open_model(const EngineOptions& options);
};

Result<std::unique_ptr<Engine::Impl>> Engine::Impl::open_model(const EngineOptions& options) {
  auto impl = std::make_unique<Impl>();
  Impl& s = *impl;
  constexpr int64_t kStepTokens = 512;
  if (options.max_num_seqs < 1 || options.max_num_seqs > 4096) {
    return invalid_input(
        "number of sequences is out of range",
        {.where = "max_num_seqs", .expected = "1 to 4096", .found = fmt::format("{}", options.max_num_seqs)});
  }
  s.pool = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : owned_cpu_count());
  runtime::LoadOptions load{.caps = machine::capabilities(),
                            .max_batch_tokens = std::max(kStepTokens, options.max_num_seqs),
                            .context = options.max_model_len};
  TARE_ASSIGN(s.model, runtime::load_model(options.model, load, *s.pool));
  s.notes = s.model.notes;
  if (Result<text::Tokenizer> tokenizer = checkpoints::load_tokenizer(options.model); tokenizer.ok()) {
    s.tokenizer = std::move(tokenizer).value();
  } else {
    s.notes.push_back(fmt::format("no text: {}", tokenizer.error().message()));
  }
  const model::Architecture& arch = s.model.transformer->architecture();
  TARE_ASSIGN(runtime::EndIds ends,
              runtime::end_ids(options.model, s.model.config, s.tokenizer ? &*s.tokenizer : nullptr, arch.vocab_size));
  s.notes.insert(s.notes.end(), ends.notes.begin(), ends.notes.end());

  runtime::EngineOptions engine{
      .max_num_seqs = options.max_num_seqs, .end_ids = std::move(ends.ids), .model_key = options.model};
  TARE_ASSIGN(engine.cache, runtime::kv_options(s.model,
                                                {.dtype = options.kv_cache_dtype,
                                                 .calculate_scales = options.calculate_kv_scales,
                                                 .block_size = options.block_size},
                                                machine::capabilities()));
  runtime::EnginePlanRequest request{
      .cache = engine.cache,
      .max_model_len = options.max_model_len > 0 ? options.max_model_len : kvcache::kFitMemory,
      .max_num_seqs = options.max_num_seqs,
      .max_batched_tokens = s.model.transformer->max_batch_tokens()};
  if (options.kv_cache_memory_bytes > 0) request.kv_cache_memory_bytes = options.kv_cache_memory_bytes;
  TARE_ASSIGN(const runtime::EnginePlan plan, runtime::plan_engine(*s.model.transformer, request, s.pool->size()));
  s.notes.push_back(plan.text());
  engine.cache.num_blocks = plan.capacity.num_blocks;
  engine.max_model_len = plan.capacity.max_model_len;
  TARE_ASSIGN(runtime::Engine made,
              runtime::Engine::make(*s.model.transformer, s.tokenizer, std::move(engine), *s.pool));
  s.engine.emplace(std::move(made));
  return impl;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::open(const EngineOptions& options, std::string& error) {
  Result<std::unique_ptr<Impl>> impl = Impl::open_model(options);
  if (impl.ok()) return std::unique_ptr<Engine>(new Engine(std::move(impl).value()));
  error = impl.error().message();
  return nullptr;
}

uint64_t Engine::submit(std::vector<int32_t> prompt, const Sampling& sampling, std::string& error) {
  if (impl_->broken) {
    error = "the engine has stopped";
    return 0;
  }
  const Result<runtime::RequestId> id =
      impl_->engine->submit({.prompt = std::move(prompt),
                             .params = {.temperature = sampling.temperature,
                                        .top_k = sampling.top_k,
                                        .top_p = sampling.top_p,
                                        .min_p = sampling.min_p,
                                        .presence_penalty = sampling.presence_penalty,
                                        .frequency_penalty = sampling.frequency_penalty,
                                        .repetition_penalty = sampling.repetition_penalty,
                                        .max_tokens = sampling.max_tokens,
                                        .stop = sampling.stop,
                                        .ignore_eos = sampling.ignore_eos,
                                        .seed = sampling.seed},
                             .n = sampling.n,
                             .priority = sampling.priority});
  if (!id.ok()) {
    error = id.error().message();
    return 0;
  }
  impl_->open.emplace(*id, sampling.n);
  return *id;
}

uint64_t Engine::submit_text(std::string_view prompt, const Sampling& sampling, std::string& error) {
  if (!impl_->tokenizer) {
    error = "the model has no tokenizer";
    return 0;
  }
  const Result<text::Encoding> encoded = impl_->tokenizer->encode(prompt, {.specials_as_text = true});
  if (!encoded.ok()) {
    error = encoded.error().message();
    return 0;
  }
  return submit({encoded->ids.begin(), encoded->ids.end()}, sampling, error);
}

void Engine::cancel(uint64_t request) {
  impl_->engine->cancel(request);
}

bool Engine::idle() const {
  return impl_->broken ? impl_->open.empty() : impl_->engine->idle();
}

std::vector<News> Engine::step() {
  Impl& s = *impl_;
  std::vector<News> out;
  Result<std::vector<runtime::Event>> events = std::vector<runtime::Event>();
  if (!s.broken) events = s.engine->step();
  if (!events.ok()) {
    // The pages may be half written: nothing more can be computed on them.
    s.broken = true;
    for (const auto& [id, outputs] : s.open) {
      out.push_back({.request = id, .finish_reason = "error", .error = events.error().message()});
    }
    s.open.clear();
    return out;
  }
  for (runtime::Event& event : *events) {
    News news{.request = event.id, .index = event.index, .text = std::move(event.text)};
    for (const runtime::Sample& sample : event.tokens) news.token_ids.push_back(sample.id);
    if (event.error) news.error = event.error->message();
    if (event.finish) {
      news.finish_reason = runtime::finish_reason_name(*event.finish);
      if (--s.open[event.id] == 0) s.open.erase(event.id);
    }
    out.push_back(std::move(news));
  }
  return out;
}

std::vector<std::string> Engine::notes() const {
  return impl_->notes;
}

}  // namespace tare::embed
