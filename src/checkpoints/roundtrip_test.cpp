// From one format to another and back: the same weights, and where nothing was reshaped the same bytes; what a format
// cannot say is refused by name.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "checkpoints/checkpoint.h"
#include "checkpoints/compare.h"
#include "checkpoints/source.h"
#include "checkpoints/text_assets.h"
#include "checkpoints/write.h"
#include "testing/fixtures.h"

namespace tare::checkpoints {
namespace {

struct Written {
  std::string folder;
  tensor::ModelWeights weights;
  std::vector<std::string> losses;
};

Result<Written> convert(const std::string& path, const std::string& format, const std::string& name,
                        bool allow_loss = false) {
  TARE_ASSIGN(const tensor::ModelWeights source, load_checkpoint(path));
  Written out{.folder = testing::scratch_directory("roundtrip_" + name + "_" + format)};
  TARE_TRY(copy_side_files(path, out.folder, format));
  TARE_ASSIGN(
      WriteReport report,
      write_checkpoint(
          {.folder = out.folder, .format = format, .source = path, .weights = &source, .allow_loss = allow_loss}));
  out.losses = std::move(report.losses);
  TARE_ASSIGN(out.weights, load_checkpoint(out.folder));
  return out;
}

void expect_equal(const tensor::ModelWeights& a, const tensor::ModelWeights& b, const std::string& where) {
  const auto differences = compare_weights(a, b);
  ASSERT_TRUE(differences.ok()) << where << ": " << differences.error().message();
  for (const WeightDifference& d : *differences) ADD_FAILURE() << where << ": " << d.name << " " << d.what;
}

// Tensors of the formats, without the dense ones.
void expect_same_bytes(const std::string& a, const std::string& b) {
  const auto x = open_source(a);
  const auto y = open_source(b);
  ASSERT_TRUE(x.ok() && y.ok());
  EXPECT_EQ(x->tensors.names(), y->tensors.names());
  for (const std::string& name : x->tensors.names()) {
    const tensor::Tensor* other = y->tensors.find(name);
    if (!other) continue;
    const tensor::Tensor& one = *x->tensors.find(name);
    EXPECT_TRUE(one.dtype == other->dtype && one.shape == other->shape && one.data.size() == other->data.size() &&
                std::memcmp(one.data.data(), other->data.data(), one.data.size()) == 0)
        << name;
  }
}

struct Chain {
  const char* golden;
  std::vector<const char*> formats;
  bool bytes;  // the last one is the first again, byte for byte
};

TEST(RoundTrip, KeepsEveryValue) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  const Chain chains[] = {
      {"gptq-4bit-g128-sym", {"awq", "gptq"}, true},
      {"gptq-4bit-g128-sym", {"compressed-tensors", "awq", "gptq_v2", "gptq_p", "tare", "gptq"}, true},
      {"gptq-4bit-g32-asym-v1", {"awq", "gptq"}, true},
      {"gptq-4bit-g32-asym-v1", {"gptq_v2", "compressed-tensors", "gptq"}, true},
      {"gptq-4bit-g128-descact", {"compressed-tensors", "tare", "gptq"}, true},
      {"gptq-2bit-g64", {"gptq_v2", "compressed-tensors", "gptq_v2"}, false},
      {"gptq-dynamic", {"compressed-tensors", "gptq"}, true},
      {"gptq-4bit-T4", {"awq", "compressed-tensors", "gptq"}, true},
      {"ct-w4a16-g128", {"gptq", "compressed-tensors"}, true},
      {"ct-w4a16-g128", {"gguf", "compressed-tensors"}, false},
      {"ct-w4a16-asym", {"gptq_v2", "awq", "compressed-tensors"}, true},
      {"ct-w4a16-g32-asym-T2", {"gptq_v2", "tare", "compressed-tensors"}, false},  // BF16 scales become F16
      {"ct-w3a16-g128", {"gptq", "compressed-tensors"}, true},
      {"ct092-w4a16-actorder-group", {"gptq", "compressed-tensors"}, true},
      {"ct-fp8-block", {"tare", "compressed-tensors"}, true},
      {"ct-w8a8-int8-dynamic", {"tare", "compressed-tensors"}, true},
      {"awq-gemm-g128", {"gptq_v2", "compressed-tensors", "awq"}, true},
      {"awq-gemv-g128", {"awq", "tare"}, false},
      {"fp8-block", {"compressed-tensors", "fp8"}, true},
      {"bnb-nf4-dq", {"tare", "bitsandbytes"}, true},
      {"hqq-4bit-g64", {"tare"}, false},
      {"torchao-int8wo", {"compressed-tensors", "tare"}, false},
      {"gguf-q4_0/model.gguf", {"tare", "gguf"}, false},
      {"gguf-T2-q8_0/model.gguf", {"compressed-tensors", "gguf"}, false},
      {"gguf-T4-q4_0/model.gguf", {"compressed-tensors", "tare", "gguf"}, false},
      {"gguf-q4_k_m/model.gguf", {"tare", "gguf"}, false},
      {"gguf-mxfp4-pure/model.gguf", {"compressed-tensors", "gguf"}, false},
  };
  int number = 0;
  for (const Chain& chain : chains) {
    const std::string first = root + "/" + chain.golden;
    SCOPED_TRACE(chain.golden);
    const auto original = load_checkpoint(first);
    ASSERT_TRUE(original.ok()) << original.error().message();
    std::string at = first;
    const std::string name = std::to_string(number++);
    bool whole = true;
    for (size_t i = 0; i < chain.formats.size(); ++i) {
      // Most of the files come without a tokenizer, which only a GGUF misses.
      const bool gguf = std::string(chain.formats[i]) == "gguf";
      const auto next = convert(at, chain.formats[i], name + "_" + std::to_string(i), gguf);
      for (const std::string& loss : next.ok() ? next->losses : std::vector<std::string>{}) {
        EXPECT_TRUE(loss.starts_with("tokenizer:")) << loss;
      }
      if (!next.ok()) {
        ADD_FAILURE() << chain.formats[i] << ": " << next.error().message();
        whole = false;
        break;
      }
      expect_equal(*original, next->weights, chain.formats[i]);
      at = next->folder;
    }
    if (whole && chain.bytes) expect_same_bytes(first, at);
    if (whole && first.ends_with(".gguf") && std::string(chain.formats.back()) == "gguf") {
      const auto a = io::open_gguf(first);
      const auto b = io::open_gguf(at + "/model.gguf");
      ASSERT_TRUE(a.ok() && b.ok());
      for (const io::GgufTensor& t : a->tensors) {
        const io::GgufTensor* again = b->find_tensor(t.name);
        ASSERT_TRUE(again) << t.name;
        EXPECT_TRUE(t.type == again->type && t.data.size() == again->data.size() &&
                    std::memcmp(t.data.data(), again->data.data(), t.data.size()) == 0)
            << t.name << " " << again->type->name;
      }
    }
  }
}

TEST(RoundTrip, RefusesByName) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  struct Case {
    const char* golden;
    const char* format;
    const char* tensor;
    const char* loss;
  };
  const Case cases[] = {
      {"gptq-4bit-g128-descact", "awq", "_proj.weight", "act-order"},
      {"gptq-4bit-g128-T2", "awq", "_proj.weight", "short"},
      {"gptq-4bit-g128-T2", "compressed-tensors", "_proj.weight", "short"},
      {"gptq-2bit-g64", "gptq", "_proj.weight", "zero points"},
      {"gptq-8bit-g128", "awq", "_proj.weight", "8 bits"},
      {"gguf-q4_k_m/model.gguf", "gptq", "lm_head.weight", "6 bits"},
      {"gguf-q4_k_m/model.gguf", "compressed-tensors", ".weight", "minimum"},
      {"ct-nvfp4-T2", "gptq", ".weight", "e2m1"},
      {"ct-fp8-kv", "gptq", "KV cache", "fp8_e4m3"},
      {"bnb-nf4", "gguf", ".weight", "lut4"},
      {"bnb-nf4", "awq", ".weight", ""},
      {"hqq-4bit-g64", "gptq_v2", ".weight", "float zero points"},
      {"ct-w8a8-int8-dynamic", "bitsandbytes", ".weight", "LLM.int8"},
      {"ct-w4a16-g128", "qserve", "", ""},
      {"ct-w8a16-channel-T2", "awq", ".weight", "8 bits"},
  };
  for (const Case& c : cases) {
    const auto refused = convert(root + "/" + c.golden, c.format, "refused");
    ASSERT_FALSE(refused.ok()) << c.golden << " to " << c.format;
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported) << refused.error().message();
    EXPECT_NE(refused.error().message().find(c.tensor), std::string::npos) << refused.error().message();
    EXPECT_NE(refused.error().message().find(c.loss), std::string::npos) << refused.error().message();
  }
}

