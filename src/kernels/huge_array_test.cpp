#include "kernels/huge_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tare::kernels {
namespace {

bool all_are(const HugeArray& array, uint8_t value) {
  return std::all_of(array.data(), array.data() + array.bytes(), [&](uint8_t b) { return b == value; });
}

TEST(HugeArray, ArraysAreZeroAlignedAndApart) {
  std::vector<HugeArray> arrays;
  for (const int64_t bytes : {1, 63, 64, 100, 4095, 5 << 20, (2 << 20) - 1, 70 << 20, 3}) {
    auto array = HugeArray::make(bytes);
    ASSERT_TRUE(array.ok());
    EXPECT_EQ(array->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array->data()) % 64, 0u);
    EXPECT_TRUE(all_are(*array, 0));
    arrays.push_back(std::move(*array));
    std::fill_n(arrays.back().data(), bytes, static_cast<uint8_t>(arrays.size()));
  }
  // Giving some back changes no neighbour.
  arrays.erase(arrays.begin() + 5);
  arrays.erase(arrays.begin() + 1);
  const uint8_t kept[] = {1, 3, 4, 5, 7, 8, 9};
  for (size_t i = 0; i < arrays.size(); ++i) EXPECT_TRUE(all_are(arrays[i], kept[i])) << i;
}

TEST(HugeArray, RoomIsNeverGivenTwice) {
  for (int i = 0; i < 100; ++i) {
    auto array = HugeArray::make(1 << 20);
    ASSERT_TRUE(array.ok());
    ASSERT_TRUE(all_are(*array, 0)) << i;
    std::fill_n(array->data(), array->bytes(), uint8_t{255});
  }
}

TEST(HugeArray, EmptyHasNoMemory) {
  auto array = HugeArray::make(0);
  ASSERT_TRUE(array.ok());
  EXPECT_EQ(array->data(), nullptr);
}

}  // namespace
}  // namespace tare::kernels
