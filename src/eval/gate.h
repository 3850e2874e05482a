#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "eval/windows.h"
#include "runtime/scorer.h"

namespace tare::eval {

/// What a quantized model may cost against its source.
struct GateLimits {
  double kl = std::numeric_limits<double>::infinity();         // mean KL(source || model) a position, nats
  double top1 = 0;                                             // share of positions with the same most likely token
  double ppl_ratio = std::numeric_limits<double>::infinity();  // perplexity over the source's
};
/// "kl=0.5,top1=0.8,ppl_ratio=1.3", any of the three. Errors: other names, not a number, out of range, none given.
Result<GateLimits> parse_gate(std::string_view text);
/// The limits without --gate: they tell a damaged model from one that lost what its bits cost, no more.
GateLimits default_gate(int weight_bits);

/// How a model continues a prompt, greedily.
struct Continuation {
  std::vector<int32_t> ids;
  int64_t longest_cycle = 0;  // tokens at the end that repeat one period of at most 4 tokens
};
Result<Continuation> continue_greedily(runtime::Scorer& scorer, std::span<const int32_t> prompt, int64_t count);

struct GateVerdict {
  bool passed = true;
  GateLimits limits;
  Divergence measured;
  double ppl_ratio = 1;
  double ppl_ratio_low = 1, ppl_ratio_high = 1;  // 95 %, over windows
  double top1_low = 1, top1_high = 1;            // 95 %, over windows
  Continuation continuation, reference_continuation;
  std::vector<std::string> reasons;  // why it failed, or what is close to a limit, one sentence each
};

/// Compares over `windows` windows of protocol.context tokens; four times as many (as far as the tokens reach) when a
/// limit lies inside the 95 % interval of its measure. Then the mean decides, and the reasons say that it is close.
/// A model that falls into a cycle where its source does not is refused whatever the numbers say.
Result<GateVerdict> judge(runtime::Scorer& model, runtime::Scorer& reference, std::span<const int32_t> tokens,
                          Protocol protocol, const GateLimits& limits, ThreadPool& pool, const Progress& progress = {});

json::object gate_json(const GateVerdict& verdict);

}  // namespace tare::eval
