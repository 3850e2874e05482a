#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "tensor/quantized_tensor.h"
#include "tensor/scheme.h"

namespace tare::checkpoints {

/// One grid of a quantized matrix in tare's own file: which tensor holds it and how to read that.
struct StoredGrid {
  std::string suffix;  // of the tensor "P.<suffix>": "s2", "scales", ...
  tensor::GridType type = tensor::GridType::kF32;
  int64_t tile_n = 1;   // -1: all rows
  int64_t tile_k = 1;   // -1: all columns
  int packed_bits = 0;  // > 0: unsigned values of that width, packed like codes, one row of tiles after another

  bool operator==(const StoredGrid&) const = default;
};

/// Everything that a quantized matrix is except its numbers: one entry of "schemes" in quantization_config, shared by
/// all modules that look alike.
struct TareScheme {
  tensor::CodeKind kind = tensor::CodeKind::kUint;
  int bits = 4;
  tensor::Rule rule = tensor::Rule::kScaleFirst;
  std::optional<StoredGrid> a, A, z, b, B;
  std::optional<float> zero_constant;
  bool A_divides = false;
  bool code_first = false;
  bool B_is_A = false;
  bool round_inner = false;
  bool group_of_k = false;  // a tensor "P.group_of_k"
  std::vector<float> lut;
  std::shared_ptr<const std::vector<float>> scale_lut;
  bool has_offset = false;            // a tensor "P.offset"
  std::array<int64_t, 3> vq = {};     // codebooks, rows and columns of a vector; all 0: none
  tensor::ActivationSpec activation;  // scale and zero of a static one stand in "P.input_scale", "P.input_zero"

  bool operator==(const TareScheme& other) const;
};

json::object to_json(const TareScheme& scheme);
/// Strict: unknown keys, wrong types and impossible values are errors that name `where`.
Result<TareScheme> parse_tare_scheme(const json::object& from, std::string_view where);

/// The scheme of a tensor. Errors: a view that starts inside a group.
Result<TareScheme> tare_scheme_of(const tensor::QuantizedTensor& weight, const tensor::ActivationSpec& activation);

}  // namespace tare::checkpoints
