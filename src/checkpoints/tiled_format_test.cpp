// Layouts made for GPU kernels: each is packed here by the steps of its own tool, then read back.
#include <algorithm>
#include <array>
#include <random>

#include "checkpoints/tiny_checkpoint.h"
#include "numerics/mini_float.h"

namespace tare::checkpoints {
namespace {

using numerics::f16_to_f32;
using numerics::f32_to_f16;
using tensor::DType;
using testing_util::TinyCheckpoint;

struct Codes {
  int64_t n, k;
  std::vector<uint32_t> values;  // [N, K]
  uint32_t at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * k + column)]; }
};

Codes random_codes(int64_t n, int64_t k, uint32_t limit, uint32_t seed) {
  std::mt19937 random(seed);
  Codes out{n, k, std::vector<uint32_t>(static_cast<size_t>(n * k))};
  for (uint32_t& v : out.values) v = random() % limit;
  return out;
}

// The packing procedure of the Marlin family: 16x16 tiles, a permutation of 1024 codes, eight codes a word.
// inner: order of the eight codes of one thread before they are packed.
std::vector<uint32_t> marlin_pack(const Codes& codes, const std::array<int, 4>& rows_of_thread, bool consecutive,
                                  const std::array<int, 8>& interleave) {
  std::vector<int> perm;
  for (int i = 0; i < 32; ++i) {
    std::vector<int> one;
    const int column = i / 4;
    for (const int block : {0, 1}) {
      for (const int r : rows_of_thread) {
        const int row = consecutive ? 4 * (i % 4) + r : 2 * (i % 4) + r;
        one.push_back(16 * row + column + 8 * block);
      }
    }
    for (int j = 0; j < 4; ++j) {
      for (const int p : one) perm.push_back(p + 256 * j);
    }
  }
  std::vector<int> mixed;
  for (size_t i = 0; i < perm.size(); i += 8) {
    for (const int p : interleave) mixed.push_back(perm[i + static_cast<size_t>(p)]);
  }
  std::vector<uint32_t> words;
  for (int64_t tile = 0; tile < codes.k / 16; ++tile) {
    // [16, N] -> runs of 256 codes, one a 16x16 tile, row-major inside
    std::vector<uint32_t> flat;
    for (int64_t block = 0; block < codes.n / 16; ++block) {
      for (int64_t r = 0; r < 16; ++r) {
        for (int64_t c = 0; c < 16; ++c) flat.push_back(codes.at(block * 16 + c, tile * 16 + r));
      }
    }
    for (size_t base = 0; base < flat.size(); base += 1024) {
      for (size_t i = 0; i < 1024; i += 8) {
        uint32_t word = 0;
        for (size_t j = 0; j < 8; ++j) word |= flat[base + static_cast<size_t>(mixed[i + j])] << 4 * j;
        words.push_back(word);
      }
    }
  }
  return words;
}

std::vector<int64_t> group_perm() {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 8; ++j) out.push_back(i + 8 * j);
  }
  return out;
}
std::vector<int64_t> channel_perm() {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < 4; ++i) {
    for (const int64_t j : {0, 1, 8, 9, 16, 17, 24, 25}) out.push_back(2 * i + j);
  }
  return out;
}

// stored[p] = natural[perm[p]] in each run.
template <class T>
std::vector<T> permute(const std::vector<T>& natural, const std::vector<int64_t>& perm) {
  std::vector<T> out(natural.size());
  for (size_t i = 0; i < natural.size(); ++i) {
    const size_t run = i / perm.size() * perm.size();
    out[i] = natural[run + static_cast<size_t>(perm[i % perm.size()])];
  }
  return out;
}

constexpr std::array<int, 4> kMarlinRows = {0, 1, 8, 9};
constexpr std::array<int, 8> kInterleave = {0, 2, 4, 6, 1, 3, 5, 7};

std::vector<float> scales_of(int64_t count) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(0.125f * static_cast<float>(i % 97 + 1));
  return out;
}
std::vector<uint16_t> halves(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float v : values) out.push_back(f32_to_f16(v));
  return out;
}

