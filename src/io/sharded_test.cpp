#include "io/sharded.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "io/safetensors_writer.h"
#include "testing/fixtures.h"

namespace tare::io {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const std::string& path) {
  const auto files = open_tensor_files(path);
  return files.ok() ? "accepted" : files.error().message();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
std::string read_file(const std::string& path) {
  return testing::read_fixture(path);
}

void replace_in_file(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, text.npos);
  write_file(path, text.replace(at, from.size(), to));
}

// Six tensors of eight bytes in three shards of two: a0 a1 | b0 b1 | c0 c1.
std::string three_shards(const std::string& name) {
  const std::string folder = testing::scratch_directory(name);
  std::vector<TensorDeclaration> tensors;
  for (const char* t : {"a0", "a1", "b0", "b1", "c0", "c1"}) tensors.push_back({t, tensor::DType::kU8, {8}});
  auto writer = SafetensorsWriter::create_in_folder(folder, tensors, {.max_shard_bytes = 16});
  EXPECT_TRUE(writer.ok());
  for (const TensorDeclaration& t : tensors) {
    const std::string data = t.name + "......";
    EXPECT_TRUE(writer->append(t.name, std::as_bytes(std::span(data))).ok());
  }
  EXPECT_TRUE(writer->finish().ok());
  return folder;
}
std::string shard(const std::string& folder, int number) {
  return folder + "/model-0000" + std::to_string(number) + "-of-00003.safetensors";
}
constexpr const char* kIndex = "/model.safetensors.index.json";

TEST(Sharded, ReadsIntactShards) {
  const std::string folder = three_shards("sharded-intact");
  const auto files = open_tensor_files(folder);
  ASSERT_TRUE(files.ok()) << files.error().message();
  EXPECT_EQ(files->files.size(), 3u);
  EXPECT_EQ(files->tensors.size(), 6u);
  EXPECT_EQ(files->total_bytes(), 48u);
  ASSERT_NE(files->find("b1"), nullptr);
  EXPECT_EQ(files->find("b1")->data.data()[1], std::byte{'1'});
  EXPECT_EQ(files->tensors.at("c0").file, 2u);
  EXPECT_EQ(files->find("d"), nullptr);
  EXPECT_TRUE(files->unread_files.empty());
  EXPECT_EQ(files->metadata[0].at("format"), "pt");
}

TEST(Sharded, AShardAloneIsReadByItsName) {
  const auto files = open_tensor_files(shard(three_shards("sharded-lone"), 2));
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->tensors.size(), 2u);
}

TEST(Sharded, MissingFilesAreAllNamed) {
  const std::string folder = three_shards("sharded-missing");
  fs::remove(shard(folder, 1));
  fs::remove(shard(folder, 3));
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("missing files 'model-00001-of-00003.safetensors', "
                                               "'model-00003-of-00003.safetensors'"),
                                     HasSubstr("the index names"), HasSubstr("model-00002")));
}

TEST(Sharded, MissingTensorsAreAllNamed) {
  const std::string folder = three_shards("sharded-gone");
  replace_in_file(folder + kIndex, R"("a0":)", R"("a0_scale": "model-00001-of-00003.safetensors",
    "c9_scale": "model-00003-of-00003.safetensors",
    "a0":)");
  EXPECT_THAT(refusal(folder), HasSubstr("tensors that no file holds: 'a0_scale', 'c9_scale'"));
}

TEST(Sharded, ExtraTensorsAreAllNamed) {
  const std::string folder = three_shards("sharded-extra");
  replace_in_file(folder + kIndex, R"(    "a1": "model-00001-of-00003.safetensors",)", "");
  replace_in_file(folder + kIndex, R"(    "b0": "model-00002-of-00003.safetensors",)", "");
  EXPECT_THAT(refusal(folder), HasSubstr("the index does not name: 'a1', 'b0'"));
}

TEST(Sharded, AStaleIndexNamesBothSets) {
  const std::string folder = three_shards("sharded-stale");
  std::string index = read_file(folder + kIndex);
  for (size_t at; (at = index.find("-of-00003")) != index.npos;) index.replace(at, 9, "-of-00005");
  write_file(folder + kIndex, index);
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("missing files 'model-00001-of-00005.safetensors'"),
                                     HasSubstr("files of another save 'model-00001-of-00003.safetensors'")));
}

TEST(Sharded, ATruncatedFileIsNamed) {
  const std::string folder = three_shards("sharded-cut");
  fs::resize_file(shard(folder, 2), fs::file_size(shard(folder, 2)) - 1);
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("model-00002-of-00003"), HasSubstr("outside the file")));
}

