#include "tensor/quantized_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "numerics/mini_float.h"
#include "numerics/packing.h"

namespace tare::tensor {
namespace {

using namespace numerics;

Buffer pack(const std::vector<uint32_t>& codes, int64_t rows, int bits) {
  const int64_t k = static_cast<int64_t>(codes.size()) / rows;
  const int64_t stride = packed_bytes(k, bits);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * stride));
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t i = 0; i < k; ++i) {
      write_code(bytes.data() + n * stride, i * bits, bits, codes[static_cast<size_t>(n * k + i)]);
    }
  }
  return Buffer::own(std::move(bytes));
}

template <class T>
Buffer bytes_of(std::vector<T> values) {
  return Buffer::own(std::move(values));
}

// The worked example of the QoQ notes, section 2.4: G = 8, K = 16, one row.
QuantizedTensor worked_example() {
  QuantizedFields f{.n = 1, .k = 16};
  f.codes = pack({8, 1, 15, 6, 0, 9, 5, 11, 2, 12, 14, 7, 0, 13, 9, 4}, 1, 4);
  f.rule = Rule::kIntegerFirst;
  f.a = *Grid::make(GridType::kU8, 1, 16, 1, 8, bytes_of<uint8_t>({14, 3}));
  f.b = *Grid::make(GridType::kS8, 1, 16, 1, 8, bytes_of<int8_t>({-85, -27}));
  f.A = *Grid::make(GridType::kF16, 1, 16, 1, 16, bytes_of<uint16_t>({f32_to_f16(0.0882f / 119.0f)}));
  return *QuantizedTensor::make(std::move(f));
}

TEST(QuantizedTensor, WorkedExampleOfProgressiveGroups) {
  const std::vector<float> w = dequantize(worked_example());
  const int w8[] = {27, -71, 125, -1, -85, 41, -15, 69, -21, 9, 15, -6, -27, 12, 0, -15};
  const float s1 = f16_to_f32(f32_to_f16(0.0882f / 119.0f));
  EXPECT_FLOAT_EQ(s1, 0.00074100494f);
  for (size_t k = 0; k < 16; ++k) EXPECT_EQ(w[k], s1 * static_cast<float>(w8[k])) << k;

  const int xq[] = {40, -63, 2, 105, -22, 46, -95, 13, 57, -36, 19, -4, 32, 74, -127, 15};
  EXPECT_EQ(std::inner_product(std::begin(w8), std::end(w8), std::begin(xq), 0), 10363);
}

TEST(QuantizedTensor, OrderOfOperationsDecidesTheLastBit) {
  // 13 * 0.1f / 0.3f: rounding after the product and after the quotient differ.
  for (const bool code_first : {false, true}) {
    QuantizedFields f{.n = 1, .k = 1};
    f.codes = pack({13}, 1, 4);
    f.a = *Grid::make(GridType::kF32, 1, 1, 1, 1, bytes_of<float>({0.1f}));
    f.A = *Grid::make(GridType::kF32, 1, 1, 1, 1, bytes_of<float>({0.3f}));
    f.A_divides = true;
    f.code_first = code_first;
    const float quotient = 0.1f / 0.3f;
    const float product = 13.0f * 0.1f;
    const float expected = code_first ? product / 0.3f : quotient * 13.0f;
    EXPECT_EQ(dequantize(*QuantizedTensor::make(std::move(f)))[0], expected) << code_first;
  }
  EXPECT_NE((13.0f * 0.1f) / 0.3f, (0.1f / 0.3f) * 13.0f);
}

TEST(QuantizedTensor, ScaleFirstByHand) {
  // 2 rows, K = 5, groups of 2 (last one short), zeros 1 and 16, minima doubled by an outer term.
  QuantizedFields f{.n = 2, .k = 5, .bits = 3};
  f.codes = pack({0, 1, 2, 3, 4, 5, 6, 7, 0, 1}, 2, 3);
  f.a = *Grid::make(GridType::kF32, 2, 5, 1, 2, bytes_of<float>({1, 2, 4, 0.5f, 0.25f, 3}));
  f.z = *Grid::make(GridType::kS16, 2, 5, 1, 2, bytes_of<int16_t>({1, 16, 0, 1, 2, 3}));
  f.b = *Grid::make(GridType::kF16, 2, 5, 1, 5, bytes_of<uint16_t>({f32_to_f16(10), f32_to_f16(-1)}));
  f.B = *Grid::make(GridType::kF32, 2, 5, 2, 5, bytes_of<float>({2}));
  const QuantizedTensor t = *QuantizedTensor::make(std::move(f));
  const std::vector<float> expected = {-1 + 20,  0 + 20,   -28 + 20,  -26 + 20,  16 + 20,
                                       2.0f - 2, 2.5f - 2, 1.25f - 2, -0.5f - 2, -6.0f - 2};
  EXPECT_EQ(dequantize(t), expected);
  EXPECT_EQ(t.spec().group_size, 2);
  EXPECT_EQ(t.spec().zero, ZeroKind::kInteger);

  // Views: rows and columns of a view are rows and columns of the whole.
  for (int64_t row = 0; row < 2; ++row) {
    const std::vector<float> one = dequantize(*t.rows(row, row + 1));
    EXPECT_TRUE(std::equal(one.begin(), one.end(), expected.begin() + row * 5));
  }
  const QuantizedTensor right = *t.cols(2, 5);
  EXPECT_EQ(dequantize(right), (std::vector<float>{-8, -6, 36, -0.75f, -2.5f, -8}));
  EXPECT_EQ(dequantize(*right.cols(2, 3)), (std::vector<float>{36, -8}));
  EXPECT_FALSE(t.cols(1, 5).ok());
  EXPECT_FALSE(t.cols(0, 3).ok());
  EXPECT_FALSE(t.rows(1, 3).ok());
}

