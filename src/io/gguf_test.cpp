#include "io/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "testing/container_bytes.h"
#include "testing/fixtures.h"

namespace tare::io {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::ElementsAre;
using testing::gguf_string;
using ::testing::HasSubstr;
using testing::to_buffer;

Result<GgufFile> parse(std::string bytes) {
  return parse_gguf(to_buffer(std::move(bytes)), "t.gguf");
}
std::string refusal(const Result<GgufFile>& result) {
  return result.ok() ? "accepted" : result.error().message();
}

// A small file whose every field a test can set apart.
struct Parts {
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t tensor_count = 2;
  uint64_t pair_count = 2;
  std::string pairs = gguf_string("general.architecture") + bytes_of<uint32_t>(8) + gguf_string("llama") +
                      gguf_string("llama.block_count") + bytes_of<uint32_t>(4) + bytes_of<uint32_t>(7);
  std::string name = "a.weight";
  uint32_t rank = 2;
  std::vector<uint64_t> extents = {32, 2};
  uint32_t type = 2;  // Q4_0: two blocks of 18 bytes
  uint64_t offset = 0;
  std::string second_name = "b.weight";
  uint64_t second_offset = 64;  // 36 bytes, padded to 64
  std::string padding_before;   // set by bytes() unless given
  std::string data = std::string(36, 'q') + std::string(28, '\0') + std::string(12, 'f') + std::string(20, '\0');

