#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoints/losses.h"
#include "tensor/quantized_tensor.h"

namespace tare::checkpoints {

/// A quantized matrix as w = scale * (code - zero) with unsigned codes: what GPTQ, AWQ and compressed-tensors hold.
/// Numbers are widened, so that each writer packs them its own way. All of [N, groups] row-major, natural k order.
struct AffineMatrix {
  int64_t n = 0, k = 0;
  int bits = 4;
  int64_t group = 0;                // columns that share a scale; the last group may be short
  int64_t groups = 0;               // columns of scales
  int64_t tile_n = 1;               // rows that shared a scale where it came from (their scales are repeated here)
  std::vector<uint8_t> codes;       // [N, K], one a byte
  std::vector<float> scales;        // [N, groups]
  tensor::DType scale_dtype{};      // F16, BF16 or F32: the narrowest that is known to hold the scales
  std::optional<int32_t> zero;      // one zero point for all
  std::vector<int32_t> zeros;       // [N, groups] when there is none for all
  std::vector<int32_t> group_of_k;  // [K] in act-order files, else empty

  bool symmetric() const { return zero && *zero == 1 << (bits - 1); }
  int32_t zero_at(int64_t row, int64_t g) const { return zero ? *zero : zeros[static_cast<size_t>(row * groups + g)]; }
};

/// Sees a matrix as affine, exactly: scales in two levels are multiplied (in f32, as dequantize does), a minimum that
/// is a whole number of scales becomes a zero point, zeros that are all 2^(bits-1) become one. Errors: kUnsupported
/// with what is not affine about it ("float zero points", "codes e4m3", ...) in `found`.
Result<AffineMatrix> affine_view(const tensor::QuantizedTensor& weight);

/// The same, or, where losses are allowed, the nearest affine matrix of `bits` and `group` (asymmetric, f16 scales),
/// rounded from the dequantized weight; what was given up and the largest change are listed.
Result<AffineMatrix> affine_or_rounded(const tensor::QuantizedTensor& weight, const std::string& where, int bits,
                                       int64_t group, Losses& losses);
/// Rounds anew: for what an affine matrix has but the format does not (`why`).
Result<AffineMatrix> round_again(const tensor::QuantizedTensor& weight, const std::string& where, int bits,
                                 int64_t group, const std::string& why, Losses& losses);

/// Scales as 16-bit numbers of `dtype` (F16 or BF16). A scale that does not fit exactly is a loss: rounded.
Result<std::vector<uint16_t>> half_scales(const AffineMatrix& m, tensor::DType dtype, const std::string& where,
                                          Losses& losses);

/// [rows, columns] of 32-bit words or 16-bit numbers the other way round.
template <class T>
std::vector<T> transposed(const std::vector<T>& in, int64_t rows, int64_t columns) {
  constexpr int64_t kTile = 16;  // both sides stay in a few cache lines
  std::vector<T> out(in.size());
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = r0; r < rows && r < r0 + kTile; ++r) {
        out[static_cast<size_t>(c * rows + r)] = in[static_cast<size_t>(r * columns + c)];
      }
    }
  }
  return out;
}

}  // namespace tare::checkpoints
