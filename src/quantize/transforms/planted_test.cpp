// Models with planted outlier channels, each for the transform that was invented against it. A plant leaves the
// function as it is (one side times c, the other divided by c), so what a method has to win back is known beforehand.
#include "quantize/transforms/awq.h"
#include "quantize/transforms/fold.h"
#include "quantize/transforms/hadamard.h"
#include "quantize/transforms/reorder.h"
#include "quantize/transforms/rotate.h"
#include "quantize/transforms/smooth.h"
#include "quantize/transforms/smooth_attention.h"
#include "quantize/transforms/tiny_models_for_tests.h"

namespace tare::quantize {
namespace {

using model::Site;

// One layer: its block is the model.
tiny::Model plain_model() {
  return tiny::make("llama", R"({"num_hidden_layers": 1, "hidden_size": 128, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256})",
                    21);
}

const MatrixScheme kW8A8{.grid = {.bits = 8, .group_size = 0, .scale_dtype = tensor::DType::kF32},
                         .activation = {.type = tensor::ActivationType::kS8}};
const MatrixScheme kDense{.keep = true};

// Mean KL of the model with this block, its matrices rounded to nearest as their schemes say, to the plain model.
double loss(const tiny::Model& plain, const Block& block, tiny::Tools& tools, const char* kv = "f32") {
  const std::vector<int32_t> tokens = tiny::some_tokens(plain.arch, 128, 77);
  auto weights = std::make_shared<tensor::ModelWeights>(*tiny::with_block(*plain.weights, block));
  for (const BlockMatrix& m : block.matrices) {
    if (m.scheme.keep) continue;
    const ChosenGrid grid = *ChosenGrid::choose(m.scheme.grid, m.w.data(), m.n, m.k, tools.pool, m.clip);
    std::vector<uint8_t> codes(m.w.size());
    for (int64_t row = 0; row < m.n; ++row) grid.encode_row(row, m.w.data() + row * m.k, codes.data() + row * m.k);
    weights->erase(m.name + ".weight");
    EXPECT_TRUE(weights->add(m.name + ".weight", *grid.finish(codes, "tare"), m.scheme.activation).ok());
  }
  return tiny::mean_kl(tiny::logits(*plain.weights, plain.arch, tokens, tools.pool),
                       tiny::logits(*weights, plain.arch, tokens, tools.pool, kv), plain.arch.vocab_size);
}

// A bench whose block, and the model that calibration runs, has the plant.
struct Planted {
  Planted(const tiny::Model& plain, tiny::Tools& tools, const MatrixScheme& scheme,
          const std::function<void(Block&)>& plant)
      : bench(plain, tools, scheme) {
    plant(bench.block);
    EXPECT_TRUE(bench.data->open(bench.block).ok());
  }
  tiny::Bench bench;
};

std::vector<float> peaks(int64_t count, std::initializer_list<int64_t> channels, float factor) {
  std::vector<float> out(static_cast<size_t>(count), 1.0f);
  for (const int64_t c : channels) out[static_cast<size_t>(c)] = factor;
  return out;
}

// Three of 128 channels of what the norms give are 60 times the rest. Per token, 127 steps now reach 60 times as far:
// the others are rounded 60 / 2.6 times as coarsely (2.6 deviations is the usual largest of 128), their squared error
// grows more than 200-fold. SmoothQuant's factor at those channels, with x 60 times and w 1/60 of the rest, is 60 for
// any alpha, so it takes the plant away: what is left is about the loss of the plain model, far below a fifth.
TEST(Planted, SmoothQuantLeavesAFifth) {
  tiny::Tools tools;
  const tiny::Model plain = plain_model();
  const Block clean = tiny::Bench(plain, tools, kW8A8).block;
  Planted planted(plain, tools, kW8A8, [](Block& block) {
    for (const Site site : {Site::kQkv, Site::kGateUp}) {
      ASSERT_TRUE(fold_factors(block, site, peaks(block.width(site), {3, 64, 90}, 1.0f / 60)).ok());
    }
  });
  Block& block = planted.bench.block;
  const double unplanted = loss(plain, clean, tools);
  const double before = loss(plain, block, tools);
  ASSERT_TRUE(smoothquant(block, *planted.bench.data, tools.context(plain.arch)).ok());
  const double after = loss(plain, block, tools);
  printf("W8A8 loss: plain model %.3g, planted %.3g, smoothed %.3g\n", unplanted, before, after);
  EXPECT_GT(before, 50 * unplanted) << "the plant must hurt";
  EXPECT_LE(after, 0.2 * before);
  EXPECT_LE(after, 1.5 * unplanted);
}

// Two RoPE pairs of each key head are 10 times the rest. 15 steps then cover 10 times the range: errors of the others
// grow about 100-fold. lambda at them is 10 times that of the rest for (alpha, beta) = (1, 0) and for (1/2, 1/2), and
// the search has both.
TEST(Planted, SmoothAttentionRestoresKv4) {
  tiny::Tools tools;
  const tiny::Model plain = plain_model();
  const Block clean = tiny::Bench(plain, tools, kDense).block;
  Planted planted(plain, tools, kDense, [](Block& block) {
    std::vector<float> lambda(static_cast<size_t>(block.arch->kv_size()), 1.0f);
    for (size_t head = 0; head < lambda.size(); head += 32) {
      for (const size_t j : {2u, 9u}) lambda[head + j] = lambda[head + j + 16] = 0.1f;
    }
    fold_attention_factors(block, lambda);
  });
  Block& block = planted.bench.block;
  const double unplanted = loss(plain, clean, tools, "int4");
  const double before = loss(plain, block, tools, "int4");
  ASSERT_TRUE(smooth_attention(block, *planted.bench.data, tools.context(plain.arch)).ok());
  const double after = loss(plain, block, tools, "int4");
  printf("KV4 loss: plain model %.3g, planted %.3g, smoothed %.3g\n", unplanted, before, after);
  EXPECT_GT(before, 3 * unplanted) << "the plant must hurt";
  EXPECT_LE(after, 1.2 * unplanted);
}

// One of 64 channels is 20 times as active as the rest (the plant is in the data: the norm's weight, not undone in the
// matrices). Rounding to nearest loses 63 * 1 + 400 per group. A factor of 3 on that channel costs its group no range
// (its weight reaches the group's largest of 2.4 deviations rarely) and leaves 63 + 400/9 = 107: at most half is what a
// search that stops near 3 must reach, on each matrix behind the norm.
TEST(Planted, AwqHalvesTheErrorOfActiveChannels) {
  tiny::Tools tools;
  const tiny::Model plain = plain_model();
  const MatrixScheme scheme{.grid = {.group_size = 64, .symmetric = false}};
  Planted planted(plain, tools, scheme, [](Block& block) {
    for (std::vector<float>* norm : {&block.attention_norm_in, &block.mlp_norm_in}) {
      for (const size_t c : {5u, 100u}) (*norm)[c] *= 20;
    }
    block.touch();
  });
  Block& block = planted.bench.block;
  BlockData& data = *planted.bench.data;
  const Site sites[] = {Site::kQkv, Site::kGateUp};
  const auto error = [&] {
    const Block trial = *rounded(block, sites, tools.pool);
    return *data.error(trial, {.half = Half::kAttention}) + *data.error(trial, {.half = Half::kMlp});
  };
  const double before = error();
  ASSERT_TRUE(awq_scales(block, data, tools.context(plain.arch)).ok());
  const double after = error();
  printf("AWQ on active channels: error %.3g -> %.3g\n", before, after);
  EXPECT_LE(after, 0.5 * before);
}

// The input of down_proj: 8 of 256 channels, one in each group of 32, have weights 8 times the rest (and activations an
// eighth). The step of a group follows 8 |w| of its one large column, 8 deviations in the mean square: 64 times the
// error on 31 channels, in all 8 groups. Sorted by activation the 8 columns share one group with 24 others; its step
// follows the largest of 8 (1.9 deviations in the mean square, 3.5 times the error), the other groups are as before the
// plant (1/64). 24 * 3.5 / (8 * 31) = 0.34, less because those 24 are the least active ones.
TEST(Planted, ReorderGathersLargeColumns) {
  tiny::Tools tools;
  const tiny::Model plain = plain_model();
  const MatrixScheme scheme{.grid = {.group_size = 32}};
  Planted planted(plain, tools, scheme, [](Block& block) {
    ASSERT_TRUE(fold_factors(block, Site::kDown, peaks(256, {7, 40, 70, 99, 130, 170, 210, 250}, 8)).ok());
  });
  Block& block = planted.bench.block;
  const Site sites[] = {Site::kDown};
  const auto error = [&] {
    return *planted.bench.data->error(*rounded(block, sites, tools.pool), {.half = Half::kMlp});
  };
  const double before = error();
  ASSERT_TRUE(reorder_channels(block, *planted.bench.data, tools.context(plain.arch)).ok());
  const double after = error();
  printf("reorder: error %.3g -> %.3g\n", before, after);
  EXPECT_LE(after, 0.34 * before);
}

// The same plant on the activations' side: 4 channels 30 times as active, weights 1/30. s = x^a / w^(1-a) holds 30 for
// every a, so W4A8's error returns to the plain model's.
TEST(Planted, OutputSmoothingTakesPeaksFromDownProj) {
  tiny::Tools tools;
  const tiny::Model plain = plain_model();
  const MatrixScheme scheme{.grid = {.kind = GridKind::kProgressive, .group_size = 128},
                            .activation = {.type = tensor::ActivationType::kS8}};
  const Block clean = tiny::Bench(plain, tools, scheme).block;
  Planted planted(plain, tools, scheme, [](Block& block) {
    ASSERT_TRUE(fold_factors(block, Site::kDown, peaks(256, {7, 70, 130, 250}, 1.0f / 30)).ok());
  });
  Block& block = planted.bench.block;
  const double unplanted = loss(plain, clean, tools);
  const double before = loss(plain, block, tools);
  ASSERT_TRUE(smooth_outputs(block, *planted.bench.data, tools.context(plain.arch)).ok());
  const double after = loss(plain, block, tools);
  printf("W4A8 loss: plain model %.3g, planted %.3g, smoothed %.3g\n", unplanted, before, after);
  EXPECT_GT(before, 1.5 * unplanted) << "the plant must hurt";
  EXPECT_LE(after, 1.2 * unplanted);
}

// One column of weights is 30 deviations: in progressive groups of 128 its row scale grows 30 / 3.3 times and groups
// fall to the 8-bit floor. Gaussian rows lose 1.0 % of their power on this grid and such rows 4.5 %; a rotation makes
// Gaussian rows out of both, so 1.2 % must be reached.
TEST(Planted, RotationMakesRowsGaussian) {
  ThreadPool pool(2);
  std::mt19937 random(3);
  constexpr int64_t kN = 64;
  constexpr int64_t kK = 1024;
  std::vector<float> w = tiny::normal(kN * kK, random, 1);
  for (int64_t row = 0; row < kN; ++row) w[static_cast<size_t>(row * kK + 77)] = (row & 1) != 0 ? 30.0f : -30.0f;
  const auto share = [&](const std::vector<float>& values) {
    BlockMatrix m{.n = kN, .k = kK, .w = values, .scheme = {.grid = {.kind = GridKind::kProgressive}}};
    std::vector<float> back(values.size());
    EXPECT_TRUE(round_matrix(m, values.data(), back.data(), pool).ok());
    double error = 0;
    double power = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(static_cast<double>(values[i]) - static_cast<double>(back[i]), 2);
      power += std::pow(static_cast<double>(values[i]), 2);
    }
    return error / power;
  };
  const double before = share(w);
  HadamardTransform::make(kK)->apply_to_rows(w.data(), kN, kK, pool);
  const double after = share(w);
  printf("rotation: share of power lost %.4f -> %.4f\n", before, after);
  EXPECT_GT(before, 0.02);
  EXPECT_LT(after, 0.012);
}

}  // namespace
}  // namespace tare::quantize