  std::string table() const {
    std::string out = gguf_string(name) + bytes_of(rank);
    for (const uint64_t extent : extents) out += bytes_of(extent);
    out += bytes_of(type) + bytes_of(offset);
    out += gguf_string(second_name) + bytes_of<uint32_t>(1) + bytes_of<uint64_t>(3) + bytes_of<uint32_t>(0) +
           bytes_of(second_offset);
    return out;
  }
  std::string bytes(uint64_t alignment = 32) const {
    std::string out = magic + bytes_of(version) + bytes_of(tensor_count) + bytes_of(pair_count) + pairs + table();
    if (!padding_before.empty()) return out + padding_before + data;
    while (out.size() % alignment) out += '\0';
    return out + data;
  }
};

std::string refuse_with(const std::function<void(Parts&)>& change) {
  Parts parts;
  change(parts);
  return refusal(parse(parts.bytes()));
}

// One metadata pair and no tensors.
std::string one_pair(const std::string& key, uint32_t type, const std::string& value) {
  return std::string("GGUF") + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(0) + bytes_of<uint64_t>(1) +
         gguf_string(key) + bytes_of(type) + value;
}

TEST(Gguf, ReadsASmallFile) {
  const auto file = parse(Parts{}.bytes());
  ASSERT_TRUE(file.ok()) << refusal(file);
  EXPECT_EQ(file->version, 3u);
  EXPECT_EQ(file->alignment, 32u);
  EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
  EXPECT_EQ(file->get_uint("llama.block_count").value(), 7u);
  ASSERT_EQ(file->tensors.size(), 2u);
  const GgufTensor* a = file->find_tensor("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type->name, "Q4_0");
  EXPECT_EQ(a->shape, (tensor::Shape{2, 32}));
  EXPECT_EQ(a->data.size(), 36u);
  EXPECT_EQ(a->data.data()[35], std::byte{'q'});
  EXPECT_EQ(file->find_tensor("b.weight")->data.data()[0], std::byte{'f'});
  EXPECT_EQ(file->find_tensor("c"), nullptr);
}

TEST(Gguf, ReadsTheExampleOfTheFormatDescription) {
  // One pair and one Q4_0 tensor [2, 32]: 117 header bytes, data at 128.
  std::string bytes = std::string("GGUF") + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(1) + bytes_of<uint64_t>(1) +
                      gguf_string("general.architecture") + bytes_of<uint32_t>(8) + gguf_string("llama") +
                      gguf_string("a.weight") + bytes_of<uint32_t>(2) + bytes_of<uint64_t>(32) + bytes_of<uint64_t>(2) +
                      bytes_of<uint32_t>(2) + bytes_of<uint64_t>(0);
  ASSERT_EQ(bytes.size(), 117u);
  bytes.resize(128);
  bytes += std::string(36, 'x');
  const auto file = parse(bytes);  // without the padding at the end, which is legal
  ASSERT_TRUE(file.ok()) << refusal(file);
  EXPECT_EQ(file->data_offset, 128u);
  EXPECT_TRUE(parse(bytes + std::string(28, '\0')).ok());
  EXPECT_THAT(refusal(parse(bytes + std::string(27, '\0'))), HasSubstr("inside padding"));
  EXPECT_THAT(refusal(parse(bytes + std::string(29, '\0'))), HasSubstr("after the last tensor"));
  EXPECT_THAT(refusal(parse(bytes + std::string(28, 'x'))), HasSubstr("padding is not zero"));
}

TEST(Gguf, ReadsVersion2) {
  Parts parts;
  parts.version = 2;
  EXPECT_TRUE(parse(parts.bytes()).ok());
}

TEST(Gguf, ReadsEveryMetadataType) {
  std::string pairs;
  const auto add = [&](const char* key, uint32_t type, const std::string& value) {
    pairs += gguf_string(key) + bytes_of(type) + value;
  };
  add("u8", 0, bytes_of<uint8_t>(200));
  add("i8", 1, bytes_of<int8_t>(-100));
  add("u16", 2, bytes_of<uint16_t>(60000));
  add("i16", 3, bytes_of<int16_t>(-30000));
  add("u32", 4, bytes_of<uint32_t>(4000000000u));
  add("i32", 5, bytes_of<int32_t>(-2000000000));
  add("f32", 6, bytes_of(0.5f));
  add("bool", 7, bytes_of<uint8_t>(1));
  add("string", 8, gguf_string("h\xc3\xa9llo"));
  add("ints", 9, bytes_of<uint32_t>(5) + bytes_of<uint64_t>(2) + bytes_of<int32_t>(-1) + bytes_of<int32_t>(5));
  add("u64", 10, bytes_of<uint64_t>(UINT64_MAX));
  add("i64", 11, bytes_of<int64_t>(INT64_MIN));
  add("f64", 12, bytes_of(0.25));
  add("strings", 9, bytes_of<uint32_t>(8) + bytes_of<uint64_t>(2) + gguf_string("x") + gguf_string(""));
  add("floats", 9, bytes_of<uint32_t>(6) + bytes_of<uint64_t>(2) + bytes_of(1.5f) + bytes_of(-INFINITY));
  add("bools", 9, bytes_of<uint32_t>(7) + bytes_of<uint64_t>(3) + std::string("\1\0\1", 3));
  add("none", 9, bytes_of<uint32_t>(8) + bytes_of<uint64_t>(0));
  add("nested", 9,
      bytes_of<uint32_t>(9) + bytes_of<uint64_t>(2) + bytes_of<uint32_t>(0) + bytes_of<uint64_t>(2) + "ab" +
          bytes_of<uint32_t>(8) + bytes_of<uint64_t>(1) + gguf_string("deep"));
  add("big", 9, bytes_of<uint32_t>(10) + bytes_of<uint64_t>(1) + bytes_of<uint64_t>(uint64_t{1} << 63));
  add("nan", 6, bytes_of(NAN));

  Parts parts;
  parts.pairs = pairs;
  parts.pair_count = 20;
  const auto parsed = parse(parts.bytes());
  ASSERT_TRUE(parsed.ok()) << refusal(parsed);
  const GgufFile& file = *parsed;
  EXPECT_EQ(file.get_uint("u8").value(), 200u);
  EXPECT_EQ(file.get_int("i8").value(), -100);
  EXPECT_EQ(file.get_uint("u16").value(), 60000u);
  EXPECT_EQ(file.get_int("i16").value(), -30000);
  EXPECT_EQ(file.get_uint("u32").value(), 4000000000u);
  EXPECT_EQ(file.get_int("i32").value(), -2000000000);
  EXPECT_EQ(file.get_float("f32").value(), 0.5);
  EXPECT_EQ(file.get_bool("bool").value(), true);
  EXPECT_EQ(file.get_string("string").value(), "h\xc3\xa9llo");
  EXPECT_THAT(file.get_ints("ints").value(), ElementsAre(-1, 5));
  EXPECT_EQ(file.get_uint("u64").value(), UINT64_MAX);
  EXPECT_EQ(file.get_int("i64").value(), INT64_MIN);
  EXPECT_EQ(file.get_float("f64").value(), 0.25);
  EXPECT_THAT(file.get_strings("strings").value(), ElementsAre("x", ""));
  EXPECT_THAT(file.get_floats("floats").value(), ElementsAre(1.5f, -INFINITY));
  EXPECT_THAT(file.get_bools("bools").value(), ElementsAre(true, false, true));
  EXPECT_EQ(file.get_strings("none").value().size(), 0u);
  const GgufValue* nested = file.find("nested");
  ASSERT_EQ(nested->nested.size(), 2u);
  EXPECT_EQ(nested->nested[0].raw.size(), 2u);
  EXPECT_EQ(nested->nested[1].strings[0], "deep");

  // Wrong types and absent keys are errors that name the key, also where there is a fallback.
  const auto says = [](const auto& result) { return result.ok() ? "accepted" : result.error().message(); };
  EXPECT_THAT(says(file.get_uint("i32")), AllOf(HasSubstr("'i32'"), HasSubstr("found I32")));
  EXPECT_THAT(says(file.get_uint("absent")), AllOf(HasSubstr("'absent'"), HasSubstr("missing")));
  EXPECT_THAT(says(file.get_uint_or("f32", 1)), HasSubstr("wrong type"));
  EXPECT_EQ(file.get_uint_or("absent", 9).value(), 9u);
  EXPECT_THAT(says(file.get_int("u8")), HasSubstr("wrong type"));
  EXPECT_THAT(says(file.get_float("u32")), HasSubstr("wrong type"));
  EXPECT_THAT(says(file.get_float("nan")), HasSubstr("not finite"));
  EXPECT_EQ(file.get_float_or("absent", 1.5).value(), 1.5);
  EXPECT_THAT(says(file.get_bool("u8")), HasSubstr("wrong type"));
  EXPECT_EQ(file.get_bool_or("absent", true).value(), true);
  EXPECT_THAT(says(file.get_string("strings")), HasSubstr("found ARRAY of STRING"));
  EXPECT_EQ(file.get_string_or("absent", "d").value(), "d");
  EXPECT_THAT(says(file.get_strings("string")), HasSubstr("wrong type"));
  EXPECT_THAT(says(file.get_strings("ints")), HasSubstr("wrong type"));
  EXPECT_THAT(says(file.get_ints("floats")), HasSubstr("wrong type"));
  EXPECT_THAT(says(file.get_ints("big")), HasSubstr("too large"));
  EXPECT_THAT(says(file.get_floats("ints")), HasSubstr("wrong type"));
  EXPECT_THAT(says(file.get_bools("ints")), HasSubstr("wrong type"));
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string whole = Parts{}.bytes();
  ASSERT_TRUE(parse(whole).ok());
  const size_t unpadded = whole.size() - 20;  // the padding behind the last tensor may be absent
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const auto file = parse(whole.substr(0, cut));
    if (cut == unpadded) {
      EXPECT_TRUE(file.ok());
      continue;
    }
    ASSERT_FALSE(file.ok()) << cut;
    EXPECT_THAT(file.error().message(), HasSubstr("t.gguf"));
  }
}

TEST(Gguf, RefusesEachBadFieldOfTheHeader) {
  EXPECT_THAT(refuse_with([](Parts& p) { p.magic = "GGUE"; }), HasSubstr("not a GGUF file"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.magic = "ggml"; }), HasSubstr("'ggml'"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.version = 0; }), HasSubstr("GGUF version 0"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.version = 1; }), HasSubstr("GGUF version 1"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.version = 4; }), HasSubstr("GGUF version 4"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.version = 0x03000000; }), HasSubstr("big-endian"));
  for (const uint64_t count :
       {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_NE(refuse_with([&](Parts& p) { p.tensor_count = count; }), "accepted") << count;
    EXPECT_NE(refuse_with([&](Parts& p) { p.pair_count = count; }), "accepted") << count;
  }
  EXPECT_THAT(refuse_with([](Parts& p) { p.tensor_count = UINT64_MAX; }), HasSubstr("tensor table longer"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.pair_count = UINT64_MAX; }), HasSubstr("metadata longer"));
}

