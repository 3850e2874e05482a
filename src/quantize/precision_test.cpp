// Mixed precision on tiny seeded models: what is measured, what is chosen, what it costs.
#include "quantize/precision.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "checkpoints/checkpoint.h"
#include "quantize/transforms/tiny_models_for_tests.h"
#include "testing/fixtures.h"

namespace tare::quantize {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

CalibrationData data_of(const tiny::Model& tiny, int sequences = 4, int length = 64) {
  CalibrationData out;
  for (int s = 0; s < sequences; ++s) {
    out.sequences.push_back(tiny::some_tokens(tiny.arch, length, 100 + static_cast<unsigned>(s)));
    out.tokens += length;
  }
  return out;
}

// A copy with one matrix multiplied.
tiny::Model scaled(const tiny::Model& tiny, const std::string& name, float factor) {
  auto weights = std::make_shared<tensor::ModelWeights>(*tiny.weights);
  std::vector<float> values = *tensor::to_f32(*tiny.weights->load(name));
  for (float& v : values) v *= factor;
  const tensor::Shape shape = tiny.weights->find(name)->shape;
  weights->erase(name);
  EXPECT_TRUE(weights->add(name, tensor::Tensor::from_f32(shape, std::move(values))).ok());
  return {tiny.name, weights, tiny.arch};
}

PrecisionRequest request_for(const tiny::Model& tiny, const char* method = "rtn", const char* format = "tare") {
  PrecisionRequest out{.source = tiny.weights, .arch = &tiny.arch, .writer = *checkpoints::find_writer(format)};
  out.options.recipe = *find_recipe(method);
  out.options.scheme = *resolve_scheme(*out.options.recipe, {}, &out.options.widths);
  out.options.calibration = data_of(tiny);
  out.options.caps = machine::capabilities();
  out.measure.rows = 24;
  return out;
}

PrecisionPlan plan_for(PrecisionRequest request, int64_t target, tiny::Tools& tools) {
  request.target_bytes = target;
  std::vector<std::string> notes;
  auto plan = make_plan(request, notes, tools.pool);
  EXPECT_TRUE(plan.ok()) << plan.error().message();
  return plan.ok() ? std::move(*plan) : PrecisionPlan{};
}

// Bytes of the weight files of a result.
int64_t written_bytes(const Outcome& outcome, const std::string& format) {
  const std::string folder = testing::scratch_directory("precision");
  const auto written = checkpoints::write_checkpoint({.folder = folder, .format = format, .weights = &outcome.weights});
  EXPECT_TRUE(written.ok()) << written.error().message();
  int64_t bytes = 0;
  for (const io::WrittenFile& file : written->files) bytes += static_cast<int64_t>(file.bytes);
  fs::remove_all(folder);
  return bytes;
}

Outcome quantized(const PrecisionRequest& request, const std::map<std::string, MatrixScheme>& plan,
                  tiny::Tools& tools) {
  PipelineOptions options = request.options;
  options.plan = plan;
  auto outcome = quantize_model(request.source, *request.arch, options, tools.pool);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message();
  return std::move(*outcome);
}

double loss(const tiny::Model& tiny, const Outcome& outcome, tiny::Tools& tools) {
  double sum = 0;
  for (const unsigned seed : {55u, 56u, 57u, 58u}) {
    const std::vector<int32_t> tokens = tiny::some_tokens(tiny.arch, 96, seed);
    sum += tiny::mean_kl(tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool),
                         tiny::logits(outcome.weights, tiny.arch, tokens, tools.pool), tiny.arch.vocab_size);
  }
  return sum / 4;
}

const PlanRow& row(const PrecisionPlan& plan, const std::string& name) {
  return *std::find_if(plan.rows.begin(), plan.rows.end(), [&](const PlanRow& r) { return r.name.ends_with(name); });
}

