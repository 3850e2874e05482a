#include "plugin/plugins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoints/checkpoint.h"
#include "checkpoints/write.h"
#include "io/safetensors_writer.h"
#include "testing/fixtures.h"

namespace tare::plugin {
namespace {

using tensor::DType;

std::string library(const std::string& name) {
  return std::string(TARE_PLUGIN_FOLDER) + "/" + name + ".so";
}

Registries example() {
  auto loaded = load_plugins({library("tare_example_plugin")});
  EXPECT_TRUE(loaded.ok()) << loaded.error().message();
  return std::move(loaded).value();
}

TEST(Plugin, AddsAFormatAnAlgorithmAndAKernel) {
  const Registries registries = example();
  ASSERT_EQ(registries.plugins.size(), 1u);
  EXPECT_EQ(registries.plugins[0].name, "example");
  EXPECT_EQ(registries.linear.front()->name, "gemm_toy4");
  ASSERT_TRUE(find_algorithm(registries, "toy-rtn"));
  EXPECT_FALSE(find_algorithm(registries, "toy4"));
  const auto has = [&](std::string_view name) {
    return std::any_of(registries.formats.begin(), registries.formats.end(),
                       [&](const auto& format) { return format.name == name; });
  };
  EXPECT_TRUE(has("toy4"));
  EXPECT_TRUE(has("toy-rtn"));
  EXPECT_TRUE(registries.formats.back().name == "safetensors");
}

// One matrix [2, 32] in the plugin's format, by hand: w = scale * (code - 8).
std::string toy_checkpoint(const std::string& name, bool with_scales) {
  const std::string folder = testing::scratch_directory(name);
  std::vector<std::byte> codes(32);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>((i % 16) | (15 - i % 16) << 4);
  const std::vector<float> scales = {0.5f, 0.25f}, norm = {1, 1};
  std::vector<io::TensorDeclaration> declarations = {{"a.toy_codes", DType::kU8, {2, 16}},
                                                     {"norm.weight", DType::kF32, {2}}};
  if (with_scales) declarations.push_back({"a.toy_scales", DType::kF32, {2, 1}});
  auto writer = io::SafetensorsWriter::create_in_folder(folder, declarations, {});
  EXPECT_TRUE(writer.ok()) << writer.error().message();
  const auto put = [&](const char* tensor, std::span<const std::byte> bytes) {
    const Status status = writer->append(tensor, bytes);
    EXPECT_TRUE(status.ok()) << status.error().message();
  };
  put("a.toy_codes", codes);
  put("norm.weight", std::as_bytes(std::span(norm)));
  if (with_scales) put("a.toy_scales", std::as_bytes(std::span(scales)));
  EXPECT_TRUE(writer->finish().ok());
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "llama", "quantization_config": {"quant_method": "toy4", "group_size": 32}})";
  return folder;
}

TEST(Plugin, ReadsItsFormat) {
  const Registries registries = example();
  const std::string folder = toy_checkpoint("plugin_format", true);
  const auto weights = checkpoints::load_checkpoint(folder, {.formats = &registries.formats});
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  EXPECT_EQ(weights->format, "toy4");
  EXPECT_EQ(weights->find("a.weight")->stored_bytes, 32 + 8);
  const auto weight = weights->load("a.weight");
  ASSERT_TRUE(weight.ok()) << weight.error().message();
  const std::vector<float> values = *tensor::to_f32(*weight);
  EXPECT_EQ(values[0], 0.5f * (0 - 8));
  EXPECT_EQ(values[1], 0.5f * (15 - 8));
  EXPECT_EQ(values[2], 0.5f * (1 - 8));
  EXPECT_EQ(values[33], 0.25f * (15 - 8));
  // Without the plugin the same folder is refused; with a tensor missing, by the plugin's own words.
  EXPECT_FALSE(checkpoints::load_checkpoint(folder).ok());
  const auto broken =
      checkpoints::load_checkpoint(toy_checkpoint("plugin_broken", false), {.formats = &registries.formats});
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message().find("toy_scales is missing"), std::string::npos) << broken.error().message();
}

