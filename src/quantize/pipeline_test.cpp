#include "quantize/pipeline.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoints/checkpoint.h"
#include "model/weight_plan.h"
#include "testing/fixtures.h"

namespace tare::quantize {
namespace {

std::shared_ptr<const tensor::ModelWeights> load(const std::string& path) {
  auto loaded = checkpoints::load_checkpoint(path);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message();
  return loaded.ok() ? std::make_shared<const tensor::ModelWeights>(std::move(*loaded)) : nullptr;
}

PipelineOptions options_for(const std::string& scheme) {
  PipelineOptions options{.recipe = *find_recipe("rtn")};
  options.scheme = *resolve_scheme(*options.recipe, {.scheme = scheme}, &options.widths);
  return options;
}

TEST(Scheme, Words) {
  EXPECT_EQ(*parse_scheme("W4A8KV4"), (SchemeWidths{4, 8, 4}));
  EXPECT_EQ(*parse_scheme("w8a8"), (SchemeWidths{8, 8, 16}));
  EXPECT_EQ(*parse_scheme("W3A16"), (SchemeWidths{3, 16, 16}));
  for (const char* wrong : {"", "W4", "A8", "W4A8KV", "W4A8KV4x", "W1A16", "W9A16", "W4A4", "W4A8KV2", "W99A8", "4"}) {
    EXPECT_FALSE(parse_scheme(wrong).ok()) << wrong;
  }
}

TEST(Scheme, DefaultsFollowTheWidths) {
  const Recipe& rtn = **find_recipe("rtn");
  const auto resolve = [&](SchemeFlags flags) { return describe(*resolve_scheme(rtn, flags)); };
  EXPECT_EQ(resolve({}), "s4 g128");
  EXPECT_EQ(resolve({.scheme = "W4A8"}), "u4 g128 progressive p119, s8 dynamic per token");
  EXPECT_EQ(resolve({.scheme = "W4A8", .group_size = -1}),
            "u4 per channel with zero after scale, s8 dynamic per token");
  EXPECT_EQ(resolve({.scheme = "W8A8"}), "s8 per channel, s8 dynamic per token");
  EXPECT_EQ(resolve({.bits = 3, .group_size = 64, .symmetric = false}), "u3 g64");
  EXPECT_FALSE(resolve_scheme(rtn, {.scheme = "W4A8", .bits = 8}).ok());
  EXPECT_FALSE(resolve_scheme(rtn, {.group_size = 0}).ok());
  EXPECT_FALSE(resolve_scheme(rtn, {.bits = 9}).ok());
  EXPECT_FALSE(resolve_scheme(rtn, {.symmetric = true, .grid = "progressive"}).ok());
  EXPECT_FALSE(find_recipe("magic").ok());
}

TEST(Pipeline, QuantizesTheLayersAndKeepsTheRest) {
  TARE_NEEDS_FIXTURE(path, "models/T2");
  const auto source = load(path);
  const auto arch = *model::describe_architecture(source->config);
  ThreadPool pool(2);
  PipelineOptions options = options_for("W4A8KV4");
  options.ignore = {".*layers\\.0\\.mlp\\.down_proj$"};
  options.exceptions = {*parse_exception(".*\\.v_proj:bits=8,group_size=32")};
  const auto outcome = quantize_model(source, arch, options, pool);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message();
  EXPECT_EQ(outcome->matrices.size(), static_cast<size_t>(arch.layers * 7));
  EXPECT_EQ(outcome->weights.names(), source->names());
  EXPECT_EQ(outcome->weights.kv.k_dtype, "int4");
  for (const MatrixReport& matrix : outcome->matrices) {
    const tensor::WeightInfo& info = *outcome->weights.find(matrix.name + ".weight");
    if (matrix.name == "model.layers.0.mlp.down_proj") {
      EXPECT_EQ(matrix.status, "kept");
      EXPECT_TRUE(std::holds_alternative<tensor::DType>(info.form));
      continue;
    }
    const auto& spec = std::get<tensor::QuantSpec>(info.form);
    EXPECT_EQ(spec.bits, matrix.name.ends_with("v_proj") ? 8 : 4) << matrix.name;
    EXPECT_EQ(info.activation.type, tensor::ActivationType::kS8);
    EXPECT_GT(matrix.error, 0);
    EXPECT_LT(matrix.error, 0.05) << matrix.name;
    EXPECT_GT(matrix.bpw, spec.bits);
  }
  // Biases, norms and the tied table are the source's own.
  EXPECT_EQ(*tensor::to_f32(*outcome->weights.load(model::kEmbedding)),
            *tensor::to_f32(*source->load(model::kEmbedding)));

  options.ignore = {"nothing_like_this"};
  EXPECT_NE(quantize_model(source, arch, options, pool).error().message().find("nothing_like_this"), std::string::npos);
}

TEST(Pipeline, OneTableForTiedHeads) {
  TARE_NEEDS_FIXTURE(path, "models/T2");
  const auto source = load(path);
  const auto arch = *model::describe_architecture(source->config);
  ThreadPool pool(1);
  PipelineOptions options = options_for("W8A8");
  options.head = HeadChoice::kInt8A8;
  const auto outcome = quantize_model(source, arch, options, pool);
  ASSERT_TRUE(outcome.ok());
  const tensor::WeightInfo& info = *outcome->weights.find(model::kEmbedding);
  EXPECT_EQ(std::get<tensor::QuantSpec>(info.form).bits, 8);
  EXPECT_EQ(info.activation.type, tensor::ActivationType::kS8);
  EXPECT_FALSE(outcome->weights.contains(model::kHead));
  ASSERT_EQ(outcome->substitutions.size(), 1u);
  EXPECT_NE(outcome->substitutions[0].find("one table for embedding and head"), std::string::npos);
}

TEST(Pipeline, RefusesToRoundTwiceUnlessAsked) {
  TARE_NEEDS_FIXTURE(path, "checkpoints/gptq-4bit-g128-sym");
  const auto source = load(path);
  const auto arch = *model::describe_architecture(source->config);
  ThreadPool pool(1);
  PipelineOptions options = options_for("W8A8");
  const auto refused = quantize_model(source, arch, options, pool);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("--dequantize-first"), std::string::npos);
  options.dequantize_first = true;
  const auto outcome = quantize_model(source, arch, options, pool);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message();
  EXPECT_NE(outcome->substitutions.at(0).find("quantized already"), std::string::npos);
}

TEST(Pipeline, GptqSeesDataAndSaysWhatItGained) {
  TARE_NEEDS_FIXTURE(path, "models/T1");
  const auto source = load(path);
  const auto arch = *model::describe_architecture(source->config);
  std::vector<int32_t> tokens;
  tokens.reserve(600);
  for (int32_t i = 0; i < 600; ++i) tokens.push_back((i * i * 31 + i * 7) % static_cast<int32_t>(arch.vocab_size));
  std::map<std::string, std::string> bytes;
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    PipelineOptions options{.recipe = *find_recipe("gptq")};
    options.scheme = *resolve_scheme(*options.recipe, {.group_size = 32}, &options.widths);
    options.caps = machine::capabilities();
    EXPECT_FALSE(quantize_model(source, arch, options, pool).ok()) << "no tokens is an error";
    options.calibration = *calibration_windows(tokens, 4, 128);
    const auto outcome = quantize_model(source, arch, options, pool);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message();
    EXPECT_EQ(outcome->error_kind, "output");
    for (const MatrixReport& matrix : outcome->matrices) {
      EXPECT_EQ(matrix.tokens, 512) << matrix.name;
      EXPECT_EQ(matrix.status, "gptq") << matrix.name;
      EXPECT_LT(matrix.error, matrix.error_rtn) << matrix.name;
      const tensor::Weight weight = *outcome->weights.load(matrix.name + ".weight");
      const Buffer& codes = std::get<tensor::QuantizedTensor>(weight)->codes;
      const std::string now(reinterpret_cast<const char*>(codes.data()), codes.size());
      const auto [at, first] = bytes.emplace(matrix.name, now);
      EXPECT_TRUE(first || at->second == now) << matrix.name << " depends on the number of threads";
    }
  }
  EXPECT_FALSE(calibration_windows(tokens, 4, 1000).ok());
}

