#include "quantize/baselines/baseline.h"

#include "quantize/transforms/fold.h"
#include "quantize/transforms/tiny_models_for_tests.h"

namespace tare::quantize {
namespace {

CalibrationData calibration(const model::Architecture& arch) {
  CalibrationData out;
  for (unsigned s = 0; s < 4; ++s) out.sequences.push_back(tiny::some_tokens(arch, 64, 100 + s));
  out.tokens = 256;
  return out;
}

// What turns while the model runs cancels what was folded into the weights.
TEST(Baselines, TransformsLeaveLogits) {
  tiny::Tools tools;
  for (const tiny::Model& tiny :
       {tiny::make("8 heads, tied", R"({"num_attention_heads": 8, "tie_word_embeddings": true})"),
        tiny::make("9 heads have no matrix, biases", R"({"num_attention_heads": 9, "num_key_value_heads": 3,
            "intermediate_size": 96, "attention_bias": true, "mlp_bias": true})"),
        tiny::make("phi3", R"({"model_type": "phi3", "head_dim": 32, "partial_rotary_factor": 0.5})")}) {
    SCOPED_TRACE(tiny.name);
    const std::vector<int32_t> tokens = tiny::some_tokens(tiny.arch, 40);
    const CalibrationData data = calibration(tiny.arch);
    const std::vector<float> before = tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool);
    for (const char* name : {"quarot", "atom"}) {
      const auto made = make_baseline(name, tiny.weights, tiny.arch, data, {.round = false}, tools.products);
      ASSERT_TRUE(made.ok()) << made.error().message();
      const std::vector<float> after =
          tiny::logits(*made->weights, made->arch, tokens, tools.pool, "f32", &made->observer);
      EXPECT_LT(tiny::difference(before, after), 1e-4) << name;
    }
  }
  EXPECT_FALSE(make_baseline("spinquant", nullptr, {}, {}, {}, tools.products).ok());
}

// 4-bit tokens with two of 128 channels 30 times the rest: with one scale a token everything else is zero. QuaRot
// spreads the two over all channels, Atom keeps them in 8 bits; the least that is asked of both is half of the plain
// loss.
TEST(Baselines, SurviveOutlierChannels) {
  tiny::Tools tools;
  const tiny::Model plain = tiny::make("llama", R"({"num_hidden_layers": 1, "hidden_size": 128, "head_dim": 32,
      "intermediate_size": 256})");
  Block block = *Block::load(*plain.weights, plain.arch, 0);
  std::vector<float> factors(128, 1.0f);
  factors[9] = factors[77] = 1.0f / 30;
  for (const model::Site site : {model::Site::kQkv, model::Site::kGateUp}) {
    ASSERT_TRUE(fold_factors(block, site, factors).ok());
  }
  const auto planted = tiny::with_block(*plain.weights, block);
  const std::vector<int32_t> tokens = tiny::some_tokens(plain.arch, 64);
  const std::vector<float> reference = tiny::logits(*plain.weights, plain.arch, tokens, tools.pool);
  const auto loss = [&](const tensor::ModelWeights& weights, const model::Architecture& arch,
                        const model::Observer& observer) {
    return tiny::mean_kl(reference, tiny::logits(weights, arch, tokens, tools.pool, "int4", &observer),
                         plain.arch.vocab_size);
  };
  // Plain W4A4: rows and tokens rounded to nearest.
  Block nearest = block;
  for (BlockMatrix& m : nearest.matrices) m.scheme = {.grid = {.group_size = 0}};
  nearest = *rounded(nearest, {}, tools.pool);
  model::Observer round_all;
  std::vector<float> buffer;
  round_all.replace = [&](int64_t, model::Site, const float* x, int64_t m, int64_t k) -> const float* {
    buffer.assign(x, x + m * k);
    for (int64_t i = 0; i < m; ++i) round_signed(buffer.data() + i * k, k, 4, 1.0f);
    return buffer.data();
  };
  const double plain_loss = loss(*tiny::with_block(*plain.weights, nearest), plain.arch, round_all);
  const CalibrationData data = calibration(plain.arch);
  for (const char* name : {"quarot", "atom"}) {
    const auto made = make_baseline(name, planted, plain.arch, data, {}, tools.products);
    ASSERT_TRUE(made.ok()) << made.error().message();
    const double with = loss(*made->weights, made->arch, made->observer);
    printf("%s W4A4KV4: loss %.4f, plain %.4f\n", name, with, plain_loss);
    EXPECT_LT(with, 0.5 * plain_loss) << name;
    EXPECT_GT(with, 0) << name;
  }
}

TEST(Baselines, RoundSignedByHand) {
  float x[] = {7, -3.4f, 0.6f, 3.5f};
  round_signed(x, 4, 4, 1.0f);  // scale 1
  EXPECT_EQ(x[0], 7);
  EXPECT_EQ(x[1], -3);
  EXPECT_EQ(x[2], 1);
  EXPECT_EQ(x[3], 4);
  float clipped[] = {10, -10, 1, 0};
  round_signed(clipped, 4, 4, 0.7f);  // scale 1: 10 -> 7, -10 -> -8
  EXPECT_EQ(clipped[0], 7);
  EXPECT_EQ(clipped[1], -8);
  float zero[] = {0, 0};
  round_signed(zero, 2, 4, 1.0f);
  EXPECT_EQ(zero[0], 0);
}

}  // namespace
}  // namespace tare::quantize
