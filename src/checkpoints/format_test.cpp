// Worked examples of docs/formats.md and hand-made files for what the reference checkpoints do not hold.
#include <cmath>
#include <numeric>
#include <random>

#include "checkpoints/tiny_checkpoint.h"
#include "numerics/mini_float.h"

namespace tare::checkpoints {
namespace {

using numerics::f16_to_f32;
using numerics::f32_to_f16;
using tensor::DType;
using testing_util::TinyCheckpoint;

std::vector<uint16_t> halves(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(f32_to_f16(v));
  return out;
}

template <class T>
std::vector<T> repeat(T value, size_t count) {
  return std::vector<T>(count, value);
}

// ---- GPTQ

json::object gptq_config(int bits, int group, bool sym, std::string layout) {
  return {{"quant_method", "gptq"},
          {"bits", bits},
          {"group_size", group},
          {"desc_act", false},
          {"sym", sym},
          {"checkpoint_format", layout},
          {"meta", {{"quantizer", json::array{"gptqmodel:7.7.0"}}}}};
}

std::vector<uint32_t> first_column(uint32_t word, int64_t rows, int64_t columns) {
  std::vector<uint32_t> out(static_cast<size_t>(rows * columns));
  out[0] = word;
  return out;
}

TEST(Gptq, WorkedExampleFourBits) {
  for (const bool v1 : {true, false}) {
    TinyCheckpoint c(v1 ? "gptq_v1" : "gptq_v2");
    c.config["quantization_config"] = gptq_config(4, 32, false, v1 ? "gptq" : "gptq_v2");
    c.add("p.qweight", DType::kI32, {4, 32}, first_column(0x197F08C3, 4, 32));
    std::vector<uint32_t> zeros = repeat<uint32_t>(0x77777777, 4);
    zeros[0] = v1 ? 0x7E078677 : 0x8F189788;
    c.add("p.qzeros", DType::kI32, {1, 4}, zeros);
    c.add("p.scales", DType::kF16, {1, 32}, repeat<uint16_t>(0x2266, 32));
    const std::vector<float> w = c.values();
    ASSERT_EQ(w.size(), 32u * 32u);
    const float s = f16_to_f32(0x2266);
    const int codes[] = {3, 12, 8, 0, 15, 7, 9, 1};
    for (size_t k = 0; k < 8; ++k) EXPECT_EQ(w[k], s * static_cast<float>(codes[k] - 8)) << k;
    // Channels 1..7 have code 0 everywhere: -zero.
    const int zero[] = {8, 8, 7, 9, 8, 1, 15, 8};
    for (size_t n = 1; n < 8; ++n) EXPECT_EQ(w[n * 32], s * static_cast<float>(-zero[n])) << n;
  }
}

TEST(Gptq, BorrowIsUndoneOnWholeWords) {
  TinyCheckpoint c("gptq_borrow");
  c.config["quantization_config"] = gptq_config(4, 32, false, "gptq");
  c.add("p.qweight", DType::kI32, {4, 32}, repeat<uint32_t>(0, 128));
  c.add("p.qzeros", DType::kI32, {1, 4}, std::vector<uint32_t>{0xF7DEF5F7, 0, 0, 0});
  c.add("p.scales", DType::kF16, {1, 32}, repeat<uint16_t>(0x3c00, 32));
  const int zero[] = {8, 0, 7, 0, 0, 15, 8, 0};
  const std::vector<float> w = c.values();
  for (size_t n = 0; n < 8; ++n) EXPECT_EQ(w[n * 32], static_cast<float>(-zero[n])) << n;

  // The same bytes by an unknown writer could mean something else.
  TinyCheckpoint unknown("gptq_borrow_unknown");
  unknown.config["quantization_config"] = gptq_config(4, 32, false, "gptq");
  unknown.config["quantization_config"].as_object().erase("meta");
  unknown.add("p.qweight", DType::kI32, {4, 32}, repeat<uint32_t>(0, 128));
  unknown.add("p.qzeros", DType::kI32, {1, 4}, std::vector<uint32_t>{0xF7DEF5F7, 0, 0, 0});
  unknown.add("p.scales", DType::kF16, {1, 32}, repeat<uint16_t>(0x3c00, 32));
  EXPECT_NE(unknown.error().find("two writers mean differently"), std::string::npos);
}

TEST(Gptq, ThreeBitsAsStreamAndAsPlanes) {
  for (const bool planar : {false, true}) {
    TinyCheckpoint c(planar ? "gptq_p3" : "gptq_3");
    c.config["quantization_config"] = gptq_config(3, -1, true, planar ? "gptq_p" : "gptq");
    const uint32_t words[] = {planar ? 0x93939393 : 0x43C67543, planar ? 0x93939393 : 0x7543C675,
                              planar ? 0xB4B4B4B4 : 0xC67543C6};
    std::vector<uint32_t> codes(3 * 32);
    for (size_t i = 0; i < 3; ++i) codes[i * 32] = words[i];
    c.add("p.qweight", DType::kI32, {3, 32}, codes);
    // v1: 3 in every field; planar: 4 (planes 2+1: low plane 0, high plane 1).
    c.add("p.qzeros", DType::kI32, {1, 3},
          planar ? std::vector<uint32_t>{0, 0, 0xFFFFFFFF} : std::vector<uint32_t>{0xDB6DB6DB, 0xB6DB6DB6, 0x6DB6DB6D});
    c.add("p.scales", DType::kF16, {1, 32}, repeat<uint16_t>(0x2E66, 32));
    const std::vector<float> w = c.values();
    const float s = f16_to_f32(0x2E66);
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(w[i], s * static_cast<float>(static_cast<int>((5 * i + 3) % 8) - 4)) << planar << " " << i;
    }
  }
}

TEST(Gptq, ContradictionsNameBothSides) {
  TinyCheckpoint sym("gptq_sym");
  sym.config["quantization_config"] = gptq_config(4, 32, true, "gptq");
  sym.add("p.qweight", DType::kI32, {4, 32}, repeat<uint32_t>(0, 128));
  sym.add("p.qzeros", DType::kI32, {1, 4}, std::vector<uint32_t>{0x77777777, 0x77777777, 0x77777767, 0x77777777});
  sym.add("p.scales", DType::kF16, {1, 32}, repeat<uint16_t>(0x3c00, 32));
  const std::string message = sym.error();
  EXPECT_NE(message.find("p.qzeros, group 0, channel 17"), std::string::npos) << message;
  EXPECT_NE(message.find("zero point 8"), std::string::npos) << message;

  TinyCheckpoint order("gptq_order");
  order.config["quantization_config"] = gptq_config(4, 32, true, "gptq");
  std::vector<int32_t> g_idx(64);
  for (size_t i = 0; i < 64; ++i) g_idx[i] = static_cast<int32_t>(i % 2);
  order.add("p.qweight", DType::kI32, {8, 32}, repeat<uint32_t>(0, 256));
  order.add("p.qzeros", DType::kI32, {2, 4}, repeat<uint32_t>(0x77777777, 8));
  order.add("p.scales", DType::kF16, {2, 32}, repeat<uint16_t>(0x3c00, 64));
  order.add("p.g_idx", DType::kI32, {64}, g_idx);
  EXPECT_NE(order.error().find("desc_act is false"), std::string::npos) << order.error();
  order.config["quantization_config"].as_object()["desc_act"] = true;
  EXPECT_EQ(order.error(), "");
  order.config["quantization_config"].as_object()["dynamic"] = {{"-:p", json::object{}}};
  EXPECT_NE(order.error().find("dynamic"), std::string::npos) << order.error();
}

// ---- AWQ

TEST(Awq, WorkedExampleGemm) {
  TinyCheckpoint c("awq_gemm");
  c.config["quantization_config"] = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 2}, {"zero_point", true}, {"version", "GEMM"}};
  c.add("p.qweight", DType::kI32, {2, 1}, std::vector<uint32_t>{0x86427531, 0x75316420});
  c.add("p.qzeros", DType::kI32, {1, 1}, std::vector<uint32_t>{0x8198F878});
  c.add("p.scales", DType::kF16, {1, 8},
        std::vector<uint16_t>{0x211F, 0x251F, 0x27AE, 0x291F, 0x2A66, 0x2BAE, 0x2C7B, 0x2D1F});
  const std::vector<float> w = c.values();
  const float expected[] = {-0.070015f, -0.120026f, -0.119995f, -0.200043f, -0.149963f, 0.299988f, -0.560059f, 0};
  const uint16_t scale[] = {0x211F, 0x251F, 0x27AE, 0x291F, 0x2A66, 0x2BAE, 0x2C7B, 0x2D1F};
  const int zero[] = {8, 8, 7, 9, 8, 1, 15, 8};
  for (size_t n = 0; n < 8; ++n) {
    EXPECT_NEAR(w[n * 2], expected[n], 1e-6) << n;
    EXPECT_EQ(w[n * 2 + 1], f16_to_f32(scale[n]) * static_cast<float>(static_cast<int>(n) - zero[n])) << n;
  }
}

