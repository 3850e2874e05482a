#pragma once

#include "kernels/attention.h"

namespace tare::kernels {

// The rows of the attention registry, one in each folder of kernels.
extern const AttentionKernel kAttentionReference;
extern const AttentionKernel kAttentionAvx2;
extern const AttentionKernel kAttentionAvx512Vnni;

void store_kv_reference(const KvLayer& layer, std::span<const KvAppend> appends, ThreadPool& pool);

}  // namespace tare::kernels
