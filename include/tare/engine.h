#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// Runs language models inside another program: open a model, submit prompts, step, read what came. Installed together
/// with the library; uses the standard library only.
///
///     std::string error;
///     auto engine = tare::embed::Engine::open({.model = "model.gguf", .kv_cache_dtype = "int8"}, error);
///     engine->submit_text("The capital of France is", {.max_tokens = 16}, error);
///     while (!engine->idle())
///       for (const auto& news : engine->step()) std::cout << news.text;
namespace tare::embed {

struct EngineOptions {
  std::string model;                    // Hugging Face directory, .gguf or .safetensors file
  int threads = 0;                      // 0: all CPUs this process may use
  std::string kv_cache_dtype = "auto";  // auto, f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int4, or "K,V" apart
  bool calculate_kv_scales = false;     // fp8: scales per token and head, in the page
  int64_t kv_cache_memory_bytes = 0;    // 0: room for max_num_seqs sequences, 4 GiB at most
  int64_t max_model_len = 0;            // longest sequence in tokens; 0: what the model was made for, as far as it fits
  int64_t max_num_seqs = 8;             // sequences that run at a time
  int64_t block_size = 16;
};

/// How tokens are chosen: the fields and neutral values of the OpenAI-compatible server.
struct Sampling {
  double temperature = 1.0;  // 0 = always the likeliest token
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  int64_t max_tokens = 16;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  uint64_t seed = 0;
  int64_t n = 1;         // outputs of one prompt
  int64_t priority = 0;  // lower goes first
};

/// What one output got in one step.
struct News {
  uint64_t request = 0;
  int64_t index = 0;  // of the output, 0..n-1
  std::vector<int32_t> token_ids;
  std::string text;           // whole characters; empty while it is held back, or when the model has no tokenizer
  std::string finish_reason;  // empty while it runs; "stop", "length", "abort", "deadline" or "error"
  std::string error;          // with finish_reason "error"
};

/// One model and everything that runs on it. One thread at a time may call it; results do not depend on what else runs,
/// on the number of threads, or on the memory.
class Engine {
 public:
  /// nullptr and one line in `error` when the model cannot be opened or does not fit.
  static std::unique_ptr<Engine> open(const EngineOptions& options, std::string& error);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The id of the request, or 0 and one line in `error`.
  uint64_t submit(std::vector<int32_t> prompt, const Sampling& sampling, std::string& error);
  uint64_t submit_text(std::string_view prompt, const Sampling& sampling, std::string& error);
  /// The request ends in the next step, with "abort".
  void cancel(uint64_t request);

  bool idle() const;
  /// One forward pass over all that runs. After a failure of the engine itself every request ends with "error".
  std::vector<News> step();

  /// What was decided: KV capacity, sizes, substitutions in the model; one line each.
  std::vector<std::string> notes() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tare::embed
