#include "quantize/precision_plan.h"

#include <gmock/gmock.h>

#include "quantize/precision.h"
#include "quantize/transforms/tiny_models_for_tests.h"

namespace tare::quantize {
namespace {

using ::testing::HasSubstr;

// Two matrices as a plan writes them.
std::string text_of(const std::string& first, const std::string& more = "") {
  return R"({"tare_plan": 1, "format": "tare", "activation_bits": 16, "kv_bits": 16, "head": "source")" + more +
         R"(, "matrices": [)" + first +
         R"(, {"name": "b", "bits": 8, "group_size": -1, "symmetric": true, "scale_dtype": "float32",
         "method": "rtn", "bytes": 10, "divergence": 0.5}]})";
}

constexpr const char* kRow = R"({"name": "a", "bits": 3, "group_size": 64, "symmetric": false,
    "scale_dtype": "bfloat16", "method": "gptq", "bytes": 99, "divergence": 1.25e-05})";

std::string refusal(const std::string& text) {
  const auto parsed = parse_plan(text, "p.json");
  return parsed.ok() ? "accepted" : parsed.error().message();
}

TEST(PrecisionPlan, TextComesBack) {
  const auto plan = parse_plan(text_of(kRow, R"(, "made_from": {"model": {"x": "12"}}, "target_bytes": 7)"), "p.json");
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  ASSERT_EQ(plan->rows.size(), 2u);
  const PlanRow& row = plan->rows[0];
  EXPECT_EQ(row.scheme.grid.bits, 3);
  EXPECT_EQ(row.scheme.grid.group_size, 64);
  EXPECT_FALSE(row.scheme.grid.symmetric);
  EXPECT_EQ(row.scheme.grid.scale_dtype, tensor::DType::kBF16);
  EXPECT_EQ(row.scheme.algorithm, "gptq");
  EXPECT_EQ(row.bytes, 99);
  EXPECT_EQ(*row.divergence, 1.25e-05);
  EXPECT_EQ(plan->rows[1].scheme.grid.group_size, 0);
  EXPECT_TRUE(plan->needs_data());
  const std::string text = plan_text(*plan);
  const auto again = parse_plan(text, "p.json");
  ASSERT_TRUE(again.ok()) << again.error().message() << text;
  EXPECT_EQ(plan_text(*again), text);
  EXPECT_EQ(again->schemes(), plan->schemes());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 15) << "one matrix a line\n" << text;
}

TEST(PrecisionPlan, EveryFormOfAMatrixComesBack) {
  const char* rows[] = {
      R"({"name": "a", "bits": 4, "group_size": 128, "grid": "progressive", "method": "gptq"})",
      R"({"name": "a", "bits": 4, "group_size": -1, "grid": "qoq-channel", "method": "rtn"})",
      R"({"name": "a", "bits": 5, "group_size": 32, "grid": "minimum", "method": "rtn"})",
      R"({"name": "a", "bits": 4, "group_size": 32, "scale_rule": "compressed-tensors", "method": "rtn"})",
      R"({"name": "a", "method": "keep"})",
  };
  for (const char* row : rows) {
    for (const char* more : {"", R"(, "activation_bits": 8, "kv_bits": 4)"}) {
      std::string text = text_of(row, "");
      if (*more) {
        text.replace(text.find(R"("activation_bits": 16, "kv_bits": 16)"), 36, R"("activation_bits": 8, "kv_bits": 4)");
      }
      const auto plan = parse_plan(text, "p.json");
      ASSERT_TRUE(plan.ok()) << row << plan.error().message();
      const auto again = parse_plan(plan_text(*plan), "p.json");
      ASSERT_TRUE(again.ok()) << again.error().message();
      EXPECT_EQ(again->schemes(), plan->schemes()) << row;
    }
  }
}

