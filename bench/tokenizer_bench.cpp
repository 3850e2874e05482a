// Speed of tokenizers on one core, in processor time: one table row each.
//
//   tokenizer_bench TEXT TOKENIZER...   (TEXT: a file; TOKENIZER: folders with a tokenizer file)
//
// A tokenizer remembers words across calls, so there are two columns for each way of cutting the text: `first` on a
// tokenizer that has seen nothing, `again` on one that has seen the text. `2 kB`: the text cut into texts of 2 kB, one
// call each. `1 MB`: the slowest of 1 MB of one character (of a, space, newline, full stop, U+00E9, U+4E2D), in
// seconds.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "text/tokenizer_directory.h"
#include "text/tokenizer_state.h"

namespace {

using tare::text::Tokenizer;

// Best of some runs, in processor time: others on the machine only ever make a run slower.
template <class Prepare, class Run>
double best_s(Prepare prepare, Run run) {
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    prepare();
    const std::clock_t start = std::clock();
    run();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

// The same tokenizer that has seen nothing.
Tokenizer fresh(const Tokenizer& tokenizer) {
  return Tokenizer(std::make_shared<tare::text::TokenizerState>(tokenizer.state()));
}

void encode_short(const Tokenizer& tokenizer, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(at + 2000, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    (void)tokenizer.encode(text.substr(at, end - at));
    at = end;
  }
}

double slowest_character_s(const Tokenizer& tokenizer) {
  double slowest = 0;
  for (const std::string_view character : {"a", " ", "\n", ".", "\xC3\xA9", "\xE4\xB8\xAD"}) {
    std::string text;
    while (text.size() < 1'000'000) text += character;
    const std::clock_t start = std::clock();
    (void)tokenizer.encode(text);
    slowest = std::max(slowest, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return slowest;
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
  fmt::print("{} bytes; MB/s\n{:<16} {:>7} {:>7} {:>11} {:>11} {:>7} {:>8} {:>8}\n", text.size(), "tokenizer", "first",
             "again", "2 kB first", "2 kB again", "decode", "1 MB, s", "tokens");
  for (int i = 2; i < argc; ++i) {
    const auto tokenizer = tare::text::load_tokenizer_from_directory(argv[i]);
    if (!tokenizer.ok()) {
      fmt::print("{}: {}\n", argv[i], tokenizer.error().message());
      continue;
    }
    std::optional<Tokenizer> unused;
    const auto make_unused = [&] { unused.emplace(fresh(*tokenizer)); };
    const auto nothing = [] {};
    const auto ids = tokenizer->encode(text);
    if (!ids.ok()) {
      fmt::print("{}: {}\n", argv[i], ids.error().message());
      continue;
    }
    const double megabytes = static_cast<double>(text.size()) * 1e-6;
    const double first = best_s(make_unused, [&] { (void)unused->encode(text); });
    const double again = best_s(nothing, [&] { (void)tokenizer->encode(text); });
    const double short_first = best_s(make_unused, [&] { encode_short(*unused, text); });
    const double short_again = best_s(nothing, [&] { encode_short(*tokenizer, text); });
    const double decode = best_s(nothing, [&] { (void)tokenizer->decode(ids->ids); });
    fmt::print("{:<16} {:>7.1f} {:>7.1f} {:>11.1f} {:>11.1f} {:>7.1f} {:>8.3f} {:>8}\n",
               std::filesystem::path(argv[i]).filename().string(), megabytes / first, megabytes / again,
               megabytes / short_first, megabytes / short_again, megabytes / decode, slowest_character_s(*tokenizer),
               ids->ids.size());
  }
  return 0;
}
