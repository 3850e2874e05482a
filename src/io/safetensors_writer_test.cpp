#include "io/safetensors_writer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/sharded.h"
#include "testing/fixtures.h"

namespace tare::io {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using ::testing::HasSubstr;

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string says(const auto& result) {
  return result.ok() ? "accepted" : result.error().message();
}
std::string content(const tensor::Tensor& t) {
  return std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size());
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(SafetensorsWriter, RoundTripsAFile) {
  const std::string folder = testing::scratch_directory("writer-file");
  const std::string path = folder + "/x.safetensors";
  const std::vector<TensorDeclaration> tensors = {
      {"f", DType::kF32, {2, 3}}, {"empty", DType::kF16, {0, 7}}, {"u", DType::kU8, {5}}, {"none", DType::kU8, {0}}};
  auto writer = SafetensorsWriter::create_file(path, tensors, {.metadata = {{"format", "pt"}, {"q", "\"quoted\"\n"}}});
  ASSERT_TRUE(writer.ok()) << says(writer);
  const std::string f = "abcdefghijklmnopqrstuvwx";
  EXPECT_TRUE(writer->append("f", bytes(f.substr(0, 7))).ok());
  EXPECT_TRUE(writer->append("f", bytes(f.substr(7))).ok());
  EXPECT_TRUE(writer->append("u", bytes("12345")).ok());
  EXPECT_EQ(names_in(folder).size(), 1u);
  EXPECT_FALSE(fs::exists(path));  // not before it is whole
  const auto written = writer->finish();
  ASSERT_TRUE(written.ok()) << says(written);
  ASSERT_EQ(written->size(), 1u);
  EXPECT_THAT(names_in(folder), ::testing::ElementsAre("x.safetensors"));
  EXPECT_EQ(written->front().bytes, fs::file_size(path));
  EXPECT_EQ(written->front().sha256, sha256_hex(map_file(path)->bytes()));

  const auto file = open_safetensors(path);
  ASSERT_TRUE(file.ok()) << says(file);
  EXPECT_EQ(file->tensors.size(), 4u);
  EXPECT_EQ(file->find("f")->shape, (tensor::Shape{2, 3}));
  EXPECT_EQ(content(*file->find("f")), f);
  EXPECT_EQ(content(*file->find("u")), "12345");
  EXPECT_EQ(file->find("empty")->shape, (tensor::Shape{0, 7}));
  EXPECT_EQ(file->metadata.at("q"), "\"quoted\"\n");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->tensors[0].tensor.data.data()) % 8, 0u);  // the header is padded
  EXPECT_THAT(says(writer->finish()), HasSubstr("finished twice"));
}

TEST(SafetensorsWriter, WideElementsGoFirstWhereTheDeclaredOrderMisaligns) {
  const std::string path = testing::scratch_directory("writer-align") + "/x.safetensors";
  const std::vector<TensorDeclaration> tensors = {
      {"odd", DType::kU8, {3}}, {"half", DType::kF16, {1}}, {"wide", DType::kF64, {2}}, {"word", DType::kF32, {1}}};
  auto writer = SafetensorsWriter::create_file(path, tensors);
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(writer->append("odd", bytes("123")).ok());
  EXPECT_TRUE(writer->append("half", bytes("hh")).ok());
  EXPECT_TRUE(writer->append("wide", bytes("aaaaaaaabbbbbbbb")).ok());
  EXPECT_TRUE(writer->append("word", bytes("wwww")).ok());
  const auto written = writer->finish();
  ASSERT_TRUE(written.ok()) << says(written);
  EXPECT_EQ(written->front().sha256, sha256_hex(map_file(path)->bytes()));
  const auto file = open_safetensors(path);
  ASSERT_TRUE(file.ok()) << says(file);
  std::vector<std::string> order;
  for (const NamedTensor& t : file->tensors) {
    order.push_back(t.name);
    const auto element = static_cast<uintptr_t>(tensor::dtype_bits(t.tensor.dtype) / 8);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.tensor.data.data()) % element, 0u) << t.name;
  }
  EXPECT_THAT(order, ::testing::ElementsAre("wide", "word", "half", "odd"));
  EXPECT_EQ(content(*file->find("odd")), "123");
  EXPECT_EQ(content(*file->find("wide")), "aaaaaaaabbbbbbbb");
}

