#include "checkpoints/gptq_config.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <initializer_list>

namespace tare::checkpoints {

namespace {

// First of several spellings that is present.
const json::value* find_any(const json::object& from, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (const json::value* v = json::find(from, key)) return v;
  }
  return nullptr;
}

Error bad(std::string_view key, std::string_view where, std::string expected, const json::value& found) {
  return invalid_input(fmt::format("bad '{}' in the quantization configuration", key),
                       {.where = std::string(where),
                        .expected = std::move(expected),
                        .found = boost::json::serialize(found).substr(0, 80)});
}

// Reads the four settings that a rule may override too.
Status read_module(const json::object& from, std::string_view where, GptqModule& out) {
  if (const json::value* v = find_any(from, {"bits", "w_bit", "wbits"})) {
    const auto bits = json::as_int(*v);
    if (!bits || *bits < 2 || *bits > 8) return bad("bits", where, "2..8", *v);
    out.bits = static_cast<int>(*bits);
  }
  if (const json::value* v = find_any(from, {"group_size", "q_group_size"})) {
    const auto size = json::as_int(*v);
    if (!size || (*size != -1 && *size < 1)) return bad("group_size", where, "-1 or above 0", *v);
    out.group_size = *size;
  }
  if (const json::value* v = json::find(from, "desc_act")) {
    if (!v->is_bool()) return bad("desc_act", where, "true or false", *v);
    out.desc_act = v->get_bool();
  }
  if (const json::value* v = json::find(from, "sym")) {
    if (!v->is_bool()) return bad("sym", where, "true or false", *v);
    out.symmetric = v->get_bool();
  } else if (const json::value* zero = json::find(from, "zero_point")) {
    if (!zero->is_bool()) return bad("zero_point", where, "true or false", *zero);
    out.symmetric = !zero->get_bool();
  }
  return {};
}

// "gptqmodel:7.7.0" -> 7007
int64_t gptqmodel_version(const json::object& quantization) {
  const json::value* meta = json::find(quantization, "meta");
  const json::value* list = meta && meta->is_object() ? json::find(meta->get_object(), "quantizer") : nullptr;
  if (!list) return 0;
  const auto parse = [](std::string_view text) -> int64_t {
    constexpr std::string_view kName = "gptqmodel:";
    if (!text.starts_with(kName)) return 0;
    text.remove_prefix(kName.size());
    int64_t major = 0, minor = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), major);
    if (error != std::errc() || end == text.data() + text.size() || *end != '.') return 0;
    std::from_chars(end + 1, text.data() + text.size(), minor);
    return major * 1000 + minor;
  };
  if (list->is_string()) return parse(list->get_string());
  if (!list->is_array()) return 0;
  for (const json::value& entry : list->get_array()) {
    if (!entry.is_string()) continue;
    if (const int64_t version = parse(entry.get_string()); version != 0) return version;
  }
  return 0;
}

}  // namespace

Result<GptqConfig> GptqConfig::parse(const json::object& q, std::string_view where) {
  GptqConfig out;
  out.where = where;
  for (const auto& keys : {std::array{"bits", "w_bit", "wbits"}, std::array{"group_size", "q_group_size", ""}}) {
    if (!find_any(q, {keys[0], keys[1], keys[2]})) {
      return invalid_input(fmt::format("'{}' is missing", keys[0]), {.where = std::string(where)});
    }
  }
  TARE_TRY(read_module(q, where, out.base));
  TARE_ASSIGN(out.lm_head, json::get_bool_or(q, "lm_head", false, where));
  TARE_ASSIGN(out.static_groups, json::get_bool_or(q, "static_groups", false, where));
  if (const json::value* layout = find_any(q, {"checkpoint_format", "format"})) {
    if (!layout->is_string()) return bad("checkpoint_format", where, "a string", *layout);
    out.layout = layout->get_string();
  }
  if (const json::value* other = json::find(q, "format");
      other && other->is_string() && std::string_view(other->get_string()) != out.layout) {
    return invalid_input(
        "'format' and 'checkpoint_format' disagree",
        {.where = std::string(where), .expected = out.layout, .found = std::string(other->get_string())});
  }
  TARE_ASSIGN(const bool marlin, json::get_bool_or(q, "is_marlin_format", false, where));
  TARE_ASSIGN(const bool bitblas, json::get_bool_or(q, "is_bitblas_format", false, where));
  if (marlin && out.layout == "gptq") out.layout = "marlin";
  if (bitblas && out.layout == "gptq") out.layout = "bitblas";
  if (const json::value* meta = json::find(q, "meta"); meta && meta->is_object()) {
    for (const std::string_view key : {"static_groups", "act_group_aware"}) {
      TARE_ASSIGN(const bool set, json::get_bool_or(meta->get_object(), key, false, where));
      out.static_groups = out.static_groups || set;
    }
  }
  if (const json::value* pack = json::find(q, "pack_dtype"); pack && *pack != json::value("int32")) {
    return unsupported(
        "codes packed in words of another width",
        {.where = std::string(where), .expected = "pack_dtype int32", .found = boost::json::serialize(*pack)});
  }
  out.gptqmodel_version = tare::checkpoints::gptqmodel_version(q);
  if (const json::value* dynamic = json::find(q, "dynamic")) {
    if (!dynamic->is_object()) return bad("dynamic", where, "an object of patterns", *dynamic);
    for (const auto& [key, value] : dynamic->get_object()) {
      std::string_view pattern = key;
      Rule rule;
      rule.text = pattern;
      rule.dense = pattern.starts_with("-:");
      if (rule.dense || pattern.starts_with("+:")) pattern.remove_prefix(2);
      if (value.is_object()) {
        rule.values = value.get_object();
      } else if (!value.is_null()) {
        return bad("dynamic", where, "an object for each pattern", value);
      }
      TARE_ASSIGN(rule.pattern, ModulePattern::compile(pattern, fmt::format("{}: dynamic", where)));
      out.rules.push_back(std::move(rule));
    }
  }
  return out;
}

Result<std::optional<GptqModule>> GptqConfig::module(std::string_view name) const {
  for (const Rule& rule : rules) {
    if (!rule.pattern.matches(name)) continue;
    if (rule.dense) return std::optional<GptqModule>();
    GptqModule module = base;
    TARE_TRY(read_module(rule.values, fmt::format("{}: dynamic '{}'", where, rule.text), module));
    return std::optional<GptqModule>(module);
  }
  return std::optional<GptqModule>(base);
}

Status check_side_file(const Source& source, std::string_view file_name) {
  const std::string path = (std::filesystem::path(source.directory) / file_name).string();
  std::error_code ec;
  if (source.directory.empty() || !std::filesystem::is_regular_file(path, ec) || path == source.quantization_where) {
    return {};
  }
  TARE_ASSIGN(const json::value parsed, json::parse_file(path));
  if (!parsed.is_object()) return invalid_input("side file is not an object", {.where = path});
  for (const std::string_view key : {"bits", "group_size", "desc_act", "sym", "lm_head", "quant_method",
                                     "checkpoint_format", "format", "dynamic", "zero_point", "version"}) {
    const json::value* there = json::find(parsed.get_object(), key);
    const json::value* here = json::find(source.quantization, key);
    if (there && here && *there != *here) {
      return invalid_input(
          "two configurations contradict each other",
          {.where = fmt::format("{}: {}", path, key),
           .expected = boost::json::serialize(*here).substr(0, 80) + " as in " + source.quantization_where,
           .found = boost::json::serialize(*there).substr(0, 80)});
    }
  }
  return {};
}

}  // namespace tare::checkpoints