TEST(QuantizedTensor, ActOrderMapSurvivesCuts) {
  QuantizedFields f{.n = 1, .k = 6, .kind = CodeKind::kInt, .bits = 4};
  f.codes = pack({1, 2, 3, 4, 5, 6}, 1, 4);
  f.a = *Grid::make_mapped(GridType::kF32, 1, 2, 1, 3, bytes_of<float>({10, 100}));
  f.group_of_k = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{1, 0, 1, 0, 0, 1});
  const QuantizedTensor t = *QuantizedTensor::make(std::move(f));
  EXPECT_EQ(dequantize(t), (std::vector<float>{100, 20, 300, 40, 50, 600}));
  EXPECT_EQ(dequantize(*t.cols(1, 4)), (std::vector<float>{20, 300, 40}));
  EXPECT_TRUE(t.spec().act_order);
}

TEST(QuantizedTensor, NestedAndLut) {
  QuantizedFields f{.n = 2, .k = 4, .kind = CodeKind::kLut, .bits = 2};
  f.codes = pack({0, 1, 2, 3, 3, 2, 1, 0}, 2, 2);
  f.lut = {-1, 0, 0.5f, 1};
  f.rule = Rule::kNested;
  f.a = *Grid::make(GridType::kLut256, 2, 4, 1, 2, bytes_of<uint8_t>({0, 1, 255, 2}));
  f.A = *Grid::make(GridType::kF32, 2, 4, 2, 4, bytes_of<float>({2}));
  std::vector<float> table(256, 9.0f);
  table[0] = 1, table[1] = 2, table[2] = 3, table[255] = 4;
  f.scale_lut = std::make_shared<const std::vector<float>>(table);
  f.nested_offset = 0.5f;
  const QuantizedTensor t = *QuantizedTensor::make(std::move(f));
  EXPECT_EQ(dequantize(t), (std::vector<float>{-2.5f, 0, 2.25f, 4.5f, 8.5f, 4.25f, 0, -6.5f}));
}

TEST(QuantizedTensor, BlockScalesAndViewsInsideABlock) {
  QuantizedFields f{.n = 3, .k = 3, .kind = CodeKind::kE4M3, .bits = 8};
  f.codes = pack({0x38, 0x38, 0x38, 0x38, 0xb8, 0x38, 0x38, 0x38, 0x40}, 3, 8);  // 1, ..., -1, ..., 2
  f.a = *Grid::make(GridType::kF32, 3, 3, 2, 2, bytes_of<float>({1, 2, 3, 4}));
  const QuantizedTensor t = *QuantizedTensor::make(std::move(f));
  EXPECT_EQ(dequantize(t), (std::vector<float>{1, 1, 2, 1, -1, 2, 3, 3, 8}));
  EXPECT_EQ(dequantize(*t.rows(1, 3)), (std::vector<float>{1, -1, 2, 3, 3, 8}));
  EXPECT_EQ(dequantize(*t.rows(1, 3)->rows(1, 2)), (std::vector<float>{3, 3, 8}));
}

TEST(QuantizedTensor, VectorCodebooks) {
  QuantizedFields f{.n = 2, .k = 4, .kind = CodeKind::kVq, .bits = 1};
  f.vq = VectorCodebooks{.count = 2, .out_group = 1, .in_group = 2};
  std::vector<uint16_t> books;
  for (const float v : {1.0f, 2.0f, 3.0f, 4.0f, 10.0f, 20.0f, 30.0f, 40.0f}) books.push_back(f32_to_f16(v));
  f.vq->books = bytes_of(books);
  f.codes = pack({0, 0, 1, 1, 0, 1, 1, 0}, 2, 1);
  const QuantizedTensor t = *QuantizedTensor::make(std::move(f));
  EXPECT_EQ(dequantize(t), (std::vector<float>{11, 22, 33, 44, 31, 42, 13, 24}));
}

TEST(QuantizedTensor, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(Grid::make(GridType::kF32, 2, 5, 1, 2, bytes_of<float>({1, 2, 3})).ok());
  const auto nan = Grid::make(GridType::kF32, 1, 2, 1, 1, bytes_of<float>({1, std::nanf("")}));
  ASSERT_FALSE(nan.ok());
  EXPECT_EQ(nan.error().kind, ErrorKind::kNotFinite);
  EXPECT_NE(nan.error().message().find("(0, 1)"), std::string::npos);
  EXPECT_FALSE(Grid::make(GridType::kU4, 1, 1, 1, 1, bytes_of<uint8_t>({16})).ok());
  QuantizedFields f{.n = 1, .k = 3};
  f.codes = bytes_of<uint8_t>({0});
  EXPECT_FALSE(QuantizedTensor::make(f).ok());  // 3 codes of 4 bits need 2 bytes
  f.codes = bytes_of<uint8_t>({0, 0});
  EXPECT_TRUE(QuantizedTensor::make(f).ok());
  f.a = *Grid::make(GridType::kF32, 1, 2, 1, 1, bytes_of<float>({1, 1}));
  EXPECT_FALSE(QuantizedTensor::make(f).ok());  // a scale per column, but only two of them
}

}  // namespace
}  // namespace tare::tensor
