#include <cstdlib>
#include <string>

#include "io/safetensors.h"

// Any bytes: a clear error, or tensors that lie inside them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exact copy on the heap, so that the sanitizer sees the first byte read past its end.
  const tare::Buffer bytes = tare::Buffer::own(std::string(reinterpret_cast<const char*>(data), size));
  const auto file = tare::io::parse_safetensors(bytes, "fuzz");
  if (!file.ok()) return file.error().message().empty() ? std::abort(), 0 : 0;
  size_t total = 0;
  volatile unsigned char sink = 0;
  for (const auto& t : file->tensors) {
    for (const std::byte b : t.tensor.data.bytes()) sink = static_cast<unsigned char>(b);
    total += t.tensor.data.size();
    if (file->find(t.name) != &t.tensor) std::abort();
  }
  (void)sink;
  if (total > size) std::abort();
  return 0;
}
