#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/checked.h"
#include "kernels/gemm_w4a8.h"
#include "kernels/gemm_w8a8.h"
#include "kernels/gemm_wna8.h"
#include "kernels/reference/samples.h"
#include "numerics/mini_float.h"
#include "numerics/packing.h"

// The integer products against plain loops: exact, on every ISA level that this machine has, each kernel forced by
// taking its row directly. The sweep of all kernels is linear_sweep_test.cpp; here stand the edges of this family.

namespace tare::kernels {
namespace {

using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::Rule;

constexpr float kSentinel = -12345.5f;

Buffer pack_codes(const std::vector<int32_t>& codes, int64_t n, int64_t k, int bits) {
  const int64_t stride = numerics::packed_bytes(k, bits);
  std::vector<std::byte> bytes(static_cast<size_t>(n * stride));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      const auto code = static_cast<uint32_t>(codes[static_cast<size_t>(row * k + i)]) & ((1u << bits) - 1u);
      numerics::write_code(bytes.data() + row * stride, i * bits, bits, code);
    }
  }
  return Buffer::own(std::move(bytes));
}

// A weight with its integers kept apart: w[n,k] exact, S[n], R[n].
struct IntegerWeight {
  std::vector<QuantizedTensor> tensors;
  std::vector<int64_t> w;
  std::vector<float> scale;
  std::vector<float> min;  // or empty
  int64_t n = 0;
  int64_t k = 0;
};

struct Tokens {
  std::vector<int8_t> q;  // [m][stride]
  std::vector<float> scale;
  std::vector<int32_t> zero;  // or empty
  std::vector<int32_t> sum;
  int64_t m = 0;
  int64_t k = 0;
  int64_t stride = 0;

  Activations view(const ActivationForm& form) const {
    Activations x;
    x.form = form;
    x.m = m;
    x.k = k;
    x.data = q.data();
    x.row_stride = stride;
    x.scale = scale.data();
    x.zero = zero.empty() ? nullptr : zero.data();
    x.row_sum = sum.data();
    return x;
  }
};

template <class Draw>
Tokens make_tokens(int64_t m, int64_t k, Draw draw, bool with_zero = false) {
  Tokens x{.m = m, .k = k, .stride = round_up(k, 64)};
  x.q.assign(static_cast<size_t>(m * x.stride), 0);
  for (int64_t row = 0; row < m; ++row) {
    int32_t sum = 0;
    for (int64_t i = 0; i < k; ++i) {
      const int32_t q = draw(row, i);
      x.q[static_cast<size_t>(row * x.stride + i)] = static_cast<int8_t>(q);
      sum += q;
    }
    x.sum.push_back(sum);
    x.scale.push_back(0.01f + 0.003f * static_cast<float>(row));
    if (with_zero) x.zero.push_back(static_cast<int32_t>(row * 37 % 256 - 128));
  }
  return x;
}

// linear.h, spelled out.
std::vector<float> expected_output(const IntegerWeight& w, const Tokens& x, const std::vector<float>& bias) {
  std::vector<float> y(static_cast<size_t>(x.m * w.n));
  for (int64_t m = 0; m < x.m; ++m) {
    const int64_t zero = x.zero.empty() ? 0 : x.zero[static_cast<size_t>(m)];
    for (int64_t n = 0; n < w.n; ++n) {
      int64_t acc = 0;
      for (int64_t k = 0; k < w.k; ++k) {
        acc += (x.q[static_cast<size_t>(m * x.stride + k)] - zero) * w.w[static_cast<size_t>(n * w.k + k)];
      }
      EXPECT_EQ(acc, static_cast<int32_t>(acc)) << "the test itself leaves int32";
      const float sx = x.scale[static_cast<size_t>(m)];
      float value = static_cast<float>(static_cast<int32_t>(acc)) * (w.scale[static_cast<size_t>(n)] * sx);
      if (!w.min.empty()) {
        const auto sum = static_cast<int32_t>(x.sum[static_cast<size_t>(m)] - zero * w.k);
        value += w.min[static_cast<size_t>(n)] * (sx * static_cast<float>(sum));
      }
      if (!bias.empty()) value += bias[static_cast<size_t>(n)];
      y[static_cast<size_t>(m * w.n + n)] = value;
    }
  }
  return y;
}

