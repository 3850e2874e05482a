// A quantization that is killed at any moment goes on with --resume and ends with the same bytes.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "base/file.h"
#include "quantize_files.h"
#include "tare_binary.h"
#include "testing/fixtures.h"

namespace tare {
namespace {

namespace fs = std::filesystem;
using testing::calibration_file;
using testing::content_of;
using testing::tare_run;

std::vector<std::string> command(const std::string& model, const std::string& out, const std::string& calibration,
                                 bool resume, const char* threads = "1") {
  std::vector<std::string> args = {"quantize",      model,       "--out",     out,       "--method",          "gptq",
                                   "--gate",        "off",       "--scheme",  "W4A8KV4", "--group-size",      "32",
                                   "--calibration", calibration, "--samples", "5",       "--sequence-length", "128",
                                   "--threads",     threads};
  if (resume) args.push_back("--resume");
  return args;
}

// Starts the command and kills it as soon as its journal has shown `phase` for the `count`-th time in this run.
// False: it ended before.
bool kill_in(const std::vector<std::string>& args, const std::string& journal, const std::string& phase, int count) {
  std::vector<std::string> all = {TARE_BINARY};
  all.insert(all.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& arg : all) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const auto seen = [&] {
    std::ifstream in(journal);
    int n = 0;
    for (std::string line; std::getline(in, line);) n += line.find("\"phase\":\"" + phase + "\"") != line.npos ? 1 : 0;
    return n;
  };
  const int before = seen();
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, 1);
    ::dup2(null, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (true) {
    if (::waitpid(pid, &status, WNOHANG) == pid) return false;
    if (seen() >= before + count) break;
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status);
}

TEST(CliResume, TwentyKillsLeaveTheSameBytes) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string work = testing::scratch_directory("resume");
  const std::string calibration = calibration_file(work, 700);
  ASSERT_EQ(tare_run(command(model, work + "/whole", calibration, false)).exit_code, 0);
  const auto expected = content_of(work + "/whole");
  EXPECT_FALSE(fs::exists(work + "/whole.journal"));

  const std::string out = work + "/killed";
  std::map<std::string, int> kills;
  int total = 0;
  bool resume = false;
  // Early and late moments of each phase; a run that came to its end starts anew.
  const std::pair<const char*, int> plan[] = {{"calibrate", 1}, {"solve", 1}, {"calibrate", 3}, {"write", 1},
                                              {"rename", 1},    {"solve", 2}, {"calibrate", 5}};
  for (int attempt = 0; total < 20 && attempt < 200; ++attempt) {
    const auto& [phase, count] = plan[static_cast<size_t>(attempt) % std::size(plan)];
    if (kill_in(command(model, out, calibration, resume), out + ".journal/journal.jsonl", phase, count)) {
      ++kills[phase];
      ++total;
      resume = fs::exists(out + ".journal/journal.jsonl") || fs::exists(out);
    }
    if (!fs::exists(out + ".journal") && fs::exists(out)) {
      EXPECT_EQ(content_of(out), expected);
      fs::remove_all(out);
      resume = false;
    }
  }
  EXPECT_EQ(total, 20);
  for (const char* phase : {"calibrate", "solve", "write", "rename"}) EXPECT_GE(kills[phase], 2) << phase;
  const testing::Finished last = tare_run(command(model, out, calibration, true));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(content_of(out), expected);
  EXPECT_FALSE(fs::exists(out + ".journal"));
  for (const auto& entry : fs::directory_iterator(work)) {
    EXPECT_EQ(entry.path().filename().string().find("partial"), std::string::npos) << entry.path();
  }
}

// Transforms of the whole model and of blocks run again over what a killed run left; a plan is measured once.
TEST(CliResume, KilledWithTransformsOrAPlan) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string work = testing::scratch_directory("resume-more");
  const std::string calibration = calibration_file(work, 700);
  const auto qoq = [&](const std::string& out, bool resume) {
    std::vector<std::string> args = command(model, out, calibration, resume);
    args[5] = "qoq";
    return args;
  };
  const auto mixed = [&](const std::string& out, bool resume) {
    std::vector<std::string> args = {"quantize",  model, "--out",         out,         "--target-bpw",      "8",
                                     "--gate",    "off", "--group-size",  "32",        "--threads",         "1",
                                     "--samples", "4",   "--calibration", calibration, "--sequence-length", "64"};
    if (resume) args.push_back("--resume");
    return args;
  };
  using Make = std::function<std::vector<std::string>(const std::string&, bool)>;
  for (const auto& [name, make] : {std::pair<std::string, Make>{"qoq", qoq}, {"mixed", mixed}}) {
    const testing::Finished whole = tare_run(make(work + "/whole-" + name, false));
    ASSERT_EQ(whole.exit_code, 0) << name << whole.err;
    const auto expected = content_of(work + "/whole-" + name);
    const std::string out = work + "/killed-" + name;
    int kills = 0;
    // The first block, the second, what comes after them; each run goes on where the one before ended.
    for (const auto& [phase, count] : {std::pair<const char*, int>{"calibrate", 2}, {"solve", 6}, {"write", 1}}) {
      const bool resume = fs::exists(out + ".journal/journal.jsonl");
      kills += kill_in(make(out, resume), out + ".journal/journal.jsonl", phase, count) ? 1 : 0;
    }
    EXPECT_EQ(kills, 3) << name;
    const testing::Finished last = tare_run(make(out, true));
    ASSERT_EQ(last.exit_code, 0) << name << last.err;
    EXPECT_EQ(content_of(out), expected) << name;
    EXPECT_FALSE(fs::exists(out + ".journal"));
  }
}