TEST(Awq, GemvFastPlacesCodesAsDescribed) {
  constexpr int64_t kN = 8, kK = 128, kGroups = 2;
  std::mt19937 random(7);
  std::vector<int> codes(kN * kK);
  for (int& code : codes) code = static_cast<int>(random() % 16);
  std::vector<uint16_t> words(kN / 4 * kK);
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      const int64_t column = (k / 64) * 64 + (n % 4) * 16 + ((k / 32) % 2) * 8 + (k % 8);
      words[static_cast<size_t>(n / 4 * kK + column)] |=
          static_cast<uint16_t>(codes[static_cast<size_t>(n * kK + k)] << 4 * ((k / 8) % 4));
    }
  }
  TinyCheckpoint c("awq_gemv_fast");
  c.config["quantization_config"] = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"zero_point", true}, {"version", "gemv_fast"}};
  constexpr int64_t kStored = 16;  // groups of 64: two words, so room for 16
  std::vector<float> scales(kStored * kN), zeros(kStored * kN);
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t n = 0; n < kN; ++n) {
      scales[static_cast<size_t>(g * kN + n)] = 0.25f * static_cast<float>(n + 1);
      zeros[static_cast<size_t>(g * kN + n)] = -0.5f * static_cast<float>(g + n);
    }
  }
  c.add("p.qweight", DType::kI16, {kN / 4, kK}, words);
  c.add("p.scales", DType::kF16, {kStored, kN}, halves(scales));
  c.add("p.qzeros", DType::kF16, {kStored, kN}, halves(zeros));
  const std::vector<float> w = c.values();
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      const auto at = static_cast<size_t>(k / 64 * kN + n);
      const float product = scales[at] * static_cast<float>(codes[static_cast<size_t>(n * kK + k)]);
      ASSERT_EQ(w[static_cast<size_t>(n * kK + k)], product + zeros[at]) << n << " " << k;
    }
  }
}

