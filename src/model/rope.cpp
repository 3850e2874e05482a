#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace tare::model {

namespace {

struct KindRow {
  std::string_view name;
  RopeKind kind;
};
constexpr KindRow kKinds[] = {
    {"default", RopeKind::kDefault}, {"linear", RopeKind::kLinear}, {"dynamic", RopeKind::kDynamic},
    {"llama3", RopeKind::kLlama3},   {"yarn", RopeKind::kYarn},     {"longrope", RopeKind::kLongRope},
    {"su", RopeKind::kLongRope},  // the name Phi-3 used first
};

std::vector<float> plain(double theta, int64_t dim) {
  std::vector<float> inv(static_cast<size_t>(dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    inv[static_cast<size_t>(i)] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
  return inv;
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeFrequencies yarn(const RopeSpec& spec) {
  RopeFrequencies out{.inv_freq = plain(spec.theta, spec.rotary_dim)};
  const auto dim = static_cast<double>(spec.rotary_dim);
  const auto correction = [&](double rotations) {
    return dim * std::log(static_cast<double>(spec.original_context) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
  };
  double low = correction(spec.beta_fast);
  double high = correction(spec.beta_slow);
  if (spec.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < out.inv_freq.size(); ++i) {
    const auto ramp = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    const float extrapolated = out.inv_freq[i];
    const float interpolated = out.inv_freq[i] / static_cast<float>(spec.factor);
    out.inv_freq[i] = interpolated * ramp + extrapolated * (1.0f - ramp);
  }
  double attention = spec.attention_factor;
  if (attention == 0) {
    attention = spec.mscale != 0 && spec.mscale_all_dim != 0
                    ? yarn_scale(spec.factor, spec.mscale) / yarn_scale(spec.factor, spec.mscale_all_dim)
                    : yarn_scale(spec.factor, 1.0);
  }
  out.attention_scaling = static_cast<float>(attention);
  return out;
}

RopeFrequencies llama3(const RopeSpec& spec) {
  RopeFrequencies out{.inv_freq = plain(spec.theta, spec.rotary_dim)};
  const auto context = static_cast<float>(spec.original_context);
  const auto low = static_cast<float>(spec.low_freq_factor);
  const auto high = static_cast<float>(spec.high_freq_factor);
  for (float& inv : out.inv_freq) {
    const float wavelength = 2.0f * std::numbers::pi_v<float> / inv;
    if (wavelength > context / low) {
      inv /= static_cast<float>(spec.factor);
    } else if (wavelength >= context / high) {
      const float smooth = (context / wavelength - low) / (high - low);
      inv = (1.0f - smooth) * inv / static_cast<float>(spec.factor) + smooth * inv;
    }
  }
  return out;
}

RopeFrequencies longrope(const RopeSpec& spec, int64_t context) {
  RopeFrequencies out{.inv_freq = plain(spec.theta, spec.rotary_dim)};
  const std::vector<double>& factors = context > spec.original_context ? spec.long_factor : spec.short_factor;
  for (size_t i = 0; i < out.inv_freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(spec.rotary_dim);
    out.inv_freq[i] = 1.0f / (static_cast<float>(factors[i]) * std::pow(static_cast<float>(spec.theta), exponent));
  }
  double attention = spec.attention_factor;
  if (attention == 0) {
    attention = spec.factor <= 1.0
                    ? 1.0
                    : std::sqrt(1.0 + std::log(spec.factor) / std::log(static_cast<double>(spec.original_context)));
  }
  out.attention_scaling = static_cast<float>(attention);
  return out;
}

Result<std::vector<double>> read_factors(const json::object& from, std::string_view key, int64_t count,
                                         std::string_view where) {
  const json::value* list = json::find(from, key);
  const auto size_error = [&](std::string found) {
    return invalid_input(fmt::format("longrope '{}' is wrong", key),
                         {.where = std::string(where),
                          .expected = fmt::format("{} positive numbers", count),
                          .found = std::move(found)});
  };
  if (!list || !list->is_array()) return size_error("no list");
  std::vector<double> out;
  for (const json::value& v : list->get_array()) {
    const auto number = json::as_number(v);
    if (!number || !(*number > 0)) return size_error("another value");
    out.push_back(*number);
  }
  if (static_cast<int64_t>(out.size()) != count) return size_error(fmt::format("{}", out.size()));
  return out;
}

Result<double> required(const json::object& from, std::string_view key, std::string_view kind, std::string_view where) {
  if (!json::find(from, key)) {
    return invalid_input(fmt::format("RoPE kind '{}' needs '{}'", kind, key), {.where = std::string(where)});
  }
  return json::get_number_or(from, key, 0.0, where);
}

constexpr std::array<std::string_view, 20> kKnownKeys = {"rope_type",
                                                         "type",
                                                         "rope_theta",
                                                         "factor",
                                                         "original_max_position_embeddings",
                                                         "low_freq_factor",
                                                         "high_freq_factor",
                                                         "beta_fast",
                                                         "beta_slow",
                                                         "truncate",
                                                         "attention_factor",
                                                         "mscale",
                                                         "mscale_all_dim",
                                                         "short_factor",
                                                         "long_factor",
                                                         "partial_rotary_factor",
                                                         "short_mscale",
                                                         "long_mscale",
                                                         "finetuned",
                                                         "max_position_embeddings"};

}  // namespace

RopeFrequencies rope_frequencies(const RopeSpec& spec, int64_t context) {
  switch (spec.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear: {
      RopeFrequencies out{.inv_freq = plain(spec.theta, spec.rotary_dim)};
      for (float& inv : out.inv_freq) inv /= static_cast<float>(spec.factor);
      return out;
    }
    case RopeKind::kDynamic: {
      if (context <= spec.original_context) break;
      const auto dim = static_cast<double>(spec.rotary_dim);
      const double stretch =
          spec.factor * static_cast<double>(context) / static_cast<double>(spec.original_context) - (spec.factor - 1);
      return {.inv_freq = plain(spec.theta * std::pow(stretch, dim / (dim - 2)), spec.rotary_dim)};
    }
    case RopeKind::kLlama3:
      return llama3(spec);
    case RopeKind::kYarn:
      return yarn(spec);
    case RopeKind::kLongRope:
      return longrope(spec, context);
  }
  return {.inv_freq = plain(spec.theta, spec.rotary_dim)};
}

Result<RopeSpec> read_rope(const json::object& parameters, double theta, int64_t rotary_dim, int64_t max_positions,
                           int64_t original_context, std::string_view where) {
  RopeSpec spec{.theta = theta, .rotary_dim = rotary_dim};
  for (const auto& [key, value] : parameters) {
    if (std::find(kKnownKeys.begin(), kKnownKeys.end(), std::string_view(key)) == kKnownKeys.end()) {
      return unsupported("unknown RoPE field",
                         {.where = std::string(where), .found = fmt::format("'{}'", std::string_view(key))});
    }
  }
  TARE_ASSIGN(const std::string type, json::get_string_or(parameters, "type", "", where));
  TARE_ASSIGN(const std::string rope_type,
              json::get_string_or(parameters, "rope_type", type.empty() ? "default" : type, where));
  if (!type.empty() && type != rope_type) {
    return invalid_input(
        "RoPE 'type' and 'rope_type' disagree",
        {.where = std::string(where), .expected = fmt::format("'{}'", rope_type), .found = fmt::format("'{}'", type)});
  }
  const auto* row =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindRow& r) { return r.name == rope_type; });
  if (row == std::end(kKinds)) {
    return unsupported("unknown RoPE kind", {.where = std::string(where),
                                             .expected = "default, linear, dynamic, llama3, yarn or longrope",
                                             .found = fmt::format("'{}'", rope_type)});
  }
  spec.kind = row->kind;
  TARE_ASSIGN(spec.theta, json::get_number_or(parameters, "rope_theta", theta, where));
  if (!(spec.theta > 0)) return invalid_input("rope_theta must be positive", {.where = std::string(where)});
  if (rotary_dim <= 0 || rotary_dim % 2 != 0) {
    return invalid_input("rotary width must be even and positive",
                         {.where = std::string(where), .found = fmt::format("{}", rotary_dim)});
  }
  TARE_ASSIGN(spec.original_context, json::get_int_or(parameters, "original_max_position_embeddings",
                                                      original_context > 0 ? original_context : max_positions, where));
  if (spec.kind != RopeKind::kDefault && spec.original_context <= 0) {
    return invalid_input(fmt::format("RoPE kind '{}' needs the original context length", rope_type),
                         {.where = std::string(where)});
  }
  switch (spec.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
    case RopeKind::kDynamic: {
      TARE_ASSIGN(spec.factor, required(parameters, "factor", rope_type, where));
      break;
    }
    case RopeKind::kLlama3: {
      TARE_ASSIGN(spec.factor, required(parameters, "factor", rope_type, where));
      TARE_ASSIGN(spec.low_freq_factor, required(parameters, "low_freq_factor", rope_type, where));
      TARE_ASSIGN(spec.high_freq_factor, required(parameters, "high_freq_factor", rope_type, where));
      TARE_TRY(json::get_int(parameters, "original_max_position_embeddings", where));
      if (!(spec.high_freq_factor > spec.low_freq_factor)) {
        return invalid_input("llama3 RoPE needs high_freq_factor > low_freq_factor", {.where = std::string(where)});
      }
      break;
    }
    case RopeKind::kYarn: {
      TARE_ASSIGN(spec.factor, required(parameters, "factor", rope_type, where));
      TARE_ASSIGN(spec.beta_fast, json::get_number_or(parameters, "beta_fast", 32.0, where));
      TARE_ASSIGN(spec.beta_slow, json::get_number_or(parameters, "beta_slow", 1.0, where));
      TARE_ASSIGN(spec.truncate, json::get_bool_or(parameters, "truncate", true, where));
      TARE_ASSIGN(spec.attention_factor, json::get_number_or(parameters, "attention_factor", 0.0, where));
      TARE_ASSIGN(spec.mscale, json::get_number_or(parameters, "mscale", 0.0, where));
      TARE_ASSIGN(spec.mscale_all_dim, json::get_number_or(parameters, "mscale_all_dim", 0.0, where));
      break;
    }
    case RopeKind::kLongRope: {
      TARE_ASSIGN(spec.short_factor, read_factors(parameters, "short_factor", rotary_dim / 2, where));
      TARE_ASSIGN(spec.long_factor, read_factors(parameters, "long_factor", rotary_dim / 2, where));
      TARE_ASSIGN(spec.attention_factor, json::get_number_or(parameters, "attention_factor", 0.0, where));
      const double by_length = static_cast<double>(max_positions) / static_cast<double>(spec.original_context);
      TARE_ASSIGN(spec.factor, json::get_number_or(parameters, "factor", by_length, where));
      break;
    }
  }
  if (spec.kind != RopeKind::kDefault && !(spec.factor > 0)) {
    return invalid_input("RoPE factor must be positive",
                         {.where = std::string(where), .found = fmt::format("{}", spec.factor)});
  }
  return spec;
}

}  // namespace tare::model