TEST(Sharded, ATensorInTheWrongFileIsNamed) {
  const std::string folder = three_shards("sharded-moved");
  replace_in_file(folder + kIndex, R"("b0": "model-00002)", R"("b0": "model-00003)");
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr("in another file: 'b0 (index: model-00003"), HasSubstr("found: model-00002")));
}

TEST(Sharded, ATensorInTwoFilesIsNamed) {
  const std::string folder = three_shards("sharded-twice");
  replace_in_file(shard(folder, 3), "\"c0\"", "\"a0\"");
  EXPECT_THAT(refusal(folder),
              AllOf(HasSubstr("tensors in two files: 'a0 (model-00001"), HasSubstr("no file holds: 'c0'")));
}

TEST(Sharded, LeftoverFilesOfAnotherSaveAreRefused) {
  const std::string folder = three_shards("sharded-leftover");
  fs::copy(shard(folder, 1), folder + "/model-00001-of-00002.safetensors");
  EXPECT_THAT(refusal(folder), HasSubstr("files of another save 'model-00001-of-00002.safetensors'"));
  fs::remove(folder + "/model-00001-of-00002.safetensors");
  fs::copy(shard(folder, 1), folder + "/model.safetensors");
  EXPECT_THAT(refusal(folder), HasSubstr("files of another save 'model.safetensors'"));
  fs::remove(folder + kIndex);
  EXPECT_THAT(refusal(folder), HasSubstr("two sets of weights"));
}

TEST(Sharded, OtherFilesAreReportedAndNotRead) {
  const std::string folder = three_shards("sharded-adapter");
  write_file(folder + "/adapter_model.safetensors", "not even safetensors");
  const auto files = open_tensor_files(folder);
  ASSERT_TRUE(files.ok()) << files.error().message();
  EXPECT_THAT(files->unread_files, ElementsAre(EndsWith("adapter_model.safetensors")));
}

TEST(Sharded, AFolderWithoutWeightsSaysWhatWasSought) {
  const std::string folder = testing::scratch_directory("sharded-none");
  EXPECT_THAT(refusal(folder), AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("no .safetensors file")));
  write_file(folder + "/x.safetensors", "");
  EXPECT_THAT(refusal(folder), HasSubstr("'x.safetensors'"));
  EXPECT_THAT(refusal(folder + "/absent"), HasSubstr("cannot open"));
}

TEST(Sharded, BadIndexesAreRefused) {
  const std::string folder = testing::scratch_directory("sharded-index");
  const auto with = [&](const std::string& text) {
    write_file(folder + kIndex, text);
    return refusal(folder);
  };
  EXPECT_THAT(with(""), HasSubstr("malformed JSON"));
  EXPECT_THAT(with("[]"), HasSubstr("bad index"));
  EXPECT_THAT(with("{}"), HasSubstr("an object 'weight_map'"));
  EXPECT_THAT(with(R"({"weight_map":[]})"), HasSubstr("an object 'weight_map'"));
  EXPECT_THAT(with(R"({"weight_map":{}})"), HasSubstr("at least one tensor"));
  EXPECT_THAT(with(R"({"weight_map":{"a":1}})"), HasSubstr("bad file of tensor 'a'"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"), HasSubstr("'a' twice"));
  EXPECT_THAT(with(R"({"weight_map":{"":"x.safetensors"}})"), HasSubstr("bad tensor name"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"x.bin"}})"), HasSubstr("bad file of tensor 'a'"));
  for (const char* outside : {"", "/etc/x.safetensors", "../x.safetensors", "a/../../x.safetensors", "./x.safetensors",
                              "x.safetensors/", "x\\u0000.safetensors"}) {
    EXPECT_THAT(with(std::string(R"({"weight_map":{"a":")") + outside + R"("}})"),
                HasSubstr("inside the model's folder"))
        << outside;
  }
  EXPECT_THAT(with(R"({"weight_map":{"a":"sub/x.safetensors"}})"), HasSubstr("missing files 'sub/x.safetensors'"));
}

TEST(Sharded, ReadsEveryReferenceFolder) {
  TARE_NEEDS_FIXTURE(root, "models");
  for (const char* model : {"T1", "T2", "T4"}) {
    const auto files = open_tensor_files(root + "/" + model);
    ASSERT_TRUE(files.ok()) << files.error().message();
    EXPECT_EQ(files->files.size(), 1u);
    EXPECT_GT(files->total_bytes(), 1000000u);
  }
}

}  // namespace
}  // namespace tare::io
