#include "kernels/reference/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/activations.h"
#include "kernels/reference/activations.h"
#include "kernels/reference/samples.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"

namespace tare::kernels {
namespace {

using namespace tensor;
using namespace numerics;

// Section 2.4 of the QoQ notes: 1 row, K = 16, groups of 8.
constexpr float kX[] = {.81f,  -1.27f, .05f, 2.10f, -.44f, .93f,  -1.90f, .26f,
                        1.15f, -.72f,  .38f, -.09f, .64f,  1.48f, -2.54f, .31f};

Buffer pack4(std::initializer_list<uint32_t> codes) {
  std::vector<std::byte> bytes(codes.size() / 2);
  int64_t i = 0;
  for (const uint32_t code : codes) write_code(bytes.data(), 4 * i++, 4, code);
  return Buffer::own(std::move(bytes));
}

QuantizedTensor progressive() {
  QuantizedFields f{.n = 1, .k = 16};
  f.codes = pack4({8, 1, 15, 6, 0, 9, 5, 11, 2, 12, 14, 7, 0, 13, 9, 4});
  f.rule = Rule::kIntegerFirst;
  f.a = *Grid::make(GridType::kU8, 1, 16, 1, 8, Buffer::own(std::vector<uint8_t>{14, 3}));
  f.b = *Grid::make(GridType::kS8, 1, 16, 1, 8, Buffer::own(std::vector<int8_t>{-85, -27}));
  f.A = *Grid::make(GridType::kF16, 1, 16, 1, 16, Buffer::own(std::vector<uint16_t>{f32_to_f16(.0882f / 119)}));
  return *QuantizedTensor::make(std::move(f));
}

float one_output(const Weight& weight, const ActivationSpec& activation, std::vector<float> bias = {}) {
  ThreadPool pool(1);
  const LinearProblem problem = problem_of(weight, activation, !bias.empty());
  return run_linear(kGemmReference, problem, {&weight, 1}, bias, {std::begin(kX), std::end(kX)}, 1,
                    machine::Isa::kReference, pool)
      ->front();
}

// The example rounds its scale of activations to f16, as the GPU does; .81 and -1.27 are ties without that.
ActivationSpec example_activation() {
  return {.type = ActivationType::kS8, .dynamic = false, .scale = f16_to_f32(f32_to_f16(2.54f / 127))};
}

TEST(ReferenceGemm, WorkedExampleOfProgressiveGroups) {
  const ReferenceActivations x = quantize_reference(example_activation(), kX, 1, 16, 16);
  EXPECT_EQ(x.codes, (std::vector<int32_t>{40, -63, 2, 105, -22, 46, -95, 13, 57, -36, 19, -4, 32, 74, -127, 15}));
  EXPECT_FLOAT_EQ(x.scale[0], 0.02000427f);
  const float s1 = f16_to_f32(f32_to_f16(.0882f / 119));
  const float expected = 10363.0f * (s1 * x.scale[0]);
  EXPECT_EQ(one_output(progressive(), example_activation()), expected);
  EXPECT_EQ(one_output(progressive(), example_activation(), {0.5f}), expected + 0.5f);
  EXPECT_NEAR(expected, 0.153613f, 1e-6f);
}

TEST(ReferenceGemm, WorkedExampleOfPerChannelWithMinimum) {
  QuantizedFields f{.n = 1, .k = 16};
  f.codes = pack4({8, 2, 15, 6, 0, 10, 5, 12, 5, 7, 7, 6, 4, 7, 6, 5});
  const float s = f16_to_f32(f32_to_f16(.01008606f)), zs = f16_to_f32(f32_to_f16(.06311035f));
  f.a = *Grid::make(GridType::kF16, 1, 16, 1, 16, Buffer::own(std::vector<uint16_t>{f32_to_f16(s)}));
  f.b = *Grid::make(GridType::kF16, 1, 16, 1, 16, Buffer::own(std::vector<uint16_t>{f32_to_f16(-zs)}));
  const QuantizedTensor t = *QuantizedTensor::make(std::move(f));
  const float sx = example_activation().scale;
  // sum q xq = 1096, sum xq = 56
  EXPECT_EQ(one_output(t, example_activation()), 1096.0f * (s * sx) + -zs * (sx * 56.0f));
  EXPECT_NEAR(one_output(t, example_activation()), 0.150435f, 1e-6f);
}

TEST(ReferenceGemm, AsymmetricStaticAndOutliersByHand) {
  // w = {1, -2, 3}, x = {10, 20, -5}
  QuantizedFields f{.n = 1, .k = 3, .kind = CodeKind::kInt, .bits = 8};
  f.codes = Buffer::own(std::vector<int8_t>{1, -2, 3});
  f.a = *Grid::make(GridType::kF32, 1, 3, 1, 3, Buffer::own(std::vector<float>{0.5f}));
  const Weight w = *QuantizedTensor::make(std::move(f));
  ThreadPool pool(1);
  const auto product = [&](const ActivationSpec& spec) {
    return run_linear(kGemmReference, problem_of(w, spec, false), {&w, 1}, {}, {10, 20, -5}, 1,
                      machine::Isa::kReference, pool)
        ->front();
  };
  EXPECT_EQ(product({}), 0.5f * (10 - 40 - 15));
  // static, scale 0.25, zero 3: q = 43, 83, -17; minus zero: 40, 80, -20
  EXPECT_EQ(product({.type = ActivationType::kS8, .dynamic = false, .scale = 0.25f, .zero = 3}),
            static_cast<float>(40 - 160 - 60) * (0.5f * 0.25f));
  // outlier 20 apart: amax 10, q = 127, 0, -64 (63.5 to even)
  const float sx = 10.0f / 127.0f;
  EXPECT_EQ(product({.type = ActivationType::kS8, .outlier_threshold = 15}),
            static_cast<float>(127 - 192) * (0.5f * sx) + 20.0f * -1.0f);
  // asymmetric over [-5, 20]: scale 25/255, zero = -128 + rne(5 / s) = -77
  const float sa = 25.0f / 255.0f;
  const ReferenceActivations q = quantize_reference({.type = ActivationType::kS8, .symmetric = false},
                                                    std::vector<float>{10, 20, -5}.data(), 1, 3, 3);
  EXPECT_EQ(q.zero[0], -77);
  EXPECT_EQ(q.codes, (std::vector<int32_t>{25, 127, -128}));
  EXPECT_EQ(product({.type = ActivationType::kS8, .symmetric = false}),
            static_cast<float>(102 - 408 - 153) * (0.5f * sa));
}

TEST(ReferenceActivations, ZeroTinyAndPoisonedRows) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, 0, tiny, -tiny, 1, inf, std::nanf(""), 1};
  for (const ActivationType type : {ActivationType::kS8, ActivationType::kE4M3}) {
    const ReferenceActivations q = quantize_reference({.type = type}, x.data(), 4, 2, 2);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(q.codes[i] & 0x7f, 0);
    EXPECT_GT(q.scale[0], 0);
    EXPECT_GT(q.scale[1], 0);
    EXPECT_TRUE(std::isnan(q.scale[2]));
    EXPECT_TRUE(std::isnan(q.scale[3]));
    for (size_t i = 4; i < 8; ++i) EXPECT_EQ(q.codes[i], 0);
  }
}

