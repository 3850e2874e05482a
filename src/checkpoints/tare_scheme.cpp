#include "checkpoints/tare_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tare::checkpoints {

using tensor::ActivationGranularity;
using tensor::ActivationSpec;
using tensor::ActivationType;
using tensor::CodeKind;
using tensor::Grid;
using tensor::GridType;
using tensor::Rule;

namespace {

template <class E>
struct Name {
  E value;
  std::string_view name;
};

constexpr Name<CodeKind> kKinds[] = {{CodeKind::kUint, "uint"}, {CodeKind::kInt, "int"},   {CodeKind::kE4M3, "e4m3"},
                                     {CodeKind::kE5M2, "e5m2"}, {CodeKind::kE2M1, "e2m1"}, {CodeKind::kLut, "lut"},
                                     {CodeKind::kVq, "vq"}};
constexpr Name<Rule> kRules[] = {
    {Rule::kScaleFirst, "scale_first"}, {Rule::kIntegerFirst, "integer_first"}, {Rule::kNested, "nested"}};
constexpr Name<GridType> kGrids[] = {{GridType::kU4, "u4"},     {GridType::kU6, "u6"},         {GridType::kS6, "s6"},
                                     {GridType::kU8, "u8"},     {GridType::kS8, "s8"},         {GridType::kS16, "s16"},
                                     {GridType::kE4M3, "e4m3"}, {GridType::kE8M0, "e8m0"},     {GridType::kF16, "f16"},
                                     {GridType::kBF16, "bf16"}, {GridType::kLut256, "lut256"}, {GridType::kF32, "f32"}};
constexpr Name<ActivationType> kActivations[] = {{ActivationType::kS8, "s8"},
                                                 {ActivationType::kU8, "u8"},
                                                 {ActivationType::kS4, "s4"},
                                                 {ActivationType::kE4M3, "e4m3"},
                                                 {ActivationType::kE2M1, "e2m1"}};
constexpr Name<ActivationGranularity> kGranularities[] = {{ActivationGranularity::kTensor, "tensor"},
                                                          {ActivationGranularity::kToken, "token"},
                                                          {ActivationGranularity::kTokenGroup, "token_group"}};

template <class E, size_t N>
std::string_view name_of(const Name<E> (&table)[N], E value) {
  for (const auto& row : table) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <class E, size_t N>
Result<E> parse_name(const Name<E> (&table)[N], std::string_view name, std::string_view where) {
  std::string known;
  for (const auto& row : table) {
    if (row.name == name) return row.value;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_input("unknown name",
                       {.where = std::string(where), .expected = known, .found = fmt::format("'{}'", name)});
}

Status only_keys(const json::object& from, std::initializer_list<std::string_view> keys, std::string_view where) {
  for (const auto& member : from) {
    const std::string_view key = member.key();
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return invalid_input("unknown key", {.where = std::string(where), .found = fmt::format("'{}'", key)});
    }
  }
  return {};
}

json::object grid_json(const StoredGrid& grid) {
  json::object out{
      {"tensor", grid.suffix}, {"type", name_of(kGrids, grid.type)}, {"tile", json::array{grid.tile_n, grid.tile_k}}};
  if (grid.packed_bits > 0) out["packed_bits"] = grid.packed_bits;
  return out;
}

Result<StoredGrid> parse_grid(const json::object& from, std::string_view where) {
  TARE_TRY(only_keys(from, {"tensor", "type", "tile", "packed_bits"}, where));
  StoredGrid out;
  TARE_ASSIGN(out.suffix, json::get_string(from, "tensor", where));
  TARE_ASSIGN(const std::string type, json::get_string(from, "type", where));
  TARE_ASSIGN(out.type, parse_name(kGrids, type, where));
  const json::value* tile = json::find(from, "tile");
  const auto extent = [&](size_t i) -> std::optional<int64_t> {
    if (!tile || !tile->is_array() || tile->get_array().size() != 2) return std::nullopt;
    const auto value = json::as_int(tile->get_array()[i]);
    return value && (*value > 0 || *value == -1) ? value : std::nullopt;
  };
  const auto tile_n = extent(0);
  const auto tile_k = extent(1);
  if (!tile_n || !tile_k) {
    return invalid_input("wrong tile", {.where = std::string(where), .expected = "two positive numbers or -1"});
  }
  out.tile_n = *tile_n;
  out.tile_k = *tile_k;
  TARE_ASSIGN(const int64_t bits, json::get_int_or(from, "packed_bits", 0, where));
  if (bits < 0 || bits > 8 || (bits > 0 && out.type != GridType::kS16 && out.type != GridType::kU8)) {
    return invalid_input("wrong packed_bits", {.where = std::string(where), .found = fmt::format("{}", bits)});
  }
  out.packed_bits = static_cast<int>(bits);
  return out;
}

json::object activation_json(const ActivationSpec& spec) {
  json::object out{{"type", name_of(kActivations, spec.type)},
                   {"granularity", name_of(kGranularities, spec.granularity)},
                   {"dynamic", spec.dynamic}};
  if (spec.granularity == ActivationGranularity::kTokenGroup) out["group_size"] = spec.group_size;
  if (!spec.symmetric) out["symmetric"] = false;
  if (spec.cap != 0) out["cap"] = spec.cap;
  if (spec.outlier_threshold != 0) out["outlier_threshold"] = spec.outlier_threshold;
  return out;
}

Result<ActivationSpec> parse_activation(const json::object& from, std::string_view where) {
  TARE_TRY(only_keys(from, {"type", "granularity", "dynamic", "group_size", "symmetric", "cap", "outlier_threshold"},
                     where));
  ActivationSpec out;
  TARE_ASSIGN(const std::string type, json::get_string(from, "type", where));
  TARE_ASSIGN(out.type, parse_name(kActivations, type, where));
  TARE_ASSIGN(const std::string granularity, json::get_string(from, "granularity", where));
  TARE_ASSIGN(out.granularity, parse_name(kGranularities, granularity, where));
  TARE_ASSIGN(out.dynamic, json::get_bool_or(from, "dynamic", true, where));
  TARE_ASSIGN(out.symmetric, json::get_bool_or(from, "symmetric", true, where));
  TARE_ASSIGN(out.group_size, json::get_int_or(from, "group_size", 0, where));
  TARE_ASSIGN(const double cap, json::get_number_or(from, "cap", 0, where));
  TARE_ASSIGN(const double threshold, json::get_number_or(from, "outlier_threshold", 0, where));
  out.cap = static_cast<float>(cap);
  out.outlier_threshold = static_cast<float>(threshold);
  const bool grouped = out.granularity == ActivationGranularity::kTokenGroup;
  if (!(cap >= 0) || !(threshold >= 0) || grouped != (out.group_size > 0)) {
    return invalid_input("impossible treatment of activations",
                         {.where = std::string(where), .found = boost::json::serialize(from)});
  }
  return out;
}

json::array floats_json(const std::vector<float>& values) {
  json::array out;
  for (const float v : values) out.emplace_back(v);
  return out;
}

Result<std::vector<float>> parse_floats(const json::object& from, std::string_view key, std::string_view where) {
  std::vector<float> out;
  const json::value* v = json::find(from, key);
  if (!v) return out;
  if (!v->is_array()) return invalid_input("not an array", {.where = fmt::format("{}.{}", where, key)});
  for (const json::value& item : v->get_array()) {
    const auto number = json::as_number(item);
    if (!number) return invalid_input("not a number", {.where = fmt::format("{}.{}", where, key)});
    out.push_back(static_cast<float>(*number));
  }
  return out;
}

}  // namespace

bool TareScheme::operator==(const TareScheme& o) const {
  const auto same_lut = [](const auto& x, const auto& y) { return x == y || (x && y && *x == *y); };
  return kind == o.kind && bits == o.bits && rule == o.rule && a == o.a && A == o.A && z == o.z && b == o.b &&
         B == o.B && zero_constant == o.zero_constant && A_divides == o.A_divides && code_first == o.code_first &&
         B_is_A == o.B_is_A && round_inner == o.round_inner && group_of_k == o.group_of_k && lut == o.lut &&
         same_lut(scale_lut, o.scale_lut) && has_offset == o.has_offset && vq == o.vq && activation == o.activation;
}

json::object to_json(const TareScheme& s) {
  json::object out{{"codes", name_of(kKinds, s.kind)}, {"bits", s.bits}, {"rule", name_of(kRules, s.rule)}};
  const auto add = [&](std::string_view key, const std::optional<StoredGrid>& grid) {
    if (grid) out[key] = grid_json(*grid);
  };
  add("scale", s.a);
  add("outer_scale", s.A);
  add("zero", s.z);
  add("minimum", s.b);
  add("outer_minimum", s.B);
  if (s.zero_constant) out["zero"] = *s.zero_constant;
  const auto flag = [&](std::string_view key, bool value) {
    if (value) out[key] = true;
  };
  flag("outer_scale_divides", s.A_divides);
  flag("code_first", s.code_first);
  flag("outer_minimum_is_outer_scale", s.B_is_A);
  flag("round_inner", s.round_inner);
  flag("group_of_k", s.group_of_k);
  flag("offset", s.has_offset);
  if (!s.lut.empty()) out["lut"] = floats_json(s.lut);
  if (s.scale_lut) out["scale_lut"] = floats_json(*s.scale_lut);
  if (s.vq[0] > 0) out["codebooks"] = json::array{s.vq[0], s.vq[1], s.vq[2]};
  if (s.activation.type != ActivationType::kNone) out["activation"] = activation_json(s.activation);
  return out;
}

Result<TareScheme> parse_tare_scheme(const json::object& from, std::string_view where) {
  TARE_TRY(only_keys(from,
                     {"codes", "bits", "rule", "scale", "outer_scale", "zero", "minimum", "outer_minimum",
                      "outer_scale_divides", "code_first", "outer_minimum_is_outer_scale", "round_inner", "group_of_k",
                      "offset", "lut", "scale_lut", "codebooks", "activation", "modules"},
                     where));
  TareScheme s;
  TARE_ASSIGN(const std::string kind, json::get_string(from, "codes", where));
  TARE_ASSIGN(s.kind, parse_name(kKinds, kind, where));
  TARE_ASSIGN(const std::string rule, json::get_string(from, "rule", where));
  TARE_ASSIGN(s.rule, parse_name(kRules, rule, where));
  TARE_ASSIGN(const int64_t bits, json::get_int(from, "bits", where));
  if (bits < 1 || bits > 16) {
    return invalid_input("wrong bits",
                         {.where = std::string(where), .expected = "1..16", .found = fmt::format("{}", bits)});
  }
  s.bits = static_cast<int>(bits);
  const auto grid = [&](std::string_view key, std::optional<StoredGrid>& into) -> Status {
    const json::value* v = json::find(from, key);
    if (!v) return {};
    const std::string inner = fmt::format("{}.{}", where, key);
    if (!v->is_object()) return invalid_input("not an object", {.where = inner});
    TARE_ASSIGN(into, parse_grid(v->get_object(), inner));
    return {};
  };
  TARE_TRY(grid("scale", s.a));
  TARE_TRY(grid("outer_scale", s.A));
  TARE_TRY(grid("minimum", s.b));
  TARE_TRY(grid("outer_minimum", s.B));
  if (const json::value* zero = json::find(from, "zero"); zero && !zero->is_object()) {
    const auto number = json::as_number(*zero);
    if (!number) return invalid_input("zero is neither a number nor a grid", {.where = std::string(where)});
    s.zero_constant = static_cast<float>(*number);
  } else {
    TARE_TRY(grid("zero", s.z));
  }
  TARE_ASSIGN(s.A_divides, json::get_bool_or(from, "outer_scale_divides", false, where));
  TARE_ASSIGN(s.code_first, json::get_bool_or(from, "code_first", false, where));
  TARE_ASSIGN(s.B_is_A, json::get_bool_or(from, "outer_minimum_is_outer_scale", false, where));
  TARE_ASSIGN(s.round_inner, json::get_bool_or(from, "round_inner", false, where));
  TARE_ASSIGN(s.group_of_k, json::get_bool_or(from, "group_of_k", false, where));
  TARE_ASSIGN(s.has_offset, json::get_bool_or(from, "offset", false, where));
  TARE_ASSIGN(s.lut, parse_floats(from, "lut", where));
  TARE_ASSIGN(std::vector<float> scale_lut, parse_floats(from, "scale_lut", where));
  if (!scale_lut.empty()) s.scale_lut = std::make_shared<std::vector<float>>(std::move(scale_lut));
  if (const json::value* v = json::find(from, "codebooks")) {
    for (size_t i = 0; i < 3; ++i) {
      const auto number = v->is_array() && v->get_array().size() == 3 ? json::as_int(v->get_array()[i]) : std::nullopt;
      if (!number || *number < 1 || *number > 1024) {
        return invalid_input("wrong codebooks", {.where = std::string(where), .expected = "[count, rows, columns]"});
      }
      s.vq[i] = *number;
    }
  }
  if ((s.kind == CodeKind::kVq) != (s.vq[0] > 0)) {
    return invalid_input("codebooks belong to vq codes", {.where = std::string(where)});
  }
  if (const json::value* v = json::find(from, "activation")) {
    const std::string inner = fmt::format("{}.activation", where);
    if (!v->is_object()) return invalid_input("not an object", {.where = inner});
    TARE_ASSIGN(s.activation, parse_activation(v->get_object(), inner));
  }
  return s;
}

Result<TareScheme> tare_scheme_of(const tensor::QuantizedTensor& weight, const ActivationSpec& activation) {
  const tensor::QuantizedFields& f = weight.fields();
  TareScheme s{.kind = f.kind,
               .bits = f.bits,
               .rule = f.rule,
               .A_divides = f.A_divides,
               .code_first = f.code_first,
               .B_is_A = f.B_is_A,
               .round_inner = f.round_inner,
               .group_of_k = f.group_of_k != nullptr,
               .lut = f.lut,
               .scale_lut = f.scale_lut,
               .has_offset = f.rule == Rule::kNested,
               .activation = activation};
  if (f.vq) s.vq = {f.vq->count, f.vq->out_group, f.vq->in_group};
  s.activation.scale = 0;
  s.activation.zero = 0;
  // The progressive form keeps the names of its notes: s1 a row, s2 and min8 a group.
  const bool progressive = f.rule == Rule::kIntegerFirst && !f.round_inner;
  const auto grid = [&](const Grid& g, std::string_view suffix) -> Result<StoredGrid> {
    if (g.origin_n != 0 || g.origin_k != 0) {
      return unsupported("a view that starts inside a group cannot be written", {.where = std::string(suffix)});
    }
    return StoredGrid{.suffix = std::string(suffix),
                      .type = g.type,
                      .tile_n = f.n > 1 && g.tile_n >= f.n ? -1 : g.tile_n,
                      .tile_k = g.tile_k >= f.k ? -1 : g.tile_k};
  };
  if (f.a) {
    TARE_ASSIGN(s.a, grid(*f.a, progressive ? "s2" : "scales"));
  }
  if (f.A) {
    TARE_ASSIGN(s.A, grid(*f.A, progressive ? "s1" : "outer_scales"));
  }
  if (f.b) {
    TARE_ASSIGN(s.b, grid(*f.b, progressive ? "min8" : "minima"));
  }
  if (f.B) {
    TARE_ASSIGN(s.B, grid(*f.B, "outer_minima"));
  }
  if (const float* constant = std::get_if<float>(&f.z)) s.zero_constant = *constant;
  if (const Grid* z = std::get_if<Grid>(&f.z)) {
    TARE_ASSIGN(s.z, grid(*z, "zeros"));
    // Integer zeros that are codes themselves take the room of codes.
    bool packs = z->type == GridType::kS16 || z->type == GridType::kU8;
    for (int64_t i = 0; packs && i < z->tiles_n; ++i) {
      for (int64_t j = 0; packs && j < z->tiles_k; ++j) {
        const int32_t value = z->integer(i * z->stride + j);
        packs = value >= 0 && value < (1 << std::min(f.bits, 8));
      }
    }
    if (packs) {
      s.z->suffix = "qzeros";
      s.z->packed_bits = std::min(f.bits, 8);
    }
  }
  return s;
}

}  // namespace tare::checkpoints