// The same numbers from whole forward passes over models with one rounded matrix. The probes hold the clean stream in
// bf16 between blocks (2^-9 of each value), which moves a divergence by a few per cent.
TEST(Probes, AgreeWithWholeForwardPasses) {
  tiny::Tools tools;
  for (const tiny::Model& tiny : {tiny::make("llama", "{}"), tiny::make("phi3", R"({"model_type": "phi3",
      "head_dim": 32, "partial_rotary_factor": 0.5})"),
                                  tiny::make("granite", R"({"model_type": "granite",
      "embedding_multiplier": 3, "residual_multiplier": 0.4, "logits_scaling": 2, "attention_multiplier": 0.3,
      "tie_word_embeddings": false})")}) {
    const CalibrationData data = data_of(tiny, 2, 48);
    ProbeOptions options{.tokens = 80, .sequence_length = 44};  // 44 of the first, 36 of the second
    auto probes = Probes::start(*tiny.weights, tiny.arch, data, options, tools.products);
    ASSERT_TRUE(probes.ok());
    std::vector<double> expected;
    for (int64_t layer = 0; layer < tiny.arch.layers; ++layer) {
      Block block = *Block::load(*tiny.weights, tiny.arch, layer);
      const Block before = block;
      ASSERT_TRUE(probes->run(block).ok());
      for (size_t m = 0; m < block.matrices.size(); ++m) {
        EXPECT_EQ(block.matrices[m].w, before.matrices[m].w);
        Block rough = before;
        rough.matrices[m].scheme.grid = options.grid;
        ASSERT_TRUE(
            round_matrix(rough.matrices[m], before.matrices[m].w.data(), rough.matrices[m].w.data(), tools.pool).ok());
        const auto weights = tiny::with_block(*tiny.weights, rough);
        double kl = 0;
        for (size_t s = 0; s < 2; ++s) {
          std::vector<int32_t> tokens = data.sequences[s];
          tokens.resize(s == 0 ? 44 : 36);
          kl += static_cast<double>(tokens.size()) / 80 *
                tiny::mean_kl(tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool),
                              tiny::logits(*weights, tiny.arch, tokens, tools.pool), tiny.arch.vocab_size);
        }
        expected.push_back(kl);
      }
    }
    const auto found = probes->finish(*tiny.weights);
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found->size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR((*found)[i] / expected[i], 1, 0.1) << tiny.name << i;
  }
}

// Behind an output matrix of zeros nothing that attention computes reaches the logits: its matrices are worth no bits.
TEST(Precision, WhatDoesNotReachTheOutputGetsTheSmallestForm) {
  tiny::Tools tools;
  const tiny::Model tiny = scaled(tiny::make("llama", "{}"), "model.layers.1.self_attn.o_proj.weight", 0);
  const PrecisionPlan plan = plan_for(request_for(tiny), 320000, tools);
  for (const char* name : {"1.self_attn.q_proj", "1.self_attn.k_proj", "1.self_attn.v_proj", "1.self_attn.o_proj"}) {
    EXPECT_EQ(row(plan, name).scheme.grid.bits, 3) << name;
    EXPECT_EQ(row(plan, name).scheme.grid.group_size, 0) << name;
    EXPECT_NEAR(*row(plan, name).divergence, 0, 1e-7) << name;
  }
  EXPECT_GT(row(plan, "0.mlp.down_proj").scheme.grid.bits, 3);
}

// A branch that adds little to the stream: with 16 times its weights it adds 16 times as much of an error that is the
// same share of it, so the squared error grows 256 times and, as log4 256 = 4, is worth up to 4 bits more.
TEST(Precision, APlantedSensitiveMatrixGetsMoreBits) {
  tiny::Tools tools;
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const tiny::Model base = tiny::make("llama", "{}");
  const tiny::Model quiet = scaled(base, name, 1.0f / 64);
  const tiny::Model loud = scaled(base, name, 16.0f / 64);
  const PrecisionPlan before = plan_for(request_for(quiet), 310000, tools);
  const PrecisionPlan after = plan_for(request_for(loud), 310000, tools);
  const PlanRow& low = row(before, "1.mlp.down_proj");
  const PlanRow& high = row(after, "1.mlp.down_proj");
  EXPECT_EQ(low.scheme.grid.bits, 3);
  EXPECT_GE(high.scheme.grid.bits, 5);
}