std::vector<uint16_t> half_scales(int64_t n, float first) {
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(numerics::f32_to_f16(first * (1.0f + 0.01f * static_cast<float>(i % 50))));
  return values;
}

// Progressive groups. a(n, g), b(n, g) and code(n, k) are drawn by the caller.
template <class A, class B, class C>
IntegerWeight progressive(int64_t n, int64_t k, int64_t group, A a, B b, C code) {
  IntegerWeight out{.n = n, .k = k};
  const int64_t groups = ceil_div(k, group);
  std::vector<int32_t> codes;
  std::vector<uint8_t> inner;
  std::vector<int8_t> minima;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      inner.push_back(static_cast<uint8_t>(a(row, g)));
      minima.push_back(static_cast<int8_t>(b(row, g)));
    }
    for (int64_t i = 0; i < k; ++i) {
      codes.push_back(code(row, i));
      out.w.push_back(static_cast<int64_t>(a(row, i / group)) * codes.back() + b(row, i / group));
    }
  }
  QuantizedFields f{.n = n, .k = k, .bits = 4};
  f.codes = pack_codes(codes, n, k, 4);
  f.rule = Rule::kIntegerFirst;
  f.a = *Grid::make(GridType::kU8, n, k, 1, group, Buffer::own(inner));
  f.b = *Grid::make(GridType::kS8, n, k, 1, group, Buffer::own(minima));
  const std::vector<uint16_t> scales = half_scales(n, 0.004f);
  f.A = *Grid::make(GridType::kF16, n, k, 1, k, Buffer::own(scales));
  for (const uint16_t s : scales) out.scale.push_back(numerics::f16_to_f32(s));
  out.tensors.push_back(*QuantizedTensor::make(std::move(f)));
  return out;
}

template <class C>
IntegerWeight per_channel_u4(int64_t n, int64_t k, C code) {
  IntegerWeight out{.n = n, .k = k};
  std::vector<int32_t> codes;
  for (int64_t i = 0; i < n * k; ++i) {
    codes.push_back(code(i / k, i % k));
    out.w.push_back(codes.back());
  }
  QuantizedFields f{.n = n, .k = k, .bits = 4};
  f.codes = pack_codes(codes, n, k, 4);
  const std::vector<uint16_t> scales = half_scales(n, 0.02f), minima = half_scales(n, -0.11f);
  f.a = *Grid::make(GridType::kF16, n, k, 1, k, Buffer::own(scales));
  f.b = *Grid::make(GridType::kF16, n, k, 1, k, Buffer::own(minima));
  for (size_t i = 0; i < scales.size(); ++i) {
    out.scale.push_back(numerics::f16_to_f32(scales[i]));
    out.min.push_back(numerics::f16_to_f32(minima[i]));
  }
  out.tensors.push_back(*QuantizedTensor::make(std::move(f)));
  return out;
}

template <class C>
IntegerWeight int8_weight(int64_t n, int64_t k, bool per_tensor, C code) {
  IntegerWeight out{.n = n, .k = k};
  std::vector<int32_t> codes;
  for (int64_t i = 0; i < n * k; ++i) {
    codes.push_back(code(i / k, i % k));
    out.w.push_back(codes.back());
  }
  QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kInt, .bits = 8};
  f.codes = pack_codes(codes, n, k, 8);
  std::vector<float> scales;
  for (int64_t i = 0; i < (per_tensor ? 1 : n); ++i) scales.push_back(0.003f + 0.0001f * static_cast<float>(i));
  f.a = *Grid::make(GridType::kF32, n, k, per_tensor ? n : 1, k, Buffer::own(scales));
  for (int64_t i = 0; i < n; ++i) out.scale.push_back(per_tensor ? scales[0] : scales[static_cast<size_t>(i)]);
  out.tensors.push_back(*QuantizedTensor::make(std::move(f)));
  return out;
}

