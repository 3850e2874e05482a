#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "quantize/grid.h"
#include "tensor/model_weights.h"
#include "tensor/scheme.h"

namespace tare::quantize {

/// Widths as the field writes them: W4A8KV4. 16 means not quantized.
struct SchemeWidths {
  int weight = 4;
  int activation = 16;
  int kv = 16;

  bool operator==(const SchemeWidths&) const = default;
};
/// "W4A8KV4", "w8a8", "W4A16". Errors: anything else; widths that tare does not make.
Result<SchemeWidths> parse_scheme(std::string_view text);
std::string describe(const SchemeWidths& widths);

/// What one matrix should become.
struct MatrixScheme {
  bool keep = false;  // stays as the source has it
  GridSpec grid;
  tensor::ActivationSpec activation;
  std::string algorithm = "rtn";

  bool operator==(const MatrixScheme&) const;
};
/// "u4 g128 progressive p119, s8 dynamic per token": for reports.
std::string describe(const MatrixScheme& scheme);

/// A named way to quantize: transforms in order, then an algorithm, on a default scheme. Data, one row each.
struct Recipe {
  std::string_view name;
  std::string_view algorithm;
  std::vector<std::string_view> transforms;
  std::string_view scheme;                     // default
  bool calibrated = false;                     // needs to see data
  bool asymmetric = false;                     // integer grids below 8 bits have zeros unless the user says otherwise
  std::string_view form;                       // of forms(): the weights are that and nothing else
  std::vector<std::string_view> formats = {};  // that hold the result, the default first; empty: any, tare by default
  std::string_view summary;
};
const std::vector<Recipe>& recipes();
/// Errors: unknown; the names are listed.
Result<const Recipe*> find_recipe(std::string_view name);

/// Everything the user can say about the result.
struct SchemeFlags {
  std::string scheme;                 // empty: the recipe's
  std::optional<int> bits;            // --bits
  std::optional<int64_t> group_size;  // -1: whole row
  std::optional<bool> symmetric;
  std::string grid;         // integer, minimum, progressive, qoq-channel, or a form; empty: by scheme
  std::string scale_rule;   // absmax (default) or compressed-tensors
  std::string scale_dtype;  // float16, bfloat16, float32; empty: by scheme
};
/// The scheme of every matrix, before exceptions. Errors: combinations that do not exist.
Result<MatrixScheme> resolve_scheme(const Recipe& recipe, const SchemeFlags& flags, SchemeWidths* widths = nullptr);

/// `RE:bits=8,group_size=32`: an exception for the modules that RE matches (from the start of the name). Keys: bits,
/// group_size, symmetric, grid, scale_rule, scale_dtype, algorithm, keep.
struct SchemeException {
  std::string pattern;
  std::vector<std::pair<std::string, std::string>> values;
};
Result<SchemeException> parse_exception(std::string_view text);
/// The values of that form that make `scheme` of any other; keep=true when it is kept.
std::vector<std::pair<std::string, std::string>> exception_values(const MatrixScheme& scheme);
/// Errors: unknown key, wrong value, an algorithm that the grid does not take.
Status apply_exception(const SchemeException& exception, MatrixScheme& scheme);

}  // namespace tare::quantize