TEST(Marlin, TilesAndScales) {
  for (const int64_t group : {int64_t{32}, int64_t{-1}}) {
    const Codes codes = random_codes(128, 64, 16, 3);
    const int64_t groups = group == -1 ? 1 : codes.k / group;
    const std::vector<float> scales = scales_of(groups * codes.n);  // [G, N]
    TinyCheckpoint c(group == -1 ? "marlin_channel" : "marlin_group");
    c.config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4},
                                       {"group_size", group},    {"sym", true},
                                       {"desc_act", false},      {"checkpoint_format", "marlin"}};
    c.add("p.B", DType::kI32, {codes.k / 16, codes.n * 2}, marlin_pack(codes, kMarlinRows, false, kInterleave));
    c.add("p.s", DType::kF16, {groups, codes.n}, halves(permute(scales, group == -1 ? channel_perm() : group_perm())));
    const std::vector<float> w = c.values();
    for (int64_t n = 0; n < codes.n; ++n) {
      for (int64_t k = 0; k < codes.k; ++k) {
        const int64_t g = group == -1 ? 0 : k / group;
        const float expected =
            scales[static_cast<size_t>(g * codes.n + n)] * (static_cast<float>(codes.at(n, k)) - 8.0f);
        ASSERT_EQ(w[static_cast<size_t>(n * codes.k + k)], expected) << n << " " << k;
      }
    }
    EXPECT_EQ(c.load()->format, "marlin");
    EXPECT_EQ(c.error({.format = "gptq"}), "");
    EXPECT_NE(c.error({.format = "awq"}), "");
  }
}

TEST(Awq, MarlinLayout) {
  const Codes codes = random_codes(64, 32, 16, 4);
  const std::vector<float> scales = scales_of(codes.n);
  TinyCheckpoint c("awq_marlin");
  c.config["quantization_config"] = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", -1}, {"zero_point", false}, {"version", "marlin"}};
  c.add("p.qweight", DType::kI32, {codes.k / 16, codes.n * 2}, marlin_pack(codes, kMarlinRows, false, kInterleave));
  c.add("p.scales", DType::kF16, {1, codes.n}, halves(permute(scales, channel_perm())));
  const std::vector<float> w = c.values();
  for (int64_t n = 0; n < codes.n; ++n) {
    for (int64_t k = 0; k < codes.k; ++k) {
      ASSERT_EQ(w[static_cast<size_t>(n * codes.k + k)],
                scales[static_cast<size_t>(n)] * (static_cast<float>(codes.at(n, k)) - 8.0f));
    }
  }
}

TEST(Qqq, PerChannel) {
  const Codes codes = random_codes(64, 32, 16, 5);
  const std::vector<float> scales = scales_of(codes.n);
  TinyCheckpoint c("qqq_channel");
  c.config["quantization_config"] = {{"quant_method", "qqq"}, {"wbits", 4}, {"group_size", -1}};
  constexpr std::array<int, 4> kRows = {0, 1, 2, 3};
  constexpr std::array<int, 8> kChannel = {4, 0, 5, 1, 6, 2, 7, 3};
  c.add("p.B", DType::kI32, {codes.k / 16, codes.n * 2}, marlin_pack(codes, kRows, true, kChannel));
  c.add("p.s_channel", DType::kF32, {1, codes.n}, permute(scales, channel_perm()));
  c.add("p.s_group", DType::kF16, {0}, std::vector<uint16_t>{});
  const std::vector<float> w = c.values();
  for (int64_t n = 0; n < codes.n; ++n) {
    for (int64_t k = 0; k < codes.k; ++k) {
      const int code = static_cast<int>(codes.at(n, k));
      const int q = code >= 8 ? code - 16 : code;
      ASSERT_EQ(w[static_cast<size_t>(n * codes.k + k)], scales[static_cast<size_t>(n)] * static_cast<float>(16 * q))
          << n << " " << k;
    }
  }
}

// ---- QServe

TEST(QServe, InterleaveOfTheExample) {
  // K = 64, code (21, 45) stands in byte 881, high nibble.
  constexpr int64_t kN = 32, kK = 64;
  std::vector<uint8_t> bytes(kN * kK / 2);
  bytes[881] = 0xF0;
  TinyCheckpoint c("qserve_place");
  c.add("p.qweight", DType::kI8, {kN, kK / 2}, bytes);
  c.add("p.s1_scales", DType::kF16, {kN}, std::vector<uint16_t>(kN, 0x3c00));
  c.add("p.s1_szeros", DType::kF16, {kN}, std::vector<uint16_t>(kN, 0));
  const std::vector<float> w = c.values();
  for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(w[i], i == 21 * kK + 45 ? 15.0f : 0.0f) << i;
}