TEST(Precision, MeetsTheBudgetToTheByte) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", "{}");
  const PrecisionRequest request = request_for(tiny);
  int64_t last = 0;
  double last_divergence = 1e9;
  for (const int64_t target : {290000, 311111, 350001}) {
    const PrecisionPlan plan = plan_for(request, target, tools);
    EXPECT_LE(plan.bytes, target);
    // No matrix is smaller than 48 x 96: one bit more of it would fit in what is left.
    EXPECT_LT(target - plan.bytes, 48 * 96 / 8);
    EXPECT_EQ(written_bytes(quantized(request, plan.schemes(), tools), "tare"), plan.bytes);
    EXPECT_GE(plan.bytes, last);
    EXPECT_LT(*plan.predicted, last_divergence);
    last = plan.bytes;
    last_divergence = *plan.predicted;
  }
  // With room for everything nothing is quantized.
  const PrecisionPlan all = plan_for(request, int64_t{1} << 30, tools);
  EXPECT_EQ(*all.predicted, 0);
  for (const PlanRow& r : all.rows) EXPECT_TRUE(r.scheme.keep) << r.name;
  PrecisionRequest small = request;
  small.target_bytes = 100000;
  std::vector<std::string> notes;
  const auto refused = make_plan(small, notes, tools.pool);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("at least"));
}

TEST(Precision, LosesLessThanUniformBitsInTheSameBytes) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", "{}");
  for (const char* method : {"rtn", "gptq"}) {
    PrecisionRequest request = request_for(tiny, method);
    request.options.scheme = *resolve_scheme(*request.options.recipe, {.bits = 4, .group_size = 32});
    request.options.calibration = data_of(tiny, 12);  // several times the inputs of the widest matrix
    const Outcome uniform = quantized(request, {}, tools);
    const int64_t bytes = written_bytes(uniform, "tare");
    const PrecisionPlan plan = plan_for(request, bytes, tools);
    const Outcome mixed = quantized(request, plan.schemes(), tools);
    const int64_t mixed_bytes = written_bytes(mixed, "tare");
    EXPECT_LE(mixed_bytes, bytes);
    const double a = loss(tiny, mixed, tools), b = loss(tiny, uniform, tools);
    printf("%s: mixed %.4g nats in %ld bytes (predicted %.4g), uniform %.4g in %ld\n", method, a,
           static_cast<long>(mixed_bytes), *plan.predicted, b, static_cast<long>(bytes));
    EXPECT_LT(a, b) << method;
    // The pipeline solves each matrix on inputs that the ones before have changed, and makes up for it.
    EXPECT_GT(*plan.predicted / a, 0.5) << method;
    EXPECT_LT(*plan.predicted / a, 2) << method;
  }
}

TEST(Precision, TheSamePlanForAnyNumberOfThreads) {
  const tiny::Model tiny = tiny::make("qwen2", R"({"model_type": "qwen2", "tie_word_embeddings": true})");
  std::string first;
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    PrecisionRequest request = request_for(tiny, "gptq");
    request.flags.group_size = 32;
    request.target_bpw = 7;
    std::vector<std::string> notes;
    const auto plan = make_plan(request, notes, pool);
    ASSERT_TRUE(plan.ok()) << plan.error().message();
    if (first.empty()) first = plan_text(*plan);
    EXPECT_EQ(plan_text(*plan), first);
    EXPECT_LE(plan->bytes, plan->target_bytes);
  }
}

