#include "model/families/common.h"

#include <fmt/format.h>

#include <cmath>

namespace tare::model {

namespace {

constexpr std::string_view kWhere = "config.json";
constexpr int64_t kMaxExtent = int64_t{1} << 28;  // no real model has a larger size; keeps later products inside int64

Result<int64_t> size(const json::object& config, std::string_view key) {
  TARE_ASSIGN(const int64_t value, json::get_int(config, key, kWhere));
  if (value <= 0 || value > kMaxExtent) {
    return invalid_input(
        fmt::format("'{}' is out of range", key),
        {.where = std::string(kWhere), .expected = "a positive size", .found = fmt::format("{}", value)});
  }
  return value;
}

Result<MlpActivation> read_activation(const json::object& config) {
  TARE_ASSIGN(const std::string old_name, json::get_string_or(config, "hidden_act", "silu", kWhere));
  TARE_ASSIGN(const std::string name, json::get_string_or(config, "hidden_activation", old_name, kWhere));
  if (name == "silu" || name == "swish") return MlpActivation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_fast") return MlpActivation::kGeluTanh;
  if (name == "gelu") return MlpActivation::kGelu;
  return unsupported("unknown activation function", {.where = std::string(kWhere),
                                                     .expected = "silu, gelu or gelu_pytorch_tanh",
                                                     .found = fmt::format("'{}'", name)});
}

}  // namespace

bool rope_is_keyed_by_layer_type(const json::object& config) {
  const json::value* parameters = json::find(config, "rope_parameters");
  if (!parameters || !parameters->is_object()) return false;
  for (const auto& [key, value] : parameters->get_object()) {
    if (value.is_object()) return true;
  }
  return false;
}

Result<RopeSpec> read_config_rope(const json::object& config, const Architecture& arch, int64_t rotary_dim,
                                  double default_theta, std::string_view layer_type) {
  TARE_ASSIGN(const double theta, json::get_number_or(config, "rope_theta", default_theta, kWhere));
  TARE_ASSIGN(const int64_t original, json::get_int_or(config, "original_max_position_embeddings", 0, kWhere));
  const json::value* parameters = json::find(config, "rope_parameters");
  const json::value* scaling = json::find(config, "rope_scaling");
  for (const json::value* v : {parameters, scaling}) {
    if (v && !v->is_object()) {
      return invalid_input("RoPE settings are not an object", {.where = std::string(kWhere), .expected = "an object"});
    }
  }
  const json::object empty;
  if (parameters) {
    const json::object* chosen = &parameters->get_object();
    if (!layer_type.empty()) {
      if (const json::value* nested = json::find(*chosen, layer_type); nested && nested->is_object())
        chosen = &nested->get_object();
    }
    TARE_ASSIGN(RopeSpec spec, read_rope(*chosen, theta, rotary_dim, arch.max_positions, original, kWhere));
    if (json::find(config, "rope_theta") && json::find(*chosen, "rope_theta") && spec.theta != theta) {
      return invalid_input(
          "rope_theta is given twice",
          {.where = std::string(kWhere), .expected = fmt::format("{}", spec.theta), .found = fmt::format("{}", theta)});
    }
    if (scaling) {
      TARE_ASSIGN(const RopeSpec other,
                  read_rope(scaling->get_object(), spec.theta, rotary_dim, arch.max_positions, original, kWhere));
      if (other.kind != spec.kind || other.factor != spec.factor) {
        return invalid_input("rope_parameters and rope_scaling disagree", {.where = std::string(kWhere)});
      }
    }
    return spec;
  }
  return read_rope(scaling ? scaling->get_object() : empty, theta, rotary_dim, arch.max_positions, original, kWhere);
}

Result<Architecture> read_common(const json::object& config, std::string_view family) {
  Architecture arch{.family = std::string(family)};
  TARE_ASSIGN(arch.vocab_size, size(config, "vocab_size"));
  TARE_ASSIGN(arch.hidden, size(config, "hidden_size"));
  TARE_ASSIGN(arch.intermediate, size(config, "intermediate_size"));
  TARE_ASSIGN(arch.layers, size(config, "num_hidden_layers"));
  TARE_ASSIGN(arch.heads, size(config, "num_attention_heads"));
  if (arch.layers > 10000) return invalid_input("'num_hidden_layers' is out of range", {.where = std::string(kWhere)});
  TARE_ASSIGN(arch.kv_heads, json::get_int_or(config, "num_key_value_heads", arch.heads, kWhere));
  if (arch.kv_heads <= 0 || arch.heads % arch.kv_heads != 0) {
    return invalid_input("query heads must be a multiple of key-value heads",
                         {.where = std::string(kWhere), .found = fmt::format("{} and {}", arch.heads, arch.kv_heads)});
  }
  if (json::find(config, "head_dim")) {
    TARE_ASSIGN(arch.head_dim, size(config, "head_dim"));
  } else if (arch.hidden % arch.heads == 0) {
    arch.head_dim = arch.hidden / arch.heads;
  } else {
    return invalid_input("head size is not given and does not follow",
                         {.where = std::string(kWhere),
                          .expected = "'head_dim', or hidden_size divisible by num_attention_heads",
                          .found = fmt::format("{} / {}", arch.hidden, arch.heads)});
  }
  if (arch.head_dim % 2 != 0 || arch.head_dim > 1024) {
    return unsupported(
        "head size",
        {.where = std::string(kWhere), .expected = "even, at most 1024", .found = fmt::format("{}", arch.head_dim)});
  }
  TARE_ASSIGN(arch.max_positions, json::get_int_or(config, "max_position_embeddings", 2048, kWhere));
  if (arch.max_positions <= 0)
    return invalid_input("'max_position_embeddings' is out of range", {.where = std::string(kWhere)});
  TARE_ASSIGN(const double eps, json::get_number_or(config, "rms_norm_eps", 1e-6, kWhere));
  if (!(eps >= 0) || eps > 1) return invalid_input("'rms_norm_eps' is out of range", {.where = std::string(kWhere)});
  arch.norm_eps = static_cast<float>(eps);
  TARE_ASSIGN(arch.activation, read_activation(config));
  TARE_ASSIGN(arch.tied_head, json::get_bool_or(config, "tie_word_embeddings", false, kWhere));
  arch.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(arch.head_dim)));
  TARE_ASSIGN(const double partial, json::get_number_or(config, "partial_rotary_factor", 1.0, kWhere));
  const auto rotary = static_cast<int64_t>(static_cast<double>(arch.head_dim) * partial);
  if (!rope_is_keyed_by_layer_type(config)) {
    TARE_ASSIGN(const RopeSpec rope, read_config_rope(config, arch, rotary, 10000.0));
    arch.ropes.push_back(rope);
  }
  arch.plan.assign(static_cast<size_t>(arch.layers), LayerPlan{});
  return arch;
}

Status apply_layer_types(const json::object& config, int64_t window, Architecture& arch) {
  const json::value* types = json::find(config, "layer_types");
  if (!types) return {};
  if (!types->is_array() || static_cast<int64_t>(types->get_array().size()) != arch.layers) {
    return invalid_input("'layer_types' does not match num_hidden_layers",
                         {.where = std::string(kWhere), .expected = fmt::format("{} entries", arch.layers)});
  }
  for (size_t i = 0; i < arch.plan.size(); ++i) {
    const json::value& type = types->get_array()[i];
    if (type == "full_attention") {
      arch.plan[i].window = 0;
    } else if (type == "sliding_attention") {
      if (window <= 0) {
        return invalid_input("'layer_types' asks for a sliding window that is not given",
                             {.where = std::string(kWhere), .expected = "'sliding_window'"});
      }
      arch.plan[i].window = window;
    } else {
      return unsupported("unknown layer type", {.where = std::string(kWhere),
                                                .expected = "full_attention or sliding_attention",
                                                .found = boost::json::serialize(type).substr(0, 60)});
    }
  }
  return {};
}

}  // namespace tare::model