TEST(QServe, GroupsOfTheWorkedExample) {
  constexpr int64_t kN = 32, kK = 64;
  TinyCheckpoint c("qserve_group");
  // All codes 7; every channel has its own scales, stored in the kernel's order 0, 8, 16, 24, 1, ...
  std::vector<int8_t> s2(2 * kN), zeros(2 * kN);
  for (int64_t g = 0; g < 2; ++g) {
    int64_t p = 0;
    for (int64_t low = 0; low < 8; ++low) {
      for (int64_t high = 0; high < 4; ++high, ++p) {
        const int64_t channel = 8 * high + low;
        s2[static_cast<size_t>(g * kN + p)] = static_cast<int8_t>(channel == 3 && g == 1 ? 13 : 1);
        zeros[static_cast<size_t>(g * kN + p)] = static_cast<int8_t>(channel == 3 && g == 1 ? -91 : -channel);
      }
    }
  }
  c.add("p.qweight", DType::kI8, {kN, kK / 2}, std::vector<uint8_t>(kN * kK / 2, 0x77));
  c.add("p.s1_scales", DType::kF16, {kN}, std::vector<uint16_t>(kN, 0x3800));
  c.add("p.s2_scales", DType::kI8, {2, kN}, s2);
  c.add("p.s2_zeros", DType::kI8, {2, kN}, zeros);
  c.add("l.self_attn.kv_scale_quant_orig", DType::kF32, {2}, std::vector<float>{0.5f, 0.25f});
  const std::vector<float> w = c.values();
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      const float w8 = n == 3 && k >= 32 ? 7 * 13 - 91 : static_cast<float>(7 - n);
      ASSERT_EQ(w[static_cast<size_t>(n * kK + k)], 0.5f * w8) << n << " " << k;
    }
  }
  EXPECT_EQ(c.values("l.self_attn.v_scale"), std::vector<float>{0.25f});
}

TEST(QServe, PerChannelAndOverflow) {
  TinyCheckpoint c("qserve_channel");
  c.add("p.qweight", DType::kI8, {32, 16}, std::vector<uint8_t>(512, 0xFF));
  c.add("p.s1_scales", DType::kF16, {32}, std::vector<uint16_t>(32, 0x251F));
  c.add("p.s1_szeros", DType::kF16, {32}, halves(std::vector<float>(32, 0.14003f)));
  EXPECT_NEAR(c.values()[0], 0.16003f, 1e-4);

  TinyCheckpoint overflow("qserve_overflow");
  overflow.add("p.qweight", DType::kI8, {32, 16}, std::vector<uint8_t>(512, 0xFF));
  overflow.add("p.s1_scales", DType::kF16, {32}, std::vector<uint16_t>(32, 0x251F));
  overflow.add("p.s2_scales", DType::kI8, {1, 32}, std::vector<int8_t>(32, 17));
  overflow.add("p.s2_zeros", DType::kI8, {1, 32}, std::vector<int8_t>(32, -100));
  EXPECT_NE(overflow.error().find("leaves int8"), std::string::npos) << overflow.error();
}

// ---- 2:4

struct Sparse {
  Codes kept;                      // [N, K/2] codes of the kept values
  std::vector<int> first, second;  // [N, K/4] kept positions
};

// Scatters the positions as the 2:4 tools do: a matrix [N, K/16] of 16-bit words, its rows and columns mixed.
std::vector<uint16_t> scatter_meta(const Sparse& s, int64_t n, int64_t k) {
  std::vector<uint16_t> out(static_cast<size_t>(n * k / 16));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k / 16; ++column) {
      uint16_t word = 0;
      for (int64_t q = 0; q < 4; ++q) {
        const auto at = static_cast<size_t>(row * k / 4 + column * 4 + q);
        word |= static_cast<uint16_t>((s.first[at] | s.second[at] << 2) << 4 * q);
      }
      int64_t r = row / 64 * 64 + row % 2 * 2 + row % 8 / 4 + row % 32 % 4 / 2 * 32 + row % 64 / 8 * 4;
      int64_t c = column;
      const bool top_right = r % 2 == 0 && c % 2 == 1, bottom_left = r % 2 == 1 && c % 2 == 0;
      r += top_right ? 1 : bottom_left ? -1 : 0;
      c += top_right ? -1 : bottom_left ? 1 : 0;
      out[static_cast<size_t>(c / 2 * 2 * n + 2 * r + c % 2)] = word;
    }
  }
  return out;
}

