#include "checkpoints/tare.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "base/file.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/parts.h"
#include "numerics/packing.h"
#include "testing/fixtures.h"

namespace tare::checkpoints {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;

Buffer random_bytes(int64_t count, unsigned seed, unsigned mask = 0xff) {
  std::mt19937 random(seed);
  std::vector<uint8_t> out(static_cast<size_t>(count));
  for (uint8_t& v : out) v = static_cast<uint8_t>(random() & mask);
  return Buffer::own(std::move(out));
}

Buffer halves(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> out(static_cast<size_t>(count));
  for (uint16_t& v : out) v = static_cast<uint16_t>(0x2000 + random() % 0x1000);
  return Buffer::own(std::move(out));
}

Grid grid(GridType type, int64_t n, int64_t k, int64_t tile_k, Buffer values) {
  return *Grid::make(type, n, k, 1, tile_k, std::move(values));
}

// QoQ groups of 128 over 576 columns: the last one is half as wide.
QuantizedFields progressive(int64_t n, int64_t k) {
  const int64_t groups = (k + 127) / 128;
  QuantizedFields f{.n = n, .k = k, .bits = 4, .codes = random_bytes(n * ((k + 1) / 2), 1)};
  f.rule = tensor::Rule::kIntegerFirst;
  f.a = grid(GridType::kU8, n, k, 128, random_bytes(n * groups, 2, 15));
  f.b = grid(GridType::kS8, n, k, 128, random_bytes(n * groups, 3));
  f.A = grid(GridType::kF16, n, k, k, halves(n, 4));
  return f;
}

QuantizedFields zeros(int64_t n, int64_t k, int bits, int16_t largest) {
  const int64_t groups = (k + 31) / 32;
  QuantizedFields f{.n = n, .k = k, .bits = bits, .codes = random_bytes(n * numerics::packed_bytes(k, bits), 5)};
  f.a = grid(GridType::kF16, n, k, 32, halves(n * groups, 6));
  std::vector<int16_t> z(static_cast<size_t>(n * groups));
  for (size_t i = 0; i < z.size(); ++i) z[i] = static_cast<int16_t>(i % static_cast<size_t>(largest + 1));
  f.z = grid(GridType::kS16, n, k, 32, Buffer::own(std::move(z)));
  return f;
}

struct Written {
  std::string folder;
  tensor::ModelWeights source;
};

Written write(const std::string& name, std::vector<std::pair<QuantizedFields, tensor::ActivationSpec>> matrices,
              json::object settings = {}) {
  Written out{.folder = testing::scratch_directory(name)};
  int i = 0;
  for (auto& [fields, activation] : matrices) {
    auto made = QuantizedTensor::make(std::move(fields));
    EXPECT_TRUE(made.ok()) << made.error().message();
    EXPECT_TRUE(out.source.add("m" + std::to_string(i++) + ".weight", std::move(*made), activation).ok());
  }
  EXPECT_TRUE(out.source.add("norm.weight", tensor::Tensor::from_f32({3}, {1, 2, 3})).ok());
  out.source.config = {{"model_type", "llama"}};
  const auto report = write_checkpoint(
      {.folder = out.folder, .format = "tare", .weights = &out.source, .settings = std::move(settings)});
  EXPECT_TRUE(report.ok()) << report.error().message();
  return out;
}

void expect_same(const tensor::ModelWeights& a, const tensor::ModelWeights& b, const std::string& where) {
  ASSERT_EQ(a.names(), b.names()) << where;
  for (const std::string& name : a.names()) {
    const auto x = a.load(name);
    const auto y = b.load(name);
    ASSERT_TRUE(x.ok()) << where << " " << name << ": " << x.error().message();
    ASSERT_TRUE(y.ok()) << where << " " << name << ": " << y.error().message();
    const tensor::WeightInfo& info = *b.find(name);
    EXPECT_EQ(a.find(name)->activation, info.activation) << where << " " << name;
    EXPECT_EQ(info.shape, a.find(name)->shape);
    ASSERT_EQ(x->index(), y->index());
    EXPECT_EQ(*tensor::to_f32(*x), *tensor::to_f32(*y)) << where << " " << name;
    if (const auto* q = std::get_if<QuantizedTensor>(&*y)) {
      EXPECT_EQ(q->spec(), std::get<QuantizedTensor>(*x).spec()) << where << " " << name;
      EXPECT_EQ(q->spec(), std::get<tensor::QuantSpec>(info.form)) << where << " " << name;
      EXPECT_EQ((*q)->origin.bytes, info.stored_bytes) << where << " " << name;
    }
  }
}

tensor::ActivationSpec token_s8() {
  return {.type = tensor::ActivationType::kS8};
}

TEST(TareFile, GivesBackEveryForm) {
  QuantizedFields mapped = zeros(5, 96, 3, 7);
  std::vector<int32_t> map(96);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>((i * 7) % 96 / 32);
  mapped.group_of_k = std::make_shared<std::vector<int32_t>>(map);
  QuantizedFields whole{
      .n = 7, .k = 1031, .kind = tensor::CodeKind::kInt, .bits = 8, .codes = random_bytes(7 * 1031, 9)};
  whole.a = grid(GridType::kF32, 7, 1031, 1031, Buffer::own(std::vector<float>{1, 2, 3, 4, 5, 6, 7}));
  QuantizedFields nested{.n = 2, .k = 128, .kind = tensor::CodeKind::kLut, .bits = 4, .codes = random_bytes(128, 10)};
  for (int i = 0; i < 16; ++i) nested.lut.push_back(static_cast<float>(i) * 0.1f);
  nested.rule = tensor::Rule::kNested;
  nested.a = grid(GridType::kLut256, 2, 128, 64, random_bytes(4, 11));
  nested.A = *Grid::make(GridType::kF32, 2, 128, 2, 128, Buffer::own(std::vector<float>{0.25f}));
  std::vector<float> lut(256);
  for (size_t i = 0; i < 256; ++i) lut[i] = static_cast<float>(i) / 3;
  nested.scale_lut = std::make_shared<std::vector<float>>(lut);
  nested.nested_offset = 0.1f;
  QuantizedFields constant = zeros(4, 344, 4, 0);
  constant.z = 8.0f;
  const tensor::ActivationSpec fixed{
      .type = tensor::ActivationType::kU8, .dynamic = false, .symmetric = false, .scale = 0.1f, .zero = 17};

  const Written written = write("tare_forms", {{progressive(6, 576), token_s8()},
                                               {progressive(3, 1031), {}},
                                               {zeros(5, 344, 4, 15), {}},
                                               {zeros(5, 344, 4, 16), {}},
                                               {zeros(5, 97, 3, 7), {}},
                                               {std::move(mapped), {}},
                                               {std::move(whole), fixed},
                                               {std::move(nested), {}},
                                               {std::move(constant), {}}});
  const auto read = load_checkpoint(written.folder);
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->format, "tare");
  expect_same(written.source, *read, "tare");
  // 4-bit zeros are stored in 4 bits; one of 16 needs more room.
  EXPECT_LT(read->find("m2.weight")->stored_bytes, read->find("m3.weight")->stored_bytes);
}