TEST(CliResume, SameBytesForTwoThreads) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  const std::string work = testing::scratch_directory("threads");
  const std::string calibration = calibration_file(work, 700);
  ASSERT_EQ(tare_run(command(model, work + "/one", calibration, false, "1")).exit_code, 0);
  ASSERT_EQ(tare_run(command(model, work + "/two", calibration, false, "2")).exit_code, 0);
  EXPECT_EQ(content_of(work + "/one"), content_of(work + "/two"));
}

TEST(CliResume, RefusesAnotherRunAndNamesWhatChanged) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string work = testing::scratch_directory("changed");
  const std::string calibration = calibration_file(work, 700);
  const std::string copy = work + "/model";
  fs::copy(model, copy, fs::copy_options::recursive);
  const std::string out = work + "/q";
  ASSERT_TRUE(kill_in(command(copy, out, calibration, false), out + ".journal/journal.jsonl", "calibrate", 5));
  const testing::Finished fresh = tare_run(command(copy, out, calibration, false));
  EXPECT_EQ(fresh.exit_code, 2);
  EXPECT_NE(fresh.err.find("--resume"), std::string::npos) << fresh.err;
  // Other settings.
  std::vector<std::string> other = command(copy, out, calibration, true);
  other[11] = "64";
  const testing::Finished settings = tare_run(other);
  EXPECT_EQ(settings.exit_code, 2);
  EXPECT_NE(settings.err.find("settings grid"), std::string::npos) << settings.err;
  // Other data.
  std::ofstream(work + "/other.json") << std::string("[") + [] {
    std::string ids;
    for (int i = 0; i < 700; ++i) ids += (i ? "," : "") + std::to_string(i % 200);
    return ids;
  }() + "]";
  const testing::Finished data = tare_run(command(copy, out, work + "/other.json", true));
  EXPECT_EQ(data.exit_code, 2);
  EXPECT_NE(data.err.find("data sha256"), std::string::npos) << data.err;
  // One bit of the weights.
  for (const auto& entry : fs::directory_iterator(copy)) {
    if (entry.path().extension() != ".safetensors") continue;
    fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x3c');
    file.close();
    const testing::Finished changed = tare_run(command(copy, out, calibration, true));
    EXPECT_EQ(changed.exit_code, 2);
    EXPECT_NE(changed.err.find(entry.path().filename().string()), std::string::npos) << changed.err;
    break;
  }
}

TEST(CliCalibration, ConversationsAndTokenFiles) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const std::string work = testing::scratch_directory("calibration");
  std::ofstream(work + "/empty.json") << "[]";
  EXPECT_EQ(tare_run(command(model, work + "/a", work + "/empty.json", false)).exit_code, 2);
  std::ofstream(work + "/lists.json") << "[[1,2,3,4,5,6,7,8],[9,10,11],[12,13,14,15,16,17,18]]";
  const json::object document = testing::tare_json(command(model, work + "/b", work + "/lists.json", false));
  EXPECT_EQ(document.at("layers").as_array().at(0).at("tokens"), 18);
  std::ofstream(work + "/bad.jsonl") << "{\"text\": \"fine\"}\n{\"no\": 1}\n";
  const testing::Finished bad = tare_run(command(model, work + "/c", work + "/bad.jsonl", false));
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("line 2"), std::string::npos) << bad.err;
}

}  // namespace
}  // namespace tare
