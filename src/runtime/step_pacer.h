#pragma once

#include <array>
#include <cstdint>

namespace tare::runtime {

/// How many prompt tokens a step may take beside its decodes, so that running outputs do not stutter: learned from the
/// steps of this run. Results do not depend on it (promise P1), only times.
///
/// A step takes plain(decodes) + per_token * prompt_tokens. The limit is 2 * plain(decodes), or the target.
class StepPacer {
 public:
  struct Options {
    int64_t largest = 2048;  // tokens in a step whatever the times are
    bool automatic = false;  // --max-num-batched-tokens auto
    double target_s = 0;     // --target-itl-ms; 0 = twice the plain step
  };
  explicit StepPacer(const Options& options) : options_(options) {}

  /// Prompt tokens of a step with this many decodes: 1 to `largest`.
  int64_t prompt_tokens(int64_t decodes) const;

  /// What a step took.
  void observe(int64_t decodes, int64_t prompt_tokens, double seconds);

  /// Seconds of a step of decodes alone; 0 while unknown.
  double plain_s(int64_t decodes) const;
  double per_token_s() const { return per_token_s_; }

 private:
  static constexpr int kBuckets = 16;  // of decode counts: 1, 2, 3..4, 5..8, ...
  /// While nothing is known of the times.
  static constexpr int64_t kFirstChunk = 16;

  Options options_;
  std::array<double, kBuckets> plain_{};
  double per_token_s_ = 0;
};

}  // namespace tare::runtime
