// Forms against files that their own tools wrote of the same models: every code, scale and zero.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoints/checkpoint.h"
#include "numerics/mini_float.h"
#include "quantize/forms/form.h"
#include "quantize/pipeline.h"
#include "testing/fixtures.h"

namespace tare::quantize {
namespace {

using tensor::Grid;
using tensor::QuantizedTensor;

std::shared_ptr<const tensor::ModelWeights> load(const std::string& path) {
  auto loaded = checkpoints::load_checkpoint(path);
  EXPECT_TRUE(loaded.ok()) << loaded.error().message();
  return loaded.ok() ? std::make_shared<const tensor::ModelWeights>(std::move(*loaded)) : nullptr;
}

struct Differences {
  int64_t codes = 0, scales = 0, outer = 0, zeros = 0, of_codes = 0, of_scales = 0;
  float largest_zero = 0;  // in code units
};

int64_t count_differences(const std::optional<Grid>& a, const std::optional<Grid>& b) {
  EXPECT_EQ(a.has_value(), b.has_value());
  if (!a || !b) return 0;
  EXPECT_EQ(a->tile_n, b->tile_n);
  EXPECT_EQ(a->tile_k, b->tile_k);
  EXPECT_EQ(a->tiles_n * a->tiles_k, b->tiles_n * b->tiles_k);
  int64_t differ = 0;
  for (int64_t i = 0; i < a->tiles_n * a->tiles_k; ++i) differ += a->value(i) == b->value(i) ? 0 : 1;
  return differ;
}

void compare(const QuantizedTensor& ours, const QuantizedTensor& theirs, Differences& out) {
  EXPECT_EQ(describe(ours.spec()), describe(theirs.spec()));
  for (int64_t n = 0; n < ours.n(); ++n) {
    for (int64_t k = 0; k < ours.k(); ++k) out.codes += ours.code(n, k) == theirs.code(n, k) ? 0 : 1;
  }
  out.of_codes += ours.n() * ours.k();
  out.of_scales += ours->a->tiles_n * ours->a->tiles_k;
  out.scales += count_differences(ours->a, theirs->a);
  out.outer += count_differences(ours->A, theirs->A);
  EXPECT_EQ(ours->lut, theirs->lut);
  EXPECT_EQ(ours->nested_offset, theirs->nested_offset);
  EXPECT_EQ(ours->scale_lut != nullptr, theirs->scale_lut != nullptr);
  if (ours->scale_lut && theirs->scale_lut) {
    EXPECT_TRUE(*ours->scale_lut == *theirs->scale_lut);
  }
  const Grid* z = std::get_if<Grid>(&ours->z);
  const Grid* w = std::get_if<Grid>(&theirs->z);
  ASSERT_EQ(z != nullptr, w != nullptr);
  if (!z) return;
  for (int64_t i = 0; i < z->tiles_n * z->tiles_k; ++i) {
    out.zeros += z->value(i) == w->value(i) ? 0 : 1;
    out.largest_zero = std::max(out.largest_zero, std::abs(z->value(i) - w->value(i)));
  }
}

// `as_read`: what the tool made of the source's weights before it quantized them.
Differences against(const std::string& model, const std::string& golden, const std::string& method,
                    const SchemeFlags& flags = {}, float (*as_read)(float) = nullptr) {
  auto source = load(model);
  const auto made_by_tool = load(golden);
  Differences out;
  if (!source || !made_by_tool) return out;
  if (as_read) {
    std::map<std::string, WeightChange> changed;
    for (const std::string& name : source->names()) {
      if (!name.ends_with("_proj.weight")) continue;
      changed[name] = [as_read](const std::string&, std::vector<float>& values, int64_t, int64_t) -> Status {
        for (float& v : values) v = as_read(v);
        return {};
      };
    }
    source = *with_changes(source, changed);
  }
  ThreadPool pool(2);
  PipelineOptions options{.recipe = *find_recipe(method)};
  auto scheme = resolve_scheme(*options.recipe, flags, &options.widths);
  EXPECT_TRUE(scheme.ok()) << scheme.error().message();
  if (!scheme.ok()) return out;
  options.scheme = *scheme;
  const auto arch = *model::describe_architecture(source->config);
  const auto outcome = quantize_model(source, arch, options, pool);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message();
  if (!outcome.ok()) return out;
  EXPECT_EQ(outcome->matrices.size(), static_cast<size_t>(arch.layers * 7));
  for (const MatrixReport& matrix : outcome->matrices) {
    const std::string name = matrix.name + ".weight";
    const tensor::Weight theirs = *made_by_tool->load(name);
    const tensor::Weight ours = *outcome->weights.load(name);
    const auto* a = std::get_if<QuantizedTensor>(&ours);
    const auto* b = std::get_if<QuantizedTensor>(&theirs);
    EXPECT_TRUE(a);
    if (a && b) compare(*a, *b, out);
  }
  printf("%s: %lld of %lld codes, %lld of %lld scales, %lld outer, %lld zeros (to %g) differ\n", golden.c_str(),
         static_cast<long long>(out.codes), static_cast<long long>(out.of_codes), static_cast<long long>(out.scales),
         static_cast<long long>(out.of_scales), static_cast<long long>(out.outer), static_cast<long long>(out.zeros),
         static_cast<double>(out.largest_zero));
  return out;
}

void expect_same(const Differences& d) {
  EXPECT_EQ(d.codes, 0);
  EXPECT_EQ(d.scales, 0);
  EXPECT_EQ(d.outer, 0);
  EXPECT_EQ(d.zeros, 0);
  EXPECT_GT(d.of_codes, 100000);
}

TEST(FormGoldens, Nf4) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/bnb-nf4");
  expect_same(against(model, golden, "nf4"));
}

TEST(FormGoldens, Nf4DoubleQuantized) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/bnb-nf4-dq");
  expect_same(against(model, golden, "nf4-dq"));
}