// ---- compressed-tensors

json::object ct_config(const std::string& format, json::object weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"ignore", json::array{"lm_head"}},
          {"config_groups", {{"group_0", {{"targets", json::array{"Linear"}}, {"weights", weights}}}}}};
}

TEST(CompressedTensors, WorkedExamplesOfPacking) {
  // Four bits, zero points over eight rows; row 0 holds the codes of the example.
  TinyCheckpoint c("ct_pack4");
  c.config["quantization_config"] =
      ct_config("pack-quantized",
                {{"num_bits", 4}, {"type", "int"}, {"symmetric", false}, {"strategy", "group"}, {"group_size", 8}});
  c.add("p_proj.weight_packed", DType::kI32, {8, 1}, repeat<uint32_t>(0xA4BF9870, 8));
  c.add("p_proj.weight_scale", DType::kBF16, {8, 1}, repeat<uint16_t>(0x3D4D, 8));
  c.add("p_proj.weight_zero_point", DType::kI32, {1, 1}, std::vector<uint32_t>{0x93FA7B80});
  c.add("p_proj.weight_shape", DType::kI64, {2}, std::vector<int64_t>{8, 8});
  const std::vector<float> w = c.values("p_proj.weight");
  const int q[] = {-8, -1, 0, 1, 7, 3, -4, 2}, zero[] = {-8, 0, 3, -1, 2, 7, -5, 1};
  const float s = numerics::bf16_to_f32(0x3D4D);
  for (size_t n = 0; n < 8; ++n) {
    for (size_t k = 0; k < 8; ++k) EXPECT_EQ(w[n * 8 + k], s * static_cast<float>(q[k] - zero[n])) << n << " " << k;
  }
}

