#include "checkpoints/text_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoints/tiny_checkpoint.h"

namespace tare::checkpoints {
namespace {

using ::testing::HasSubstr;
using testing_util::TinyCheckpoint;

TinyCheckpoint nested(const std::string& name, const std::string& prefix, const std::string& other) {
  TinyCheckpoint made(name);
  made.config = json::parse(R"({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
      "eos_token_id": [1, 106], "bos_token_id": 2, "vision_config": {"hidden_size": 1152},
      "text_config": {"model_type": "gemma3_text", "hidden_size": 2, "bos_token_id": 3}})",
                            "test")
                    ->get_object();
  made.add<float>(prefix + "norm.weight", tensor::DType::kF32, {2}, {1, 2});
  made.add<float>(other + "vision_tower.a.weight", tensor::DType::kF32, {1}, {5});
  made.add<float>(other + "multi_modal_projector.mm_input_projection_weight", tensor::DType::kF32, {1}, {6});
  return made;
}

TEST(TextPart, BothLayoutsOfNames) {
  const std::pair<const char*, const char*> kLayouts[] = {{"language_model.model.", ""},
                                                          {"model.language_model.", "model."}};
  for (const auto& [prefix, other] : kLayouts) {
    SCOPED_TRACE(prefix);
    const auto weights = nested(std::string("text_part") + other, prefix, other).load();
    ASSERT_TRUE(weights.ok()) << weights.error().message();
    EXPECT_EQ(weights->names(), std::vector<std::string>{"model.norm.weight"});
    EXPECT_EQ(weights->config.at("model_type"), "gemma3_text");
    EXPECT_EQ(weights->config.at("architectures"), json::array{"Gemma3ForCausalLM"});
    EXPECT_EQ(weights->config.at("eos_token_id"), (json::array{1, 106}));
    EXPECT_EQ(weights->config.at("bos_token_id"), 3);
    EXPECT_FALSE(weights->config.contains("text_config"));
    std::string notes;
    for (const std::string& note : weights->notes) notes += note + "\n";
    EXPECT_THAT(notes, HasSubstr("2 tensors of other parts are left out"));
    EXPECT_THAT(notes, HasSubstr("bos_token_id 2 outside and 3 inside"));
  }
}

// Names in lists of the quantization follow; a nested configuration whose names have no prefix stays as it is.
TEST(TextPart, QuantizationNamesAndPlainNames) {
  Source source;
  source.config = json::parse(R"({"model_type": "gemma3", "text_config": {}})", "test")->get_object();
  source.quantization =
      json::parse(R"({"ignore": ["language_model.lm_head", "model.language_model.layers.0.mlp", "re:.*x", "lm_head"]})",
                  "test")
          ->get_object();
  adopt_text_part(source, 0);
  EXPECT_EQ(source.quantization.at("ignore"), (json::array{"lm_head", "model.layers.0.mlp", "re:.*x", "lm_head"}));
  EXPECT_EQ(source.config.at("model_type"), "gemma3");

  TinyCheckpoint plain("text_part_plain");
  plain.config = json::parse(R"({"model_type": "gemma3", "text_config": {"hidden_size": 2}})", "test")->get_object();
  plain.add<float>("model.norm.weight", tensor::DType::kF32, {2}, {1, 2});
  EXPECT_TRUE(plain.load()->config.contains("text_config"));
  // One tensor under both names is an error, not a choice.
  plain.add<float>("language_model.model.norm.weight", tensor::DType::kF32, {2}, {3, 4});
  EXPECT_FALSE(plain.load().ok());
}

}  // namespace
}  // namespace tare::checkpoints