TEST(ReferenceActivations, EveryRangeAndGranularity) {
  std::vector<float> x(64);
  for (size_t i = 0; i < 64; ++i) x[i] = (static_cast<float>(i) - 20) / 8;  // -2.5 .. 5.375
  const auto q = [&](ActivationSpec spec) { return quantize_reference(spec, x.data(), 1, 64, 64); };
  EXPECT_EQ(q({.type = ActivationType::kU8, .symmetric = false}).codes.front(), 0);
  EXPECT_EQ(q({.type = ActivationType::kU8, .symmetric = false}).codes.back(), 255);
  EXPECT_EQ(q({.type = ActivationType::kS4}).codes.back(), 7);
  EXPECT_EQ(q({.type = ActivationType::kE4M3}).scale[0], 5.375f / 448);
  EXPECT_EQ(q({.type = ActivationType::kE4M3, .cap = 2}).scale[0], 2.0f / 448);
  EXPECT_EQ(E4M3::decode(static_cast<uint32_t>(q({.type = ActivationType::kE4M3, .cap = 2}).codes.back())), 448);
  const ReferenceActivations groups =
      q({.type = ActivationType::kS8, .granularity = ActivationGranularity::kTokenGroup, .group_size = 24});
  ASSERT_EQ(groups.groups, 3);
  EXPECT_EQ(groups.scale[0], 2.5f / 127);
  EXPECT_EQ(groups.scale[1], 3.375f / 127);
  EXPECT_EQ(groups.scale[2], 5.375f / 127);
}

TEST(Activations, WrittenFormEqualsTheReference) {
  const int64_t m = 6, k = 77;
  std::vector<float> x = sample_tokens(m, k, 1);
  std::fill_n(x.begin() + 2 * k, k, 0.0f);                 // zeros
  x[3 * k + 76] = std::numeric_limits<float>::infinity();  // poisoned at the tail
  x[4 * k + 5] = std::nanf("");                            // and inside
  std::fill_n(x.begin() + 5 * k, k, std::numeric_limits<float>::denorm_min());
  for (const ActivationSpec& spec : sample_activations()) {
    if (spec.type != ActivationType::kS8 || spec.granularity == ActivationGranularity::kTokenGroup ||
        spec.outlier_threshold > 0) {
      continue;
    }
    const ActivationForm form{.dtype = DType::kI8, .quantizer = spec};
    const ReferenceActivations expected = quantize_reference(spec, x.data(), m, k, k);
    for (const machine::Isa isa : {machine::Isa::kReference, machine::detect_isa()}) {
      std::vector<std::byte> bytes(static_cast<size_t>(activation_bytes(form, m, k) + 64), std::byte{0x5a});
      const auto start = static_cast<size_t>(-reinterpret_cast<uintptr_t>(bytes.data()) & 63);
      const ActivationStorage out = carve_activations(form, m, k, std::span(bytes).subspan(start));
      write_activations(out, x.data(), k, 0, m, isa);
      for (int64_t row = 0; row < m; ++row) {
        const int8_t* codes = static_cast<const int8_t*>(out.data) + row * out.row_stride;
        int32_t sum = 0;
        for (int64_t i = 0; i < out.row_stride; ++i) {
          ASSERT_EQ(codes[i], i < k ? expected.codes[static_cast<size_t>(row * k + i)] : 0) << i;
          sum += codes[i];
        }
        const float scale = expected.scale[static_cast<size_t>(row)];
        EXPECT_TRUE(out.scale[row] == scale || (std::isnan(out.scale[row]) && std::isnan(scale)));
        EXPECT_EQ(out.row_sum[row], sum);
        EXPECT_EQ(out.zero ? out.zero[row] : 0, expected.zero[static_cast<size_t>(row)]);
      }
    }
  }
}

}  // namespace
}  // namespace tare::kernels
