#include <gtest/gtest.h>

#include "model/architecture.h"

namespace tare::model {
namespace {

json::object base_config(const char* type) {
  json::object config = json::parse(R"({"vocab_size": 1031, "hidden_size": 96, "intermediate_size": 344,
    "num_hidden_layers": 4, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 80,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5})",
                                    "test")
                            ->get_object();
  config["model_type"] = type;
  return config;
}

TEST(Families, ExplicitHeadSizeWins) {
  const Architecture arch = *describe_architecture(base_config("llama"));
  EXPECT_EQ(arch.head_dim, 80);
  EXPECT_EQ(arch.q_size(), 560);
  json::object config = base_config("llama");
  config.erase("head_dim");
  EXPECT_NE(describe_architecture(config).error().message().find("96 / 7"), std::string::npos);
}

TEST(Families, UnknownFamilyIsRefusedByName) {
  const Error error = describe_architecture(base_config("martian")).error();
  EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
  EXPECT_NE(error.message().find("'martian'"), std::string::npos);
}

TEST(Families, NestedTextConfig) {
  json::object outer;
  outer["model_type"] = "gemma3";
  outer["text_config"] = base_config("gemma3_text");
  const Architecture arch = *describe_architecture(outer);
  EXPECT_EQ(arch.family, "gemma3");
  EXPECT_TRUE(arch.tied_head);
}

// The nested configs of Gemma 3 from 4B on name only what differs from the family's defaults.
TEST(Families, Gemma3DefaultsAreSaid) {
  const json::value outer = *json::parse(R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560,
    "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})",
                                         "test");
  const auto arch = describe_architecture(outer.get_object());
  ASSERT_TRUE(arch.ok()) << arch.error().message();
  EXPECT_EQ(arch->vocab_size, 262208);
  EXPECT_EQ(arch->heads, 8);
  EXPECT_EQ(arch->kv_heads, 4);
  EXPECT_EQ(arch->head_dim, 256);
  EXPECT_EQ(arch->notes.size(), 5u);
  EXPECT_EQ(arch->ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(arch->ropes[0].factor, 8.0);
  EXPECT_EQ(arch->ropes[1].kind, RopeKind::kDefault);
  EXPECT_EQ(arch->plan[4].window, 1024);
  EXPECT_EQ(arch->plan[5].window, 0);
}

// rope_theta beside rope_scaling, with `type` for `rope_type`, is what rope_parameters says now.
TEST(Families, OldAndNewSpellingsOfRope) {
  struct Pair {
    const char* old_form;
    const char* new_form;
  };
  const Pair pairs[] = {
      {R"({"type": "linear", "factor": 4.0})", R"({"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5})"},
      {R"({"type": "dynamic", "factor": 2.0})", R"({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e5})"},
      {R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})",
       R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 5e5})"},
      {R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 128})",
       R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 128, "rope_theta": 5e5})"}};
  for (const Pair& pair : pairs) {
    SCOPED_TRACE(pair.old_form);
    json::object old_config = base_config("llama");
    old_config["rope_theta"] = 5e5;
    old_config["rope_scaling"] = json::parse(pair.old_form, "test").value();
    json::object new_config = base_config("llama");
    new_config["rope_parameters"] = json::parse(pair.new_form, "test").value();
    const auto old_arch = describe_architecture(old_config);
    const auto new_arch = describe_architecture(new_config);
    ASSERT_TRUE(old_arch.ok()) << old_arch.error().message();
    ASSERT_TRUE(new_arch.ok()) << new_arch.error().message();
    for (const int64_t context : {int64_t{64}, int64_t{512}, int64_t{1000}}) {
      const RopeFrequencies a = rope_frequencies(old_arch->ropes[0], context);
      const RopeFrequencies b = rope_frequencies(new_arch->ropes[0], context);
      EXPECT_EQ(a.inv_freq, b.inv_freq) << context;
      EXPECT_EQ(a.attention_scaling, b.attention_scaling);
    }
    old_config["rope_parameters"] = json::parse(R"({"rope_type": "default", "rope_theta": 5e5})", "test").value();
    EXPECT_FALSE(describe_architecture(old_config).ok());
  }
  json::object unknown = base_config("llama");
  unknown["rope_scaling"] = json::parse(R"({"type": "spiral", "factor": 2.0})", "test").value();
  EXPECT_NE(describe_architecture(unknown).error().message().find("spiral"), std::string::npos);
}

TEST(Families, Gemma3LayerTypesAndRopes) {
  json::object config = base_config("gemma3_text");
  config["num_hidden_layers"] = 7;
  config["sliding_window"] = 8;
  const Architecture by_pattern = *describe_architecture(config);
  const int64_t windows[] = {8, 8, 8, 8, 8, 0, 8};
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(by_pattern.plan[i].window, windows[i]);
    EXPECT_EQ(by_pattern.plan[i].rope, windows[i] > 0 ? 1 : 0);
  }
  EXPECT_EQ(by_pattern.ropes[0].theta, 1000000.0);
  EXPECT_EQ(by_pattern.ropes[1].theta, 10000.0);

  config["rope_parameters"] = json::parse(R"({"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})",
                                          "test")
                                  .value();
  const Architecture by_type = *describe_architecture(config);
  EXPECT_EQ(by_type.ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(by_type.ropes[0].theta, 5e5);
  EXPECT_EQ(by_type.ropes[1].theta, 2e4);
  // A family without RoPE by layer type must not lose the position embedding silently.
  config["model_type"] = "llama";
  EXPECT_FALSE(describe_architecture(config).ok());
}

TEST(Families, MistralWindow) {
  json::object config = base_config("mistral");
  EXPECT_EQ(describe_architecture(config)->plan[0].window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(describe_architecture(config)->plan[0].window, 0);
}

TEST(Families, ContradictionsAndNonsense) {
  json::object config = base_config("llama");
  config["rope_theta"] = 1e4;
  config["rope_parameters"] = json::parse(R"({"rope_type": "default", "rope_theta": 2e4})", "test").value();
  EXPECT_FALSE(describe_architecture(config).ok());
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}) {
    for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 62}) {
      json::object broken = base_config("llama");
      broken[key] = bad;
      EXPECT_FALSE(describe_architecture(broken).ok()) << key << " " << bad;
    }
  }
}

}  // namespace
}  // namespace tare::model