TEST(CompressedTensors, ThreeBitsInBothLayouts) {
  for (const bool older : {false, true}) {
    TinyCheckpoint c(older ? "ct_pack3_old" : "ct_pack3");
    c.config["quantization_config"] =
        ct_config("pack-quantized", {{"num_bits", 3}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}});
    std::vector<uint32_t> words = {0x43C67543, 0x7543C675, 0xC67543C6};
    if (older) {
      words.assign(4, 0);
      for (size_t k = 0; k < 32; ++k) words[k / 10] |= static_cast<uint32_t>((5 * k + 3) % 8) << 3 * (k % 10);
    }
    c.add("p_proj.weight_packed", DType::kI32, {1, static_cast<int64_t>(words.size())}, words);
    c.add("p_proj.weight_scale", DType::kF16, {1, 1}, std::vector<uint16_t>{0x3c00});
    c.add("p_proj.weight_shape", DType::kI32, {2}, std::vector<int32_t>{1, 32});
    const std::vector<float> w = c.values("p_proj.weight");
    for (size_t k = 0; k < 32; ++k) EXPECT_EQ(w[k], static_cast<float>(static_cast<int>((5 * k + 3) % 8) - 4)) << k;
  }
}

TEST(CompressedTensors, FourBitCodesInBytesAreHeldToTheirWidth) {
  TinyCheckpoint c("ct_w4a8");
  json::object q =
      ct_config("int-quantized", {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}});
  q["config_groups"].as_object()["group_0"].as_object()["input_activations"] = {
      {"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
  c.config["quantization_config"] = q;
  c.add("p_proj.weight", DType::kI8, {2, 3}, std::vector<int8_t>{-8, 7, 0, 1, -1, 5});
  c.add("p_proj.weight_scale", DType::kF16, {2, 1}, halves({1, 0.5f}));
  EXPECT_EQ(c.values("p_proj.weight"), (std::vector<float>{-8, 7, 0, 0.5f, -0.5f, 2.5f}));
  const auto weights = c.load();
  EXPECT_EQ(weights->find("p_proj.weight")->activation.type, tensor::ActivationType::kS8);

  TinyCheckpoint bad("ct_w4a8_bad");
  bad.config["quantization_config"] = q;
  bad.add("p_proj.weight", DType::kI8, {2, 3}, std::vector<int8_t>{-8, 8, 0, 1, -1, 5});
  bad.add("p_proj.weight_scale", DType::kF16, {2, 1}, halves({1, 0.5f}));
  EXPECT_NE(bad.error().find("p_proj.weight[0, 1]"), std::string::npos) << bad.error();
}

TEST(CompressedTensors, UnknownKeysAndDenseMatricesAreRefused) {
  TinyCheckpoint c("ct_unknown");
  c.config["quantization_config"] = ct_config("pack-quantized", {{"num_bits", 4}, {"typ", "int"}});
  c.add("p_proj.weight", DType::kF16, {1, 1}, halves({1}));
  EXPECT_NE(c.error().find("typ"), std::string::npos) << c.error();
  c.config["quantization_config"] = ct_config("dense", {{"num_bits", 4}, {"type", "int"}});
  EXPECT_NE(c.error().find("expected"), std::string::npos) << c.error();
}

// ---- bitsandbytes

TEST(Bitsandbytes, WorkedExampleOfDoubleQuantization) {
  TinyCheckpoint c("bnb");
  c.config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                     {"load_in_4bit", true},
                                     {"bnb_4bit_quant_type", "nf4"},
                                     {"bnb_4bit_use_double_quant", true}};
  // One row of four blocks of 8; the map holds what codes 255, 20, 194 and 40 mean in the example.
  const std::vector<float> absmax = {2.0f, 0.502246f, 1.255566f, 0.74834f};
  const uint8_t nested_codes[] = {255, 20, 194, 40};
  std::vector<float> nested_map(256);
  for (size_t i = 0; i < 4; ++i) nested_map[nested_codes[i]] = (absmax[i] - 1.125f) / 0.875f;
  std::vector<float> map(16);
  std::iota(map.begin(), map.end(), -7.0f);
  c.add("p.weight", DType::kU8, {16, 1},
        std::vector<uint8_t>{0xA6, 0x87, 0x0E, 0x37, 0xA6, 0x87, 0x0E, 0x37, 0xA6, 0x87, 0x0E, 0x37, 0xA6, 0x87, 0x0E,
                             0x37});
  c.add("p.weight.absmax", DType::kU8, {4}, std::vector<uint8_t>{255, 20, 194, 40});
  c.add("p.weight.quant_map", DType::kF32, {16}, map);
  c.add("p.weight.nested_absmax", DType::kF32, {1}, std::vector<float>{0.875f});
  c.add("p.weight.nested_quant_map", DType::kF32, {256}, nested_map);
  const std::string state =
      R"({"quant_type": "nf4", "blocksize": 8, "dtype": "float16", "shape": [1, 32], "nested_blocksize": 256, )"
      R"("nested_dtype": "float32", "nested_offset": 1.125})";
  c.add("p.weight.quant_state.bitsandbytes__nf4", DType::kU8, {static_cast<int64_t>(state.size())},
        std::vector<char>(state.begin(), state.end()));
  const std::vector<float> w = c.values();
  const int codes[] = {10, 6, 8, 7, 0, 14, 3, 7};
  for (size_t i = 0; i < 32; ++i) {
    const float scale = nested_map[nested_codes[i / 8]] * 0.875f + 1.125f;
    EXPECT_EQ(w[i], map[static_cast<size_t>(codes[i % 8])] * scale) << i;
    EXPECT_NEAR(scale, absmax[i / 8], 1e-6);
  }
}

