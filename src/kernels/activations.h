#pragma once

#include <cstddef>
#include <span>

#include "kernels/linear.h"

namespace tare::kernels {

/// Writable storage for M tokens in some form.
struct ActivationStorage {
  ActivationForm form;
  int64_t m = 0;
  int64_t k = 0;
  void* data = nullptr;
  int64_t row_stride = 0;      // elements
  float* scale = nullptr;      // [M], kI8
  int32_t* zero = nullptr;     // [M], kI8 asymmetric
  int32_t* row_sum = nullptr;  // [M], kI8

  Activations view() const { return {form, m, k, data, row_stride, scale, zero, row_sum}; }
};

/// Bytes that `carve_activations` needs for M tokens of K channels.
int64_t activation_bytes(const ActivationForm& form, int64_t m, int64_t k);
/// Lays the form out in `bytes` (aligned to 64, at least activation_bytes long). Nothing is written.
ActivationStorage carve_activations(const ActivationForm& form, int64_t m, int64_t k, std::span<std::byte> bytes);

/// Tokens [begin, end) of x brought into the form: copied, or quantized exactly as reference/activations.h says.
/// x: [M,K] f32, rows x_stride apart. `isa` only changes the speed.
void write_activations(const ActivationStorage& out, const float* x, int64_t x_stride, int64_t begin, int64_t end,
                       machine::Isa isa);

/// f32 tokens as they are, no copy.
Activations f32_activations(const float* x, int64_t m, int64_t k, int64_t x_stride);

}  // namespace tare::kernels
