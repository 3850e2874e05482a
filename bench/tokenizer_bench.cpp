// Speed of tokenizers in MB/s on one core, encode and decode. Whole text in one call, and again cut into short texts.
//
//   tokenizer_bench TEXT TOKENIZER...   (folders with a tokenizer file)
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <vector>

#include "text/tokenizer_directory.h"

namespace {

using tare::text::Tokenizer;

// Best of some runs, in processor time: others on the machine only ever make a run slower.
template <class Run>
double megabytes_per_s(size_t bytes, Run run) {
  double best_s = 1e30;
  for (int i = 0; i < 7; ++i) {
    const std::clock_t start = std::clock();
    run();
    best_s = std::min(best_s, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return static_cast<double>(bytes) / best_s * 1e-6;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenizer_bench TEXT TOKENIZER...\n");
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (text.empty()) {
    fmt::print(stderr, "error: cannot read the text ({})\n", argv[1]);
    return 2;
  }
  fmt::print("{} bytes\n{:>14} {:>14} {:>14} {:>10}  tokenizer\n", text.size(), "encode MB/s", "short MB/s",
             "decode MB/s", "tokens");
  for (int i = 2; i < argc; ++i) {
    const auto tokenizer = tare::text::load_tokenizer_from_directory(argv[i]);
    if (!tokenizer.ok()) {
      fmt::print("{}: {}\n", argv[i], tokenizer.error().message());
      continue;
    }
    std::vector<tare::text::TokenId> ids;
    const double encode = megabytes_per_s(text.size(), [&] { ids = tokenizer->encode(text)->ids; });
    const double pieces = megabytes_per_s(text.size(), [&] {
      for (size_t at = 0; at < text.size();) {
        size_t end = std::min(at + 2000, text.size());
        while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
        (void)tokenizer->encode(std::string_view(text).substr(at, end - at));
        at = end;
      }
    });
    const double decode = megabytes_per_s(text.size(), [&] { (void)tokenizer->decode(ids); });
    fmt::print("{:>14.1f} {:>14.1f} {:>14.1f} {:>10}  {}\n", encode, pieces, decode, ids.size(), argv[i]);
  }
  return 0;
}
