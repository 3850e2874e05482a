#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/kv_row.h"

namespace tare::kernels {

/// Stores keys and values with the row operations of an instruction set; the bytes of store_kv_reference.
void store_kv(const KvRow& row, const KvLayer& layer, std::span<const KvAppend> appends, ThreadPool& pool);

}  // namespace tare::kernels
