#include <cstdlib>
#include <string>

#include "io/gguf.h"

// Any bytes: a clear error, or metadata and tensors that lie inside them; every typed member answers for every key.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tare::Buffer bytes = tare::Buffer::own(std::string(reinterpret_cast<const char*>(data), size));
  const auto parsed = tare::io::parse_gguf(bytes, "fuzz");
  if (!parsed.ok()) return parsed.error().message().empty() ? std::abort(), 0 : 0;
  const tare::io::GgufFile& file = *parsed;
  size_t total = 0;
  volatile unsigned char sink = 0;
  for (const auto& pair : file.metadata) {
    const int readable = file.get_uint(pair.key).ok() + file.get_int(pair.key).ok() + file.get_float(pair.key).ok() +
                         file.get_bool(pair.key).ok() + file.get_string(pair.key).ok() +
                         file.get_strings(pair.key).ok() + file.get_ints(pair.key).ok() +
                         file.get_floats(pair.key).ok() + file.get_bools(pair.key).ok();
    if (readable > 1) std::abort();
    for (const std::string_view text : pair.value.strings) {
      for (const char c : text) sink = static_cast<unsigned char>(c);
    }
    total += pair.value.raw.size();
  }
  for (const auto& t : file.tensors) {
    for (const std::byte b : t.data.bytes()) sink = static_cast<unsigned char>(b);
    total += t.data.size();
    if (file.find_tensor(t.name) != &t) std::abort();
  }
  (void)sink;
  if (total > size) std::abort();
  return 0;
}