// ---- FP8 and its relatives

TEST(Fp8, StaticPerTensorAndScalarBlocks) {
  TinyCheckpoint c("fp8_static");
  c.config["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};
  c.add("p.weight", DType::kF8E4M3, {1, 4}, std::vector<uint8_t>{0x38, 0xB8, 0x1D, 0x7E});
  c.add("p.weight_scale", DType::kF32, {}, std::vector<float>{0.5f});
  c.add("p.input_scale", DType::kF32, {1}, std::vector<float>{0.005f});
  EXPECT_EQ(c.values(), (std::vector<float>{0.5f, -0.5f, 0.05078125f, 224}));
  const auto weights = c.load();
  EXPECT_EQ(weights->find("p.weight")->activation.scale, 0.005f);

  TinyCheckpoint block("fp8_block");
  block.config["quantization_config"] = {{"quant_method", "fp8"},
                                         {"activation_scheme", "dynamic"},
                                         {"weight_block_size", {128, 128}},
                                         {"scale_fmt", "ue8m0"}};
  block.add("p.weight", DType::kF8E4M3, {1, 2}, std::vector<uint8_t>{0x38, 0xB8});
  block.add("p.weight_scale_inv", DType::kF8E8M0, {}, std::vector<uint8_t>{126});
  EXPECT_EQ(block.values(), (std::vector<float>{0.5f, -0.5f}));
  block.config["quantization_config"].as_object()["scale_fmt"] = "float";
  EXPECT_NE(block.error().find("scale_fmt"), std::string::npos);
}

TEST(Fp8, InverseScalePerRow) {
  TinyCheckpoint c("fp8_inverse");
  c.config["quantization_config"] = {
      {"quant_method", "fp8"}, {"weight_scale_method", "row"}, {"weight_scale_semantics", "inverse"}};
  c.add("p.weight", DType::kF8E4M3, {2, 1}, std::vector<uint8_t>{0x38, 0x38});
  c.add("p.weight_scale_inv", DType::kF32, {2}, std::vector<float>{3, 4});
  EXPECT_EQ(c.values(), (std::vector<float>{1.0f / 3, 0.25f}));
  c.config["quantization_config"].as_object()["weight_scale_semantics"] = "other";
  EXPECT_NE(c.error().find("meaning of the weight scale"), std::string::npos);
}

TEST(Fp8, NanCodesAreRefused) {
  TinyCheckpoint c("fp8_nan");
  c.config["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  c.add("p.weight", DType::kF8E4M3, {1, 2}, std::vector<uint8_t>{0x38, 0xFF});
  c.add("p.weight_scale", DType::kF32, {1}, std::vector<float>{1});
  EXPECT_NE(c.error().find("NaN"), std::string::npos) << c.error();
}

TEST(FbgemmFp8, CapsActivations) {
  TinyCheckpoint c("fbgemm");
  c.config["quantization_config"] = {{"quant_method", "fbgemm_fp8"},
                                     {"activation_scale_ub", 1200.0},
                                     {"modules_to_not_convert", json::array{"lm_head"}}};
  c.add("p.weight", DType::kF8E4M3, {2, 1}, std::vector<uint8_t>{0x38, 0x40});
  c.add("p.weight_scale", DType::kF32, {2, 1}, std::vector<float>{3, 4});
  EXPECT_EQ(c.values(), (std::vector<float>{3, 8}));
  EXPECT_EQ(c.load()->find("p.weight")->activation.cap, 1200.0f);
}

TEST(ModelOpt, WorkedExampleNvfp4FromTheSideFile) {
  TinyCheckpoint c("modelopt");
  c.file("hf_quant_config.json",
         R"({"producer": {"name": "modelopt", "version": "0.29"}, "quantization": {"quant_algo": "NVFP4",
             "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head", "model.layers.0.self_attn*"]}})");
  c.add("p.weight", DType::kU8, {1, 8}, std::vector<uint8_t>{0xB1, 0x87, 0xE5, 0x40, 0x07, 0, 0, 0});
  c.add("p.weight_scale", DType::kF8E4M3, {1, 1}, std::vector<uint8_t>{0x6E});
  c.add("p.weight_scale_2", DType::kF32, {}, std::vector<float>{0.00446429f});
  const std::vector<float> w = c.values();
  const float e2m1[] = {0.5f, -1.5f, 6, -0.0f, 3, -4, 0, 2, 6};
  for (size_t k = 0; k < 9; ++k) EXPECT_EQ(w[k], e2m1[k] * 112 * 0.00446429f) << k;
  EXPECT_NEAR(w[8], 3.0f, 1e-5);
  const auto weights = c.load();
  EXPECT_EQ(weights->format, "nvfp4");
  EXPECT_EQ(weights->kv.k_dtype, "fp8_e4m3");
}