TEST(Gguf, RefusesEachBadFieldOfATensor) {
  EXPECT_THAT(refuse_with([](Parts& p) { p.name = ""; }), HasSubstr("bad tensor name"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.name = "a\xff"; }), AllOf(HasSubstr("UTF-8"), HasSubstr("\\xff")));
  EXPECT_THAT(refuse_with([](Parts& p) { p.name = "b.weight"; }), HasSubstr("tensor name twice"));
  EXPECT_THAT(refuse_with([](Parts& p) {
                p.rank = 5;
                p.extents = {32, 2, 1, 1, 1};
              }),
              HasSubstr("rank"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.extents = {33, 2}; }), HasSubstr("not whole blocks"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.extents = {16, 4}; }), HasSubstr("not whole blocks"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.extents = {32, 0}; }), HasSubstr("empty tensor"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.extents = {uint64_t{1} << 63, 2}; }), HasSubstr("below 2^63"));
  EXPECT_THAT(refuse_with([](Parts& p) {
                p.extents = {uint64_t{1} << 40, uint64_t{1} << 40};
              }),
              HasSubstr("too large"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.extents = {32, uint64_t{1} << 50}; }), HasSubstr("outside the file"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.offset = 32; }), AllOf(HasSubstr("'a.weight'"), HasSubstr("offset 0")));
  EXPECT_THAT(refuse_with([](Parts& p) { p.second_offset = 36; }), HasSubstr("expected offset 64, found 36"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.second_offset = 0; }), HasSubstr("offset 64"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.second_offset = 96; }), HasSubstr("offset 64"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.second_offset = UINT64_MAX - 31; }), HasSubstr("offset 64"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.type = 4; }), HasSubstr("type 4 was removed"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.type = 43; }), HasSubstr("unknown ggml tensor type 43"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.type = 137; }), HasSubstr("unknown ggml tensor type 137"));
}

