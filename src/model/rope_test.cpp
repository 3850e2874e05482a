#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tare::model {
namespace {

json::object object(const char* text) {
  return json::parse(text, "test")->get_object();
}

TEST(Rope, DefaultFrequencies) {
  const RopeSpec spec = *read_rope({}, 10000.0, 8, 512, 0, "t");
  const RopeFrequencies f = rope_frequencies(spec, 512);
  ASSERT_EQ(f.inv_freq.size(), 4u);
  EXPECT_FLOAT_EQ(f.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(f.inv_freq[1], 0.1f);  // 10000^(-2/8)
  EXPECT_FLOAT_EQ(f.inv_freq[3], 0.001f);
  EXPECT_EQ(f.attention_scaling, 1.0f);
}

TEST(Rope, EitherSpellingOfTheKind) {
  for (const char* text : {R"({"type": "linear", "factor": 4})", R"({"rope_type": "linear", "factor": 4})",
                           R"({"type": "linear", "rope_type": "linear", "factor": 4})"}) {
    const RopeSpec spec = *read_rope(object(text), 10000.0, 8, 512, 0, "t");
    EXPECT_FLOAT_EQ(rope_frequencies(spec, 512).inv_freq[0], 0.25f);
  }
  EXPECT_FALSE(read_rope(object(R"({"type": "linear", "rope_type": "yarn", "factor": 4})"), 1e4, 8, 512, 0, "t").ok());
}

TEST(Rope, RefusesByName) {
  const auto message = [](const char* text) { return read_rope(object(text), 1e4, 8, 512, 0, "t").error().message(); };
  EXPECT_NE(message(R"({"rope_type": "spiral"})").find("'spiral'"), std::string::npos);
  EXPECT_NE(message(R"({"rope_type": "linear"})").find("'factor'"), std::string::npos);
  EXPECT_NE(message(R"({"rope_type": "llama3", "factor": 8})").find("'low_freq_factor'"), std::string::npos);
  EXPECT_NE(message(R"({"rope_type": "default", "wobble": 1})").find("'wobble'"), std::string::npos);
  EXPECT_NE(message(R"({"rope_type": "longrope", "short_factor": [1], "long_factor": [1,1,1,1]})").find("short_factor"),
            std::string::npos);
}

TEST(Rope, DynamicStretchesOnlyBeyondTheTrainedLength) {
  const RopeSpec spec = *read_rope(object(R"({"rope_type": "dynamic", "factor": 2})"), 10000.0, 8, 512, 0, "t");
  EXPECT_FLOAT_EQ(rope_frequencies(spec, 512).inv_freq[3], 0.001f);
  // length 1024: base * (2 * 2 - 1)^(8 / 6)
  const double base = 10000.0 * std::pow(3.0, 8.0 / 6.0);
  EXPECT_NEAR(rope_frequencies(spec, 1024).inv_freq[3], std::pow(base, -6.0 / 8.0), 1e-9);
}

TEST(Rope, YarnAttentionFactor) {
  const auto factor = [](const char* text) {
    return rope_frequencies(*read_rope(object(text), 1e4, 64, 4096, 0, "t"), 4096).attention_scaling;
  };
  EXPECT_NEAR(factor(R"({"rope_type": "yarn", "factor": 40})"), 0.1 * std::log(40.0) + 1, 1e-6);
  EXPECT_NEAR(factor(R"({"rope_type": "yarn", "factor": 40, "mscale": 1, "mscale_all_dim": 1})"), 1.0, 1e-6);
  EXPECT_NEAR(factor(R"({"rope_type": "yarn", "factor": 40, "attention_factor": 1.5})"), 1.5, 1e-6);
}

TEST(Rope, Llama3KeepsFastAndStretchesSlowChannels) {
  const RopeSpec spec = *read_rope(
      object(
          R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})"),
      500000.0, 128, 131072, 0, "t");
  const RopeFrequencies f = rope_frequencies(spec, 131072);
  EXPECT_EQ(f.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(f.inv_freq[63], static_cast<float>(std::pow(500000.0, -126.0 / 128.0) / 8));
}

}  // namespace
}  // namespace tare::model
