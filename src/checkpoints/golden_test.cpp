// Every checkpoint of the reference data, written by the real tools: dequantized weights, dense weights, cache and
// activation scales, all against the stored hashes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "base/sha256.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/gguf.h"
#include "checkpoints/source.h"
#include "testing/fixtures.h"

namespace tare::checkpoints {
namespace {

namespace fs = std::filesystem;
using tensor::ModelWeights;

std::string text(const json::object& from, std::string_view key) {
  const json::value* v = json::find(from, key);
  return v && v->is_string() ? std::string(v->get_string()) : std::string();
}

std::string hash_f32(const std::vector<float>& values) {
  return sha256_hex(std::as_bytes(std::span(values)));
}

struct Golden {
  std::string name;
  std::string path;
  json::object reference;
};

Golden open_golden(const std::string& folder) {
  Golden golden{.name = fs::path(folder).filename().string(), .path = folder};
  if (fs::exists(folder + "/model.gguf")) golden.path = folder + "/model.gguf";
  golden.reference = json::parse_file(folder + "/reference.json").value().as_object();
  return golden;
}

std::vector<Golden> all_goldens(const std::string& root) {
  std::vector<Golden> out;
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_directory()) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) out.push_back(open_golden(folder));
  return out;
}

// One loaded weight as f32, checked against what its header promised.
std::vector<float> load_f32(const ModelWeights& weights, const std::string& name) {
  const tensor::WeightInfo* info = weights.find(name);
  if (!info) {
    ADD_FAILURE() << "missing " << name;
    return {};
  }
  auto loaded = weights.load(name);
  if (!loaded.ok()) {
    ADD_FAILURE() << name << ": " << loaded.error().message();
    return {};
  }
  EXPECT_EQ(tensor::shape_of(*loaded), info->shape) << name;
  if (const auto* quantized = std::get_if<tensor::QuantizedTensor>(&*loaded)) {
    const auto* promised = std::get_if<tensor::QuantSpec>(&info->form);
    EXPECT_TRUE(promised && *promised == quantized->spec())
        << name << ": header says " << (promised ? describe(*promised) : "dense") << ", weight is "
        << describe(quantized->spec());
    EXPECT_EQ((*quantized)->origin.bytes, info->stored_bytes) << name;
  } else {
    EXPECT_TRUE(std::holds_alternative<tensor::DType>(info->form)) << name;
  }
  auto values = tensor::to_f32(*loaded);
  return values.ok() ? std::move(values).value() : std::vector<float>{};
}

void check_hf(const Golden& golden, const ModelWeights& weights) {
  std::set<std::string> seen;
  for (const auto& [name, entry] : golden.reference.at("quantized_tensors").as_object()) {
    const json::object& expected = entry.as_object();
    const std::vector<float> values = load_f32(weights, name);
    const std::string hash = hash_f32(values);
    const bool same = hash == text(expected, "formula_sha256");
    EXPECT_TRUE(same) << golden.name << " " << name << " [0]=" << (values.empty() ? 0 : values[0]) << " expected "
                      << boost::json::serialize(expected.at("first8"))
                      << (hash == text(expected, "formula_alt_sha256") ? " (equals the alternative formula)" : "");
    seen.insert(std::string(name));
  }
  for (const auto& [name, entry] : golden.reference.at("dense_tensors").as_object()) {
    const json::object& expected = entry.as_object();
    const auto loaded = weights.load(name);
    ASSERT_TRUE(loaded.ok()) << golden.name << ": " << loaded.error().message();
    const auto* dense = std::get_if<tensor::Tensor>(&*loaded);
    ASSERT_TRUE(dense) << name;
    EXPECT_EQ(tensor::dtype_name(dense->dtype), text(expected, "dtype")) << name;
    EXPECT_EQ(sha256_hex(dense->data.bytes()), text(expected, "sha256")) << golden.name << " " << name;
    seen.insert(std::string(name));
  }
  if (const json::value* scales = json::find(golden.reference, "cache_scales")) {
    for (const auto& [name, entry] : scales->as_object()) {
      const std::vector<float> values = load_f32(weights, name);
      const json::array& expected = entry.as_object().at("values").as_array();
      ASSERT_EQ(values.size(), expected.size());
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], *json::as_number(expected[i])) << name;
      seen.insert(std::string(name));
    }
  }
  if (const json::value* scales = json::find(golden.reference, "activation_scales")) {
    for (const auto& [name, entry] : scales->as_object()) {
      const std::string weight = std::string(parent_module(name)) + ".weight";
      const tensor::WeightInfo* info = weights.find(weight);
      ASSERT_TRUE(info) << weight;
      EXPECT_FALSE(info->activation.dynamic) << weight;
      EXPECT_EQ(info->activation.scale, static_cast<float>(*json::as_number(entry.as_object().at("value")))) << name;
    }
  }
  for (const std::string& name : weights.names()) {
    EXPECT_TRUE(seen.count(name)) << golden.name << ": " << name << " is no tensor of the reference";
  }
}