TEST(Precision, KeepsWhatExceptionsAndFlagsSay) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", "{}");
  PrecisionRequest request = request_for(tiny);
  request.options.exceptions = {*parse_exception(".*\\.v_proj:bits=8,group_size=32")};
  request.options.ignore = {".*layers\\.0\\.self_attn\\.o_proj$"};
  request.flags = {.group_size = 64, .symmetric = true};
  const PrecisionPlan plan = plan_for(request, 380000, tools);
  EXPECT_TRUE(plan.predicted.has_value());
  for (const PlanRow& r : plan.rows) {
    if (r.name.ends_with("0.self_attn.o_proj")) {
      EXPECT_TRUE(r.scheme.keep);
    } else if (r.name.ends_with("v_proj")) {
      EXPECT_EQ(describe(r.scheme), "s8 g32");
    } else if (!r.scheme.keep) {
      EXPECT_EQ(r.scheme.grid.group_size, 64) << r.name;
      EXPECT_TRUE(r.scheme.grid.symmetric) << r.name;
    }
  }
}

TEST(Precision, OtherFormatsGetFormsThatTheirReadersTake) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", R"({"intermediate_size": 352, "num_attention_heads": 3,
      "num_key_value_heads": 1, "head_dim": 32})");
  for (const char* format : {"compressed-tensors", "gptq"}) {
    const PrecisionRequest request = request_for(tiny, "rtn", format);
    const PrecisionPlan plan = plan_for(request, 330000, tools);
    std::set<int> widths;
    for (const PlanRow& r : plan.rows) {
      if (!r.scheme.keep) widths.insert(r.scheme.grid.bits);
    }
    EXPECT_GT(widths.size(), 1u) << format;
    for (const char* layer : {"0.", "1."}) {
      const auto scheme = [&](const char* kind) { return describe(row(plan, std::string(layer) + kind).scheme); };
      EXPECT_EQ(scheme("self_attn.q_proj"), scheme("self_attn.k_proj")) << format;
      EXPECT_EQ(scheme("self_attn.q_proj"), scheme("self_attn.v_proj")) << format;
      EXPECT_EQ(scheme("mlp.gate_proj"), scheme("mlp.up_proj")) << format;
    }
    const Outcome made = quantized(request, plan.schemes(), tools);
    EXPECT_EQ(written_bytes(made, format), plan.bytes) << format;
    // What is read back is what was made.
    const std::string folder = testing::scratch_directory("precision-formats");
    ASSERT_TRUE(checkpoints::write_checkpoint({.folder = folder, .format = format, .weights = &made.weights}).ok());
    const auto back = checkpoints::load_checkpoint(folder);
    ASSERT_TRUE(back.ok()) << back.error().message();
    for (const PlanRow& r : plan.rows) {
      EXPECT_EQ(*tensor::to_f32(*back->load(r.name + ".weight")),
                *tensor::to_f32(*made.weights.load(r.name + ".weight")))
          << format << r.name;
    }
  }
  PrecisionRequest awq = request_for(tiny, "rtn", "awq");
  awq.target_bytes = 400000;
  std::vector<std::string> notes;
  EXPECT_THAT(make_plan(awq, notes, tools.pool).error().message(), HasSubstr("awq"));
  PrecisionRequest rotated = request_for(tiny);
  rotated.options.recipe = *find_recipe("qoq");
  EXPECT_THAT(make_plan(rotated, notes, tools.pool).error().message(), HasSubstr("qoq"));
}

TEST(Precision, ActivationsInEightBitsKeepTheirForms) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", "{}");
  PrecisionRequest request = request_for(tiny, "gptq");
  request.flags.scheme = "W4A8KV4";
  request.options.scheme = *resolve_scheme(*request.options.recipe, request.flags, &request.options.widths);
  const PrecisionPlan plan = plan_for(request, 350000, tools);
  EXPECT_EQ(plan.activation, 8);
  EXPECT_EQ(plan.kv, 4);
  for (const PlanRow& r : plan.rows) {
    if (r.scheme.keep) continue;
    EXPECT_EQ(r.scheme.activation.type, tensor::ActivationType::kS8) << r.name;
    EXPECT_EQ(r.scheme.grid.bits == 4, r.scheme.grid.kind != GridKind::kInteger) << r.name;
  }
  const auto again = parse_plan(plan_text(plan), "plan");
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->schemes(), plan.schemes());
}

}  // namespace
}  // namespace tare::quantize