TEST(Gguf, ATensorOneBlockShortIsRefused) {
  // Three rows declared where the next tensor leaves room for two: the last row would hold a neighbour's bytes.
  const std::string message = refuse_with([](Parts& p) { p.extents = {32, 4}; });
  EXPECT_THAT(message, AllOf(HasSubstr("'b.weight'"), HasSubstr("expected offset 96, found 64")));
  EXPECT_THAT(refuse_with([](Parts& p) { p.data = p.data.substr(0, 64 + 8); }),
              AllOf(HasSubstr("'b.weight'"), HasSubstr("expected 12 bytes of F32")));
}

TEST(Gguf, RefusesPaddingThatIsNotZero) {
  EXPECT_THAT(refuse_with([](Parts& p) { p.data[40] = 1; }), HasSubstr("padding is not zero"));
  EXPECT_THAT(refuse_with([](Parts& p) { p.data.back() = 1; }), HasSubstr("padding is not zero"));
  Parts parts;
  const std::string plain = parts.bytes();
  parts.padding_before =
      std::string(plain.size() - parts.data.size() - (24 + parts.pairs.size() + parts.table().size()), 'x');
  ASSERT_FALSE(parts.padding_before.empty());
  EXPECT_THAT(refusal(parse(parts.bytes())), HasSubstr("padding is not zero"));
}