// The packing of kept codes for the 2:4 kernel, four columns side by side (docs/formats.md 3.7).
std::vector<uint32_t> pack_24(const Codes& kept, int bits) {
  std::vector<int> perm;
  for (int i = 0; i < 32; ++i) {
    std::vector<int> one;
    const int column = i / 4, offset = column / 2;
    for (const int block : {0, 1}) {
      for (const int r : {0, 1, 8, 9}) {
        one.push_back(16 * (2 * (i % 4) + r) + offset * 256 + 8 * (column % 2) + 4 * block);
      }
    }
    for (int j = 0; j < 4; ++j) {
      for (const int p : one) perm.push_back(p + j);
    }
  }
  const std::vector<int> interleave =
      bits == 4 ? std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7} : std::vector<int>{0, 2, 1, 3};
  std::vector<int> mixed;
  for (size_t i = 0; i < perm.size(); i += interleave.size()) {
    for (const int p : interleave) mixed.push_back(perm[i + static_cast<size_t>(p)]);
  }
  std::vector<uint32_t> words;
  const size_t per_word = static_cast<size_t>(32 / bits);
  for (int64_t tile = 0; tile < kept.k / 16; ++tile) {
    std::vector<uint32_t> flat;
    for (int64_t block = 0; block < kept.n / 16; ++block) {
      for (int64_t r = 0; r < 16; ++r) {
        for (int64_t c = 0; c < 16; ++c) flat.push_back(kept.at(block * 16 + c, tile * 16 + r));
      }
    }
    for (size_t base = 0; base < flat.size(); base += 1024) {
      for (size_t i = 0; i < 1024; i += per_word) {
        uint32_t word = 0;
        for (size_t j = 0; j < per_word; ++j) {
          word |= flat[base + static_cast<size_t>(mixed[i + j])] << static_cast<size_t>(bits) * j;
        }
        words.push_back(word);
      }
    }
  }
  return words;
}

TEST(Sparse24, KeepsTwoOfFour) {
  constexpr int64_t kN = 128, kK = 128;
  for (const int bits : {4, 8}) {
    for (const int64_t group : {int64_t{32}, int64_t{-1}}) {
      Sparse s{.kept = random_codes(kN, kK / 2, 1u << bits, 11), .first = {}, .second = {}};
      std::mt19937 random(12);
      for (int64_t i = 0; i < kN * kK / 4; ++i) {
        const int a = static_cast<int>(random() % 3);
        s.first.push_back(a);
        s.second.push_back(a + 1 + static_cast<int>(random() % static_cast<uint32_t>(3 - a)));
      }
      const int64_t groups = group == -1 ? 1 : kK / group;
      const std::vector<float> scales = scales_of(groups * kN);
      std::vector<int64_t> perm;
      for (int64_t i = 0; i < 8; ++i) {
        for (const int64_t j : {0, 4, 1, 5, 2, 6, 3, 7}) perm.push_back(i * 8 + j);
      }
      TinyCheckpoint c("sparse24_" + std::to_string(bits) + "_" + std::to_string(group));
      c.config["quantization_config"] = {{"quant_method", "gptq"},
                                         {"bits", bits},
                                         {"group_size", group},
                                         {"sym", true},
                                         {"checkpoint_format", "marlin_24"}};
      const auto words = pack_24(s.kept, bits);
      c.add("p.B_24", DType::kI32, {kK / 32, kN * 16 * bits / 32}, words);
      c.add("p.B_meta", DType::kI16, {kK / 32, 2 * kN}, scatter_meta(s, kN, kK));
      c.add("p.s", DType::kF16, {groups, kN}, halves(group == -1 ? scales : permute(scales, perm)));
      const std::vector<float> w = c.values();
      ASSERT_EQ(w.size(), static_cast<size_t>(kN * kK));
      const int middle = 1 << (bits - 1);
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t q = 0; q < kK / 4; ++q) {
          const auto at = static_cast<size_t>(n * kK / 4 + q);
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t k = 4 * q + i;
            float code = 0;
            if (i == s.first[at]) code = static_cast<float>(static_cast<int>(s.kept.at(n, 2 * q)) - middle);
            if (i == s.second[at]) code = static_cast<float>(static_cast<int>(s.kept.at(n, 2 * q + 1)) - middle);
            const int64_t g = group == -1 ? 0 : k / group;
            ASSERT_EQ(w[static_cast<size_t>(n * kK + k)], scales[static_cast<size_t>(g * kN + n)] * code)
                << bits << " " << group << " " << n << " " << k;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tare::checkpoints