// Section 2.4 of the QoQ notes: the bytes of the worked example, by hand.
TEST(TareFile, BytesOfTheWorkedExample) {
  const std::vector<uint8_t> codes = {8 | 1 << 4,  15 | 6 << 4, 0 | 9 << 4,  5 | 11 << 4,
                                      2 | 12 << 4, 14 | 7 << 4, 0 | 13 << 4, 9 | 4 << 4};
  QuantizedFields f{.n = 1, .k = 16, .bits = 4, .codes = Buffer::own(codes)};
  f.rule = tensor::Rule::kIntegerFirst;
  f.a = grid(GridType::kU8, 1, 16, 8, Buffer::own(std::vector<uint8_t>{14, 3}));
  f.b = grid(GridType::kS8, 1, 16, 8, Buffer::own(std::vector<int8_t>{-85, -27}));
  f.A = grid(GridType::kF16, 1, 16, 16, Buffer::own(std::vector<uint16_t>{0x1212}));
  const Written written = write("tare_bytes", {{std::move(f), token_s8()}});
  const auto file = io::open_safetensors(written.folder + "/model.safetensors");
  ASSERT_TRUE(file.ok());
  const auto bytes = [&](const char* name) {
    const tensor::Tensor* t = file->find(name);
    return t ? std::string(reinterpret_cast<const char*>(t->data.data()), t->data.size()) : "missing";
  };
  EXPECT_EQ(bytes("m0.qweight"), std::string("\x18\x6f\x90\xb5\xc2\x7e\xd0\x49", 8));
  EXPECT_EQ(bytes("m0.s2"), std::string("\x0e\x03", 2));
  EXPECT_EQ(bytes("m0.min8"), std::string("\xab\xe5", 2));
  EXPECT_EQ(bytes("m0.s1"), std::string("\x12\x12", 2));
  EXPECT_EQ(file->find("m0.s1")->shape, (tensor::Shape{1}));
}