TEST(SafetensorsWriter, ShardsKeepTheLimitAndTheIndexIsRight) {
  const std::string final_path = testing::scratch_directory("writer-shards") + "/out";
  auto folder = AtomicDirectory::create(final_path, false);
  ASSERT_TRUE(folder.ok());
  std::vector<TensorDeclaration> tensors;
  for (int i = 0; i < 7; ++i) tensors.push_back({"t" + std::to_string(i), DType::kF32, {i == 3 ? 100 : 5}});
  auto writer = SafetensorsWriter::create_in_folder(folder->path(), tensors, {.max_shard_bytes = 64});
  ASSERT_TRUE(writer.ok()) << says(writer);
  for (const TensorDeclaration& t : tensors) {
    ASSERT_TRUE(writer->append(t.name, bytes(std::string(static_cast<size_t>(4 * t.shape[0]), t.name[1]))).ok());
  }
  const auto written = writer->finish();
  ASSERT_TRUE(written.ok()) << says(written);
  // t0 t1 t2 | t3 (longer than the limit, alone) | t4 t5 t6
  EXPECT_EQ(written->size(), 4u);
  for (const WrittenFile& file : *written) EXPECT_EQ(file.sha256, sha256_hex(map_file(file.path)->bytes()));
  ASSERT_TRUE(folder->commit().ok());
  const auto files = open_tensor_files(final_path);
  ASSERT_TRUE(files.ok()) << says(files);
  EXPECT_EQ(files->files.size(), 3u);
  EXPECT_EQ(files->tensors.at("t2").file, 0u);
  EXPECT_EQ(files->tensors.at("t3").file, 1u);
  EXPECT_EQ(files->tensors.at("t4").file, 2u);
  EXPECT_EQ(content(*files->find("t6")), std::string(20, '6'));
  const auto index = json::parse_file(final_path + "/model.safetensors.index.json");
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->at("metadata").at("total_size").as_int64(), 6 * 20 + 400);
}

TEST(SafetensorsWriter, SaysItsBytesBeforeItWrites) {
  const std::vector<TensorDeclaration> tensors = {
      {"a", DType::kU8, {3}}, {"b", DType::kF32, {5}}, {"c", DType::kI8, {0}}};
  for (const uint64_t limit : {uint64_t{0}, uint64_t{4}}) {
    const std::string folder = testing::scratch_directory("writer-bytes");
    auto writer = SafetensorsWriter::create_in_folder(folder, tensors, {.max_shard_bytes = limit});
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(writer->append("a", bytes("abc")).ok());
    EXPECT_TRUE(writer->append("b", bytes("abcdefghijklmnopqrst")).ok());
    const auto written = writer->finish();
    ASSERT_TRUE(written.ok()) << says(written);
    uint64_t total = 0;
    for (const WrittenFile& file : *written) total += file.bytes;
    EXPECT_EQ(*SafetensorsWriter::bytes_in_folder(tensors, {.max_shard_bytes = limit}), total);
    EXPECT_EQ(written->size(), limit == 0 ? 1u : 3u);
    fs::remove_all(folder);
  }
}

TEST(SafetensorsWriter, OneShardNeedsNoIndex) {
  const std::string folder = testing::scratch_directory("writer-single");
  auto writer = SafetensorsWriter::create_in_folder(folder, {{"a", DType::kU8, {4}}}, {.max_shard_bytes = 4});
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(writer->append("a", bytes("abcd")).ok());
  EXPECT_TRUE(writer->finish().ok());
  EXPECT_THAT(names_in(folder), ::testing::ElementsAre("model.safetensors"));
}