TEST(Gguf, RefusesBadMetadata) {
  const auto says = [](const std::string& key, uint32_t type, const std::string& value) {
    return refusal(parse(one_pair(key, type, value)));
  };
  const std::string one = bytes_of<uint32_t>(1);
  EXPECT_EQ(says("k", 4, one), "accepted");
  EXPECT_THAT(says("", 4, one), HasSubstr("bad metadata key"));
  EXPECT_THAT(says("a b", 4, one), HasSubstr("bad metadata key"));
  EXPECT_THAT(says("k", 13, one), HasSubstr("unknown type of metadata value 'k'"));
  EXPECT_THAT(says("k", UINT32_MAX, one), HasSubstr("unknown type"));
  EXPECT_THAT(says("k", 7, std::string(1, '\2')), HasSubstr("bad truth value"));
  EXPECT_THAT(says("k", 8, bytes_of<uint64_t>(UINT64_MAX)), HasSubstr("ends inside metadata value 'k'"));
  EXPECT_THAT(says("k", 8, bytes_of<uint64_t>(uint64_t{1} << 63)), HasSubstr("ends inside"));
  const auto array = [](uint32_t element, uint64_t count) { return bytes_of(element) + bytes_of(count); };
  EXPECT_THAT(says("k", 9, array(8, uint64_t{1} << 40)), HasSubstr("longer than the file"));
  EXPECT_THAT(says("k", 9, array(4, uint64_t{1} << 40)), HasSubstr("ends inside"));
  EXPECT_THAT(says("k", 9, array(4, uint64_t{1} << 62)), HasSubstr("too long"));  // 2^62 * 4 overflows
  EXPECT_THAT(says("k", 9, array(10, (uint64_t{1} << 61) + 1)), HasSubstr("too long"));
  EXPECT_THAT(says("k", 9, array(13, 0)), HasSubstr("unknown type"));
  EXPECT_THAT(says("k", 9, array(9, uint64_t{1} << 40)), HasSubstr("too many arrays"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += array(9, 1);
  EXPECT_THAT(says("k", 9, deep), HasSubstr("nested too deeply"));

  const std::string pair = gguf_string("k") + bytes_of<uint32_t>(4) + one;
  EXPECT_THAT(refuse_with([&](Parts& p) { p.pairs = pair + pair; }), HasSubstr("metadata key twice"));
}

TEST(Gguf, AKnownKeyOfTheWrongTypeIsRefused) {
  const auto says = [](const std::string& key, uint32_t type, const std::string& value) {
    return refusal(parse(one_pair(key, type, value)));
  };
  const std::string one = bytes_of<uint32_t>(1);
  EXPECT_EQ(says("llama.block_count", 4, one), "accepted");
  EXPECT_THAT(says("llama.block_count", 5, one), AllOf(HasSubstr("expected U32"), HasSubstr("found I32")));
  EXPECT_THAT(says("qwen2.rope.freq_base", 4, one), HasSubstr("expected F32"));
  EXPECT_THAT(says("tokenizer.ggml.tokens", 8, gguf_string("x")), HasSubstr("expected ARRAY of STRING"));
  EXPECT_THAT(says("tokenizer.ggml.bos_token_id", 6, one), HasSubstr("expected U32"));
  EXPECT_EQ(says("a.attention.head_count_kv", 9, one + bytes_of<uint64_t>(0)),
            "metadata 'a.attention.head_count_kv' has "
            "the wrong type (t.gguf): expected U32, "
            "found ARRAY of I8");
  EXPECT_EQ(says("a.attention.head_count_kv", 9, bytes_of<uint32_t>(5) + bytes_of<uint64_t>(1) + one), "accepted");
}

TEST(Gguf, AlignmentMustBeAPowerOfTwo) {
  const auto with = [](uint32_t alignment, uint64_t second, const std::string& data) {
    Parts parts;
    parts.pair_count = 3;
    parts.pairs += gguf_string("general.alignment") + bytes_of<uint32_t>(4) + bytes_of(alignment);
    parts.second_offset = second;
    parts.data = data;
    return refusal(parse(parts.bytes(alignment ? alignment : 1)));
  };
  const std::string q(36, 'q');
  const std::string f(12, 'f');
  EXPECT_EQ(with(4, 36, q + f), "accepted");
  EXPECT_EQ(with(1, 36, q + f), "accepted");
  EXPECT_EQ(with(64, 64, q + std::string(28, '\0') + f), "accepted");
  EXPECT_THAT(with(0, 36, q + f), HasSubstr("bad general.alignment"));
  EXPECT_THAT(with(3, 36, q + f), HasSubstr("bad general.alignment"));
  EXPECT_THAT(with(24, 48, q + f), HasSubstr("bad general.alignment"));
  EXPECT_THAT(with(8, 36, q + f), HasSubstr("expected offset 40"));
  EXPECT_THAT(refusal(parse(one_pair("general.alignment", 4, bytes_of<uint32_t>(1u << 21)))), HasSubstr("2^20"));
  EXPECT_THAT(refusal(parse(one_pair("general.alignment", 10, bytes_of<uint64_t>(32)))), HasSubstr("wrong type"));
}

TEST(Gguf, TypeTableHoldsBlockSizes) {
  // Bits per weight of a few types, as their authors name them.
  const auto bpw = [](const char* name) {
    const GgmlType* type = find_ggml_type(name);
    return type ? 8.0 * static_cast<double>(type->block_bytes) / static_cast<double>(type->block_size) : 0.0;
  };
  EXPECT_EQ(bpw("Q4_0"), 4.5);
  EXPECT_EQ(bpw("Q8_0"), 8.5);
  EXPECT_EQ(bpw("Q2_K"), 2.625);
  EXPECT_EQ(bpw("Q3_K"), 3.4375);
  EXPECT_EQ(bpw("Q4_K"), 4.5);
  EXPECT_EQ(bpw("Q5_K"), 5.5);
  EXPECT_EQ(bpw("Q6_K"), 6.5625);
  EXPECT_EQ(bpw("IQ1_S"), 1.5625);
  EXPECT_EQ(bpw("IQ1_M"), 1.75);
  EXPECT_EQ(bpw("IQ2_XXS"), 2.0625);
  EXPECT_EQ(bpw("IQ2_XS"), 2.3125);
  EXPECT_EQ(bpw("IQ2_S"), 2.5625);
  EXPECT_EQ(bpw("IQ3_XXS"), 3.0625);
  EXPECT_EQ(bpw("IQ3_S"), 3.4375);
  EXPECT_EQ(bpw("IQ4_XS"), 4.25);
  EXPECT_EQ(bpw("TQ1_0"), 1.6875);
  EXPECT_EQ(bpw("TQ2_0"), 2.0625);
  EXPECT_EQ(bpw("MXFP4"), 4.25);
  EXPECT_EQ(bpw("NVFP4"), 4.5);
  EXPECT_EQ(bpw("Q1_0"), 1.125);
  EXPECT_EQ(find_ggml_type("Q9_0"), nullptr);
}

TEST(Gguf, ReadsEveryReferenceModel) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string path = entry.path().string() + "/model.gguf";
    if (!std::filesystem::exists(path)) continue;
    const auto file = open_gguf(path);
    ASSERT_TRUE(file.ok()) << refusal(file);
    EXPECT_GT(file->tensors.size(), 20u) << path;
    EXPECT_NE(file->find_tensor("output_norm.weight"), nullptr) << path;
    EXPECT_TRUE(file->get_string("general.architecture").ok()) << path;
    ++files;
  }
  EXPECT_GE(files, 14u);
}

TEST(Gguf, ReadsEveryReferenceVocabulary) {
  TARE_NEEDS_FIXTURE(root, "tokenizers");
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string path = entry.path().string() + "/vocab.gguf";
    if (!std::filesystem::exists(path + ".xz")) continue;
    const auto file = parse_gguf(to_buffer(testing::read_fixture(path)), path);
    ASSERT_TRUE(file.ok()) << refusal(file);
    const auto tokens = file->get_strings("tokenizer.ggml.tokens");
    ASSERT_TRUE(tokens.ok()) << path;
    EXPECT_GT(tokens->size(), 1000u) << path;
    ++files;
  }
  EXPECT_GE(files, 7u);
}

}  // namespace
}  // namespace tare::io
