#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/measure.h"
#include "kernels/peaks.h"

namespace tare::kernels {

/// One attention call over `batch` sequences that each hold `context` keys: `queries` new tokens of every sequence at
/// the end of its context.
struct AttentionShape {
  int64_t batch = 1;
  int64_t context = 0;  // keys, the new tokens included
  int64_t queries = 1;
};

struct AttentionTiming {
  double median_s = 0;
  double min_s = 0;
  int repeats = 0;
  double bytes = 0;       // codes, scales and zeros of the keys and values, each read once
  double operations = 0;  // two a product of q.k and p.v, keys that a query may see
};

/// Random keys and values are stored through the kernel's own `store`; caches are cycled through until they exceed
/// cold_bytes. Errors: the shape does not fit memory in int32 block numbers.
Result<AttentionTiming> measure_attention(const AttentionKernel& kernel, const AttentionProblem& problem,
                                          const AttentionShape& shape, ThreadPool& pool, const MeasureOptions& options);

/// Operations a second of the unit that multiplies with these keys and values: f32 for floats, 8-bit products for int8
/// (two passes: the left operand has 15 bits) and for int4.
double attention_peak(const KvForm& form, const Peaks& peaks);

}  // namespace tare::kernels
