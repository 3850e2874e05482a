// Every writer against the files of the real tools: a golden checkpoint is read and written again in its own format;
// the tensors must be the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/json.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/compare.h"
#include "checkpoints/source.h"
#include "checkpoints/write.h"
#include "testing/fixtures.h"

namespace tare::checkpoints {
namespace {

namespace fs = std::filesystem;

// What a format says twice, or what its own tool adds and nobody reads.
struct Rewrite {
  const char* golden;
  const char* format;
  std::set<std::string> free = {};  // last parts of tensors whose bytes may differ (values are compared all the same)
};

const Rewrite kRewrites[] = {
    {"gptq-4bit-g128-sym", "gptq"},
    {"gptq-4bit-g128-descact", "gptq"},
    {"gptq-4bit-g128-T2", "gptq"},
    {"gptq-4bit-g32-T2", "gptq"},
    {"gptq-4bit-g32-asym-v1", "gptq"},
    {"gptq-4bit-T4", "gptq"},
    {"gptq-8bit-g128", "gptq"},
    {"gptq-dynamic", "gptq"},
    {"gptq-planar-3bit", "gptq_p"},
    {"awq-gemm-g128", "awq"},
    {"awq-gemm-g32-T2", "awq"},
    {"awq-gemm-g64-T4", "awq"},
    {"gptqm-awq-gemm-g128", "awq"},
    {"fp8-block", "fp8"},
    {"gptqm-fp8-tensor-T2", "fp8"},
    {"bnb-int8", "bitsandbytes"},
    {"bnb-nf4", "bitsandbytes"},
    {"bnb-nf4-dq", "bitsandbytes"},
    {"hqq-4bit-g64", "hqq"},
    {"ct-fp8-block", "compressed-tensors"},
    {"ct-fp8-dynamic-T2", "compressed-tensors"},
    {"ct-fp8-kv", "compressed-tensors"},
    {"ct-mxfp4", "compressed-tensors"},
    {"ct-nvfp4-T2", "compressed-tensors"},
    {"ct-w3a16-g128", "compressed-tensors"},
    {"ct-w4a16-T4", "compressed-tensors"},
    {"ct-w4a16-asym", "compressed-tensors"},
    {"ct-w4a16-channel-T2", "compressed-tensors"},
    {"ct-w4a16-g128", "compressed-tensors"},
    {"ct-w4a16-g32-asym-T2", "compressed-tensors"},
    {"ct-w4a16-ignore", "compressed-tensors"},
    {"ct-w8a16-channel-T2", "compressed-tensors"},
    {"ct-w8a8-int8-dynamic", "compressed-tensors"},
    {"ct-w8a8-int8-static-T2", "compressed-tensors"},
    {"ct092-w4a16-actorder-group", "compressed-tensors"},
};

class Golden : public ::testing::TestWithParam<Rewrite> {};

std::string name_of(const ::testing::TestParamInfo<Rewrite>& info) {
  std::string out = info.param.golden;
  for (char& c : out) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return out;
}

TEST_P(Golden, IsWrittenAgainByteForByte) {
  const Rewrite& rewrite = GetParam();
  TARE_NEEDS_FIXTURE(path, std::string("checkpoints/") + rewrite.golden);
  const auto weights = load_checkpoint(path);
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  const std::string folder = testing::scratch_directory(std::string("rewrite_") + rewrite.golden);
  const auto report = write_checkpoint({.folder = folder, .format = rewrite.format, .weights = &*weights});
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_TRUE(report->losses.empty()) << report->losses.front();

  const auto again = load_checkpoint(folder);
  ASSERT_TRUE(again.ok()) << again.error().message();
  const auto differences = compare_weights(*weights, *again);
  ASSERT_TRUE(differences.ok()) << differences.error().message();
  for (const WeightDifference& d : *differences) ADD_FAILURE() << d.name << " " << d.what;

  const auto original = open_source(path);
  const auto written = open_source(folder);
  ASSERT_TRUE(original.ok() && written.ok());
  EXPECT_EQ(original->tensors.names(), written->tensors.names());
  for (const std::string& name : original->tensors.names()) {
    const tensor::Tensor& a = *original->tensors.find(name);
    const tensor::Tensor* b = written->tensors.find(name);
    if (!b || rewrite.free.count(std::string(last_part(name)))) continue;
    EXPECT_EQ(a.dtype, b->dtype) << name << " " << tensor::dtype_name(b->dtype);
    EXPECT_EQ(a.shape, b->shape) << name << " " << tensor::shape_text(b->shape);
    EXPECT_TRUE(a.data.size() == b->data.size() && std::memcmp(a.data.data(), b->data.data(), a.data.size()) == 0)
        << name;
  }
}

class GoldenGguf : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenGguf, IsWrittenAgainByteForByte) {
  TARE_NEEDS_FIXTURE(path, std::string("checkpoints/") + GetParam() + "/model.gguf");
  const auto weights = load_checkpoint(path);
  ASSERT_TRUE(weights.ok()) << weights.error().message();
  const std::string folder = testing::scratch_directory(std::string("rewrite_") + GetParam());
  const auto report = write_checkpoint({.folder = folder, .format = "gguf", .source = path, .weights = &*weights});
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_TRUE(report->losses.empty()) << report->losses.front();
  const auto a = io::open_gguf(path);
  const auto b = io::open_gguf(folder + "/model.gguf");
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->tensors.size(), b->tensors.size());
  for (const io::GgufTensor& t : a->tensors) {
    const io::GgufTensor* again = b->find_tensor(t.name);
    ASSERT_TRUE(again) << t.name;
    EXPECT_EQ(t.type->name, again->type->name) << t.name;
    EXPECT_EQ(t.shape, again->shape) << t.name;
    EXPECT_TRUE(t.data.size() == again->data.size() &&
                std::memcmp(t.data.data(), again->data.data(), t.data.size()) == 0)
        << t.name;
  }
  ASSERT_EQ(a->metadata.size(), b->metadata.size());
  for (size_t i = 0; i < a->metadata.size(); ++i) {
    EXPECT_EQ(a->metadata[i].key, b->metadata[i].key);
    EXPECT_TRUE(std::ranges::equal(a->metadata[i].value.raw, b->metadata[i].value.raw)) << a->metadata[i].key;
    EXPECT_EQ(a->metadata[i].value.strings, b->metadata[i].value.strings) << a->metadata[i].key;
  }
}

INSTANTIATE_TEST_SUITE_P(Tools, GoldenGguf,
                         ::testing::Values("gguf-q4_0", "gguf-q4_k_m", "gguf-q2_k", "gguf-mxfp4-pure", "gguf-tq2_0",
                                           "gguf-q1_0", "gguf-T2-q8_0", "gguf-T2-q5_1", "gguf-T2-q4_k_m",
                                           "gguf-T2-iq4_xs", "gguf-T4-q4_0", "gguf-T4-q4_k_m", "gguf-T4-mxfp4"),
                         [](const auto& row) {
                           std::string out = row.param;
                           for (char& c : out) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return out;
                         });

INSTANTIATE_TEST_SUITE_P(Tools, Golden, ::testing::ValuesIn(kRewrites), name_of);

}  // namespace
}  // namespace tare::checkpoints
