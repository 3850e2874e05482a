#pragma once

#include <cstdint>

#include "tensor/quantized_tensor.h"

/// Packing of integer codes into the lines that int_gemm.h describes.
namespace tare::kernels {

/// Unsigned codes of one row, natural k order: c for kUint, c + 2^(bits-1) for kInt. out: K bytes.
void unpack_row(const tensor::QuantizedFields& fields, int64_t row, uint8_t* out);

/// Packs 16 rows. codes: [16][stride] bytes, columns from K on 0. out: column block b goes to out + b * out_stride,
/// bits * 64 bytes each.
void pack_row_block(const uint8_t* codes, int64_t stride, int64_t column_blocks, int bits, uint8_t* out,
                    int64_t out_stride);

}  // namespace tare::kernels