class IntGemm : public ::testing::TestWithParam<const LinearKernel*> {
 protected:
  void SetUp() override {
    if (GetParam()->isa > machine::detect_isa()) {
      GTEST_SKIP() << "skipped: this CPU lacks " << machine::isa_name(GetParam()->isa);
    }
  }

  void check(const IntegerWeight& w, const Tokens& x, bool with_bias = false, std::string_view label = {}) {
    const LinearKernel& kernel = *GetParam();
    SCOPED_TRACE(fmt::format("{} n {} k {} m {} {}", kernel.name, w.n, w.k, x.m, label));
    LinearProblem problem{.n = w.n, .k = w.k, .weight = w.tensors[0].spec(), .bias = with_bias};
    problem.activation.type = tensor::ActivationType::kS8;
    problem.activation.symmetric = x.zero.empty();
    const Verdict verdict = kernel.can_implement(problem, machine::capabilities());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    std::vector<float> bias;
    for (int64_t i = 0; with_bias && i < w.n; ++i) bias.push_back(0.5f - 0.1f * static_cast<float>(i));
    const std::vector<tensor::Weight> parts(w.tensors.begin(), w.tensors.end());
    auto packed = kernel.prepack(problem, parts, bias, pool_);
    ASSERT_TRUE(packed.ok()) << packed.error().message();

    const int64_t stride = w.n + 5;
    std::vector<float> out(static_cast<size_t>(x.m * stride), kSentinel);
    std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem, x.m, pool_.size())));
    kernel.run(**packed, x.view(kernel.form(problem)), out.data(), stride, workspace, pool_);
    const std::vector<float> expected = expected_output(w, x, bias);
    for (int64_t m = 0; m < x.m; ++m) {
      for (int64_t n = 0; n < stride; ++n) {
        const float value = out[static_cast<size_t>(m * stride + n)];
        const float want = n < w.n ? expected[static_cast<size_t>(m * w.n + n)] : kSentinel;
        ASSERT_EQ(std::memcmp(&value, &want, 4), 0) << "token " << m << " row " << n << ": " << value << " != " << want;
      }
    }
  }

  ThreadPool pool_{3};
  std::mt19937 random_{7};
  int32_t draw(int32_t low, int32_t high) {
    return static_cast<int32_t>(low + static_cast<int64_t>(random_() % static_cast<uint32_t>(high - low + 1)));
  }
};

class W4A8 : public IntGemm {};
class W8A8 : public IntGemm {};

constexpr int64_t kTokenCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 64};

TEST_P(W4A8, EveryTokenCountAndOddSizes) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{96, 344}, {576, 128}, {33, 1031}, {1, 32}, {17, 96}}) {
    const IntegerWeight channel = per_channel_u4(n, k, [&](int64_t, int64_t) { return draw(0, 15); });
    // Groups as QoQ makes them (every a*c + b an s8), and groups that leave s8.
    std::vector<int32_t> a, proper, improper;
    for (int i = 0; i < 64 * 40; ++i) {
      a.push_back(draw(1, 16));
      proper.push_back(draw(-128, 127 - 15 * a.back()));
      improper.push_back(draw(-128, 127));
    }
    const auto at = [](const std::vector<int32_t>& values) {
      return [&values](int64_t r, int64_t g) { return values[static_cast<size_t>((r % 64) * 40 + g)]; };
    };
    const auto code = [&](int64_t, int64_t) { return draw(0, 15); };
    const IntegerWeight group = progressive(n, k, 128, at(a), at(proper), code);
    const IntegerWeight loose = progressive(n, k, 128, at(a), at(improper), code);
    for (const int64_t m : kTokenCounts) {
      const Tokens x = make_tokens(m, k, [&](int64_t row, int64_t) { return row == 1 ? 0 : draw(-127, 127); });
      check(channel, x, m % 2 == 0, "per channel");
      check(group, x, m % 2 == 1, "g128");
      check(loose, x, false, "g128 beyond s8");
    }
  }
}