TEST(RoundTrip, LosesOnlyWhatIsListed) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  const std::pair<const char*, const char*> cases[] = {
      {"gptq-4bit-g128-descact", "awq"}, {"gptq-2bit-g64", "gptq"},   {"gptq-4bit-g128-T2", "compressed-tensors"},
      {"gguf-q4_k_m/model.gguf", "awq"}, {"hqq-4bit-g64", "gptq_v2"},
  };
  for (const auto& [golden, format] : cases) {
    const std::string path = root + "/" + golden;
    const auto original = load_checkpoint(path);
    ASSERT_TRUE(original.ok());
    const auto written = convert(path, format, "lossy", true);
    ASSERT_TRUE(written.ok()) << golden << ": " << written.error().message();
    EXPECT_FALSE(written->losses.empty());
    const auto differences = compare_weights(*original, written->weights);
    ASSERT_TRUE(differences.ok());
    EXPECT_FALSE(differences->empty()) << golden << " to " << format;
    for (const WeightDifference& d : *differences) {
      EXPECT_LT(d.max_abs, 1.0f) << d.name;
      const bool listed = std::any_of(written->losses.begin(), written->losses.end(),
                                      [&](const std::string& loss) { return loss.starts_with(d.name + ":"); });
      EXPECT_TRUE(listed) << golden << " to " << format << ": " << d.name << " " << d.what;
    }
  }
}

// A dense model with a byte-level tokenizer: the GGUF tokenizes as the original does.
TEST(RoundTrip, GgufCarriesTheTokenizer) {
  TARE_NEEDS_FIXTURE(root, "models");
  for (const char* model : {"T1", "T2", "T4"}) {
    const std::string path = root + "/" + model;
    const auto written = convert(path, "gguf", std::string("dense_") + model);
    ASSERT_TRUE(written.ok()) << written.error().message();
    const auto original = load_checkpoint(path);
    ASSERT_TRUE(original.ok());
    expect_equal(*original, written->weights, model);
    const auto before = load_tokenizer(path);
    const auto after = load_tokenizer(written->folder + "/model.gguf");
    ASSERT_TRUE(before.ok() && after.ok()) << after.error().message();
    for (const char* text : {"Hello, world 123", "  spaces\n\n", "\xc3\xa4\xe2\x82\xac \xf0\x9f\x98\x80"}) {
      const auto a = before->encode(text, {});
      const auto b = after->encode(text, {});
      ASSERT_TRUE(a.ok() && b.ok());
      EXPECT_EQ(a->ids, b->ids) << text;
    }
  }
}

}  // namespace
}  // namespace tare::checkpoints
