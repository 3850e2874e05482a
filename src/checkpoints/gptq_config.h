#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoints/module_pattern.h"
#include "checkpoints/source.h"

namespace tare::checkpoints {

/// What a GPTQ configuration says of one module.
struct GptqModule {
  int bits = 4;
  int64_t group_size = 128;  // -1: one group over all of K
  bool desc_act = false;
  bool symmetric = true;
};

/// quantization_config of a GPTQ checkpoint (docs/formats.md 1.2), with the spellings that tools use.
struct GptqConfig {
  GptqModule base;
  bool lm_head = false;
  bool static_groups = false;     // or act_group_aware: groups stay in the original order
  std::string layout = "gptq";    // checkpoint_format: gptq, gptq_v2, gptq_p, marlin, marlin_24, bitblas
  int64_t gptqmodel_version = 0;  // major * 1000 + minor of the writer, 0 when another tool wrote it
  std::string where;

  struct Rule {
    ModulePattern pattern;
    std::string text;
    bool dense = false;
    json::object values;
  };
  std::vector<Rule> rules;  // `dynamic`, in file order

  /// Errors: a missing or wrong key.
  static Result<GptqConfig> parse(const json::object& quantization, std::string_view where);

  /// The module's own settings; nothing when a rule says that it stays dense. Errors: a wrong value in a rule.
  Result<std::optional<GptqModule>> module(std::string_view name) const;
};

/// Keys of a side file that contradict the main configuration are an error (both sides named).
Status check_side_file(const Source& source, std::string_view file_name);

}  // namespace tare::checkpoints