TEST(FormGoldens, LlmInt8) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/bnb-int8");
  expect_same(against(model, golden, "llm-int8"));
}

TEST(FormGoldens, Fp8Blocks) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/fp8-block");
  // That tool rounds weights to e4m3 when it loads the model, and quantizes what is left of them.
  const auto rounded = [](float v) { return numerics::E4M3::decode(numerics::E4M3::encode_saturating(v)); };
  expect_same(against(model, golden, "fp8-block", {}, rounded));
}

TEST(FormGoldens, Fp8BlocksOfCompressedTensors) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/ct-fp8-block");
  expect_same(against(model, golden, "fp8-block", {.scale_dtype = "float16"}));
}

TEST(FormGoldens, Fp8Tensor) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/ct-fp8-kv");
  expect_same(against(model, golden, "fp8-tensor", {.scale_dtype = "float16"}));
}

TEST(FormGoldens, Fp8Rows) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/ct-fp8-dynamic-T2");
  expect_same(against(model, golden, "fp8", {.scale_dtype = "bfloat16"}));
}

TEST(FormGoldens, Mxfp4) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/ct-mxfp4");
  expect_same(against(model, golden, "mxfp4"));
}

TEST(FormGoldens, Nvfp4) {
  TARE_NEEDS_FIXTURE(model, "models/T2");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/ct-nvfp4-T2");
  expect_same(against(model, golden, "nvfp4", {.scale_dtype = "bfloat16"}));
}

TEST(FormGoldens, Hqq) {
  TARE_NEEDS_FIXTURE(model, "models/T1");
  TARE_NEEDS_FIXTURE(golden, "checkpoints/hqq-4bit-g64");
  expect_same(against(model, golden, "hqq"));
}

QuantizedTensor make(std::string_view name, const std::vector<float>& w, int64_t n, int64_t k,
                     std::optional<int64_t> group = {}) {
  GridSpec spec = default_spec(*find_form(name));
  if (group) spec.group_size = *group;
  ThreadPool pool(1);
  auto made = quantize_form(spec, w.data(), n, k, "test", pool);
  EXPECT_TRUE(made.ok()) << name << ": " << made.error().message();
  return *made;
}

std::vector<uint32_t> codes_of(const QuantizedTensor& t) {
  std::vector<uint32_t> out;
  for (int64_t n = 0; n < t.n(); ++n) {
    for (int64_t k = 0; k < t.k(); ++k) out.push_back(t.code(n, k));
  }
  return out;
}

