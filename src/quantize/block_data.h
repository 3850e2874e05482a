#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/result.h"
#include "kvcache/kv_format.h"
#include "model/attention_cache.h"
#include "model/layer_runner.h"
#include "quantize/block.h"
#include "quantize/calibration.h"
#include "quantize/hessian.h"
#include "quantize/token_store.h"

namespace tare::quantize {

/// What the tokens of the calibration data showed at one matrix input.
struct SiteStatistics {
  std::vector<float> absmax;   // [K], over all tokens
  std::vector<float> absmean;  // [K]
  int64_t tokens = 0;
  int64_t zero_tokens = 0;  // all channels 0
};

struct BlockStatistics {
  std::array<SiteStatistics, 4> sites;  // by model::Site: kQkv, kOut, kGateUp, kDown
  // Largest magnitude per channel: queries and keys after RoPE, values as projected.
  std::vector<float> q_absmax;  // [heads * head_dim]
  std::vector<float> k_absmax;  // [kv_heads * head_dim]
  std::vector<float> v_absmax;  // [kv_heads * head_dim]

  const SiteStatistics& at(model::Site site) const { return sites[static_cast<size_t>(site)]; }
};

/// Which part of the block a trial runs.
enum class Half {
  kAttention,  // what attention adds to the stream
  kMlp,        // what the MLP adds, from the stream after the unchanged block's attention
  kBlock,      // the stream after the block
};

struct Trial {
  Half half = Half::kBlock;
  bool round_activations = false;  // each site as Block::activation says
  int kv_bits = 16;                // 4 or 8: keys and values as the cache holds them
  int64_t tokens = 2048;           // of the calibration data, whole sequences, the first ones
};

/// The calibration data as it stands before one block: the stream that comes from the blocks before, already
/// quantized. Runs blocks, or candidates for them, on it. One thread at a time; work inside runs on the pool.
class BlockData {
 public:
  struct Options {
    std::string spill_folder = "/tmp";
    MemoryBudget* budget = nullptr;
    int64_t working_bytes = 0;  // kept free of activations
    bool reference = false;     // also carries the stream of the unquantized model
  };
  /// Embeds the tokens. Errors: no tokens, a token outside the vocabulary.
  static Result<BlockData> start(const tensor::ModelWeights& source, const model::Architecture& arch,
                                 const CalibrationData& data, const Options& options, Products& products);

  int64_t tokens() const { return tokens_; }
  Products& products() { return *products_; }
  ThreadPool& pool() { return products_->pool(); }

  /// Makes `block` the one at work: what trials are measured against is its output as it is now.
  /// trials: keep a copy for them.
  Status open(const Block& block, bool trials = true);

  // For transforms.

  /// Ranges on all tokens for the block as it is now; kept until its revision changes.
  Result<const BlockStatistics*> statistics(const Block& block);
  /// Gram of what the matrices at a site read, on all tokens, for the block as it is now (no rounding inside it).
  Result<const Gram*> gram(const Block& block, model::Site site);
  /// Inputs at a site of the first `tokens` tokens (whole sequences): [M, K]. Sets *m.
  Result<std::vector<float>> inputs(const Block& block, model::Site site, int64_t tokens, int64_t* m);
  /// Squared difference between what the candidate and the opened block give, relative to the square of the latter.
  Result<double> error(const Block& candidate, const Trial& trial);

  // For the pipeline.

  enum class Stream { kQuantized, kReference };
  /// Whole sequences that are run together: tokens [first, first + count) of the data.
  struct Span {
    int64_t first = 0;
    int64_t count = 0;
    size_t first_sequence = 0;
    size_t sequences = 0;
  };
  const std::vector<Span>& spans() const { return spans_; }
  const model::Architecture& one_layer() const { return one_layer_; }
  int64_t longest() const { return longest_; }
  TokenStore& hidden(Stream stream) { return stream == Stream::kQuantized ? quantized_ : reference_; }
  bool has_reference() const { return reference_.tokens() > 0; }
  Result<TokenStore> store(int64_t width);
  model::LayerRunner& runner() { return *runner_; }
  /// A cache for one batch with keys and values in `bits` (16: f32).
  Result<model::AttentionCache> cache(int kv_bits);
  /// Calls body with the positions of each span set in the runner (its hidden buffer is not loaded).
  Status each(const std::function<Status(const Span&, const model::Batch&)>& body, int64_t max_tokens = 0);

 private:
  BlockData() = default;
  struct Target;  // outputs of the opened block on the tokens of a trial

  const model::Architecture* arch_ = nullptr;
  model::Architecture one_layer_;
  Products* products_ = nullptr;
  Options options_;
  const CalibrationData* data_ = nullptr;
  std::vector<Span> spans_;
  std::vector<int64_t> starts_;  // first token of each sequence
  int64_t tokens_ = 0;
  int64_t longest_ = 0;
  int64_t batch_tokens_ = 0;
  TokenStore quantized_, reference_;
  std::unique_ptr<model::LayerRunner> runner_;

  std::optional<Block> opened_;
  std::shared_ptr<Target> target_;
  int64_t statistics_revision_ = -1;
  BlockStatistics statistics_;
  std::array<int64_t, 4> gram_revision_ = {-1, -1, -1, -1};
  std::array<Gram, 4> grams_;
};

/// Rounds what the matrices of a block read, as its activation specs say: the `replace` of a model::Observer.
class ActivationRounder {
 public:
  ActivationRounder(const Block& block, machine::Isa isa, ThreadPool& pool);
  const float* operator()(model::Site site, const float* x, int64_t m, int64_t k);
  bool any() const;

 private:
  std::array<tensor::ActivationSpec, 4> specs_;
  machine::Isa isa_;
  ThreadPool* pool_;
  std::vector<float> rounded_;
  AlignedBytes codes_;
};

}  // namespace tare::quantize
