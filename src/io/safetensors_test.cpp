#include "io/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "testing/container_bytes.h"
#include "testing/fixtures.h"

namespace tare::io {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::to_buffer;

Result<SafetensorsFile> parse(std::string bytes) {
  return parse_safetensors(to_buffer(std::move(bytes)), "t.safetensors");
}
Result<SafetensorsFile> parse(std::string_view header, std::string_view data) {
  return parse(safetensors_bytes(header, data));
}

std::string refusal(const Result<SafetensorsFile>& result) {
  return result.ok() ? "accepted" : result.error().message();
}

// The example of the format description: 60 header bytes, padded to 64.
const std::string kExample = R"({"a":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]}}    )";

TEST(Safetensors, ReadsTheExample) {
  ASSERT_EQ(kExample.size(), 64u);
  const auto file = parse(kExample, "12345678");
  ASSERT_TRUE(file.ok()) << refusal(file);
  ASSERT_EQ(file->tensors.size(), 1u);
  const tensor::Tensor* a = file->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, tensor::DType::kF8E4M3);
  EXPECT_EQ(a->shape, (tensor::Shape{2, 4}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(a->data.data()), a->data.size()), "12345678");
  EXPECT_EQ(file->find("b"), nullptr);
}

TEST(Safetensors, ReadsEveryDType) {
  struct Row {
    const char* name;
    int bytes_of_8;  // elements
  };
  const Row rows[] = {{"F64", 64},        {"F32", 32},    {"F16", 16},        {"BF16", 16},   {"F8_E4M3", 8},
                      {"F8_E4M3FNUZ", 8}, {"F8_E5M2", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"I64", 64},
                      {"U64", 64},        {"I32", 32},    {"U32", 32},        {"I16", 16},    {"U16", 16},
                      {"I8", 8},          {"U8", 8},      {"BOOL", 8},        {"C64", 64},    {"F6_E2M3", 6},
                      {"F6_E3M2", 6},     {"F4", 4}};
  for (const Row& row : rows) {
    const std::string header =
        fmt::format(R"({{"x":{{"dtype":"{}","shape":[8],"data_offsets":[0,{}]}}}})", row.name, row.bytes_of_8);
    const auto file = parse(header, std::string(static_cast<size_t>(row.bytes_of_8), 'x'));
    ASSERT_TRUE(file.ok()) << refusal(file);
    EXPECT_EQ(tensor::dtype_name(file->tensors[0].tensor.dtype), row.name);
    EXPECT_EQ(file->tensors[0].tensor.count(), 8);
  }
}

TEST(Safetensors, ReadsScalarsEmptyTensorsAndMetadata) {
  const auto file = parse(R"({"__metadata__":{"format":"pt","note":"free \" text"},)"
                          R"("b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                          R"("e":{"dtype":"F16","shape":[0,5],"data_offsets":[4,4]},)"
                          R"("end":{"dtype":"I64","shape":[0],"data_offsets":[7,7]},)"
                          R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                          "0123456");
  ASSERT_TRUE(file.ok()) << refusal(file);
  ASSERT_EQ(file->tensors.size(), 4u);  // in the order of their bytes
  EXPECT_EQ(file->tensors[0].name, "s");
  EXPECT_EQ(file->tensors[1].name, "e");
  EXPECT_EQ(file->tensors[2].name, "b");
  EXPECT_EQ(file->tensors[3].name, "end");
  EXPECT_EQ(file->tensors[0].tensor.count(), 1);
  EXPECT_EQ(file->tensors[1].tensor.count(), 0);
  EXPECT_EQ(file->metadata.at("note"), "free \" text");
}

