#include "checkpoints/compressed_tensors_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace tare::checkpoints {

namespace {

Error bad(std::string_view key, std::string_view where, std::string expected, const json::value& found) {
  return invalid_input(fmt::format("bad '{}' in the quantization configuration", key),
                       {.where = std::string(where),
                        .expected = std::move(expected),
                        .found = boost::json::serialize(found).substr(0, 80)});
}

Status known_keys(const json::object& from, std::initializer_list<std::string_view> keys, std::string_view where) {
  for (const auto& [key, value] : from) {
    if (std::find(keys.begin(), keys.end(), std::string_view(key)) == keys.end()) {
      return unsupported("unknown key in the quantization configuration",
                         {.where = std::string(where), .found = std::string(key)});
    }
  }
  return {};
}

constexpr std::array<std::pair<std::string_view, CtArgs::Strategy>, 7> kStrategies = {{
    {"tensor", CtArgs::Strategy::kTensor},
    {"channel", CtArgs::Strategy::kChannel},
    {"group", CtArgs::Strategy::kGroup},
    {"block", CtArgs::Strategy::kBlock},
    {"token", CtArgs::Strategy::kToken},
    {"tensor_group", CtArgs::Strategy::kTensorGroup},
    {"attn_head", CtArgs::Strategy::kAttentionHead},
}};

// [128, 128], or "128x128" in old files.
Status read_block(const json::value& v, std::string_view where, CtArgs& out) {
  if (v.is_array() && v.get_array().size() == 2) {
    const auto rows = json::as_int(v.get_array()[0]);
    const auto columns = json::as_int(v.get_array()[1]);
    if (rows && columns && *rows > 0 && *columns > 0) {
      out.block_rows = *rows;
      out.block_columns = *columns;
      return {};
    }
  }
  if (v.is_string()) {
    const std::string_view text = v.get_string();
    const size_t x = text.find('x');
    int64_t rows = 0, columns = 0;
    if (x != text.npos && std::from_chars(text.data(), text.data() + x, rows).ec == std::errc() &&
        std::from_chars(text.data() + x + 1, text.data() + text.size(), columns).ec == std::errc() && rows > 0 &&
        columns > 0) {
      out.block_rows = rows;
      out.block_columns = columns;
      return {};
    }
  }
  return bad("block_structure", where, "[rows, columns]", v);
}

Status read_actorder(const json::value& v, std::string_view where, CtArgs& out) {
  if (v.is_bool()) {
    out.actorder = v.get_bool() ? "group" : "";
    return {};
  }
  const std::string_view text = v.is_string() ? std::string_view(v.get_string()) : std::string_view();
  if (text == "group" || text == "dynamic") {
    out.actorder = "group";
  } else if (text == "weight" || text == "static") {
    out.actorder = "weight";
  } else {
    return bad("actorder", where, "group, weight or null", v);
  }
  return {};
}

Result<CtArgs> read_args(const json::value& v, std::string_view where) {
  if (!v.is_object()) return bad("quantization arguments", where, "an object", v);
  const json::object& from = v.get_object();
  TARE_TRY(known_keys(from,
                      {"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic",
                       "actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"},
                      where));
  CtArgs out;
  TARE_ASSIGN(const int64_t bits, json::get_int_or(from, "num_bits", 8, where));
  if (bits < 1 || bits > 8) return bad("num_bits", where, "1..8", from.at("num_bits"));
  out.bits = static_cast<int>(bits);
  TARE_ASSIGN(const std::string type, json::get_string_or(from, "type", "int", where));
  if (type != "int" && type != "float") return bad("type", where, "int or float", from.at("type"));
  out.floating = type == "float";
  TARE_ASSIGN(out.symmetric, json::get_bool_or(from, "symmetric", true, where));
  TARE_ASSIGN(const int64_t group, json::get_int_or(from, "group_size", 0, where));
  if (group < -1) return bad("group_size", where, "-1 or above 0", from.at("group_size"));
  out.group_size = std::max<int64_t>(group, 0);
  out.strategy = group == -1 ? CtArgs::Strategy::kChannel
                 : group > 0 ? CtArgs::Strategy::kGroup
                             : CtArgs::Strategy::kTensor;
  if (const json::value* strategy = json::find(from, "strategy")) {
    const auto row = std::find_if(kStrategies.begin(), kStrategies.end(), [&](const auto& known) {
      return strategy->is_string() && known.first == std::string_view(strategy->get_string());
    });
    if (row == kStrategies.end()) return bad("strategy", where, "a strategy of compressed-tensors", *strategy);
    out.strategy = row->second;
  }
  const bool grouped = out.strategy == CtArgs::Strategy::kGroup || out.strategy == CtArgs::Strategy::kTensorGroup;
  if (grouped && out.group_size == 0) return bad("group_size", where, "above 0 for groups", json::value(group));
  if (const json::value* block = json::find(from, "block_structure")) TARE_TRY(read_block(*block, where, out));
  if (out.strategy == CtArgs::Strategy::kBlock && out.block_rows == 0) {
    return invalid_input("'block_structure' is missing", {.where = std::string(where)});
  }
  if (const json::value* dynamic = json::find(from, "dynamic")) {
    if (dynamic->is_bool()) {
      out.dynamic = dynamic->get_bool() ? CtArgs::Dynamic::kDynamic : CtArgs::Dynamic::kStatic;
    } else if (*dynamic == json::value("local")) {
      out.dynamic = CtArgs::Dynamic::kLocal;
    } else {
      return bad("dynamic", where, "true, false or \"local\"", *dynamic);
    }
  }
  if (const json::value* order = json::find(from, "actorder")) TARE_TRY(read_actorder(*order, where, out));
  TARE_ASSIGN(out.scale_dtype, json::get_string_or(from, "scale_dtype", "", where));
  return out;
}

Result<std::optional<CtArgs>> read_optional_args(const json::object& from, std::string_view key,
                                                 std::string_view where) {
  const json::value* v = json::find(from, key);
  if (!v) return std::optional<CtArgs>();
  TARE_ASSIGN(CtArgs args, read_args(*v, fmt::format("{}.{}", where, key)));
  return std::optional<CtArgs>(std::move(args));
}

Result<std::vector<CtTarget>> read_targets(const json::object& from, std::string_view key, std::string_view where) {
  std::vector<CtTarget> out;
  const json::value* v = json::find(from, key);
  if (!v) return out;
  if (!v->is_array()) return bad(key, where, "a list", *v);
  for (const json::value& entry : v->get_array()) {
    if (!entry.is_string()) return bad(key, where, "a list of names", entry);
    CtTarget target{.text = std::string(entry.get_string())};
    if (target.text.starts_with("re:")) {
      TARE_ASSIGN(target.pattern, ModulePattern::compile(target.text.substr(3), fmt::format("{}.{}", where, key)));
    }
    out.push_back(std::move(target));
  }
  return out;
}

// "0.12.2" -> {0, 12}
std::pair<int, int> read_version(std::string_view text) {
  int major = 0, minor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), major);
  if (error != std::errc() || end == text.data() + text.size()) return {0, 0};
  std::from_chars(end + 1, text.data() + text.size(), minor);
  return {major, minor};
}