TEST(TareFile, KeepsWhatTheQuantizerSays) {
  const Written written = write("tare_settings", {{progressive(2, 128), token_s8()}},
                                {{"scheme", "W4A8"}, {"group_size", 128}, {"transforms", json::array{"rotate"}}});
  const auto config = json::parse_file(written.folder + "/config.json");
  ASSERT_TRUE(config.ok());
  const json::object& q = config->get_object().at("quantization_config").as_object();
  EXPECT_EQ(q.at("quant_method"), "tare");
  EXPECT_EQ(q.at("scheme"), "W4A8");
  EXPECT_EQ(q.at("transforms"), json::array{"rotate"});
}

// Changes config.json's quantization_config and expects a refusal that names `part`.
void expect_refused(const std::string& folder, const std::function<void(json::object&)>& damage,
                    const std::string& part) {
  const std::string path = folder + "/config.json";
  const std::string before = *read_text_file(path);
  json::value config = *json::parse(before, path);
  damage(config.as_object().at("quantization_config").as_object());
  ASSERT_TRUE(write_file_atomically(path, boost::json::serialize(config)).ok());
  const auto loaded = load_checkpoint(folder);
  std::string message = loaded.ok() ? "" : loaded.error().message();
  if (loaded.ok()) {
    for (const std::string& name : loaded->names()) {
      if (const auto weight = loaded->load(name); !weight.ok()) message = weight.error().message();
    }
  }
  EXPECT_NE(message.find(part), message.npos) << "wanted '" << part << "' in: " << message;
  ASSERT_TRUE(write_file_atomically(path, before).ok());
}

TEST(TareFile, RefusesContradictions) {
  const Written written = write("tare_hostile", {{progressive(4, 576), token_s8()}, {zeros(4, 96, 4, 15), {}}});
  const auto scheme = [](json::object& q, size_t i) -> json::object& {
    return q.at("schemes").as_array()[i].as_object();
  };
  const std::string& folder = written.folder;
  expect_refused(
      folder, [](json::object& q) { q["version"] = 2; }, "version");
  expect_refused(
      folder, [](json::object& q) { q.erase("version"); }, "version");
  expect_refused(
      folder, [](json::object& q) { q.erase("schemes"); }, "schemes");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["surprise"] = 1; }, "surprise");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["bits"] = 5; }, "m0.s2");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["bits"] = 1000; }, "bits");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["codes"] = "wint"; }, "wint");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["modules"].as_array().clear(); }, "m0.");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["modules"].as_array().emplace_back("m0"); }, "m0");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["modules"].as_array().emplace_back("m7"); }, "m7.qweight");
  expect_refused(
      folder,
      [&](json::object& q) {
        scheme(q, 0)["scale"].as_object()["tile"] = json::array{1, 64};
      },
      "m0.s2");
  expect_refused(
      folder,
      [&](json::object& q) {
        scheme(q, 0)["scale"].as_object()["tile"] = json::array{0, 64};
      },
      "tile");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0)["scale"].as_object()["type"] = "f16"; }, "m0.s2");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 0).erase("minimum"); }, "m0.min8");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 1)["zero"].as_object()["packed_bits"] = 9; }, "packed_bits");
  expect_refused(
      folder, [&](json::object& q) { scheme(q, 1)["zero"].as_object()["packed_bits"] = 8; }, "m1.qzeros");
  expect_refused(
      folder, [&](json::object& q) { q["kv"] = 4; }, "kv");
}

// Every checkpoint of the reference data keeps its weights, activations and bits on the way through tare's own file.
TEST(TareFile, HoldsEveryReferenceCheckpoint) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  int64_t count = 0;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!entry.is_directory()) continue;
    std::string path = entry.path().string();
    if (fs::exists(path + "/model.gguf")) path += "/model.gguf";
    auto source = load_checkpoint(path);
    if (!source.ok()) continue;  // golden_test says which formats are read
    const std::string folder = testing::scratch_directory("tare_golden");
    const auto report = write_checkpoint({.folder = folder, .format = "tare", .weights = &*source});
    ASSERT_TRUE(report.ok()) << path << ": " << report.error().message();
    const auto back = load_checkpoint(folder);
    ASSERT_TRUE(back.ok()) << path << ": " << back.error().message();
    expect_same(*source, *back, path);
    ++count;
  }
  EXPECT_GE(count, 30);
}

