#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoints/module_pattern.h"

namespace tare::checkpoints {

/// QuantizationArgs of compressed-tensors (docs/formats.md 3.1).
struct CtArgs {
  enum class Strategy { kTensor, kChannel, kGroup, kBlock, kToken, kTensorGroup, kAttentionHead };
  enum class Dynamic { kStatic, kDynamic, kLocal };

  int bits = 8;
  bool floating = false;
  bool symmetric = true;
  Strategy strategy = Strategy::kTensor;
  int64_t group_size = 0;
  int64_t block_rows = 0;
  int64_t block_columns = 0;
  Dynamic dynamic = Dynamic::kStatic;
  std::string actorder;  // "", "group" or "weight"
  std::string scale_dtype;
};

/// An entry of `targets` or `ignore`: an exact module name, "re:" and a pattern, or a class name.
struct CtTarget {
  std::string text;
  std::optional<ModulePattern> pattern;

  bool is_exact(std::string_view module) const { return !pattern && text == module; }
  bool is_match(std::string_view module) const { return pattern && pattern->matches(module); }
};

struct CtGroup {
  std::string name;
  std::string format;  // resolved: its own or the one at the top
  std::vector<CtTarget> targets;
  std::optional<CtArgs> weights, input_activations, output_activations;
};

struct CtConfig {
  std::string where;
  std::string format;
  std::pair<int, int> version = {0, 0};  // {0, 0}: not said
  std::vector<CtGroup> groups;
  std::vector<CtTarget> ignore;
  std::optional<CtArgs> kv_cache;
  std::string sparsity_format;  // "" or "dense": none
  bool has_transforms = false;

  /// Errors: unknown keys and values, named.
  static Result<CtConfig> parse(const json::object& quantization, std::string_view where);

  bool ignored(std::string_view module) const;
  /// The group that a linear module falls in, exact names before patterns before classes; nullptr when none does or the
  /// module is ignored. `named`: an entry names it itself, not only its class.
  const CtGroup* group_of(std::string_view module, bool* named = nullptr) const;
};

}  // namespace tare::checkpoints