TEST(Safetensors, NamesMayBeEscapedUtf8) {
  const auto file = parse(R"({"gr\u00fc\u00df":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  ASSERT_TRUE(file.ok()) << refusal(file);
  EXPECT_NE(file->find("gr\xc3\xbc\xc3\x9f"), nullptr);
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string whole = safetensors_bytes(kExample, "12345678");
  ASSERT_TRUE(parse(whole).ok());
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const auto file = parse(whole.substr(0, cut));
    ASSERT_FALSE(file.ok()) << cut;
    EXPECT_EQ(file.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(file.error().message(), HasSubstr("t.safetensors"));
  }
}

TEST(Safetensors, RefusesBadHeaderLengths) {
  const std::string rest = kExample + "12345678";
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(0) + rest)), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(1) + rest)), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(59) + rest)), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(63) + rest)), HasSubstr("bytes after the last tensor"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(65) + rest)), HasSubstr("text after the object"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(73) + rest)), HasSubstr("ends inside its header"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(100'000'001) + rest)), HasSubstr("header too long"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(uint64_t{1} << 63) + rest)), HasSubstr("header too long"));
  EXPECT_THAT(refusal(parse(bytes_of<uint64_t>(UINT64_MAX) + rest)), HasSubstr("header too long"));
}

TEST(Safetensors, NamesWhatTheFileIsInstead) {
  EXPECT_THAT(refusal(parse(std::string("GGUF\3\0\0\0\0\0\0\0", 12))), HasSubstr("GGUF"));
  EXPECT_THAT(refusal(parse("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")), HasSubstr("LFS pointer"));
  EXPECT_THAT(refusal(parse("PK\x03\x04 archive")), HasSubstr("pickle"));
}

struct BadHeader {
  const char* what;
  const char* header;
  const char* message;
};

// One row for each way a header can lie. The data is always eight bytes.
const BadHeader kBadHeaders[] = {
    {"top is a list", R"({)", "not JSON"},
    {"entry is a number", R"({"a":5})", "a number as value of 'a'"},
    {"entry is null", R"({"a":null})", "null as value of 'a'"},
    {"entry is a list", R"({"a":[1]})", "a list as value of 'a'"},
    {"no dtype", R"({"a":{"shape":[8],"data_offsets":[0,8]}})", "tensor 'a' without dtype"},
    {"no shape", R"({"a":{"dtype":"U8","data_offsets":[0,8]}})", "tensor 'a' without shape"},
    {"no offsets", R"({"a":{"dtype":"U8","shape":[8]}})", "tensor 'a' without data_offsets"},
    {"unknown string key", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":"y"}})", "a string in 'x'"},
    {"unknown list key", R"({"a":{"dtype":"U8","shape":[8],"data_offset":[0,8]}})", "a list in 'data_offset'"},
    {"unknown number key", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1}})", "a number in 'x'"},
    {"nested object", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":{}}})", "an object in 'x'"},
    {"dtype is a number", R"({"a":{"dtype":8,"shape":[8],"data_offsets":[0,8]}})", "a number in 'dtype'"},
    {"dtype unknown", R"({"a":{"dtype":"F7","shape":[8],"data_offsets":[0,8]}})", "found 'F7'"},
    {"dtype lower case", R"({"a":{"dtype":"u8","shape":[8],"data_offsets":[0,8]}})", "found 'u8'"},
    {"shape is a number", R"({"a":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})", "a number in 'shape'"},
    {"shape of strings", R"({"a":{"dtype":"U8","shape":["8"],"data_offsets":[0,8]}})", "a string in 'shape'"},
    {"negative extent", R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})", "a negative number"},
    {"minus zero", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[-0,8]}})", "number"},
    {"fractional extent", R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})", "not whole"},
    {"extent 2^63", R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})", "below 2^63"},
    {"extent 2^64", R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,8]}})", "too large"},
    {"product overflows", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "too large"},
    {"span too short", R"({"a":{"dtype":"U16","shape":[8],"data_offsets":[0,8]}})", "expected 16 bytes"},
    {"span too long", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,8]}})", "expected 7 bytes"},
    {"half a byte", R"({"a":{"dtype":"F4","shape":[15],"data_offsets":[0,8]}})", "does not match"},
    {"offsets reversed", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", "outside the file"},
    {"offsets past the end", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", "outside the file"},
    {"offsets 2^64-1", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[18446744073709551608,18446744073709551615]}})",
     "outside the file"},
    {"one offset", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8]}})", "1 data_offsets"},
    {"three offsets", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", "3 data_offsets"},
    {"hole in front", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})", "hole"},
    {"hole between",
     R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "hole"},
    {"overlap",
     R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "overlap"},
    {"same bytes twice",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
     "overlap"},
    {"empty tensor inside another",
     R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
     "overlap"},
    {"bytes left over", R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})", "after the last tensor"},
    {"no tensors but bytes", R"({})", "after the last tensor"},
    {"name twice",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "tensor name twice"},
    {"name twice by escape",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "tensor name twice"},
    {"dtype twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "dtype twice"},
    {"shape twice", R"({"a":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})", "shape twice"},
    {"offsets twice", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"data_offsets":[0,8]}})", "offsets twice"},
    {"empty name", R"({"":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "bad tensor name"},
    {"name with NUL", R"({"a\u0000":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "bad tensor name"},
    {"name with a space", R"({"a b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "bad tensor name"},
    {"name not UTF-8", "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", "not JSON"},
    {"lone surrogate", R"({"a\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "not JSON"},
    {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", "'__metadata__' twice"},
    {"metadata key twice", R"({"__metadata__":{"k":"1","k":"2"}})", "metadata key 'k' twice"},
    {"metadata of numbers", R"({"__metadata__":{"k":1}})", "a number in __metadata__ 'k'"},
    {"metadata of lists", R"({"__metadata__":{"k":["1"]}})", "a list in __metadata__ 'k'"},
    {"metadata of objects", R"({"__metadata__":{"k":{}}})", "an object in __metadata__ 'k'"},
    {"metadata is a string", R"({"__metadata__":"pt"})", "a string as value of '__metadata__'"},
    {"comment", R"({/**/"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "not JSON"},
    {"trailing comma", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},})", "not JSON"},
    {"text after", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}x)", "text after the object"},
    {"padding of newlines", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}\n", "after the object"},
    {"padding of zeros", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}\1", "after the object"},
};

