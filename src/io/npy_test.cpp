#include "io/npy.h"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>

#include "testing/fixtures.h"

namespace tare::io {
namespace {

TEST(Npy, WritesTheBytesThatNumpyWrites) {
  const std::string folder = testing::scratch_directory("npy");
  const std::string path = folder + "/x.npy";
  auto writer = NpyWriter::create(path, 2, 3);
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(writer->append(std::vector<float>{1, 2}).ok());
  EXPECT_TRUE(writer->append(std::vector<float>{3, 4, 5, 6}).ok());
  ASSERT_TRUE(writer->finish().ok());
  const std::string text = testing::read_fixture(path);
  // numpy.save of [[1,2,3],[4,5,6]] as float32: 128 bytes of header, 24 of data.
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  ASSERT_EQ(text.size(), 128u + 24u);
  EXPECT_EQ(text.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(text.substr(10, header.size()), header);
  EXPECT_EQ(text.substr(10 + header.size(), 128 - 11 - header.size()), std::string(128 - 11 - header.size(), ' '));
  EXPECT_EQ(text[127], '\n');
  float last = 0;
  std::memcpy(&last, text.data() + 128 + 20, 4);
  EXPECT_EQ(last, 6.0f);
}

TEST(Npy, HoldsTheCallerToTheShape) {
  const std::string folder = testing::scratch_directory("npy-shape");
  {
    auto writer = NpyWriter::create(folder + "/x.npy", 1, 2);
    ASSERT_TRUE(writer.ok());
    EXPECT_FALSE(writer->append(std::vector<float>{1, 2, 3}).ok());
    EXPECT_TRUE(writer->append(std::vector<float>{1}).ok());
    EXPECT_FALSE(writer->finish().ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_FALSE(NpyWriter::create(folder + "/x.npy", -1, 2).ok());
  EXPECT_FALSE(NpyWriter::create(folder + "/x.npy", INT64_MAX, INT64_MAX).ok());
  auto empty = NpyWriter::create(folder + "/empty.npy", 0, 5);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->finish().ok());
}

}  // namespace
}  // namespace tare::io