// The worked examples of the formats' own descriptions.
TEST(Forms, Nf4Example) {
  const QuantizedTensor t = make("nf4", {0.5f, -0.25f, 0.1f, 0, -2, 1.3f, -0.7f, 0.05f}, 1, 8);
  EXPECT_EQ(codes_of(t), (std::vector<uint32_t>{10, 6, 8, 7, 0, 14, 3, 7}));
  EXPECT_EQ(t->a->value(0), 2.0f);
}

TEST(Forms, ScalesInEightBitsExample) {
  std::vector<float> w(4 * 32);
  const float ranges[] = {2, 0.5f, 1.25f, 0.75f};
  for (size_t b = 0; b < 4; ++b) w[b * 32] = ranges[b];
  const QuantizedTensor t = make("nf4-dq", w, 1, 128, 32);
  EXPECT_EQ(t->nested_offset, 1.125f);
  EXPECT_EQ(t->A->value(0), 0.875f);
  const float codes[] = {255, 20, 194, 40};
  for (int64_t b = 0; b < 4; ++b) EXPECT_EQ(t->a->value(b), codes[b]) << b;
  const std::vector<float> back = dequantize(t);
  const float decoded[] = {2, 0.502246f, 1.255566f, 0.74834f};
  for (size_t b = 0; b < 4; ++b) EXPECT_NEAR(back[b * 32], decoded[b], 1e-6f);
}

TEST(Forms, Fp4Thresholds) {
  // Middles of neighbouring magnitudes, and the codes on both sides.
  const struct {
    float middle;
    uint32_t below, above;
  } rows[] = {{0.00260417f, 0, 1}, {0.0859375f, 1, 6},  {0.20833333f, 6, 7}, {0.29166667f, 7, 4},
              {0.41666667f, 4, 5}, {0.58333333f, 5, 2}, {0.83333333f, 2, 3}};
  for (const auto& row : rows) {
    for (const float sign : {1.0f, -1.0f}) {
      const QuantizedTensor t = make("fp4", {sign * row.middle * 0.999f, sign * row.middle * 1.001f, 1}, 1, 3);
      const uint32_t bit = sign < 0 ? 8 : 0;
      EXPECT_EQ(t.code(0, 0), row.below == 0 ? 0 : row.below + bit) << row.middle;  // one zero, not two
      EXPECT_EQ(t.code(0, 1), row.above + bit) << row.middle;
    }
  }
}

TEST(Forms, LlmInt8Example) {
  const QuantizedTensor t = make("llm-int8", {0.5f, -1.27f, 0.03f, 0.9f}, 1, 4);
  const int8_t codes[] = {50, -127, 3, 90};
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(static_cast<int8_t>(t.code(0, i)), codes[i]);
  EXPECT_EQ(t->a->value(0), 1.27f);
}

TEST(Forms, Mxfp4ScaleIsTheTopBinadeUntilSevenEighths) {
  // 2^e * m: the largest code is 6 = 1.5 * 2^2, so a range just below 1.75 lands on 7 - and is cut to 6.
  for (const auto& [range, exponent] : {std::pair{1.0f, -2}, {1.74f, -2}, {1.75f, -1}, {2.0f, -1}, {0.4375f, -3}}) {
    const QuantizedTensor t = make("mxfp4", {range, 0}, 1, 2);
    EXPECT_EQ(t->a->value(0), std::ldexp(1.0f, exponent)) << range;
  }
  EXPECT_EQ(dequantize(make("mxfp4", {0, 0, 0}, 1, 3)), (std::vector<float>(3, 0.0f)));
}

TEST(Forms, Nvfp4Example) {
  std::vector<float> w(32);
  w[0] = 12;
  w[16] = 3;
  w[17] = 1.5f;
  const QuantizedTensor t = make("nvfp4", w, 1, 32);
  EXPECT_EQ(t->A->value(0), 224.0f);
  EXPECT_EQ(t->a->value(1), 112.0f);
  EXPECT_EQ(t.code(0, 16), 7u);
  EXPECT_EQ(dequantize(t), w);
}

