#include "checkpoints/gguf_export.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

namespace tare::checkpoints {

namespace {

constexpr std::string_view kWhere = "config.json";

// Families whose keys are those all share, and the name of their GGUF architecture.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
};
constexpr Family kFamilies[] = {
    {"llama", "llama"}, {"mistral", "llama"},      {"mixtral", "llama"},      {"qwen2", "qwen2"},
    {"qwen3", "qwen3"}, {"qwen2_moe", "qwen2moe"}, {"qwen3_moe", "qwen3moe"},
};

Error no_form(std::string what, std::string found) {
  return unsupported("model has no GGUF form that tare writes",
                     {.where = std::string(kWhere), .expected = std::move(what), .found = std::move(found)});
}

struct Rope {
  double theta = 10000;
  json::object scaling;
};

// Both spellings: rope_parameters of newer files, rope_theta and rope_scaling of older ones.
Result<Rope> rope_of(const json::object& config) {
  Rope out;
  if (const json::value* parameters = json::find(config, "rope_parameters"); parameters && parameters->is_object()) {
    out.scaling = parameters->get_object();
    TARE_ASSIGN(out.theta, json::get_number_or(out.scaling, "rope_theta", 10000.0, kWhere));
    return out;
  }
  TARE_ASSIGN(out.theta, json::get_number_or(config, "rope_theta", 10000.0, kWhere));
  if (const json::value* scaling = json::find(config, "rope_scaling"); scaling && scaling->is_object()) {
    out.scaling = scaling->get_object();
  }
  return out;
}

// Factors that divide the rotary frequencies of Llama 3.1: 1 for short waves, `factor` for long ones, a ramp between.
Result<std::vector<float>> llama3_factors(const Rope& rope, int64_t rotary) {
  TARE_ASSIGN(const double factor, json::get_number_or(rope.scaling, "factor", 8.0, kWhere));
  TARE_ASSIGN(const double low, json::get_number_or(rope.scaling, "low_freq_factor", 1.0, kWhere));
  TARE_ASSIGN(const double high, json::get_number_or(rope.scaling, "high_freq_factor", 4.0, kWhere));
  TARE_ASSIGN(const double context,
              json::get_number_or(rope.scaling, "original_max_position_embeddings", 8192.0, kWhere));
  std::vector<float> out;
  for (int64_t i = 0; i < rotary / 2; ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
    const double wave = 2 * std::numbers::pi / frequency;
    if (wave < context / high) {
      out.push_back(1.0f);
    } else if (wave > context / low) {
      out.push_back(static_cast<float>(factor));
    } else {
      const double smooth = (context / wave - low) / (high - low);
      out.push_back(static_cast<float>(1.0 / ((1 - smooth) / factor + smooth)));
    }
  }
  return out;
}

Status add_rope(const json::object& config, const std::string& prefix, int64_t rotary, GgufExport& out) {
  TARE_ASSIGN(const Rope rope, rope_of(config));
  out.metadata.add_f32(prefix + "rope.freq_base", static_cast<float>(rope.theta));
  TARE_ASSIGN(const std::string old_name, json::get_string_or(rope.scaling, "type", "default", kWhere));
  TARE_ASSIGN(const std::string type, json::get_string_or(rope.scaling, "rope_type", old_name, kWhere));
  if (type == "default") return {};
  if (type == "llama3") {
    TARE_ASSIGN(out.rope_freqs, llama3_factors(rope, rotary));
    return {};
  }
  if (type != "linear" && type != "yarn") return no_form("rope type default, llama3, linear or yarn", type);
  TARE_ASSIGN(const double factor, json::get_number_or(rope.scaling, "factor", 1.0, kWhere));
  out.metadata.add_string(prefix + "rope.scaling.type", type);
  out.metadata.add_f32(prefix + "rope.scaling.factor", static_cast<float>(factor));
  if (type == "linear") return {};
  TARE_ASSIGN(const int64_t original, json::get_int_or(rope.scaling, "original_max_position_embeddings", 0, kWhere));
  if (original > 0) {
    out.metadata.add_u32(prefix + "rope.scaling.original_context_length", static_cast<uint32_t>(original));
  }
  for (const char* key : {"attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"}) {
    if (json::find(rope.scaling, key)) return no_form("yarn with its usual constants", key);
  }
  return {};
}

// Settings that change the model and have no key in these architectures.
Status refuse_unusual(const json::object& config, Losses& losses) {
  const json::value* act = json::find(config, "hidden_act");
  if (act && *act != json::value("silu")) return no_form("hidden_act silu", boost::json::serialize(*act));
  TARE_ASSIGN(const bool mlp_bias, json::get_bool_or(config, "mlp_bias", false, kWhere));
  if (mlp_bias) return no_form("an MLP without bias", "mlp_bias true");
  for (const char* key : {"partial_rotary_factor", "attn_logit_softcapping", "final_logit_softcapping",
                          "logits_scaling", "residual_multiplier", "embedding_multiplier"}) {
    const json::value* value = json::find(config, key);
    if (value && value->is_number() && value->to_number<double>() != 1.0) return no_form("a plain decoder", key);
  }
  TARE_ASSIGN(const bool windowed, json::get_bool_or(config, "use_sliding_window", true, kWhere));
  if (const json::value* window = json::find(config, "sliding_window"); window && windowed) {
    TARE_TRY(losses.lose("sliding_window", fmt::format("{}: left out, this architecture attends to everything",
                                                       boost::json::serialize(*window))));
  }
  return {};
}

}  // namespace