TEST(Plugin, QuantizesAtLoadAndLeavesWhatItSaysNoneTo) {
  TARE_NEEDS_FIXTURE(path, "models/T1");
  const Registries registries = example();
  const auto weights = checkpoints::load_checkpoint(path, {.format = "toy-rtn", .formats = &registries.formats});
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  const auto source = checkpoints::load_checkpoint(path);
  int left = 0, quantized = 0;
  for (const std::string& name : weights->names()) {
    const bool dense = std::holds_alternative<DType>(weights->find(name)->form);
    if (name.find("o_proj") != name.npos) {
      EXPECT_TRUE(dense) << name;
      ++left;
    } else if (name.find("_proj") != name.npos) {
      ASSERT_FALSE(dense) << name;
      ++quantized;
      const auto before = tensor::to_f32(*source->load(name)).value();
      const auto after = tensor::to_f32(*weights->load(name)).value();
      for (size_t i = 0; i < before.size(); ++i) {
        // Half a step of the group's scale, which is at most its largest number / 7.
        float amax = 0;
        for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) amax = std::max(amax, std::abs(before[j]));
        ASSERT_LE(std::abs(before[i] - after[i]), amax / 14 * 1.001f) << name << " " << i;
      }
    }
  }
  EXPECT_EQ(left, 2);
  EXPECT_EQ(quantized, 12);
  EXPECT_TRUE(std::any_of(weights->notes.begin(), weights->notes.end(),
                          [](const std::string& note) { return note.find("leaves 2 matrices") != note.npos; }));
}

TEST(Plugin, KernelEqualsTheReference) {
  const Registries registries = example();
  ThreadPool pool(2);
  const machine::Capabilities caps = machine::capabilities();
  const Status status = kernels::self_test(*registries.linear.front(), caps, pool);
  EXPECT_TRUE(status.ok()) << status.error().message();
  const kernels::LinearProblem four{
      .n = 64, .k = 96, .weight = tensor::QuantSpec{.bits = 4, .group_size = 32, .zero = tensor::ZeroKind::kInteger}};
  const auto chosen = kernels::select_linear(registries.linear, four, caps);
  ASSERT_TRUE(chosen.ok()) << chosen.error().message();
  EXPECT_EQ(chosen->kernel->name, "gemm_toy4");
  kernels::LinearProblem eight = four;
  eight.weight = tensor::QuantSpec{.bits = 8, .group_size = 32};
  const auto other = kernels::select_linear(registries.linear, eight, caps);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->kernel->name, "gemm_toy4");
  ASSERT_FALSE(other->rejected.empty());
  EXPECT_EQ(other->rejected.front().kernel, "gemm_toy4");
  EXPECT_EQ(other->rejected.front().reason, "4-bit codes with one scale a group only");
}

TEST(Plugin, MistakesAreOneClearLine) {
  struct Case {
    const char* library;
    const char* says;
  };
  const Case cases[] = {
      {"bad_no_entry", "no function tare_plugin"},
      {"bad_abi", "expected ABI 1, found ABI 99"},
      {"bad_short", "shorter than ABI 1 has it"},
      {"bad_no_run", "kernel bad_kernel of the plugin has no function run"},
      {"bad_no_name", "names no kernel"},
      {"bad_same_format", "format 'AWQ' exists already"},
      {"bad_same_kernel", "kernel 'gemm_reference' exists already"},
      {"bad_null_plugin", "null pointer"},
      {"not_there", "cannot be loaded"},
  };
  for (const Case& c : cases) {
    const auto loaded = load_plugins({library(c.library)});
    ASSERT_FALSE(loaded.ok()) << c.library;
    const std::string message = loaded.error().message();
    EXPECT_EQ(loaded.error().kind, ErrorKind::kInvalidInput) << message;
    EXPECT_NE(message.find(c.says), std::string::npos) << message;
    EXPECT_NE(message.find(c.library), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  const auto twice = load_plugins({library("tare_example_plugin"), library("tare_example_plugin")});
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.error().message().find("plugin 'example' exists already"), std::string::npos);
}

}  // namespace
}  // namespace tare::plugin