TEST(ModelOpt, MixedPrecision) {
  TinyCheckpoint c("modelopt_mixed");
  c.config["quantization_config"] = {{"quant_method", "modelopt"},
                                     {"quant_algo", "MIXED_PRECISION"},
                                     {"quantized_layers", {{"p", {{"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}}}}}};
  c.add("p.weight", DType::kF8E4M3, {2, 1}, std::vector<uint8_t>{0x38, 0x40});
  c.add("p.weight_scale", DType::kF32, {2}, std::vector<float>{3, 4});
  EXPECT_EQ(c.values(), (std::vector<float>{3, 8}));
  c.add("q.weight", DType::kF8E4M3, {2, 1}, std::vector<uint8_t>{0x38, 0x40});
  c.add("q.weight_scale", DType::kF32, {2}, std::vector<float>{3, 4});
  EXPECT_NE(c.error().find("quantized_layers"), std::string::npos) << c.error();
}

TEST(Quark, PerChannelWithZeroPoint) {
  TinyCheckpoint c("quark");
  c.config["quantization_config"] = {
      {"quant_method", "quark"},
      {"global_quant_config",
       {{"weight", {{"dtype", "int8"}, {"qscheme", "per_channel"}, {"symmetric", false}}},
        {"input_tensors", {{"dtype", "int8"}, {"qscheme", "per_tensor"}, {"is_dynamic", false}}}}},
      {"exclude", json::array{"re:.*lm_head"}}};
  c.add("p.weight", DType::kI8, {2, 2}, std::vector<int8_t>{1, -2, 3, 4});
  c.add("p.weight_scale", DType::kF32, {2}, std::vector<float>{0.5f, 2});
  c.add("p.weight_zero_point", DType::kI8, {2}, std::vector<int8_t>{1, -1});
  c.add("p.input_scale", DType::kF32, {}, std::vector<float>{0.25f});
  EXPECT_EQ(c.values(), (std::vector<float>{0, -1.5f, 8, 10}));
  EXPECT_EQ(c.load()->find("p.weight")->activation.scale, 0.25f);
}

// ---- HQQ

TinyCheckpoint hqq(const std::string& name, double nbits, const std::string& packing, int64_t group, int64_t axis,
                   std::vector<int64_t> shape) {
  TinyCheckpoint c(name);
  c.config["quantization_config"] = {{"quant_method", "hqq"}};
  c.add("p.nbits", DType::kF32, {}, std::vector<float>{static_cast<float>(nbits)});
  c.add("p.group_size", DType::kI32, {}, std::vector<int32_t>{static_cast<int32_t>(group)});
  c.add("p.axis", DType::kI32, {}, std::vector<int32_t>{static_cast<int32_t>(axis)});
  c.add("p.shape", DType::kI64, {2}, shape);
  c.add("p.packing", DType::kU8, {static_cast<int64_t>(packing.size())},
        std::vector<char>(packing.begin(), packing.end()));
  return c;
}

TEST(Hqq, WorkedExampleAndFractionalZeros) {
  TinyCheckpoint c = hqq("hqq4", 4, "4bit_u8", 3, 1, {2, 6});
  c.add("p.W_q", DType::kU8, {2, 3}, std::vector<uint8_t>{0x17, 0x28, 0x39, 0x4A, 0x5B, 0x6C});
  c.add("p.scale", DType::kF32, {4, 1}, std::vector<float>{1, 2, 3, 4});
  c.add("p.zero", DType::kF32, {4, 1}, std::vector<float>{0.5f, 0.25f, 0, 1});
  EXPECT_EQ(c.values(), (std::vector<float>{0.5f, 1.5f, 2.5f, 7.5f, 9.5f, 11.5f, 21, 24, 27, 36, 40, 44}));
}

TEST(Hqq, AxisZeroIsDecodedAndSaid) {
  TinyCheckpoint c = hqq("hqq_axis0", 4, "4bit_u8", 2, 0, {2, 3});
  // Reshaped [2, 3]: rows 0 (high nibbles) and 1 (low nibbles); groups are columns.
  c.add("p.W_q", DType::kU8, {1, 3}, std::vector<uint8_t>{0x14, 0x25, 0x36});
  c.add("p.scale", DType::kF32, {1, 3}, std::vector<float>{1, 10, 100});
  c.add("p.zero", DType::kF32, {1, 3}, std::vector<float>{0, 1, 2});
  EXPECT_EQ(c.values(), (std::vector<float>{1, 10, 100, 4, 40, 400}));
  const auto weights = c.load();
  ASSERT_EQ(weights->notes.size(), 1u);
  EXPECT_NE(weights->notes[0].find("axis 0"), std::string::npos);
}

TEST(Hqq, ThreeBitsTwoBitsAndFloatViews) {
  // 3 bits: ten blocks of rows in an int32, the first in the highest bits; 4 rows are padded to 10.
  TinyCheckpoint three = hqq("hqq3", 3, "3bit_32", 2, 1, {2, 4});
  std::vector<uint32_t> words(2);
  const uint32_t codes[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 0}};
  for (size_t row = 0; row < 4; ++row) {
    for (size_t column = 0; column < 2; ++column) words[column] |= codes[row][column] << (27 - 3 * row);
  }
  three.add("p.W_q", DType::kI32, {1, 2}, words);
  three.add("p.scale", DType::kF32, {4, 1}, std::vector<float>{1, 1, 1, 1});
  three.add("p.zero", DType::kF32, {4, 1}, std::vector<float>{0, 0, 0, 0});
  EXPECT_EQ(three.values(), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 0}));

  TinyCheckpoint view = hqq("hqq_view", 2, "2bit_u8", 4, 1, {4, 4});
  view.add("p.view_as_float", DType::kU8, {}, std::vector<uint8_t>{1});
  view.add("p.W_q", DType::kF32, {1, 1}, std::vector<uint8_t>{0b00011011, 0b01101100, 0, 0xFF});
  view.add("p.scale", DType::kF32, {4, 1}, std::vector<float>{1, 1, 1, 1});
  view.add("p.zero", DType::kF32, {4, 1}, std::vector<float>{0, 0, 0, 0});
  EXPECT_EQ(view.values(), (std::vector<float>{0, 1, 0, 3, 1, 2, 0, 3, 2, 3, 0, 3, 3, 0, 0, 3}));
}

// ---- AQLM, MXFP4

TEST(Aqlm, SumsOverCodebooks) {
  TinyCheckpoint c("aqlm");
  c.config["quantization_config"] = {{"quant_method", "aqlm"},
                                     {"in_group_size", 2},
                                     {"out_group_size", 1},
                                     {"num_codebooks", 2},
                                     {"nbits_per_codebook", 3}};
  // [2, 2] matrix of vectors of two: codes [2, 1, 2], stored wrapped (-1 is 7).
  c.add("p.codes", DType::kI8, {2, 1, 2}, std::vector<int8_t>{1, -1, 0, 2});
  std::vector<float> books(2 * 8 * 2);
  for (size_t i = 0; i < books.size(); ++i) books[i] = static_cast<float>(i);
  c.add("p.codebooks", DType::kF16, {2, 8, 1, 2}, halves(books));
  c.add("p.scales", DType::kF16, {2, 1, 1, 1}, halves({0.5f, 2}));
  EXPECT_EQ(c.values(), (std::vector<float>{(2 + 30) * 0.5f, (3 + 31) * 0.5f, (0 + 20) * 2.0f, (1 + 21) * 2.0f}));
}

TEST(Mxfp4, WorkedExampleOfExperts) {
  TinyCheckpoint c("mxfp4");
  c.config["quantization_config"] = {{"quant_method", "mxfp4"}};
  std::vector<uint8_t> blocks(2 * 16);
  const uint8_t example[] = {0xB1, 0x87, 0xE5, 0x40};
  std::copy(std::begin(example), std::end(example), blocks.begin() + 16);
  c.add("m.experts.down_proj_blocks", DType::kU8, {2, 1, 1, 16}, blocks);
  c.add("m.experts.down_proj_scales", DType::kU8, {2, 1, 1}, std::vector<uint8_t>{127, 125});
  c.add("m.experts.down_proj_bias", DType::kBF16, {2, 1}, std::vector<uint16_t>{0, 0});
  const std::vector<float> w = c.values("m.experts.1.down_proj.weight");
  const float expected[] = {0.125f, -0.375f, 1.5f, -0.0f, 0.75f, -1, 0, 0.5f};
  for (size_t k = 0; k < 8; ++k) EXPECT_EQ(w[k], expected[k]) << k;
}

}  // namespace
}  // namespace tare::checkpoints