TEST(Safetensors, RefusesEachBadHeaderByName) {
  for (const BadHeader& row : kBadHeaders) {
    const auto file = parse(row.header, "01234567");
    EXPECT_THAT(refusal(file), HasSubstr(row.message)) << row.what;
  }
}

TEST(Safetensors, DeepNestingIsRefusedAtItsFirstLevel) {
  EXPECT_THAT(refusal(parse(R"({"a":{"shape":)" + std::string(1 << 20, '['), "")), HasSubstr("a list in 'shape'"));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"a":)";
  EXPECT_THAT(refusal(parse(objects, "")), HasSubstr("an object in 'a'"));
  std::string numbers = R"({"a":{"shape":[1)";
  for (int i = 0; i < 100000; ++i) numbers += ",1";
  EXPECT_THAT(refusal(parse(numbers, "")), HasSubstr("too many numbers in 'shape'"));
}

TEST(Safetensors, OpensOnlyRegularFiles) {
  const std::string folder = testing::scratch_directory("safetensors-open");
  EXPECT_THAT(refusal(open_safetensors(folder + "/absent.safetensors")), HasSubstr("cannot open"));
  EXPECT_THAT(refusal(open_safetensors(folder)), HasSubstr("a folder"));
  std::ofstream(folder + "/empty.safetensors").flush();
  EXPECT_THAT(refusal(open_safetensors(folder + "/empty.safetensors")), HasSubstr("too short"));
}

TEST(Safetensors, ReadsEveryReferenceFile) {
  TARE_NEEDS_FIXTURE(root, "");
  size_t files = 0;
  for (const char* folder : {"checkpoints", "models"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root + folder)) {
      const std::string path = entry.path().string() + "/model.safetensors";
      if (!std::filesystem::exists(path)) continue;
      const auto file = open_safetensors(path);
      ASSERT_TRUE(file.ok()) << refusal(file);
      EXPECT_GT(file->tensors.size(), 10u) << path;
      EXPECT_NE(file->find("model.norm.weight"), nullptr) << path;
      ++files;
    }
  }
  EXPECT_GE(files, 44u);
}

}  // namespace
}  // namespace tare::io