// What compressed-tensors can say comes back from it exactly, and the rest is refused.
TEST(CompressedTensorsWriter, GivesBackReferenceCheckpoints) {
  TARE_NEEDS_FIXTURE(root, "checkpoints");
  std::set<std::string> held, refused;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (!entry.is_directory()) continue;
    const std::string name = entry.path().filename().string();
    std::string path = entry.path().string();
    if (fs::exists(path + "/model.gguf")) path += "/model.gguf";
    auto source = load_checkpoint(path);
    if (!source.ok()) continue;
    const std::string folder = testing::scratch_directory("ct_golden");
    const auto report = write_checkpoint({.folder = folder, .format = "compressed-tensors", .weights = &*source});
    if (!report.ok()) {
      EXPECT_EQ(report.error().kind, ErrorKind::kUnsupported) << name << ": " << report.error().message();
      refused.insert(name);
      continue;
    }
    const auto back = load_checkpoint(folder);
    ASSERT_TRUE(back.ok()) << name << ": " << back.error().message();
    for (const std::string& weight : source->names()) {
      const auto x = source->load(weight);
      const auto y = back->load(weight);
      ASSERT_TRUE(x.ok() && y.ok()) << name << " " << weight;
      EXPECT_EQ(*tensor::to_f32(*x), *tensor::to_f32(*y)) << name << " " << weight;
      EXPECT_EQ(source->find(weight)->activation, back->find(weight)->activation) << name << " " << weight;
    }
    held.insert(name);
  }
  for (const char* name : {"ct-w4a16-asym", "ct-w8a8-int8-dynamic", "ct-w8a8-int8-static-T2", "ct-fp8-dynamic-T2",
                           "ct-w3a16-g128", "ct-fp8-block", "gptq-4bit-g128-sym", "awq-gemm-g128"}) {
    EXPECT_TRUE(held.count(name) || !fs::exists(root + "/" + name)) << name;
  }
  EXPECT_GE(held.size(), 8u);
  EXPECT_TRUE(refused.count("gguf-q4_k_m") || !fs::exists(root + "/gguf-q4_k_m"));
}

TEST(CompressedTensorsWriter, RefusesShortGroupsAndCaches) {
  tensor::ModelWeights weights;
  ASSERT_TRUE(weights.add("m.weight", *QuantizedTensor::make(zeros(4, 344, 4, 15))).ok());
  WriteRequest request{
      .folder = testing::scratch_directory("ct_short"), .format = "compressed-tensors", .weights = &weights};
  const auto refused = write_checkpoint(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("the last one is short"), std::string::npos) << refused.error().message();

  tensor::ModelWeights fits;
  fits.kv = {"int4", "int4"};
  ASSERT_TRUE(fits.add("m.weight", *QuantizedTensor::make(zeros(4, 96, 4, 15))).ok());
  request.weights = &fits;
  EXPECT_EQ(write_checkpoint(request).error().kind, ErrorKind::kUnsupported);
  request.allow_loss = true;
  const auto report = write_checkpoint(request);
  ASSERT_TRUE(report.ok()) << report.error().message();
  ASSERT_EQ(report->losses.size(), 1u);
  EXPECT_NE(report->losses[0].find("int4"), std::string::npos);
}

TEST(SideFiles, AreCopiedAndListed) {
  const std::string source = testing::scratch_directory("side_source");
  const std::string target = testing::scratch_directory("side_target");
  const auto put = [&](const std::string& name, std::string_view content) {
    fs::create_directories(fs::path(source + "/" + name).parent_path());
    ASSERT_TRUE(write_file_atomically(source + "/" + name, content).ok());
  };
  tensor::ModelWeights weights;
  weights.config = {{"model_type", "llama"}};
  ASSERT_TRUE(weights.add("norm.weight", tensor::Tensor::from_f32({1}, {1})).ok());
  ASSERT_TRUE(write_checkpoint({.folder = source, .format = "safetensors", .weights = &weights}).ok());
  put("tokenizer.json", "{}");
  put("additional_chat_templates/tool.jinja", "x");
  put(".cache/secret", "x");
  put("pytorch_model.bin", "x");
  const auto copied = copy_side_files(source, target);
  ASSERT_TRUE(copied.ok()) << copied.error().message();
  EXPECT_EQ(copied->copied, (std::vector<std::string>{"additional_chat_templates/tool.jinja", "tokenizer.json"}));
  EXPECT_EQ(copied->left_out, (std::vector<std::string>{"pytorch_model.bin"}));
  EXPECT_FALSE(fs::exists(target + "/config.json"));

  ASSERT_TRUE(write_manifest(target, {{"method", "rtn"}}, {}).ok());
  const json::value manifest = *json::parse_file(target + "/" + std::string(kManifestName));
  EXPECT_EQ(manifest.at("method"), "rtn");
  ASSERT_EQ(manifest.at("files").as_array().size(), 2u);
  EXPECT_EQ(manifest.at("files").at(1).at("sha256"),
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");  // of "{}"
}

}  // namespace
}  // namespace tare::checkpoints
