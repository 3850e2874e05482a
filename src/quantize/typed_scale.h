#pragma once

#include "numerics/mini_float.h"
#include "tensor/quantized_tensor.h"

namespace tare::quantize {

/// A number as a scale of this type (kF16, kBF16, else f32) holds it; beyond f16's range its largest value.
inline float as_stored(float value, tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kF16:
      return numerics::f16_to_f32(static_cast<uint16_t>(numerics::Fp16::encode_saturating(value)));
    case tensor::DType::kBF16:
      return numerics::bf16_to_f32(numerics::f32_to_bf16(value));
    default:
      return value;
  }
}

inline tensor::GridType scale_grid_type(tensor::DType dtype) {
  return dtype == tensor::DType::kF16    ? tensor::GridType::kF16
         : dtype == tensor::DType::kBF16 ? tensor::GridType::kBF16
                                         : tensor::GridType::kF32;
}

inline Buffer scale_buffer(const std::vector<float>& values, tensor::DType dtype) {
  if (dtype == tensor::DType::kF32) return Buffer::own(values);
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (const float v : values) {
    out.push_back(dtype == tensor::DType::kF16 ? numerics::f32_to_f16(v) : numerics::f32_to_bf16(v));
  }
  return Buffer::own(std::move(out));
}

}  // namespace tare::quantize