TEST_P(W4A8, AllGroupSizesWithAShortLastGroup) {
  for (const int64_t group : {32, 64, 96, 128, 160, 192, 256, 512, 344}) {
    const int64_t k = 344;
    const auto scale = [](int64_t r, int64_t g) { return 1 + (r + 3 * g) % 16; };
    const auto code = [&](int64_t, int64_t) { return draw(0, 15); };
    const IntegerWeight w = progressive(
        40, k, group, scale, [&](int64_t r, int64_t g) { return -((r * 5 + g * 17) % 120); }, code);
    const IntegerWeight proper = progressive(
        40, k, group, scale, [&](int64_t r, int64_t g) { return 127 - 15 * scale(r, g) - (r + g) % 16; }, code);
    for (const int64_t m : {1, 3, 7, 14}) {
      check(proper, make_tokens(m, k, [&](int64_t, int64_t) { return draw(-127, 127); }), false,
            fmt::format("proper group {}", group));
    }
    check(w, make_tokens(7, k, [&](int64_t, int64_t) { return draw(-127, 127); }), false,
          fmt::format("group {}", group));
  }
}

// Every inner scale 1..16 with every minimum -127..119 and the extreme codes on both sides, then every scale a u8
// holds.
TEST_P(W4A8, AllInnerScalesAndMinima) {
  const int64_t k = 256;
  for (const bool wide : {false, true}) {
    const int64_t scales = wide ? 256 : 16;
    const int64_t n = wide ? 256 : 247;
    for (int64_t first = 0; first < scales; first += wide ? 128 : 2) {
      const IntegerWeight w = progressive(
          n, k, 128, [&](int64_t r, int64_t g) { return wide ? (r + g * first) % 256 : first + g + 1; },
          [&](int64_t r, int64_t) { return wide ? 127 - r : r - 127; },
          [&](int64_t r, int64_t i) { return (i + r) % 3 == 0   ? 15
                                             : (i + r) % 3 == 1 ? 0
                                                                : 15 - (i % 16); });
      const Tokens x = make_tokens(5, k, [](int64_t row, int64_t i) {
        return row == 0 ? 127 : row == 1 ? -127 : row == 2 ? -128 : (i % 2 != 0 ? 127 : -128);
      });
      check(w, x, false, fmt::format("scales from {}, wide {}", first, wide));
    }
  }
}

// Every group that QoQ can make: the inner scales 1..16 with every minimum that keeps a*c + b in s8.
TEST_P(W4A8, AllProperGroups) {
  const int64_t k = 128;
  for (int64_t scale = 1; scale <= 16; ++scale) {
    const IntegerWeight w = progressive(
        256 - 15 * scale, k, 64, [&](int64_t, int64_t) { return scale; }, [](int64_t r, int64_t) { return r - 128; },
        [](int64_t r, int64_t i) { return (i + r) % 3 == 0   ? 15
                                          : (i + r) % 3 == 1 ? 0
                                                             : 15 - (i % 16); });
    const auto token = [](int64_t row, int64_t i) {
      return row % 4 == 0 ? 127 : row % 4 == 1 ? -127 : row % 4 == 2 ? -128 : (i % 2 != 0 ? 127 : -128);
    };
    for (const int64_t m : {4, 13}) check(w, make_tokens(m, k, token), false, fmt::format("scale {}", scale));
  }
}

TEST_P(W4A8, LongRowsWithExtremeCodes) {
  for (const int64_t k : {64, 4096, 11008, 28672}) {
    const IntegerWeight w = progressive(
        18, k, 128, [](int64_t r, int64_t) { return r == 0 ? 16 : 1 + r % 16; },
        [](int64_t r, int64_t) { return r == 0 ? -119 : 119; }, [](int64_t r, int64_t) { return r == 1 ? 0 : 15; });
    for (const int64_t m : {1, 2, 5, 17}) {
      check(w, make_tokens(m, k, [](int64_t row, int64_t) { return row % 2 == 0 ? 127 : -128; }));
    }
    const IntegerWeight c = per_channel_u4(18, k, [](int64_t, int64_t) { return 15; });
    check(c, make_tokens(5, k, [](int64_t row, int64_t) { return row % 2 == 0 ? 127 : -128; }));
  }
}

