#include "model/activation_policy.h"

#include <gmock/gmock.h>

#include "checkpoints/checkpoint.h"
#include "testing/fixtures.h"

namespace tare::model {
namespace {

using tensor::ActivationSpec;
using tensor::ActivationType;
using tensor::CodeKind;
using tensor::QuantSpec;

TEST(ActivationPolicy, EightBitsOnlyWhereAsked) {
  const QuantSpec integers{.kind = CodeKind::kUint, .bits = 4};
  const QuantSpec floats{.kind = CodeKind::kE4M3, .bits = 8};
  const ActivationSpec none;
  const ActivationSpec s8{.type = ActivationType::kS8};
  const ActivationSpec e4m3{.type = ActivationType::kE4M3};
  const ActivationPolicy stored;

  EXPECT_EQ(runtime_activation(integers, none, stored), none);
  EXPECT_EQ(runtime_activation(integers, s8, stored), s8);
  EXPECT_EQ(runtime_activation(floats, e4m3, stored), e4m3);

  EXPECT_EQ(runtime_activation(integers, none, {.int8 = true}), s8);
  EXPECT_EQ(runtime_activation(floats, none, {.int8 = true}), none);
  EXPECT_EQ(runtime_activation(tensor::DType::kBF16, none, {.int8 = true}), none);

  EXPECT_EQ(runtime_activation(floats, e4m3, {.fp8 = false}), none);
  EXPECT_EQ(runtime_activation(integers, s8, {.fp8 = false}), s8);
}

TEST(ActivationPolicy, SaysWhatItLeavesOut) {
  TARE_NEEDS_FIXTURE(path, "checkpoints/ct-fp8-dynamic-T2");
  auto weights = checkpoints::load_checkpoint(path);
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  EXPECT_EQ(activation_note(*weights, {}), "");
  // Two layers of seven matrices; the head is not quantized.
  EXPECT_THAT(activation_note(*weights, {.fp8 = false}), ::testing::HasSubstr("e4m3 activations of 14 matrices"));
}

}  // namespace
}  // namespace tare::model