// What reads one input shares the outer scale, so that runners may fuse it.
TEST(Forms, Nvfp4SharesTheOuterScaleOfOneInput) {
  TARE_NEEDS_FIXTURE(path, "models/T2");
  const auto source = load(path);
  ThreadPool pool(2);
  PipelineOptions options{.recipe = *find_recipe("nvfp4")};
  options.scheme = *resolve_scheme(*options.recipe, {}, &options.widths);
  const auto outcome = quantize_model(source, *model::describe_architecture(source->config), options, pool);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message();
  const auto outer = [&](const char* name) {
    return std::get<QuantizedTensor>(*outcome->weights.load(std::string("model.layers.0.") + name + ".weight"))
        ->A->value(0);
  };
  EXPECT_EQ(outer("self_attn.q_proj"), outer("self_attn.k_proj"));
  EXPECT_EQ(outer("mlp.gate_proj"), outer("mlp.up_proj"));
  EXPECT_NE(outer("self_attn.o_proj"), outer("self_attn.q_proj"));
}

std::vector<float> bell(int64_t count, unsigned seed) {
  std::vector<float> out(static_cast<size_t>(count));
  uint32_t state = seed * 2654435761u + 1;
  for (float& v : out) {
    float sum = -6;
    for (int i = 0; i < 12; ++i) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(state >> 8) * 0x1p-24f;
    }
    v = 0.05f * sum;
  }
  return out;
}

double relative(const std::vector<float>& a, const std::vector<float>& b) {
  ThreadPool pool(1);
  return relative_error(a.data(), b.data(), 1, static_cast<int64_t>(a.size()), pool);
}

// Relative squared errors of normally distributed weights, from the steps of each grid: e4m3 has 3 bits behind the
// point (at most 2^-4, on average 2^-4 / sqrt(3) of the value, fewer for the subnormal few), int8 rows of absmax about
// 4 sigma steps of 4/127; the 4-bit ones were summed over the density by hand integration to the bounds below.
TEST(Forms, ErrorsAtOddSizes) {
  const struct {
    const char* name;
    double most;
  } rows[] = {{"nf4", 0.010},   {"nf4-dq", 0.010},      {"fp4", 0.020},        {"fp4-dq", 0.020},
              {"fp8", 0.0008},  {"fp8-tensor", 0.0008}, {"fp8-block", 0.0008}, {"hqq", 0.010},
              {"mxfp4", 0.020}, {"nvfp4", 0.012},       {"llm-int8", 0.00025}};
  EXPECT_EQ(std::size(rows), forms().size()) << "a form without a bound";
  ThreadPool one(1), two(2);
  for (const auto& row : rows) {
    for (const int64_t k : {96, 344, 576, 1031}) {
      const int64_t n = 37;
      const std::vector<float> w = bell(n * k, static_cast<unsigned>(k));
      const GridSpec spec = default_spec(*find_form(row.name));
      const auto a = quantize_form(spec, w.data(), n, k, "test", one);
      const auto b = quantize_form(spec, w.data(), n, k, "test", two);
      ASSERT_TRUE(a.ok() && b.ok()) << row.name << " " << k;
      const std::vector<float> back = dequantize(*a);
      EXPECT_EQ(back, dequantize(*b)) << row.name << ": depends on threads";
      const double error = relative(w, back);
      EXPECT_LT(error, row.most) << row.name << " K " << k;
      EXPECT_GT(error, row.most / 10) << row.name << " K " << k << ": too good";
      EXPECT_GE(a->bits_per_weight(), spec.bits);
      std::vector<float> holed = w;
      holed[static_cast<size_t>(k + 3)] = std::nanf("");
      const auto refused = quantize_form(spec, holed.data(), n, k, "test", one);
      ASSERT_FALSE(refused.ok()) << row.name;
      EXPECT_NE(refused.error().message().find("row 1, column 3"), std::string::npos) << refused.error().message();
    }
    const std::vector<float> zeros(static_cast<size_t>(5 * 96), 0.0f);
    EXPECT_EQ(dequantize(make(row.name, zeros, 5, 96)), zeros) << row.name;
    // Ranges whose inverse is no number, and the largest there are.
    for (const float size : {1e-40f, 1e-30f, 1e30f}) {
      std::vector<float> w = bell(5 * 96, 2);
      for (float& v : w) v *= size;
      const QuantizedTensor t = make(row.name, w, 5, 96);
      for (const float v : dequantize(t)) EXPECT_LE(std::abs(v), 2 * size) << row.name;
    }
  }
}