TEST(PrecisionPlan, RefusesWhatItCannotMean) {
  EXPECT_EQ(refusal(text_of(kRow)), "accepted");
  EXPECT_THAT(refusal(""), HasSubstr("p.json"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not an object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("tare_plan"));
  EXPECT_THAT(refusal(R"({"tare_plan": 2})"), HasSubstr("another version"));
  EXPECT_THAT(refusal(R"({"tare_plan": 1, "format": "tare"})"), HasSubstr("matrices"));
  EXPECT_THAT(refusal(R"({"tare_plan": 1, "format": "tare", "matrices": 3})"), HasSubstr("matrices"));
  EXPECT_THAT(refusal(R"({"tare_plan": 1, "format": "tare", "matrices": [3]})"), HasSubstr("matrices[0]"));
  EXPECT_THAT(refusal(text_of(kRow, R"(, "extra": 1)")), HasSubstr("'extra'"));
  EXPECT_THAT(refusal(text_of(kRow, R"(, "made_from": 1)")), HasSubstr("made_from"));
  EXPECT_THAT(refusal(text_of(kRow, R"(, "divergence": "low")")), HasSubstr("divergence"));
  EXPECT_THAT(refusal(text_of(kRow, R"(, "format": "gptq")")), HasSubstr("format"));
  std::string halves = text_of(kRow);
  halves.replace(halves.find("\"kv_bits\": 16"), 13, "\"kv_bits\": 2");
  EXPECT_THAT(refusal(halves), HasSubstr("kv_bits"));
  EXPECT_THAT(refusal(text_of(R"({"name": "b", "method": "keep"})")), HasSubstr("twice"));
  struct Case {
    const char* row;
    const char* says;
  };
  for (const Case& c : {
           Case{R"({"bits": 4})", "name"},
           {R"({"name": "a"})", "method"},
           {R"({"name": 3, "method": "keep"})", "name"},
           {R"({"name": "a", "method": "rtn", "group_size": 64})", "'bits' is missing"},
           {R"({"name": "a", "method": "rtn", "bits": 4})", "'group_size' is missing"},
           {R"({"name": "a", "method": "magic", "bits": 4, "group_size": 64})", "magic"},
           {R"({"name": "a", "method": "rtn", "bits": 9, "group_size": 64})", "2..8"},
           {R"({"name": "a", "method": "rtn", "bits": -4, "group_size": 64})", "2..8"},
           {R"({"name": "a", "method": "rtn", "bits": 99999999999999, "group_size": 64})", "bits"},
           {R"({"name": "a", "method": "rtn", "bits": 4.5, "group_size": 64})", "bits"},
           {R"({"name": "a", "method": "rtn", "bits": [4], "group_size": 64})", "bits"},
           {R"({"name": "a", "method": "rtn", "bits": "four", "group_size": 64})", "bits"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 0})", "group_size"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": -7})", "group_size"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "symmetric": 1})", "symmetric"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "colour": "red"})", "colour"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "keep": true})", "keep"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "algorithm": "rtn"})", "algorithm"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "grid": "wavy"})", "grid"},
           {R"({"name": "a", "method": "rtn", "bits": 3, "group_size": 64, "grid": "progressive"})", "progressive"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "divergence": -1})", "divergence"},
           {R"({"name": "a", "method": "rtn", "bits": 4, "group_size": 64, "bytes": "many"})", "bytes"},
           {R"({"name": "a", "method": "keep", "bits": 4})", "form of its own"},
       }) {
    const std::string said = refusal(text_of(c.row));
    EXPECT_THAT(said, HasSubstr(c.says)) << c.row;
    EXPECT_NE(said, "accepted") << c.row;
    EXPECT_THAT(said, HasSubstr("matrices[0]")) << c.row;
    EXPECT_EQ(said.find("--set"), said.npos) << said;
  }
}

// A plan is held against a model.
class SettledPlan : public ::testing::Test {
 protected:
  SettledPlan() {
    PipelineOptions options{.recipe = *find_recipe("rtn")};
    options.scheme = *resolve_scheme(*options.recipe, {.group_size = 32}, &options.widths);
    matrices_ = *plan_matrices(tiny_.arch, options);
    for (const PlannedMatrix& m : matrices_) plan_.rows.push_back({.name = m.linear.name, .scheme = m.scheme});
    plan_.format = "tare";
  }

  std::string settle(PrecisionPlan plan, const char* format = "tare") {
    const checkpoints::CheckpointWriter& writer = **checkpoints::find_writer(format);
    Storage storage(writer, tiny_.weights->config, false, kernels::builtin_linear_kernels(), machine::capabilities(),
                    tools_.pool);
    const auto rest = rest_of(*tiny_.weights, tiny_.arch, HeadChoice::kSource, matrices_, writer, false, tools_.pool);
    EXPECT_TRUE(rest.ok());
    notes_.clear();
    const Status done = settle_plan(plan, matrices_, *tiny_.weights, writer, storage, *rest, notes_);
    settled_ = std::move(plan);
    return done.ok() ? "accepted" : done.error().message();
  }

  PlanRow& row(PrecisionPlan& plan, const std::string& name) {
    return *std::find_if(plan.rows.begin(), plan.rows.end(), [&](const PlanRow& r) { return r.name.ends_with(name); });
  }

  tiny::Tools tools_;
  tiny::Model tiny_ = tiny::make("llama", "{}");
  std::vector<PlannedMatrix> matrices_;
  PrecisionPlan plan_, settled_;
  std::vector<std::string> notes_;
};