// The weight errors that the reference implementation stored for its round-to-nearest variants of the real model.
TEST(RealModelWeights, ErrorsOfTheStoredVariants) {
  TARE_NEEDS_FIXTURE(path, "smollm2/ppl.json");
  TARE_NEEDS_DEMO_MODEL(model);
  const auto source = load(model);
  const auto arch = *model::describe_architecture(source->config);
  const json::value stored = *json::parse_file(path);
  struct Variant {
    const char* name;
    GridSpec grid;
  };
  constexpr auto kF32 = tensor::DType::kF32;
  const Variant variants[] = {
      {"rtn_w4_g64_sym", {.group_size = 64, .scale_rule = ScaleRule::kCompressedTensors, .scale_dtype = kF32}},
      {"rtn_w4_g128_asym", {.symmetric = false, .scale_dtype = kF32}},
      {"qoq_g128_w4", {.kind = GridKind::kProgressive}},
      {"qoq_pc_w4", {.kind = GridKind::kQoqChannel, .group_size = 0}},
  };
  double error[std::size(variants)] = {};
  double power = 0;
  double minimum_error = 0;  // the file's own grid gives every weight back
  ThreadPool pool(2);
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const model::LayerLinears linears = model::layer_linears(arch, layer);
    for (const auto* group : {&linears.qkv, &linears.o, &linears.gate_up, &linears.down}) {
      for (const model::LayerLinear& linear : *group) {
        const std::vector<float> w = *tensor::to_f32(*source->load(linear.name + ".weight"));
        double p = 0;
        for (const float v : w) p += static_cast<double>(v) * static_cast<double>(v);
        power += p;
        const auto error_of = [&](const GridSpec& grid) {
          const auto made = round_to_nearest(grid, w.data(), linear.n, linear.k, "test", pool);
          const std::vector<float> back = tensor::dequantize(*made);
          return p * relative_error(w.data(), back.data(), linear.n, linear.k, pool);
        };
        for (size_t v = 0; v < std::size(variants); ++v) error[v] += error_of(variants[v].grid);
        if (layer < 2) {
          minimum_error += error_of({.kind = GridKind::kMinimum, .group_size = 32, .scale_dtype = kF32});
        }
      }
    }
  }
  for (size_t v = 0; v < std::size(variants); ++v) {
    const json::value& row = stored.at("variants_first_10_windows").at(variants[v].name);
    const double expected = *json::as_number(row.at("weight_nmse"));
    EXPECT_NEAR(error[v] / power / expected, 1, 1e-3) << variants[v].name;
  }
  EXPECT_LT(minimum_error / power, 1e-9);
}

}  // namespace
}  // namespace tare::quantize
