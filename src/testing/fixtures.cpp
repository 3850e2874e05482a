#include "testing/fixtures.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace tare::testing {

namespace fs = std::filesystem;

std::optional<std::string> fixtures_root() {
  if (const char* set = std::getenv("TARE_FIXTURES"))
    return fs::exists(set) ? std::optional<std::string>(set) : std::nullopt;
  const std::string beside = "../shared/fixtures";
  return fs::exists(beside) ? std::optional<std::string>(fs::absolute(beside).string()) : std::nullopt;
}

std::optional<std::string> demo_model() {
  const char* set = std::getenv("TARE_DEMO_MODEL");
  const std::string path = set ? set : "build/demo/SmolLM2-135M-Instruct.Q4_1.gguf";
  return fs::exists(path) ? std::optional<std::string>(path) : std::nullopt;
}

std::string read_fixture(const std::string& path) {
  if (fs::exists(path)) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  if (fs::exists(path + ".xz")) {
    const std::string command = "xz -dc '" + path + ".xz'";
    FILE* pipe = ::popen(command.c_str(), "r");
    std::string text;
    char chunk[1 << 16];
    for (size_t got; pipe && (got = std::fread(chunk, 1, sizeof chunk, pipe)) > 0;) text.append(chunk, got);
    if (!pipe || ::pclose(pipe) != 0) ADD_FAILURE() << "cannot unpack " << path << ".xz";
    return text;
  }
  ADD_FAILURE() << "no such fixture: " << path;
  return {};
}

std::string scratch_directory(const std::string& name) {
  struct Cleaner {
    std::vector<std::string> paths;
    ~Cleaner() {
      std::error_code ignored;
      for (const std::string& path : paths) fs::remove_all(path, ignored);
    }
  };
  static Cleaner cleaner;
  std::string path = (fs::temp_directory_path() / ("tare-test-" + std::to_string(::getpid()) + "-" + name)).string();
  fs::remove_all(path);
  fs::create_directories(path);
  cleaner.paths.push_back(path);
  return path;
}

}  // namespace tare::testing