void check_gguf(const Golden& golden, const ModelWeights& weights) {
  const auto file = io::open_gguf(golden.path);
  ASSERT_TRUE(file.ok());
  std::set<std::string> seen;
  const auto check = [&](const json::object& table, bool quantized) {
    for (const auto& [name, entry] : table) {
      const json::object& expected = entry.as_object();
      const io::GgufTensor* stored = file->find_tensor(name);
      ASSERT_TRUE(stored) << name;
      const auto names = gguf_weight_names(*file, *stored);
      ASSERT_TRUE(names.ok()) << names.error().message();
      std::vector<float> values;
      for (const std::string& part : *names) {
        const std::vector<float> one = load_f32(weights, part);
        values.insert(values.end(), one.begin(), one.end());
        seen.insert(part);
      }
      std::string hash = text(expected, "hf_order_sha256");
      if (hash.empty()) hash = text(expected, quantized ? "peer_c_sha256" : "f32_sha256");
      EXPECT_EQ(hash_f32(values), hash) << golden.name << " " << name << " " << text(expected, "type");
    }
  };
  check(golden.reference.at("quantized_tensors").as_object(), true);
  check(golden.reference.at("dense_tensors").as_object(), false);
  for (const std::string& name : weights.names()) {
    EXPECT_TRUE(seen.count(name)) << golden.name << ": " << name << " is no tensor of the reference";
  }
}

// The one file whose blocks tare refuses by name.
bool refused(const Golden& golden) {
  return golden.name == "gguf-iq3_s";
}

TEST(Golden, EveryCheckpointDequantizesToItsReference) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  int read = 0;
  for (const Golden& golden : all_goldens(root)) {
    SCOPED_TRACE(golden.name);
    auto weights = load_checkpoint(golden.path);
    if (refused(golden)) {
      EXPECT_FALSE(weights.ok());
      continue;
    }
    if (!weights.ok()) {
      ADD_FAILURE() << weights.error().message();
      continue;
    }
    if (weights->format == "gguf") {
      check_gguf(golden, *weights);
    } else {
      check_hf(golden, *weights);
    }
    ++read;
  }
  EXPECT_GE(read, 54);
}

TEST(Golden, LatticeCodebooksAreRefusedByName) {
  TARE_NEEDS_FIXTURE(root, "checkpoints/gguf-iq3_s/model.gguf");
  const auto weights = load_checkpoint(root);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(weights.error().message().find("IQ3_S"), std::string::npos) << weights.error().message();
  EXPECT_NE(weights.error().message().find("token_embd.weight"), std::string::npos) << weights.error().message();
}

TEST(Golden, UnquantizedModels) {
  TARE_NEEDS_FIXTURE(root, "models");
  for (const char* model : {"T1", "T2", "T4"}) {
    const auto weights = load_checkpoint(root + "/" + model);
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    EXPECT_EQ(weights->format, "safetensors");
    EXPECT_GT(weights->names().size(), 20u);
    for (const std::string& name : weights->names()) EXPECT_FALSE(load_f32(*weights, name).empty()) << name;
  }
}

}  // namespace
}  // namespace tare::checkpoints
