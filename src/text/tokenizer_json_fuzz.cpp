#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/tokenizer_json.h"

// A file that loads must also encode and decode without trouble.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = tare::text::load_tokenizer_json(text, "fuzz");
  if (!tokenizer.ok()) return 0;
  const auto encoded = tokenizer->encode("Hello  w\xC3\xB6rld 123 <s> \xE2\x96\x81x\n");
  if (encoded.ok()) {
    (void)tokenizer->decode(encoded->ids);
    tare::text::IncrementalDecoder decoder(*tokenizer);
    for (const auto id : encoded->ids) (void)decoder.push(id);
    (void)decoder.finish();
  }
  return 0;
}