TEST_P(W4A8, ActivationsWithAZero) {
  const IntegerWeight w = progressive(
      50, 200, 64, [](int64_t r, int64_t g) { return 1 + (r + g) % 16; }, [](int64_t r, int64_t g) { return g - r; },
      [&](int64_t, int64_t) { return draw(0, 15); });
  check(w, make_tokens(
               9, 200, [&](int64_t, int64_t) { return draw(-128, 127); }, true));
  const IntegerWeight c = per_channel_u4(50, 200, [&](int64_t, int64_t) { return draw(0, 15); });
  check(c,
        make_tokens(
            9, 200, [&](int64_t, int64_t) { return draw(-128, 127); }, true),
        true);
}

// reg-7: 255 * 127 * 2 does not fit s16, and -128 has no negative in s8.
TEST_P(W8A8, ExtremeOperandsAreExact) {
  for (const int64_t k : {64, 96, 1024, 4096}) {
    const IntegerWeight w = int8_weight(20, k, false, [](int64_t r, int64_t i) {
      return r == 0 ? 127 : r == 1 ? -128 : r == 2 ? -127 : (i % 2 != 0 ? 127 : -128);
    });
    for (const int64_t m : {1, 2, 5, 17}) {
      check(w, make_tokens(m, k, [](int64_t row, int64_t i) {
              return row % 4 == 0 ? 127 : row % 4 == 1 ? -128 : row % 4 == 2 ? -127 : (i % 2 != 0 ? -128 : 127);
            }));
    }
  }
}

TEST_P(W8A8, EveryTokenCountOddSizesAndZeros) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{96, 344}, {576, 96}, {33, 1031}, {1, 1}}) {
    const IntegerWeight w = int8_weight(n, k, n == 96, [&](int64_t, int64_t) { return draw(-128, 127); });
    for (const int64_t m : kTokenCounts) {
      check(w,
            make_tokens(
                m, k, [&](int64_t row, int64_t) { return row == 1 ? 0 : draw(-128, 127); }, m % 3 == 0),
            m % 2 == 0);
    }
  }
}

TEST_P(W8A8, LongRows) {
  const IntegerWeight w = int8_weight(17, 28672, false, [&](int64_t, int64_t) { return draw(-128, 127); });
  check(w, make_tokens(
               3, 28672, [&](int64_t, int64_t) { return draw(-128, 127); }, true));
}

class WNa8 : public IntGemm {};

// Scales of 1 and sums below 2^24 make every step exact, so that the integers show: all widths, all groups, the largest
// codes against the largest activations of one sign.
TEST_P(WNa8, ExtremeOperandsAreExact) {
  const LinearKernel& kernel = *GetParam();
  const int64_t n = 18, k = 256;
  for (int bits = 1; bits <= 8; ++bits) {
    for (const int64_t group : {16, 32, 64, 96, 128, 256}) {
      SCOPED_TRACE(fmt::format("{} u{} g{}", kernel.name, bits, group));
      const int32_t largest = (1 << bits) - 1;
      const int32_t zero = largest / 2;
      std::vector<int32_t> codes;
      for (int64_t i = 0; i < n * k; ++i) codes.push_back(i / k == 1 ? 0 : i / k < 4 ? largest : draw(0, largest));
      QuantizedFields f{.n = n, .k = k, .bits = bits};
      f.codes = pack_codes(codes, n, k, bits);
      const auto count = static_cast<size_t>(n * ceil_div(k, group));
      f.a = *Grid::make(GridType::kF16, n, k, 1, group, Buffer::own(std::vector<uint16_t>(count, 0x3c00)));
      f.z = *Grid::make(GridType::kU8, n, k, 1, group,
                        Buffer::own(std::vector<uint8_t>(count, static_cast<uint8_t>(zero))));
      const tensor::Weight weight = *QuantizedTensor::make(std::move(f));
      tensor::ActivationSpec activation;
      activation.type = tensor::ActivationType::kS8;
      const LinearProblem problem = problem_of(weight, activation, false);
      const Verdict verdict = kernel.can_implement(problem, machine::capabilities());
      ASSERT_TRUE(verdict.ok) << verdict.reason;
      auto packed = kernel.prepack(problem, {&weight, 1}, {}, pool_);
      ASSERT_TRUE(packed.ok()) << packed.error().message();
      for (const int64_t m : {1, 6, 9}) {
        Tokens x = make_tokens(m, k, [&](int64_t row, int64_t) {
          return row % 4 == 0 ? 127 : row % 4 == 1 ? -127 : row % 4 == 2 ? -128 : draw(-128, 127);
        });
        std::fill(x.scale.begin(), x.scale.end(), 1.0f);
        std::vector<float> out(static_cast<size_t>(m * n));
        std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem, m, pool_.size())));
        kernel.run(**packed, x.view(kernel.form(problem)), out.data(), n, workspace, pool_);
        for (int64_t i = 0; i < m * n; ++i) {
          int32_t sum = 0;
          for (int64_t j = 0; j < k; ++j) {
            sum += (codes[static_cast<size_t>(i % n * k + j)] - zero) * x.q[static_cast<size_t>(i / n * x.stride + j)];
          }
          ASSERT_EQ(out[static_cast<size_t>(i)], static_cast<float>(sum)) << "token " << i / n << " row " << i % n;
        }
      }
    }
  }
}

