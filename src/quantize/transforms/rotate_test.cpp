#include "quantize/transforms/rotate.h"

#include "quantize/transforms/tiny_models_for_tests.h"

namespace tare::quantize {
namespace {

constexpr double kSame = 1e-4;  // of the largest logit: two f32 roundings a weight and other sums

TEST(Rotate, LogitsStay) {
  tiny::Tools tools;
  for (const tiny::Model& tiny : tiny::rotatable()) {
    SCOPED_TRACE(tiny.name);
    const std::vector<int32_t> tokens = tiny::some_tokens(tiny.arch, 40);
    const std::vector<float> before = tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool);
    for (const double random : {0.0, 1.0}) {
      if (random != 0 && tiny.arch.hidden > 100) continue;
      model::Architecture arch = tiny.arch;
      TransformContext context = tools.context(arch);
      context.settings["rotate.random"] = random;
      context.settings["rotate.seed"] = 5;
      TransformReport folded, rotated;
      const auto plain = fold_norms(tiny.weights, arch, context, folded);
      ASSERT_TRUE(plain.ok()) << plain.error().message();
      EXPECT_FALSE(arch.tied_head);
      EXPECT_EQ(folded.notes.size(), tiny.arch.tied_head ? 1u : 0u);
      EXPECT_LT(tiny::difference(before, tiny::logits(**plain, arch, tokens, tools.pool)), kSame);
      const std::vector<float> norm = *tensor::to_f32(*(*plain)->load(model::kFinalNorm));
      for (const float v : norm) EXPECT_EQ(v, 1.0f);
      const auto turned = rotate_stream(*plain, arch, context, rotated);
      ASSERT_TRUE(turned.ok()) << turned.error().message();
      EXPECT_LT(tiny::difference(before, tiny::logits(**turned, arch, tokens, tools.pool)), kSame) << rotated.summary;
      // It did something: the table is another one.
      EXPECT_NE(*tensor::to_f32(*(*turned)->load(model::kEmbedding)),
                *tensor::to_f32(*tiny.weights->load(model::kEmbedding)));
    }
  }
}

TEST(Rotate, HeadsLeaveLogits) {
  tiny::Tools tools;
  for (const tiny::Model& tiny : tiny::rotatable()) {
    SCOPED_TRACE(tiny.name);
    const std::vector<int32_t> tokens = tiny::some_tokens(tiny.arch, 40);
    tiny::Bench bench(tiny, tools, {});
    const std::vector<float> v_before = bench.block.matrix(Role::kV).w;
    const auto report = rotate_heads(bench.block, *bench.data, tools.context(tiny.arch));
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_NE(bench.block.matrix(Role::kV).w, v_before);
    EXPECT_LT(
        tiny::difference(tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool),
                         tiny::logits(*tiny::with_block(*tiny.weights, bench.block), tiny.arch, tokens, tools.pool)),
        kSame);
  }
}

// The proof has teeth: a rotation without folded norms, or of a shared table that was not untied, changes the function.
TEST(Rotate, NeedsFoldedNorms) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", "{}");
  model::Architecture arch = tiny.arch;
  TransformReport report;
  const auto refused = rotate_stream(tiny.weights, arch, tools.context(arch), report);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("model.norm.weight"), std::string::npos);
}

TEST(Rotate, RefusesWhatDoesNotCommute) {
  tiny::Tools tools;
  struct Case {
    const char* config;
    const char* says;
  };
  for (const Case c : {Case{R"({"model_type": "gemma2"})", "norm stands between"},
                       Case{R"({"model_type": "gemma3_text"})", "norm stands between"},
                       Case{R"({"model_type": "olmo2"})", "norm stands between"},
                       Case{R"({"hidden_size": 98, "head_dim": 24})", "98"}, Case{R"({"hidden_size": 172})", "172"}}) {
    const tiny::Model tiny = tiny::make("refused", c.config);
    model::Architecture arch = tiny.arch;
    TransformReport report;
    const auto folded = fold_norms(tiny.weights, arch, tools.context(arch), report);
    ASSERT_TRUE(folded.ok());
    const auto turned = rotate_stream(*folded, arch, tools.context(arch), report);
    ASSERT_FALSE(turned.ok()) << c.config;
    EXPECT_NE(turned.error().message().find(c.says), std::string::npos) << turned.error().message();
  }
  const tiny::Model odd = tiny::make("head_dim 26", R"({"head_dim": 26})");
  tiny::Bench bench(odd, tools, {});
  EXPECT_FALSE(rotate_heads(bench.block, *bench.data, tools.context(odd.arch)).ok());
}

// Norms that multiply by 1 + w become 0, and norms behind a half layer stay.
TEST(Rotate, FoldsNormsOfGemma) {
  tiny::Tools tools;
  for (const char* config : {R"({"model_type": "gemma2", "attn_logit_softcapping": 50, "final_logit_softcapping": 30})",
                             R"({"model_type": "gemma3_text"})"}) {
    const tiny::Model tiny = tiny::make("gemma", config);
    const std::vector<int32_t> tokens = tiny::some_tokens(tiny.arch, 30);
    model::Architecture arch = tiny.arch;
    TransformReport report;
    const auto folded = fold_norms(tiny.weights, arch, tools.context(arch), report);
    ASSERT_TRUE(folded.ok());
    const std::vector<float> norm = *tensor::to_f32(*(*folded)->load(model::kFinalNorm));
    for (const float v : norm) EXPECT_EQ(v, 0.0f);
    EXPECT_LT(tiny::difference(tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool),
                               tiny::logits(**folded, arch, tokens, tools.pool)),
              kSame);
  }
}

}  // namespace
}  // namespace tare::quantize
