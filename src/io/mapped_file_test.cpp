#include "io/mapped_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "io/names.h"
#include "testing/fixtures.h"

namespace tare::io {
namespace {

using ::testing::HasSubstr;

TEST(MappedFile, AdviceKeepsTheContent) {
  const std::string path = testing::scratch_directory("mapped") + "/x";
  std::string content;
  for (int i = 0; i < 100000; ++i) content += static_cast<char>('a' + i % 23);
  std::ofstream(path) << content;
  Buffer slice;
  {
    const auto file = map_file(path);
    ASSERT_TRUE(file.ok());
    ASSERT_EQ(file->size(), content.size());
    slice = file->slice(5000, 90000);
  }
  // The slice alone keeps the mapping; dropping pages only means reading them again.
  for (const Advice advice : {Advice::kSequential, Advice::kRandom, Advice::kWillNeed, Advice::kDrop}) {
    advise(slice, advice);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(slice.data()), slice.size()), content.substr(5000, 90000));
  }
}

TEST(MappedFile, DropLeavesHeapMemoryAlone) {
  const Buffer heap = Buffer::own(std::string(1 << 16, 'x'));
  advise(heap, Advice::kDrop);
  for (const std::byte b : heap.bytes()) ASSERT_EQ(b, std::byte{'x'});
  advise(Buffer(), Advice::kDrop);
}

TEST(MappedFile, OpensOnlyRegularFiles) {
  const std::string folder = testing::scratch_directory("mapped-kinds");
  const auto says = [](const std::string& path) {
    const auto file = map_file(path);
    return file.ok() ? "accepted" : file.error().message();
  };
  EXPECT_THAT(says(folder + "/absent"), HasSubstr("cannot open file"));
  EXPECT_THAT(says(folder), HasSubstr("a folder"));
  ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(says(folder + "/pipe"), HasSubstr("a pipe"));  // and does not wait for a writer
  EXPECT_THAT(says("/dev/null"), HasSubstr("a device"));
  std::ofstream(folder + "/empty").flush();
  const auto empty = map_file(folder + "/empty");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->empty());
}

TEST(Names, Utf8IsCheckedWhole) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf"));
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc3z"}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << printable(bad);
  }
}

TEST(Names, MessagesShowUnprintableBytes) {
  EXPECT_EQ(printable(std::string("a\0b\xff", 4)), "'a\\x00b\\xff'");
  EXPECT_EQ(printable("gr\xc3\xbc"), "'gr\xc3\xbc'");
  EXPECT_EQ(printable(std::string(500, 'x')).size(), 205u);
  EXPECT_FALSE(check_name(std::string(70000, 'x'), "tensor name", "f").ok());
}

}  // namespace
}  // namespace tare::io
