// Damaged checkpoints: every checkpoint of the reference data is changed in thousands of small ways (fixed seed). Each
// mutant must be refused with an error that names a place, or give exactly the weights of the original.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "base/json.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/write.h"
#include "io/gguf.h"
#include "model/architecture.h"
#include "model/mutants_for_tests.h"
#include "model/weight_plan.h"
#include "testing/fixtures.h"

namespace tare::model {
namespace {

namespace fs = std::filesystem;
using namespace mutants;

// One weight as it will be computed with.
struct Values {
  tensor::Shape shape;
  tensor::ActivationSpec activation;
  std::vector<float> f32;
};
struct Contents {
  std::map<std::string, Values> weights;
  bool has_architecture = false;
};

// Everything that a run does before its first token: headers, architecture, accounting, each weight. With `original`,
// also holds the values against it; the text says the first difference. What is done to activations stands in
// config.json alone in most formats, so a change there is held against it only where the configuration is the same.
Result<Contents> read_all(const std::string& path, const Contents* original, bool hold_activations,
                          std::string* difference) {
  TARE_ASSIGN(const tensor::ModelWeights weights, checkpoints::load_checkpoint(path));
  Contents out;
  const auto arch = describe_architecture(weights.config);
  out.has_architecture = arch.ok();
  if (original && original->has_architecture && !arch.ok()) return arch.error();
  if (arch.ok()) TARE_TRY(account_weights(weights, *arch));
  for (const std::string& name : weights.names()) {
    TARE_ASSIGN(const tensor::Weight weight, weights.load(name));
    TARE_ASSIGN(std::vector<float> values, tensor::to_f32(weight));
    if (!original) {
      out.weights[name] = {tensor::shape_of(weight), weights.find(name)->activation, std::move(values)};
      continue;
    }
    if (!difference->empty()) continue;
    // Which names and shapes belong is the architecture's to say; the family of some reference models is not run.
    const auto found = original->weights.find(name);
    if (found == original->weights.end()) {
      if (out.has_architecture) *difference = name + " is new";
    } else if (found->second.shape != tensor::shape_of(weight)) {
      if (out.has_architecture) *difference = name + " has shape " + tensor::shape_text(tensor::shape_of(weight));
    } else if (std::memcmp(found->second.f32.data(), values.data(), values.size() * sizeof(float)) != 0) {
      *difference = name + " has other values";
    } else if (hold_activations && found->second.activation != weights.find(name)->activation) {
      *difference = name + " quantizes its input in another way";
    }
  }
  if (original && out.has_architecture && difference->empty()) {
    for (const auto& [name, values] : original->weights) {
      if (!weights.contains(name)) *difference = name + " is gone";
    }
  }
  return out;
}

void write_file(const std::string& path, std::string_view bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

// ---- the test

std::vector<Mutant> mutants_of(const std::string& folder, Random& random) {
  std::vector<Mutant> out;
  if (fs::exists(folder + "/model.gguf")) {
    mutate_gguf(parse(io::open_gguf(folder + "/model.gguf").value()), random, out);
    return out;
  }
  const std::string bytes = testing::read_fixture(folder + "/model.safetensors");
  const Shard shard = parse_shard(bytes);
  mutate_tensors(shard, random, out);
  mutate_container(shard, bytes, random, out);
  mutate_config(json::parse_file(folder + "/config.json").value(), random, out);
  return out;
}

struct Tally {
  int refused = 0;
  int harmless = 0;
};

// All mutants of one checkpoint's folder.
void try_mutants(const std::string& folder, Random& random, Tally& tally) {
  const std::string scratch = testing::scratch_directory("mutants");
  const std::string name = fs::path(folder).filename().string();
  const bool gguf = fs::exists(folder + "/model.gguf");
  const auto original = read_all(gguf ? folder + "/model.gguf" : folder, nullptr, false, nullptr);
  if (!original.ok()) return;  // the golden test knows which
  for (const Mutant& mutant : mutants_of(folder, random)) {
    SCOPED_TRACE(name + ": " + mutant.what);
    fs::remove_all(scratch);
    fs::create_directories(scratch);
    for (const auto& file : fs::directory_iterator(folder)) {
      const std::string file_name = file.path().filename().string();
      if (!mutant.files.count(file_name)) fs::create_symlink(file.path(), scratch + "/" + file_name);
    }
    for (const auto& [file_name, bytes] : mutant.files) write_file(scratch + "/" + file_name, bytes);
    std::string difference;
    const auto read =
        read_all(gguf ? scratch + "/model.gguf" : scratch, &*original, !mutant.files.count("config.json"), &difference);
    if (!read.ok()) {
      EXPECT_FALSE(read.error().where.empty()) << read.error().message();
      EXPECT_NE(read.error().kind, ErrorKind::kInternal) << read.error().message();
      ++tally.refused;
    } else {
      EXPECT_EQ(difference, "");
      ++tally.harmless;
    }
  }
}

TEST(Mutation, DamagedCheckpointsAreRefusedOrGiveTheSameWeights) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  Random random(20250314);
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_directory()) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  Tally tally;
  for (const std::string& folder : folders) try_mutants(folder, random, tally);
  EXPECT_GE(tally.refused + tally.harmless, 2000);
  EXPECT_GT(tally.refused, 1000);
  std::printf("%d mutants refused, %d harmless\n", tally.refused, tally.harmless);
}

// The same for what tare's own writers make of them.
TEST(Mutation, DamagedCopiesAreRefusedOrGiveTheSameWeights) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  const std::pair<const char*, const char*> copies[] = {
      {"gptq-dynamic", "gptq"},  {"gptq-4bit-g32-asym-v1", "gptq_v2"}, {"ct-w4a16-asym", "awq"},
      {"fp8-block", "fp8"},      {"bnb-nf4-dq", "bitsandbytes"},       {"gptq-4bit-g128-descact", "compressed-tensors"},
      {"awq-gemm-g128", "tare"}, {"ct-w8a8-int8-dynamic", "qserve"},   {"gguf-q4_0/model.gguf", "gguf"},
  };
  Random random(20250315);
  Tally tally;
  for (const auto& [golden, format] : copies) {
    const std::string path = root + "/" + golden;
    const auto weights = checkpoints::load_checkpoint(path);
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    const std::string folder = testing::scratch_directory(std::string("copy_") + format);
    // QServe's own engine would skip the norms, which is a loss that tare does not have.
    const auto report = checkpoints::write_checkpoint(
        {.folder = folder, .format = format, .source = path, .weights = &*weights, .allow_loss = true});
    ASSERT_TRUE(report.ok()) << report.error().message();
    try_mutants(folder, random, tally);
  }
  EXPECT_GT(tally.refused, 250);
  std::printf("%d mutants refused, %d harmless\n", tally.refused, tally.harmless);
}

}  // namespace
}  // namespace tare::model
