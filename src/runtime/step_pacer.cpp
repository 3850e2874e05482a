#include "runtime/step_pacer.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tare::runtime {

namespace {

// Steps differ by what else the machine does: one of them moves the estimate by a fifth.
constexpr double kWeight = 0.2;

void move_towards(double& estimate, double value) {
  estimate = estimate == 0 ? value : estimate + kWeight * (value - estimate);
}

int bucket_of(int64_t decodes, int buckets) {
  const int bucket = static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(decodes, 1) - 1)));
  return std::min(bucket, buckets - 1);
}

}  // namespace

double StepPacer::plain_s(int64_t decodes) const {
  const int wanted = bucket_of(decodes, kBuckets);
  // The nearest count that was seen, smaller ones first: they promise too little time rather than too much.
  for (int distance = 0; distance < kBuckets; ++distance) {
    for (const int bucket : {wanted - distance, wanted + distance}) {
      if (bucket >= 0 && bucket < kBuckets && plain_[static_cast<size_t>(bucket)] > 0) {
        return plain_[static_cast<size_t>(bucket)];
      }
    }
  }
  return 0;
}

int64_t StepPacer::prompt_tokens(int64_t decodes) const {
  const bool paced = options_.automatic || options_.target_s > 0;
  if (!paced || decodes == 0) return options_.largest;
  const double plain = plain_s(decodes);
  const double limit = options_.target_s > 0 ? options_.target_s : 2 * plain;
  if (per_token_s_ == 0 || (plain == 0 && options_.target_s == 0)) return std::min(kFirstChunk, options_.largest);
  // A step over its limit already still takes one token: a prompt must not wait for ever.
  const double tokens = std::floor((limit - plain) / per_token_s_);
  return static_cast<int64_t>(std::clamp(tokens, 1.0, static_cast<double>(options_.largest)));
}

void StepPacer::observe(int64_t decodes, int64_t prompt_tokens, double seconds) {
  if (prompt_tokens == 0) {
    if (decodes > 0) move_towards(plain_[static_cast<size_t>(bucket_of(decodes, kBuckets))], seconds);
    return;
  }
  const double plain = decodes > 0 ? plain_s(decodes) : 0;
  // A step of decodes that was never seen alone says nothing about the prompt's share.
  if (decodes > 0 && plain == 0) return;
  const double rest = (seconds - plain) / static_cast<double>(prompt_tokens);
  move_towards(per_token_s_, std::max(rest, 1e-9));
}

}  // namespace tare::runtime
