#include <fmt/format.h>

#include "model/families/common.h"

namespace tare::model {

// SmolLM3: Llama without position embedding in some layers. no_rope_layers holds 1 where a layer turns.
Result<Architecture> describe_smollm3(const json::object& config) {
  TARE_ASSIGN(Architecture arch, describe_llama(config));
  arch.family = "smollm3";
  TARE_ASSIGN(arch.tied_head, json::get_bool_or(config, "tie_word_embeddings", true, "config.json"));
  TARE_ASSIGN(const RopeSpec rope, read_config_rope(config, arch, arch.head_dim, 2000000.0));
  arch.ropes = {rope};
  TARE_ASSIGN(const int64_t interval, json::get_int_or(config, "no_rope_layer_interval", 4, "config.json"));
  if (const json::value* list = json::find(config, "no_rope_layers")) {
    if (!list->is_array() || static_cast<int64_t>(list->get_array().size()) != arch.layers) {
      return invalid_input("'no_rope_layers' does not match num_hidden_layers",
                           {.where = "config.json", .expected = fmt::format("{} entries", arch.layers)});
    }
    for (size_t i = 0; i < arch.plan.size(); ++i) arch.plan[i].rope = json::as_int(list->get_array()[i]) == 0 ? -1 : 0;
  } else if (interval > 0) {
    for (size_t i = 0; i < arch.plan.size(); ++i) {
      arch.plan[i].rope = (static_cast<int64_t>(i) + 1) % interval == 0 ? -1 : 0;
    }
  }
  TARE_TRY(apply_qwen_window(config, arch));
  return arch;
}

}  // namespace tare::model
