#include "model/families/common.h"

namespace tare::model {

// Mistral: Llama with a sliding window over all layers. A config that does not name the window means 4096; null means
// none.
Result<Architecture> describe_mistral(const json::object& config) {
  TARE_ASSIGN(Architecture arch, read_common(config, "mistral"));
  const int64_t absent = config.contains("sliding_window") ? 0 : 4096;
  if (absent != 0) arch.notes.push_back("config.json names no sliding_window: 4096, the default of the family");
  TARE_ASSIGN(const int64_t window, json::get_int_or(config, "sliding_window", absent, "config.json"));
  for (LayerPlan& layer : arch.plan) layer.window = window;
  TARE_TRY(apply_layer_types(config, window, arch));
  return arch;
}

}  // namespace tare::model
