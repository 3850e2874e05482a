// generate at the edges of what it is given, through the binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tare_binary.h"
#include "testing/fixtures.h"
#include "tiny_model.h"

namespace tare::testing {
namespace {

using ::testing::HasSubstr;

// The tokenizer of this model knows 259 ids, its embedding 512 rows.
TEST(CliGenerate, IdsAboveTheTokenizersAddNoText) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  const json::object out =
      tare_json({"generate", model, "--token-ids", "1,2,300", "--max-tokens", "6", "--ignore-eos"});
  EXPECT_EQ(out.at("token_ids").as_array().size(), 6u);
  const Finished said =
      tare_run({"generate", model, "--token-ids", "1,2,300", "--max-tokens", "6", "--ignore-eos", "--json"});
  EXPECT_THAT(said.err, HasSubstr("have no text"));
}

TEST(CliGenerate, LimitsOutOfRangeAreNamed) {
  const std::string model = write_tiny_model("cli-generate-limits");
  const auto refused = [&](const std::string& flag, const std::string& value, const std::string& named) {
    const Finished done = tare_run({"generate", model, "--token-ids", "1,2", flag, value});
    EXPECT_EQ(done.exit_code, 2) << flag << " " << value;
    EXPECT_THAT(done.err, HasSubstr(named)) << flag << " " << value;
  };
  refused("--max-tokens", "0", "max_tokens");
  refused("--max-tokens", "-1", "max_tokens");
  refused("--max-model-len", "-1", "--max-model-len");
  refused("--max-model-len", "9223372036854775807", "--max-model-len");
  // As many as fit: the context of the model ends the answer.
  const json::object out =
      tare_json({"generate", model, "--token-ids", "1,2", "--max-tokens", "9223372036854775807", "--ignore-eos"});
  EXPECT_EQ(out.at("token_ids").as_array().size(), 126u);
  EXPECT_EQ(out.at("finish_reason").as_string(), "length");
}

}  // namespace
}  // namespace tare::testing