TEST(SafetensorsWriter, HoldsTheCallerToTheDeclaration) {
  const std::string folder = testing::scratch_directory("writer-order");
  const std::string path = folder + "/x.safetensors";
  {
    auto writer = SafetensorsWriter::create_file(path, {{"a", DType::kU8, {4}}, {"b", DType::kU8, {4}}});
    ASSERT_TRUE(writer.ok());
    EXPECT_THAT(says(writer->append("b", bytes("1234"))), HasSubstr("expected 'a', found 'b'"));
    EXPECT_THAT(says(writer->append("a", bytes("12345"))), HasSubstr("longer than declared"));
    EXPECT_TRUE(writer->append("a", bytes("123")).ok());
    EXPECT_THAT(says(writer->append("b", bytes("1234"))), HasSubstr("out of order"));
    EXPECT_TRUE(writer->append("a", bytes("4")).ok());
    EXPECT_THAT(says(writer->append("a", bytes("5"))), HasSubstr("longer than declared"));
    EXPECT_THAT(says(writer->finish()), HasSubstr("not complete ('b')"));
  }
  EXPECT_TRUE(names_in(folder).empty());  // an abandoned writer leaves nothing
}

TEST(SafetensorsWriter, RefusesWhatTheReaderWould) {
  const std::string path = testing::scratch_directory("writer-bad") + "/x.safetensors";
  const auto with = [&](std::vector<TensorDeclaration> tensors, SafetensorsWriterOptions options = {}) {
    return says(SafetensorsWriter::create_file(path, tensors, options));
  };
  EXPECT_THAT(with({{"", DType::kU8, {4}}}), HasSubstr("bad tensor name"));
  EXPECT_THAT(with({{"__metadata__", DType::kU8, {4}}}), HasSubstr("reserved"));
  EXPECT_THAT(with({{"a", DType::kU8, {4}}, {"a", DType::kU8, {4}}}), HasSubstr("twice"));
  EXPECT_THAT(with({{"a", DType::kU8, {-4}}}), HasSubstr("negative extent"));
  EXPECT_THAT(with({{"a", DType::kF4, {3}}}), HasSubstr("not whole bytes"));
  EXPECT_THAT(with({{"a", DType::kU8, {4}}}, {.metadata = {{"k", "\xff"}}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(says(SafetensorsWriter::create_file("/no/such/folder/x", {})), HasSubstr("cannot create file"));
}

TEST(OutputFile, AWriteThatFailsLeavesNothing) {
  const std::string folder = testing::scratch_directory("output-limit");
  // The size limit of the process stands for a full disk: the write comes back short, then with an error.
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  {
    auto file = OutputFile::create(folder + "/x");
    message = file.ok() ? says(file->write(std::string(2000, 'x'))) : says(file);
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("cannot write file"));
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(OutputFile, AFolderThatHasGoneIsAnError) {
  const std::string folder = testing::scratch_directory("output-gone");
  auto file = OutputFile::create(folder + "/x");
  ASSERT_TRUE(file.ok());
  fs::remove_all(folder);
  EXPECT_TRUE(file->write("text").ok());
  EXPECT_THAT(says(file->finish()), HasSubstr("cannot rename into place"));
}

TEST(SafetensorsWriter, RewritesEveryReferenceFileExactly) {
  TARE_NEEDS_FIXTURE(root, "models");
  const std::string folder = testing::scratch_directory("writer-rewrite");
  for (const char* model : {"T1", "T2", "T4"}) {
    const std::string path = root + "/" + model + "/model.safetensors";
    const auto source = open_safetensors(path);
    ASSERT_TRUE(source.ok());
    std::vector<TensorDeclaration> tensors;
    for (const NamedTensor& t : source->tensors) tensors.push_back({t.name, t.tensor.dtype, t.tensor.shape});
    const std::string copy = folder + "/" + model;
    auto writer = SafetensorsWriter::create_file(copy, tensors, {.metadata = source->metadata});
    ASSERT_TRUE(writer.ok());
    for (const NamedTensor& t : source->tensors) ASSERT_TRUE(writer->append(t.name, t.tensor.data.bytes()).ok());
    const auto written = writer->finish();
    ASSERT_TRUE(written.ok());
    // The reference writer lays out headers the same way, so the whole file is equal.
    EXPECT_EQ(written->front().sha256, sha256_hex(map_file(path)->bytes())) << model;
  }
}

}  // namespace
}  // namespace tare::io