TEST_F(SettledPlan, BytesOfRowsAreThoseOfTheForm) {
  ASSERT_EQ(settle(plan_), "accepted");
  // q_proj [96, 96] in 4 bits with 3 f16 scales a row.
  EXPECT_EQ(row(settled_, "0.self_attn.q_proj").bytes, 96 * 96 / 2 + 96 * 3 * 2);
  // down_proj [96, 344]: the last of 11 groups is short.
  EXPECT_EQ(row(settled_, "0.mlp.down_proj").bytes, 96 * 344 / 2 + 96 * 11 * 2);
  EXPECT_EQ(mean_bits(settled_), 4);
  PrecisionPlan plan = plan_;
  row(plan, "0.self_attn.q_proj").scheme.grid.symmetric = false;
  row(plan, "1.self_attn.q_proj").scheme.keep = true;
  ASSERT_EQ(settle(plan), "accepted");
  // Three zeros of 4 bits take two bytes a row.
  EXPECT_EQ(row(settled_, "0.self_attn.q_proj").bytes, 96 * 96 / 2 + 96 * 3 * 2 + 96 * 2);
  EXPECT_EQ(row(settled_, "1.self_attn.q_proj").bytes, 96 * 96 * 4);
}

TEST_F(SettledPlan, RowsMayStandInAnyOrderAndLoseStalePredictions) {
  PrecisionPlan plan = plan_;
  std::reverse(plan.rows.begin(), plan.rows.end());
  ASSERT_EQ(settle(plan), "accepted");
  EXPECT_EQ(settled_.rows.front().name, plan_.rows.front().name);
  for (PlanRow& r : settled_.rows) r.divergence = 0.25;
  PrecisionPlan edited = settled_;
  ASSERT_EQ(settle(edited), "accepted");
  EXPECT_DOUBLE_EQ(*settled_.predicted, 0.25 * 14);
  row(edited, "1.mlp.up_proj").scheme.grid.bits = 6;
  ASSERT_EQ(settle(edited), "accepted");
  EXPECT_FALSE(row(settled_, "1.mlp.up_proj").divergence);
  EXPECT_TRUE(row(settled_, "0.mlp.up_proj").divergence);
  EXPECT_FALSE(settled_.predicted);
}

TEST_F(SettledPlan, RefusesAnotherModelsPlanByName) {
  PrecisionPlan missing = plan_;
  missing.rows.erase(missing.rows.begin() + 5);
  EXPECT_THAT(settle(missing), HasSubstr(plan_.rows[5].name));
  EXPECT_THAT(settle(missing), HasSubstr("misses"));
  PrecisionPlan extra = plan_;
  extra.rows.push_back({.name = "model.layers.2.mlp.up_proj", .scheme = plan_.rows[0].scheme});
  EXPECT_THAT(settle(extra), HasSubstr("model.layers.2.mlp.up_proj"));
}

TEST_F(SettledPlan, RefusesFormsThatTheFormatDoesNotHold) {
  // Rows of 344 in groups of 32 end in a short group, which compressed-tensors does not have.
  EXPECT_THAT(settle(plan_, "compressed-tensors"), HasSubstr("model.layers.0.mlp.down_proj"));
  PrecisionPlan plan = plan_;
  for (PlanRow& r : plan.rows) {
    if (r.name.ends_with("down_proj")) r.scheme.grid.group_size = 0;
  }
  EXPECT_EQ(settle(plan, "compressed-tensors"), "accepted");
  // Joined matrices must agree there.
  row(plan, "1.self_attn.k_proj").scheme.grid.bits = 8;
  EXPECT_EQ(settle(plan), "accepted");
  EXPECT_THAT(settle(plan, "compressed-tensors"), HasSubstr("model.layers.1.self_attn.k_proj"));
  row(plan, "1.self_attn.k_proj").scheme = row(plan, "1.self_attn.q_proj").scheme;
  row(plan, "1.self_attn.o_proj").scheme.grid.bits = 8;
  EXPECT_EQ(settle(plan, "compressed-tensors"), "accepted");
  // AWQ has one form for the whole file.
  EXPECT_THAT(settle(plan, "awq"), HasSubstr("model.layers.0.mlp.down_proj"));
  // GPTQ wants multiples of 32.
  EXPECT_THAT(settle(plan_, "gptq"), HasSubstr("model.layers.0.self_attn.k_proj"));
  EXPECT_THAT(settle(plan_, "gptq"), HasSubstr("multiples of 32"));
}

}  // namespace
}  // namespace tare::quantize
