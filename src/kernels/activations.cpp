#include "kernels/activations.h"

#include <cassert>
#include <cstring>

#include "base/checked.h"
#include "kernels/cpu/quantize_s8.h"
#include "kernels/reference/activations.h"

namespace tare::kernels {

namespace {

bool has_zero(const ActivationForm& form) {
  return form.quantizer.dynamic ? !form.quantizer.symmetric : form.quantizer.zero != 0;
}

}  // namespace

int64_t activation_bytes(const ActivationForm& form, int64_t m, int64_t k) {
  if (form.dtype != tensor::DType::kI8) return m * k * 4;
  return m * round_up(k, 64) + round_up(m * 4, 64) * (has_zero(form) ? 3 : 2);
}

ActivationStorage carve_activations(const ActivationForm& form, int64_t m, int64_t k, std::span<std::byte> bytes) {
  assert(static_cast<int64_t>(bytes.size()) >= activation_bytes(form, m, k));
  ActivationStorage out{.form = form, .m = m, .k = k, .data = bytes.data()};
  if (form.dtype != tensor::DType::kI8) {
    out.row_stride = k;
    return out;
  }
  out.row_stride = round_up(k, 64);
  std::byte* next = bytes.data() + m * out.row_stride;
  const auto take = [&] {
    std::byte* here = next;
    next += round_up(m * 4, 64);
    return here;
  };
  out.scale = reinterpret_cast<float*>(take());
  out.row_sum = reinterpret_cast<int32_t*>(take());
  if (has_zero(form)) out.zero = reinterpret_cast<int32_t*>(take());
  return out;
}

void write_activations(const ActivationStorage& out, const float* x, int64_t x_stride, int64_t begin, int64_t end,
                       machine::Isa isa) {
  const tensor::ActivationSpec& spec = out.form.quantizer;
  const bool plain = spec.dynamic && spec.symmetric && spec.cap == 0;
  for (int64_t row = begin; row < end; ++row) {
    const float* values = x + row * x_stride;
    if (out.form.dtype != tensor::DType::kI8) {
      std::memcpy(static_cast<float*>(out.data) + row * out.row_stride, values, static_cast<size_t>(out.k) * 4);
      continue;
    }
    int8_t* codes = static_cast<int8_t*>(out.data) + row * out.row_stride;
    if (plain && isa >= machine::Isa::kAvx2) {
      const auto quantize = isa >= machine::Isa::kAvx512Vnni ? kQuantizeS8Avx512Vnni : kQuantizeS8Avx2;
      quantize(values, out.k, codes, out.scale + row, out.row_sum + row);
      std::memset(codes + out.k, 0, static_cast<size_t>(out.row_stride - out.k));
      continue;
    }
    const ReferenceActivations one = quantize_reference(spec, values, 1, out.k, out.k);
    std::memset(codes, 0, static_cast<size_t>(out.row_stride));
    int32_t sum = 0;
    for (int64_t i = 0; i < out.k; ++i) {
      codes[i] = static_cast<int8_t>(one.codes[static_cast<size_t>(i)]);
      sum += codes[i];
    }
    out.scale[row] = one.scale[0];
    out.row_sum[row] = sum;
    if (out.zero) out.zero[row] = one.zero[0];
  }
}

Activations f32_activations(const float* x, int64_t m, int64_t k, int64_t x_stride) {
  return {.m = m, .k = k, .data = x, .row_stride = x_stride};
}

}  // namespace tare::kernels
