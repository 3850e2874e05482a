#include "io/ggml_types.h"

#include <fmt/format.h>

#include "base/checked.h"

namespace tare::io {

namespace {

// Source: ggml/include/ggml.h and ggml/src/ggml-common.h of llama.cpp as shipped in llama-cpp-python 0.3.36.
constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
};

// Ids that once had a meaning: the message says so, since a user can act on it.
constexpr uint32_t kRemoved[] = {4, 5, 31, 32, 33, 36, 37, 38};

}  // namespace

Result<const GgmlType*> ggml_type(uint32_t id) {
  for (const GgmlType& type : kTypes) {
    if (type.id == id) return &type;
  }
  for (const uint32_t removed : kRemoved) {
    if (id == removed) {
      return unsupported(fmt::format("ggml tensor type {} was removed from ggml", id),
                         {.hint = "convert the model again with a current llama.cpp"});
    }
  }
  return unsupported(fmt::format("unknown ggml tensor type {}", id),
                     {.expected = "a type of upstream ggml (0 to 42)", .hint = "types of forks are not read"});
}

const GgmlType* find_ggml_type(std::string_view name) {
  for (const GgmlType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

Result<uint64_t> ggml_tensor_bytes(const GgmlType& type, const tensor::Shape& shape) {
  TARE_ASSIGN(const int64_t count, tensor::element_count(shape));
  if (count == 0)
    return invalid_input("empty tensor", {.expected = "extents of at least 1", .found = tensor::shape_text(shape)});
  const int64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block_size != 0) {
    return invalid_input("rows are not whole blocks",
                         {.expected = fmt::format("a multiple of {} for {}", type.block_size, type.name),
                          .found = fmt::format("{} in {}", row, tensor::shape_text(shape))});
  }
  const auto bytes =
      checked_mul(static_cast<uint64_t>(count / type.block_size), static_cast<uint64_t>(type.block_bytes));
  if (!bytes) return invalid_input("tensor too large", {.found = tensor::shape_text(shape)});
  return *bytes;
}

}  // namespace tare::io