// P3: the two levels agree in every bit, also where groups are added in floating point.
TEST(IntGemmLevels, SameBitsOnBothLevels) {
  const machine::Capabilities caps = machine::capabilities();
  if (caps.isa < machine::Isa::kAvx512Vnni) GTEST_SKIP() << "skipped: this CPU lacks avx512vnni";
  const LinearKernel* pairs[][2] = {{&kGemmW4A8Avx512Vnni, &kGemmW4A8Avx2},
                                    {&kGemmW8A8Avx512Vnni, &kGemmW8A8Avx2},
                                    {&kGemmWNa8Avx512Vnni, &kGemmWNa8Avx2}};
  ThreadPool pool(2);
  int cases = 0;
  for (const SampleForm& form : sample_forms()) {
    const int64_t n = 70, k = 768, m = 7;
    const tensor::Weight weight = form.make(form, n, k, SamplePattern::kRandom, 11);
    tensor::ActivationSpec activation;
    activation.type = tensor::ActivationType::kS8;
    const LinearProblem problem = problem_of(weight, activation, true);
    const std::vector<float> x = sample_tokens(m, k, 4), bias = sample_tokens(1, n, 2);
    for (const auto& [one, two] : pairs) {
      if (!one->can_implement(problem, caps).ok) continue;
      SCOPED_TRACE(fmt::format("{} on {}", one->op, form.name));
      ASSERT_TRUE(two->can_implement(problem, caps).ok);
      const auto a = run_linear(*one, problem, {&weight, 1}, bias, x, m, caps.isa, pool);
      const auto b = run_linear(*two, problem, {&weight, 1}, bias, x, m, caps.isa, pool);
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_EQ(std::memcmp(a->data(), b->data(), a->size() * sizeof(float)), 0);
      ++cases;
    }
  }
  EXPECT_GT(cases, 30);
}

std::string kernel_name(const ::testing::TestParamInfo<const LinearKernel*>& info) {
  return std::string(info.param->name);
}
INSTANTIATE_TEST_SUITE_P(Kernels, W4A8, ::testing::Values(&kGemmW4A8Avx512Vnni, &kGemmW4A8Avx2), kernel_name);
INSTANTIATE_TEST_SUITE_P(Kernels, WNa8, ::testing::Values(&kGemmWNa8Avx512Vnni, &kGemmWNa8Avx2), kernel_name);
INSTANTIATE_TEST_SUITE_P(Kernels, W8A8, ::testing::Values(&kGemmW8A8Avx512Vnni, &kGemmW8A8Avx2), kernel_name);

}  // namespace
}  // namespace tare::kernels
