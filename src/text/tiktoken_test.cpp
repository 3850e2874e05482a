#include "text/tiktoken.h"

#include <gtest/gtest.h>

#include <string>

namespace tare::text {
namespace {

std::string base64(std::string_view bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<uint8_t>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) out += at + i > bytes.size() ? '=' : kAlphabet[bits >> (18 - 6 * i) & 63];
  }
  return out;
}

std::string ranks() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte)
    out += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  out += base64("ab") + " 256\n" + base64("bc") + " 257\n" + base64(" abc") + " 258\n";
  return out;
}

TiktokenSpec spec() {
  TiktokenSpec out{.name = "small", .pattern = R"( ?\p{L}+|\p{N}{1,3}+|\s+|.)"};
  out.special_tokens = {{"<|end|>", 260}};
  return out;
}

TEST(Tiktoken, RanksDecide) {
  EXPECT_EQ(count_tiktoken_ranks(ranks()), 259u);
  EXPECT_EQ(count_tiktoken_ranks("\x0A\x05<unk>"), 0u);
  const auto tokenizer = load_tiktoken(ranks(), spec(), "small");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  // "abc": ab has the lower rank; " abc" is a token though no two of its parts join to it.
  EXPECT_EQ(tokenizer->encode("abc abc<|end|>")->ids, (std::vector<TokenId>{256, 'c', 258, 260}));
  EXPECT_EQ(tokenizer->encode("<|end|>", {.specials_as_text = true})->ids.size(), 7u);
  EXPECT_EQ(*tokenizer->decode(tokenizer->encode("abc \xC3\xA9")->ids), "abc \xC3\xA9");
  EXPECT_EQ(tokenizer->vocab_size(), 261u);
  EXPECT_EQ(*tokenizer->token_text(259), "<|unused_259|>");  // an id between the ranks and the special tokens
}

TEST(Tiktoken, RefusesDamage) {
  const std::string good = ranks();
  for (const std::string& bad : {std::string(), good.substr(4), "YQ==\n" + good, good + "YWE= 999\n", good + "YWE= 3\n",
                                 good + "YQ== 259\n", good + "@@@@ 259\n", good + "YWE= x\n", good + " 259\n"}) {
    EXPECT_FALSE(load_tiktoken(bad, spec(), "small").ok()) << bad.substr(0, 20);
  }
  TiktokenSpec taken = spec();
  taken.special_tokens = {{"<|end|>", 5}};
  EXPECT_FALSE(load_tiktoken(good, taken, "small").ok());
  EXPECT_FALSE(known_tiktoken_spec(259, "small").ok());
  for (const size_t known : {50256, 100256, 128000, 151643, 199998, 200000})
    EXPECT_TRUE(known_tiktoken_spec(known, "t").ok());
}

TEST(Tekken, SpecialTokensComeFirst) {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab += std::string(byte ? "," : "") + R"({"rank":)" + std::to_string(byte) + R"(,"token_bytes":")" +
             base64(std::string(1, static_cast<char>(byte))) + R"("})";
  }
  const std::string file =
      R"({"config":{"pattern":"\\p{L}+|.","default_vocab_size":278,"default_num_special_tokens":22},"vocab":[)" +
      vocab + "]}";
  const auto tokenizer = load_tekken(file, "tekken");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  EXPECT_EQ(tokenizer->encode("a[INST]")->ids, (std::vector<TokenId>{1, 'a' + 22, 3}));
  EXPECT_EQ(tokenizer->special().eos, 2);
  EXPECT_FALSE(load_tekken("{}", "tekken").ok());
}

}  // namespace
}  // namespace tare::text
