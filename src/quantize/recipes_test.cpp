// Every recipe, end to end on tiny models: grouped heads, biases, a tied head, no size a power of two.
#include "quantize/pipeline.h"
#include "quantize/transforms/tiny_models_for_tests.h"

namespace tare::quantize {
namespace {

struct Made {
  Outcome outcome;
  double loss = 0;
};

Made run(const tiny::Model& tiny, const std::string& method, const std::string& scheme, tiny::Tools& tools) {
  PipelineOptions options{.recipe = *find_recipe(method)};
  options.scheme = *resolve_scheme(*options.recipe, {.scheme = scheme, .group_size = 32}, &options.widths);
  if (options.widths.weight == 8)
    options.scheme = *resolve_scheme(*options.recipe, {.scheme = scheme}, &options.widths);
  options.caps = machine::capabilities();
  if (options.recipe->calibrated) {
    for (unsigned s = 0; s < 4; ++s) options.calibration.sequences.push_back(tiny::some_tokens(tiny.arch, 64, 100 + s));
    options.calibration.tokens = 256;
  }
  options.transform_settings = {{"awq.steps", 4}, {"clip.steps", 4}, {"smooth_attention.alpha", 0.5}};
  auto outcome = quantize_model(tiny.weights, tiny.arch, options, tools.pool);
  EXPECT_TRUE(outcome.ok()) << method << ": " << outcome.error().message();
  if (!outcome.ok()) return {};
  const auto arch = model::describe_architecture(outcome->weights.config);
  const std::vector<int32_t> tokens = tiny::some_tokens(tiny.arch, 96, 55);
  const char* kv = options.widths.kv == 4 ? "int4" : "f32";
  const double loss =
      tiny::mean_kl(tiny::logits(*tiny.weights, tiny.arch, tokens, tools.pool),
                    tiny::logits(outcome->weights, *arch, tokens, tools.pool, kv), tiny.arch.vocab_size);
  return {std::move(*outcome), loss};
}

// The head is its own: with a tied one of random numbers every logit but the input's own token is noise.
TEST(Recipes, LoseLessThanNearestCodes) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", R"({"attention_bias": true})");
  struct Case {
    const char* method;
    const char* scheme;
    double share;  // of the loss of nearest codes in the same scheme that may be left on a model without outliers
  };
  for (const Case c : {Case{"awq", "W4A16", 1.0}, Case{"qoq", "W4A8KV4", 0.8}, Case{"smoothquant", "W8A8", 1.1}}) {
    const Made nearest = run(tiny, "rtn", c.scheme, tools);
    const Made made = run(tiny, c.method, c.scheme, tools);
    printf("%s %s: loss %.4g, nearest codes %.4g\n", c.method, c.scheme, made.loss, nearest.loss);
    EXPECT_GT(made.loss, 0);
    EXPECT_LT(made.loss, c.share * nearest.loss) << c.method;
    for (const std::string_view transform : (*find_recipe(c.method))->transforms) {
      EXPECT_TRUE(std::any_of(made.outcome.transforms.begin(), made.outcome.transforms.end(),
                              [&](const TransformReport& r) { return r.name == transform; }))
          << c.method << " left out " << transform;
    }
  }
}

TEST(Recipes, RotationUntiesTheHeadAndSaysSo) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("qwen2", R"({"model_type": "qwen2", "tie_word_embeddings": true})");
  const Made made = run(tiny, "qoq", "W4A8KV4", tools);
  EXPECT_TRUE(made.outcome.weights.contains(model::kHead));
  EXPECT_TRUE(std::any_of(made.outcome.substitutions.begin(), made.outcome.substitutions.end(),
                          [](const std::string& s) { return s.find("a table of its own") != std::string::npos; }));
  EXPECT_LT(made.loss, 0.1);
}

TEST(Recipes, StaticScalesReachTheWeights) {
  tiny::Tools tools;
  const tiny::Model tiny = tiny::make("llama", "{}");
  const Made made = run(tiny, "smoothquant-static", "W8A8", tools);
  const tensor::WeightInfo* info = made.outcome.weights.find("model.layers.1.mlp.down_proj.weight");
  ASSERT_NE(info, nullptr);
  EXPECT_FALSE(info->activation.dynamic);
  EXPECT_GT(info->activation.scale, 0);
  EXPECT_LT(made.loss, 0.1);
}

TEST(Recipes, NameTransformsThatExist) {
  for (const Recipe& recipe : recipes()) {
    for (const std::string_view name : recipe.transforms) EXPECT_TRUE(find_transform(name).ok()) << recipe.name;
    const auto data = [&] {
      return std::any_of(recipe.transforms.begin(), recipe.transforms.end(),
                         [](std::string_view name) { return (*find_transform(name))->needs_data; });
    };
    EXPECT_TRUE(recipe.calibrated || !data()) << recipe.name;
  }
}

TEST(Recipes, AwqHasZerosUnlessToldOtherwise) {
  const Recipe& awq = **find_recipe("awq");
  EXPECT_FALSE(resolve_scheme(awq, {})->grid.symmetric);
  EXPECT_TRUE(resolve_scheme(awq, {.symmetric = true})->grid.symmetric);
  EXPECT_TRUE(resolve_scheme(**find_recipe("gptq"), {})->grid.symmetric);
}

}  // namespace
}  // namespace tare::quantize
