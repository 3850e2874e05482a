// Thousands of damaged containers with a fixed seed: no crash, and no success where structure was changed. A container
// alone cannot know that a name, or one of two equally wide types, is not the one that was written; such a mutant must
// come out as exactly what its bytes now say, and with everything else intact.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "testing/container_bytes.h"

namespace tare::io {
namespace {

using testing::bytes_of;
using testing::gguf_string;
using testing::to_buffer;

constexpr int kMutants = 5000;

using Random = std::mt19937_64;
size_t below(Random& random, size_t limit) {
  return static_cast<size_t>(random() % limit);
}

// One to three changes of the kinds that disks, downloads and hands make. Half of them aim at the structure in front.
std::string mutate(const std::string& source, size_t structure_bytes, Random& random) {
  static const uint64_t kNumbers[] = {0,
                                      1,
                                      7,
                                      8,
                                      31,
                                      255,
                                      0xFFFF,
                                      0x7FFFFFFF,
                                      0xFFFFFFFF,
                                      uint64_t{1} << 32,
                                      uint64_t{1} << 62,
                                      uint64_t{1} << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 7};
  std::string out = source;
  const size_t changes = 1 + below(random, 3);
  for (size_t i = 0; i < changes && out.size() > 16; ++i) {
    const size_t reach = below(random, 2) ? std::min(structure_bytes, out.size()) : out.size();
    const size_t at = below(random, reach);
    switch (below(random, 9)) {
      case 0:
        out[at] = static_cast<char>(out[at] ^ (1 << below(random, 8)));
        break;
      case 1:
        out[at] = static_cast<char>(below(random, 256));
        break;
      case 2:
        out[at] = static_cast<char>(out[at] + (below(random, 2) ? 1 : -1));
        break;
      case 3: {
        const uint64_t number = kNumbers[below(random, std::size(kNumbers))];
        const size_t width = size_t{1} << below(random, 4);
        std::memcpy(out.data() + at, &number, std::min(width, out.size() - at));
        break;
      }
      case 4:
        out.resize(at);
        break;
      case 5:
        out.erase(at, 1 + below(random, 9));
        break;
      case 6:
        out.insert(at, out.substr(below(random, out.size()), 1 + below(random, 17)));
        break;
      case 7:
        std::swap(out[at], out[below(random, reach)]);
        break;
      default:
        out.append(1 + below(random, 40), static_cast<char>(below(random, 2)));
        break;
    }
  }
  return out;
}

std::string safetensors_sample() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("model.embed_tokens.weight":{"dtype":"BF16","shape":[4,6],"data_offsets":[0,48]},)"
      R"("model.layers.0.mlp.down_proj.qweight":{"dtype":"I32","shape":[3,5],"data_offsets":[48,108]},)"
      R"("model.layers.0.mlp.down_proj.s_group":{"dtype":"F16","shape":[0],"data_offsets":[108,108]},)"
      R"("model.norm.weight":{"dtype":"F32","shape":[6],"data_offsets":[108,132]},)"
      R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[132,133]}}   )";
  return testing::safetensors_bytes(header, std::string(133, 'd'));
}

// What a container can know of its tensors: how many, how long, in which order.
std::vector<size_t> lengths(const SafetensorsFile& file) {
  std::vector<size_t> out;
  for (const NamedTensor& t : file.tensors) out.push_back(t.tensor.data.size());
  return out;
}
std::vector<size_t> lengths(const GgufFile& file) {
  std::vector<size_t> out;
  for (const GgufTensor& t : file.tensors) out.push_back(t.data.size());
  return out;
}

struct Counts {
  int refused = 0;
  int same = 0;       // only data or free text changed
  int invisible = 0;  // a name, or a type or shape of the same size
};

TEST(Mutation, Safetensors) {
  const std::string source = safetensors_sample();
  const size_t structure = source.size() - 133;
  const auto original = parse_safetensors(to_buffer(source), "source");
  ASSERT_TRUE(original.ok()) << original.error().message();
  Random random(20240611);
  Counts counts;
  for (int i = 0; i < kMutants; ++i) {
    const std::string mutant = mutate(source, structure, random);
    const auto file = parse_safetensors(to_buffer(mutant), "mutant");
    if (!file.ok()) {
      EXPECT_EQ(file.error().kind, ErrorKind::kInvalidInput);
      ++counts.refused;
      continue;
    }
    // Header length and total size hold each other: data never moves or changes its length in a file that is read.
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, mutant.data(), 8);
    size_t total = 0;
    for (const size_t length : lengths(*file)) total += length;
    ASSERT_EQ(8 + header_bytes + total, mutant.size());
    bool same = file->tensors.size() == original->tensors.size();
    for (size_t t = 0; same && t < file->tensors.size(); ++t) {
      const NamedTensor& now = file->tensors[t];
      const NamedTensor& was = original->tensors[t];
      same = now.name == was.name && now.tensor.dtype == was.tensor.dtype && now.tensor.shape == was.tensor.shape;
    }
    if (same) {
      ++counts.same;
      continue;
    }
    // The rest must be a name, an equally wide dtype, a shape with the same product, or an empty tensor's extents.
    ++counts.invisible;
    EXPECT_EQ(lengths(*file), lengths(*original)) << mutant.substr(8, header_bytes);
  }
  fmt::print("safetensors mutants: {} refused, {} intact, {} with a change no container can see\n", counts.refused,
             counts.same, counts.invisible);
  EXPECT_GT(counts.refused, kMutants / 2);
  EXPECT_GT(counts.same, 0);
  EXPECT_LT(counts.invisible, kMutants / 10);
}

