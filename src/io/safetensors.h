#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace tare::io {

struct NamedTensor {
  std::string name;
  tensor::Tensor tensor;  // shares the bytes of the file; not aligned to its element size in general
};

/// One safetensors file: its tensors in the order of their bytes, and its free text.
struct SafetensorsFile {
  std::string path;
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string, std::less<>> metadata;  // `__metadata__`
  std::map<std::string, size_t, std::less<>> index;          // name -> place in `tensors`

  const tensor::Tensor* find(std::string_view name) const;
};

/// The header may not be longer; the reference reader has the same limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// |u64 header length H|H bytes of JSON, may end in spaces|tensor bytes|, all little-endian. Strict: every entry has
/// exactly dtype, shape and data_offsets; spans equal dtype * shape; the spans tile the rest of the file without holes,
/// overlap or bytes left over; names are unique and well-formed; `__metadata__` maps strings to strings.
/// Nothing is copied. `where` names the source in messages. Errors: kInvalidInput, naming tensor or byte.
/// Source: the safetensors format as its reference implementation reads it.
Result<SafetensorsFile> parse_safetensors(Buffer file, std::string_view where);

/// The same for a file on disk, mapped: only the header is read now. Errors: also kIo.
Result<SafetensorsFile> open_safetensors(const std::string& path);

}  // namespace tare::io