Result<GgufExport> gguf_export(const json::object& config, const std::string& name, Losses& losses) {
  TARE_ASSIGN(const std::string model_type, json::get_string(config, "model_type", kWhere));
  const Family* family = nullptr;
  std::string known;
  for (const Family& row : kFamilies) {
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
    if (row.model_type == model_type) family = &row;
  }
  if (!family) return no_form(known, model_type);
  TARE_TRY(refuse_unusual(config, losses));
  GgufExport out;
  const bool moe = model_type == "mixtral" || model_type.ends_with("_moe");
  if (moe) {
    TARE_ASSIGN(out.experts,
                json::get_int(config, model_type == "mixtral" ? "num_local_experts" : "num_experts", kWhere));
  }
  TARE_ASSIGN(out.architecture, gguf_architecture(family->architecture, out.experts > 0));
  const std::string prefix = std::string(family->architecture) + ".";
  io::GgufMetadata& m = out.metadata;
  m.add_string("general.architecture", family->architecture);
  m.add_string("general.type", "model");
  m.add_string("general.name", name);
  const auto add_int = [&](std::string_view key, std::string_view hf) -> Result<int64_t> {
    TARE_ASSIGN(const int64_t value, json::get_int(config, hf, kWhere));
    if (value < 0 || value > UINT32_MAX) {
      return invalid_input("number out of range", {.where = fmt::format("{}: {}", kWhere, hf)});
    }
    m.add_u32(prefix + std::string(key), static_cast<uint32_t>(value));
    return value;
  };
  TARE_TRY(add_int("block_count", "num_hidden_layers"));
  if (json::find(config, "max_position_embeddings")) TARE_TRY(add_int("context_length", "max_position_embeddings"));
  TARE_ASSIGN(const int64_t hidden, add_int("embedding_length", "hidden_size"));
  TARE_TRY(add_int("feed_forward_length", "intermediate_size"));
  TARE_ASSIGN(out.heads, add_int("attention.head_count", "num_attention_heads"));
  TARE_ASSIGN(out.kv_heads, json::get_int_or(config, "num_key_value_heads", out.heads, kWhere));
  m.add_u32(prefix + "attention.head_count_kv", static_cast<uint32_t>(out.kv_heads));
  if (out.heads < 1) return invalid_input("no attention heads", {.where = std::string(kWhere)});
  TARE_ASSIGN(out.head_dim, json::get_int_or(config, "head_dim", hidden / out.heads, kWhere));
  TARE_TRY(add_rope(config, prefix, out.head_dim, out));
  TARE_ASSIGN(const double epsilon, json::get_number_or(config, "rms_norm_eps", 1e-6, kWhere));
  m.add_f32(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(epsilon));
  if (moe) {
    m.add_u32(prefix + "expert_count", static_cast<uint32_t>(out.experts));
    TARE_TRY(add_int("expert_used_count", "num_experts_per_tok"));
    if (model_type != "mixtral") {
      TARE_TRY(add_int("expert_feed_forward_length", "moe_intermediate_size"));
      TARE_ASSIGN(const bool normalized, json::get_bool_or(config, "norm_topk_prob", false, kWhere));
      if (normalized != (model_type == "qwen3_moe")) return no_form("the family's own norm_topk_prob", "the other");
      if (model_type == "qwen2_moe") {
        TARE_TRY(add_int("expert_shared_feed_forward_length", "shared_expert_intermediate_size"));
      }
    }
  }
  m.add_u32(prefix + "attention.key_length", static_cast<uint32_t>(out.head_dim));
  m.add_u32(prefix + "attention.value_length", static_cast<uint32_t>(out.head_dim));
  if (family->architecture == "llama") {
    TARE_TRY(add_int("vocab_size", "vocab_size"));
    m.add_u32(prefix + "rope.dimension_count", static_cast<uint32_t>(out.head_dim));
  }
  return out;
}

}  // namespace tare::checkpoints