std::string gguf_sample(size_t& structure) {
  std::string out = std::string("GGUF") + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(3) + bytes_of<uint64_t>(5);
  out += gguf_string("general.architecture") + bytes_of<uint32_t>(8) + gguf_string("llama");
  out += gguf_string("general.alignment") + bytes_of<uint32_t>(4) + bytes_of<uint32_t>(32);
  out += gguf_string("llama.block_count") + bytes_of<uint32_t>(4) + bytes_of<uint32_t>(2);
  out += gguf_string("tokenizer.ggml.tokens") + bytes_of<uint32_t>(9) + bytes_of<uint32_t>(8) + bytes_of<uint64_t>(3) +
         gguf_string("a") + gguf_string("bc") + gguf_string("");
  out += gguf_string("tokenizer.ggml.scores") + bytes_of<uint32_t>(9) + bytes_of<uint32_t>(6) + bytes_of<uint64_t>(2) +
         bytes_of(0.5f) + bytes_of(1.5f);
  const auto tensor = [&](const char* name, std::vector<uint64_t> ne, uint32_t type, uint64_t offset) {
    out += gguf_string(name) + bytes_of<uint32_t>(static_cast<uint32_t>(ne.size()));
    for (const uint64_t n : ne) out += bytes_of(n);
    out += bytes_of(type) + bytes_of(offset);
  };
  tensor("token_embd.weight", {256, 2}, 12, 0);      // Q4_K: 288 bytes
  tensor("blk.0.ffn_down.weight", {64, 3}, 8, 288);  // Q8_0: 204 bytes, padded to 224
  tensor("output_norm.weight", {6}, 0, 512);         // F32: 24 bytes, padded to 32
  out.resize((out.size() + 31) / 32 * 32, '\0');
  structure = out.size();
  return out + std::string(288, 'k') + std::string(204, 'q') + std::string(20, '\0') + std::string(24, 'f') +
         std::string(8, '\0');
}

TEST(Mutation, Gguf) {
  size_t structure = 0;
  const std::string source = gguf_sample(structure);
  const auto original = parse_gguf(to_buffer(source), "source");
  ASSERT_TRUE(original.ok()) << original.error().message();
  Random random(20240612);
  Counts counts;
  for (int i = 0; i < kMutants; ++i) {
    const std::string mutant = mutate(source, structure, random);
    const auto file = parse_gguf(to_buffer(mutant), "mutant");
    if (!file.ok()) {
      EXPECT_THAT(file.error().kind, ::testing::AnyOf(ErrorKind::kInvalidInput, ErrorKind::kUnsupported));
      ++counts.refused;
      continue;
    }
    EXPECT_TRUE(file->version == 2 || file->version == 3);
    ASSERT_EQ(file->metadata.size(), original->metadata.size());
    EXPECT_EQ(lengths(*file), lengths(*original));
    bool same = file->version == original->version;
    for (size_t p = 0; p < file->metadata.size(); ++p) {
      const GgufValue& now = file->metadata[p].value;
      const GgufValue& was = original->metadata[p].value;
      const bool equal_type = now.type == was.type && now.element == was.element;
      // A key with a known type keeps it; only a damaged key may carry another.
      if (file->metadata[p].key == original->metadata[p].key) {
        EXPECT_TRUE(equal_type) << file->metadata[p].key;
      }
      same = same && file->metadata[p].key == original->metadata[p].key && equal_type;
    }
    for (size_t t = 0; t < file->tensors.size(); ++t) {
      const GgufTensor& now = file->tensors[t];
      const GgufTensor& was = original->tensors[t];
      same = same && now.name == was.name && now.type == was.type && now.shape == was.shape;
    }
    ++(same ? counts.same : counts.invisible);
  }
  fmt::print("GGUF mutants: {} refused, {} intact, {} with a change no container can see\n", counts.refused,
             counts.same, counts.invisible);
  EXPECT_GT(counts.refused, kMutants / 2);
  EXPECT_GT(counts.same, 0);
  EXPECT_LT(counts.invisible, kMutants / 10);
}

}  // namespace
}  // namespace tare::io