// Each form on what it was made for: normally distributed weights, in groups of about the same cost.
TEST(Forms, OrderOnNormalWeights) {
  const int64_t n = 64, k = 576;
  const std::vector<float> w = bell(n * k, 5);
  ThreadPool pool(2);
  const auto error = [&](const GridSpec& spec) {
    return relative(w, dequantize(*round_to_nearest(spec, w.data(), n, k, "test", pool)));
  };
  const auto form = [&](const char* name) { return error(default_spec(*find_form(name))); };
  const double integer = error({.group_size = 64, .scale_dtype = tensor::DType::kF32});
  printf("s4 g64 %.5f: nf4 %.5f, nf4-dq %.5f, fp4 %.5f, hqq %.5f, nvfp4 %.5f, mxfp4 %.5f\n", integer, form("nf4"),
         form("nf4-dq"), form("fp4"), form("hqq"), form("nvfp4"), form("mxfp4"));
  EXPECT_LT(form("nf4"), integer);
  EXPECT_LT(form("nf4-dq"), 1.02 * form("nf4"));
  EXPECT_LT(form("nf4"), form("fp4"));
  EXPECT_LT(form("hqq"), error({.group_size = 64, .symmetric = false, .scale_dtype = tensor::DType::kF32}));
  EXPECT_LT(form("nvfp4"), form("mxfp4"));
}

// The zero that HQQ moves lowers sum |e|, which is what it stops by, and more so the sum of |e|^0.7.
TEST(Forms, HqqLosesLessThanItsStart) {
  const std::vector<float> w = bell(64 * 576, 9);
  ThreadPool pool(2);
  const GridSpec spec = default_spec(*find_form("hqq"));
  const auto sum = [&](const QuantizedTensor& t, double power) {
    const std::vector<float> back = dequantize(t);
    double out = 0;
    for (size_t i = 0; i < w.size(); ++i) out += std::pow(std::abs(static_cast<double>(w[i] - back[i])), power);
    return out;
  };
  const QuantizedTensor moved = *quantize_hqq(spec, w.data(), 64, 576, pool);
  const QuantizedTensor start = *quantize_hqq_nearest(spec, w.data(), 64, 576, pool);
  EXPECT_LT(sum(moved, 1), sum(start, 1));
  EXPECT_LT(sum(moved, 0.7), sum(start, 0.7));
}

TEST(Forms, RefuseWhatTheyDoNotHave) {
  const Recipe& nf4 = **find_recipe("nf4");
  EXPECT_TRUE(resolve_scheme(nf4, {.group_size = 128}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.group_size = 96}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.group_size = -1}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.bits = 8}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.symmetric = true}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.scale_dtype = "float16"}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.scheme = "W4A8"}).ok());
  EXPECT_FALSE(resolve_scheme(nf4, {.grid = "fp8"}).ok());
  EXPECT_FALSE(resolve_scheme(**find_recipe("gptq"), {.grid = "nf4"}).ok());
  const Recipe& hqq = **find_recipe("hqq");
  EXPECT_EQ(describe(*resolve_scheme(hqq, {.bits = 3})), "u3 g64 with float zero");
  EXPECT_EQ(describe(*resolve_scheme(**find_recipe("fp8"), {})), "e4m3 per channel, e4m3 dynamic per token");
  EXPECT_EQ(describe(*resolve_scheme(**find_recipe("fp8"), {.scheme = "W8A16"})), "e4m3 per channel");
  EXPECT_EQ(describe(*resolve_scheme(**find_recipe("rtn"), {.grid = "mxfp4"})), "e2m1 g32 scales 2^e");
  // Exceptions enter and leave a form.
  MatrixScheme scheme = *resolve_scheme(**find_recipe("fp8"), {});
  ASSERT_TRUE(
      apply_exception(*parse_exception("x:grid=integer,bits=4,group_size=64,scale_dtype=float16"), scheme).ok());
  EXPECT_EQ(describe(scheme), "s4 g64");
  ASSERT_TRUE(apply_exception(*parse_exception("x:grid=nf4,group_size=32"), scheme).ok());
  EXPECT_EQ(describe(scheme), "nf4 g32");
  EXPECT_FALSE(apply_exception(*parse_exception("x:algorithm=gptq"), scheme).ok());
}

}  // namespace
}  // namespace tare::quantize
