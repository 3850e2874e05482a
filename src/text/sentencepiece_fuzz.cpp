#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = tare::text::load_sentencepiece_model(bytes, "fuzz");
  if (!tokenizer.ok()) return 0;
  const auto encoded = tokenizer->encode("Hello  w\xC3\xB6rld 123 <s> \xE2\x96\x81x\n");
  if (encoded.ok()) (void)tokenizer->decode(encoded->ids);
  return 0;
}
