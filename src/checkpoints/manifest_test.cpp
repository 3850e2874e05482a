#include "checkpoints/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "testing/fixtures.h"

namespace tare::checkpoints {
namespace {

using ::testing::HasSubstr;

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string sealed_folder(const std::string& name) {
  const std::string folder = testing::scratch_directory(name);
  write(folder + "/a.bin", "hello");
  write(folder + "/empty", "");
  write(folder + "/sub/b.txt", "world");
  EXPECT_TRUE(write_manifest(folder, {{"note", "\"manifest_sha256\":\" in a text"}}, {}).ok());
  return folder;
}

size_t problem_count(const std::string& folder) {
  const auto problems = check_manifest(folder);
  EXPECT_TRUE(problems.ok()) << problems.error().message();
  return problems.ok() ? problems->size() : 0;
}

TEST(Manifest, HoldsForWhatWasWritten) {
  const std::string folder = sealed_folder("manifest-good");
  EXPECT_TRUE(has_manifest(folder));
  EXPECT_EQ(problem_count(folder), 0u);
  const json::value document = *json::parse_file(folder + "/tare_manifest.json");
  EXPECT_EQ(document.at("files").at(0).at("sha256").as_string(),
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");  // sha256sum of "hello"
}

// Every single byte of every file, the manifest included, changed in one bit.
TEST(Manifest, FindsAnyChangedByte) {
  const std::string folder = sealed_folder("manifest-flip");
  int changed = 0;
  for (const char* name : {"a.bin", "sub/b.txt", "tare_manifest.json"}) {
    const std::string path = folder + "/" + name;
    const std::string good = *read_text_file(path);
    for (size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 7)));
      write(path, bad);
      EXPECT_GE(problem_count(folder), 1u) << name << " byte " << i;
      ++changed;
    }
    write(path, good);
  }
  EXPECT_GT(changed, 300);
  EXPECT_EQ(problem_count(folder), 0u);
}

TEST(Manifest, FindsMissingAddedAndCutFiles) {
  const std::string folder = sealed_folder("manifest-files");
  write(folder + "/more", "x");
  EXPECT_THAT(check_manifest(folder)->at(0).what, HasSubstr("not in the manifest"));
  std::filesystem::remove(folder + "/more");
  write(folder + "/a.bin", "hell");
  EXPECT_THAT(check_manifest(folder)->at(0).what, HasSubstr("expected 5 bytes, found 4"));
  std::filesystem::remove(folder + "/a.bin");
  EXPECT_THAT(check_manifest(folder)->at(0).what, HasSubstr("missing"));
  std::filesystem::remove(folder + "/tare_manifest.json");
  EXPECT_FALSE(check_manifest(folder).ok());
}

TEST(Manifest, NamesThatLeaveTheFolderAreRefused) {
  for (const char* name : {"../x", "/etc/passwd", "a/../../b", ""}) {
    const std::string folder = testing::scratch_directory("manifest-hostile");
    const json::object document{{"files", {{{"name", name}, {"bytes", 1}, {"sha256", "0"}}}}};
    write(folder + "/tare_manifest.json", boost::json::serialize(document));
    const auto problems = check_manifest(folder);
    ASSERT_TRUE(problems.ok());
    EXPECT_THAT(problems->back().what, HasSubstr("wrong form")) << name;
  }
}

}  // namespace
}  // namespace tare::checkpoints
