#include <fmt/format.h>

#include <algorithm>

#include "model/families/common.h"

namespace tare::model {

// A family is its own file; what that file defines is declared and listed here, nowhere else.
using Describe = Result<Architecture>(const json::object& config);
Describe describe_mistral, describe_qwen2, describe_qwen3, describe_gemma2, describe_gemma3, describe_phi3,
    describe_olmo2, describe_granite, describe_smollm3, describe_exaone4;

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {"llama", {"llama", "smollm"}, describe_llama},
      {"mistral", {"mistral"}, describe_mistral},
      {"qwen2", {"qwen2"}, describe_qwen2},
      {"qwen3", {"qwen3"}, describe_qwen3},
      {"gemma2", {"gemma2"}, describe_gemma2},
      {"gemma3", {"gemma3_text", "gemma3"}, describe_gemma3},
      {"phi3", {"phi3"}, describe_phi3},
      {"olmo2", {"olmo2"}, describe_olmo2},
      {"granite", {"granite"}, describe_granite},
      {"smollm3", {"smollm3"}, describe_smollm3},
      {"exaone4", {"exaone4"}, describe_exaone4},
  };
  return table;
}

namespace {

// Every layer's position embedding must exist: a family that does not know RoPE by layer type must not fall back to
// none.
Result<Architecture> checked(Result<Architecture> arch) {
  if (!arch.ok()) return arch;
  for (const LayerPlan& layer : arch->plan) {
    if (layer.rope >= static_cast<int>(arch->ropes.size())) {
      return unsupported("rope_parameters by layer type",
                         {.where = "config.json", .found = fmt::format("in family '{}'", arch->family)});
    }
    if (layer.window < 0) return invalid_input("sliding window is negative", {.where = "config.json"});
  }
  return arch;
}

}  // namespace

Result<Architecture> describe_architecture(const json::object& config) {
  const json::object* text = &config;
  if (const json::value* nested = json::find(config, "text_config")) {
    if (!nested->is_object()) return invalid_input("'text_config' is not an object", {.where = "config.json"});
    text = &nested->get_object();
  }
  TARE_ASSIGN(const std::string outer, json::get_string_or(config, "model_type", "", "config.json"));
  TARE_ASSIGN(const std::string type, json::get_string_or(*text, "model_type", outer, "config.json"));
  std::string known;
  for (const Family& family : families()) {
    for (const std::string_view name : family.model_types) {
      if (name == type) return checked(family.describe(*text));
      known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
    }
  }
  return unsupported("unknown model family",
                     {.where = "config.json model_type", .expected = known, .found = fmt::format("'{}'", type)});
}

}  // namespace tare::model