constexpr std::array<std::string_view, 13> kFormats = {
    "dense",           "int-quantized",  "float-quantized",      "naive-quantized",
    "pack-quantized",  "marlin-24",      "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    "mxfp8-quantized", "sparse-bitmask", "sparse-24-bitmask",    "mixed-precision",
    "fakequant"};

Status check_format(const std::string& format, std::string_view where) {
  if (std::find(kFormats.begin(), kFormats.end(), format) != kFormats.end()) return {};
  return unsupported("compressed-tensors format that tare does not know",
                     {.where = std::string(where), .found = format});
}

}  // namespace

Result<CtConfig> CtConfig::parse(const json::object& q, std::string_view where) {
  CtConfig out;
  out.where = where;
  TARE_TRY(known_keys(q,
                      {"quant_method", "version", "format", "quantization_status", "global_compression_ratio", "ignore",
                       "kv_cache_scheme", "config_groups", "sparsity_config", "transform_config", "run_compressed"},
                      where));
  TARE_ASSIGN(out.format, json::get_string_or(q, "format", "dense", where));
  TARE_TRY(check_format(out.format, where));
  TARE_ASSIGN(const std::string version, json::get_string_or(q, "version", "", where));
  out.version = read_version(version);
  TARE_ASSIGN(const std::string status, json::get_string_or(q, "quantization_status", "compressed", where));
  if (status != "compressed" && status != "frozen") {
    return unsupported("checkpoint in the middle of calibration",
                       {.where = std::string(where), .expected = "quantization_status compressed", .found = status});
  }
  TARE_ASSIGN(out.ignore, read_targets(q, "ignore", where));
  TARE_ASSIGN(out.kv_cache, read_optional_args(q, "kv_cache_scheme", where));
  if (const json::value* sparsity = json::find(q, "sparsity_config"); sparsity) {
    if (!sparsity->is_object()) return bad("sparsity_config", where, "an object", *sparsity);
    TARE_ASSIGN(out.sparsity_format,
                json::get_string_or(sparsity->get_object(), "format", "", fmt::format("{}.sparsity_config", where)));
    if (!out.sparsity_format.empty()) TARE_TRY(check_format(out.sparsity_format, where));
    if (out.sparsity_format == "dense") out.sparsity_format.clear();
  }
  if (const json::value* transforms = json::find(q, "transform_config")) {
    if (!transforms->is_object()) return bad("transform_config", where, "an object", *transforms);
    const json::value* groups = json::find(transforms->get_object(), "config_groups");
    out.has_transforms = groups && groups->is_object() && !groups->get_object().empty();
  }
  const json::value* groups = json::find(q, "config_groups");
  if (!groups) return out;
  if (!groups->is_object()) return bad("config_groups", where, "an object", *groups);
  for (const auto& [name, value] : groups->get_object()) {
    const std::string group_where = fmt::format("{}.config_groups.{}", where, std::string_view(name));
    if (!value.is_object()) {
      return unsupported("configuration group that is a preset name",
                         {.where = group_where, .expected = "an object with targets and arguments"});
    }
    const json::object& from = value.get_object();
    TARE_TRY(
        known_keys(from, {"targets", "weights", "input_activations", "output_activations", "format"}, group_where));
    CtGroup group{.name = std::string(name)};
    TARE_ASSIGN(group.targets, read_targets(from, "targets", group_where));
    if (group.targets.empty()) return invalid_input("configuration group without targets", {.where = group_where});
    TARE_ASSIGN(group.weights, read_optional_args(from, "weights", group_where));
    TARE_ASSIGN(group.input_activations, read_optional_args(from, "input_activations", group_where));
    TARE_ASSIGN(group.output_activations, read_optional_args(from, "output_activations", group_where));
    TARE_ASSIGN(group.format, json::get_string_or(from, "format", out.format, group_where));
    TARE_TRY(check_format(group.format, group_where));
    if (out.format != "mixed-precision" && group.format != out.format && out.format != "dense") {
      return invalid_input("formats of the group and of the whole disagree",
                           {.where = group_where, .expected = out.format, .found = group.format});
    }
    out.groups.push_back(std::move(group));
  }
  return out;
}

bool CtConfig::ignored(std::string_view module) const {
  return std::any_of(ignore.begin(), ignore.end(),
                     [&](const CtTarget& target) { return target.is_exact(module) || target.is_match(module); });
}

const CtGroup* CtConfig::group_of(std::string_view module, bool* named) const {
  if (named) *named = true;
  if (ignored(module)) return nullptr;
  const auto find = [&](auto predicate) -> const CtGroup* {
    for (const CtGroup& group : groups) {
      if (std::any_of(group.targets.begin(), group.targets.end(), predicate)) return &group;
    }
    return nullptr;
  };
  if (const CtGroup* group = find([&](const CtTarget& t) { return t.is_exact(module); })) return group;
  if (const CtGroup* group = find([&](const CtTarget& t) { return t.is_match(module); })) return group;
  if (named) *named = false;
  return find([](const CtTarget& t) { return !t.pattern && t.text == "Linear"; });
}

}  // namespace tare::checkpoints
