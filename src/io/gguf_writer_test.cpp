#include "io/gguf_writer.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "io/mapped_file.h"
#include "testing/container_bytes.h"
#include "testing/fixtures.h"

namespace tare::io {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string says(const auto& result) {
  return result.ok() ? "accepted" : result.error().message();
}

TEST(GgufWriter, RoundTripsMetadataAndTensors) {
  const std::string path = testing::scratch_directory("gguf-writer") + "/x.gguf";
  GgufMetadata metadata;
  metadata.add_string("general.architecture", "llama");
  metadata.add_u32("llama.block_count", 7);
  metadata.add_f32("llama.rope.freq_base", 10000.0f);
  metadata.add_bool("tokenizer.ggml.add_bos_token", true);
  metadata.add_strings("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "c"});
  metadata.add_i32s("tokenizer.ggml.token_type", std::vector<int32_t>{1, -2, 3});
  metadata.add_u32s("llama.attention.head_count_kv", std::vector<uint32_t>{1, 2});
  metadata.add_f32s("tokenizer.ggml.scores", std::vector<float>{0.5f, -1.0f});
  auto writer =
      GgufWriter::create(path, metadata, {{"q", find_ggml_type("Q4_0"), {3, 64}}, {"f", find_ggml_type("F32"), {3}}});
  ASSERT_TRUE(writer.ok()) << says(writer);
  const std::string q(3 * 36, 'q');
  EXPECT_TRUE(writer->append("q", bytes(q.substr(0, 50))).ok());
  EXPECT_TRUE(writer->append("q", bytes(q.substr(50))).ok());
  EXPECT_TRUE(writer->append("f", bytes("ffffffffffff")).ok());
  const auto written = writer->finish();
  ASSERT_TRUE(written.ok()) << says(written);
  EXPECT_EQ(written->sha256, sha256_hex(map_file(path)->bytes()));

  const auto file = open_gguf(path);
  ASSERT_TRUE(file.ok()) << says(file);
  EXPECT_EQ(file->version, 3u);
  EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
  EXPECT_EQ(file->get_uint("llama.block_count").value(), 7u);
  EXPECT_EQ(file->get_float("llama.rope.freq_base").value(), 10000.0);
  EXPECT_EQ(file->get_bool("tokenizer.ggml.add_bos_token").value(), true);
  EXPECT_THAT(file->get_strings("tokenizer.ggml.tokens").value(), ElementsAre("a", "", "c"));
  EXPECT_THAT(file->get_ints("tokenizer.ggml.token_type").value(), ElementsAre(1, -2, 3));
  EXPECT_THAT(file->get_ints("llama.attention.head_count_kv").value(), ElementsAre(1, 2));
  EXPECT_THAT(file->get_floats("tokenizer.ggml.scores").value(), ElementsAre(0.5f, -1.0f));
  EXPECT_EQ(file->find_tensor("q")->shape, (tensor::Shape{3, 64}));
  EXPECT_EQ(file->find_tensor("q")->data.size(), q.size());
  EXPECT_EQ(file->find_tensor("f")->data.data()[11], std::byte{'f'});
  EXPECT_EQ(map_file(path)->size() % 32, 0u);
}

TEST(GgufWriter, RefusesWhatTheReaderWould) {
  const std::string folder = testing::scratch_directory("gguf-writer-bad");
  const std::string path = folder + "/x.gguf";
  const GgmlType* q4 = find_ggml_type("Q4_0");
  const auto with = [&](const GgufMetadata& metadata, const std::vector<GgufTensorDeclaration>& tensors) {
    return says(GgufWriter::create(path, metadata, tensors));
  };
  EXPECT_THAT(with({}, {{"a", q4, {33}}}), HasSubstr("not whole blocks"));
  EXPECT_THAT(with({}, {{"a", q4, {0}}}), HasSubstr("empty tensor"));
  EXPECT_THAT(with({}, {{"a b", q4, {32}}}), HasSubstr("bad tensor name"));
  EXPECT_THAT(with({}, {{"a", q4, {32}}, {"a", q4, {32}}}), HasSubstr("tensor name twice"));
  EXPECT_THAT(with({}, {{"a", q4, {1, 1, 1, 1, 32}}}), HasSubstr("too many axes"));
  EXPECT_THAT(with({}, {{"a", nullptr, {32}}}), HasSubstr("without a type"));
  GgufMetadata twice;
  twice.add_u32("k", 1);
  twice.add_u32("k", 1);
  EXPECT_THAT(with(twice, {}), HasSubstr("metadata key twice"));
  GgufMetadata alignment;
  alignment.add_u32("general.alignment", 24);
  EXPECT_THAT(with(alignment, {}), HasSubstr("bad general.alignment"));
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(GgufWriter, HonoursTheAlignmentOfItsMetadata) {
  const std::string path = testing::scratch_directory("gguf-writer-align") + "/x.gguf";
  GgufMetadata metadata;
  metadata.add_u32("general.alignment", 8192);
  const GgmlType* f32 = find_ggml_type("F32");
  auto writer = GgufWriter::create(path, metadata, {{"a", f32, {3}}, {"b", f32, {5}}});
  ASSERT_TRUE(writer.ok()) << says(writer);
  EXPECT_TRUE(writer->append("a", bytes("aaaaaaaaaaaa")).ok());
  EXPECT_TRUE(writer->append("b", bytes("bbbbbbbbbbbbbbbbbbbb")).ok());
  ASSERT_TRUE(writer->finish().ok());
  const auto file = open_gguf(path);
  ASSERT_TRUE(file.ok()) << says(file);
  EXPECT_EQ(file->alignment, 8192u);
  EXPECT_EQ(file->find_tensor("b")->offset, 2 * 8192u);
}

// What is read is written again byte for byte, padding included: nothing in the file is lost on the way.
void expect_exact_rewrite(const GgufFile& source, const std::string& path) {
  GgufMetadata metadata;
  for (const GgufKeyValue& pair : source.metadata) metadata.add(pair.key, pair.value);
  std::vector<GgufTensorDeclaration> tensors;
  for (const GgufTensor& t : source.tensors) tensors.push_back({t.name, t.type, t.shape});
  auto writer = GgufWriter::create(path, metadata, tensors);
  ASSERT_TRUE(writer.ok()) << says(writer);
  for (const GgufTensor& t : source.tensors) ASSERT_TRUE(writer->append(t.name, t.data.bytes()).ok());
  const auto written = writer->finish();
  ASSERT_TRUE(written.ok()) << says(written);
  const auto copy = map_file(path);
  ASSERT_TRUE(copy.ok());
  ASSERT_GE(copy->size(), source.bytes.size());  // a vocabulary may lack the last padding
  EXPECT_LT(copy->size() - source.bytes.size(), source.tensors.empty() ? 32u : 1u);
  EXPECT_TRUE(std::equal(source.bytes.bytes().begin(), source.bytes.bytes().end(), copy->bytes().begin())) << path;
}

TEST(GgufWriter, RewritesNestedArraysExactly) {
  using testing::bytes_of;
  using testing::gguf_string;
  std::string raw = std::string("GGUF") + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(0) + bytes_of<uint64_t>(1) +
                    gguf_string("nested") + bytes_of<uint32_t>(9) + bytes_of<uint32_t>(9) + bytes_of<uint64_t>(3) +
                    bytes_of<uint32_t>(0) + bytes_of<uint64_t>(2) + "ab" +                 //
                    bytes_of<uint32_t>(8) + bytes_of<uint64_t>(1) + gguf_string("deep") +  //
                    bytes_of<uint32_t>(9) + bytes_of<uint64_t>(0);
  const auto source = parse_gguf(testing::to_buffer(raw), "nested");
  ASSERT_TRUE(source.ok()) << says(source);
  expect_exact_rewrite(*source, testing::scratch_directory("gguf-nested") + "/x.gguf");
}

TEST(GgufWriter, RewritesEveryReferenceFileExactly) {
  TARE_NEEDS_FIXTURE(root, "");
  const std::string folder = testing::scratch_directory("gguf-rewrite");
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(root + "checkpoints")) {
    const std::string path = entry.path().string() + "/model.gguf";
    if (!fs::exists(path)) continue;
    const auto source = open_gguf(path);
    ASSERT_TRUE(source.ok()) << says(source);
    expect_exact_rewrite(*source, folder + "/x.gguf");
    ++files;
  }
  const auto vocabulary =
      parse_gguf(testing::to_buffer(testing::read_fixture(root + "tokenizers/llama2/vocab.gguf")), "v");
  ASSERT_TRUE(vocabulary.ok()) << says(vocabulary);
  expect_exact_rewrite(*vocabulary, folder + "/x.gguf");
  EXPECT_GE(files, 14u);
}

}  // namespace
}  // namespace tare::io
