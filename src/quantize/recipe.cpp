#include "quantize/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "quantize/forms/form.h"

namespace tare::quantize {

using tensor::DType;

namespace {

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

template <class T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<GridKind> kGrids[] = {{"integer", GridKind::kInteger},
                                      {"minimum", GridKind::kMinimum},
                                      {"progressive", GridKind::kProgressive},
                                      {"qoq-channel", GridKind::kQoqChannel}};
constexpr Named<ScaleRule> kScaleRules[] = {{"absmax", ScaleRule::kAbsmaxDivMax},
                                            {"compressed-tensors", ScaleRule::kCompressedTensors}};
constexpr Named<DType> kScaleTypes[] = {{"float16", DType::kF16}, {"bfloat16", DType::kBF16}, {"float32", DType::kF32}};
constexpr Named<bool> kBools[] = {{"true", true}, {"false", false}};

template <class T, size_t N>
Result<T> named(const Named<T> (&table)[N], std::string_view text, std::string_view where) {
  std::string known;
  for (const auto& row : table) {
    if (row.name == text) return row.value;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_input("unknown value",
                       {.where = std::string(where), .expected = known, .found = fmt::format("'{}'", text)});
}

// A grid by its name, or a form. What a form says of inputs comes and goes with it.
Status set_grid(std::string_view text, std::string_view where, bool quantized_inputs, MatrixScheme& scheme) {
  if (const Form* form = find_form(text)) {
    scheme.grid = default_spec(*form);
    scheme.activation = quantized_inputs ? form->activation : tensor::ActivationSpec{};
    scheme.algorithm = std::string(form->algorithm);
    return {};
  }
  std::string known;
  for (const auto& row : kGrids) known += std::string(row.name) + ", ";
  for (const Form& form : forms()) known += std::string(form.name) + (&form == &forms().back() ? "" : ", ");
  const auto* row = std::find_if(std::begin(kGrids), std::end(kGrids), [&](const auto& r) { return r.name == text; });
  if (row == std::end(kGrids)) {
    return invalid_input("unknown value",
                         {.where = std::string(where), .expected = known, .found = fmt::format("'{}'", text)});
  }
  if (scheme.grid.form) {
    scheme.grid.form = nullptr;
    scheme.activation = {};
    scheme.algorithm = "rtn";
  }
  scheme.grid.kind = row->value;
  return {};
}

Status check_algorithm(const MatrixScheme& scheme, std::string_view where) {
  if (scheme.algorithm != "gptq" || !scheme.grid.form) return {};
  return unsupported("GPTQ chooses codes of integer grids",
                     {.where = std::string(where), .found = describe(scheme.grid), .hint = "use algorithm=rtn"});
}

template <class T, size_t N>
std::string name_of(const Named<T> (&table)[N], T value) {
  for (const auto& row : table) {
    if (row.value == value) return std::string(row.name);
  }
  return {};
}

Result<int64_t> group_size_of(int64_t value, std::string_view where) {
  if (value != -1 && value < 1) {
    return invalid_input("wrong group size", {.where = std::string(where),
                                              .expected = "a positive number, or -1 for the whole row",
                                              .found = fmt::format("{}", value)});
  }
  return value == -1 ? 0 : value;
}

}  // namespace

Result<SchemeWidths> parse_scheme(std::string_view text) {
  SchemeWidths out{.weight = 0, .activation = 0, .kv = 16};
  const auto wrong = [&] {
    return invalid_input("unknown scheme", {.where = "--scheme",
                                            .expected = "W4A8KV4, W4A8, W8A8, W4A16, ...: weight, activation and KV "
                                                        "bits, 16 for not quantized",
                                            .found = fmt::format("'{}'", text)});
  };
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string_view rest = lower;
  const auto field = [&](std::string_view letters, int& into) {
    if (!rest.starts_with(letters)) return false;
    rest.remove_prefix(letters.size());
    size_t digits = 0;
    while (digits < rest.size() && std::isdigit(static_cast<unsigned char>(rest[digits]))) ++digits;
    const auto value = parse_number(rest.substr(0, digits));
    rest.remove_prefix(digits);
    if (!value || *value > 16) return false;
    into = static_cast<int>(*value);
    return true;
  };
  if (!field("w", out.weight) || !field("a", out.activation)) return wrong();
  if (!rest.empty() && !field("kv", out.kv)) return wrong();
  if (!rest.empty()) return wrong();
  if (out.weight < 2 || (out.weight > 8 && out.weight != 16)) {
    return unsupported("weight width is not made", {.where = "--scheme", .expected = "W2..W8 or W16"});
  }
  if (out.activation != 8 && out.activation != 16) {
    return unsupported("activation width is not made", {.where = "--scheme", .expected = "A8 or A16"});
  }
  if (out.kv != 4 && out.kv != 8 && out.kv != 16) {
    return unsupported("KV width is not made", {.where = "--scheme", .expected = "KV4, KV8 or KV16"});
  }
  return out;
}

std::string describe(const SchemeWidths& w) {
  return w.kv == 16 ? fmt::format("W{}A{}", w.weight, w.activation)
                    : fmt::format("W{}A{}KV{}", w.weight, w.activation, w.kv);
}

bool MatrixScheme::operator==(const MatrixScheme& o) const {
  return keep == o.keep && (keep || (grid == o.grid && activation == o.activation && algorithm == o.algorithm));
}

std::string describe(const MatrixScheme& scheme) {
  if (scheme.keep) return "as the source";
  std::string text = describe(scheme.grid);
  if (scheme.activation.type != tensor::ActivationType::kNone) text += ", " + tensor::describe(scheme.activation);
  return text;
}

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> table = {
      {.name = "rtn", .algorithm = "rtn", .scheme = "W4A16", .summary = "nearest code, no data"},
      {.name = "gptq",
       .algorithm = "gptq",
       .scheme = "W4A16",
       .calibrated = true,
       .summary = "codes chosen so that outputs on calibration data stay (act-order, static groups)"},
      {.name = "awq",
       .algorithm = "rtn",
       .transforms = {"awq", "clip"},
       .scheme = "W4A16",
       .calibrated = true,
       .asymmetric = true,
       .summary = "weights scaled by what activates them, ranges clipped, nearest codes"},
      {.name = "qoq",
       .algorithm = "gptq",
       .transforms = {"fold_norms", "rotate", "rotate_heads", "reorder", "smooth_attention", "smooth_outputs"},
       .scheme = "W4A8KV4",
       .calibrated = true,
       .summary = "rotated, reordered and smoothed, progressive groups, 8-bit activations, 4-bit cache"},
      {.name = "smoothquant",
       .algorithm = "rtn",
       .transforms = {"smoothquant"},
       .scheme = "W8A8",
       .calibrated = true,
       .summary = "int8 rows, int8 tokens, activation peaks moved into the weights"},
      {.name = "smoothquant-static",
       .algorithm = "rtn",
       .transforms = {"smoothquant", "static_activations"},
       .scheme = "W8A8",
       .calibrated = true,
       .summary = "the same with one activation scale a matrix, from calibration"},
      {.name = "w8a8", .algorithm = "rtn", .scheme = "W8A8", .summary = "int8 rows, int8 tokens, no data"},
      {.name = "llm-int8",
       .algorithm = "rtn",
       .scheme = "W8A8",
       .form = "llm-int8",
       .formats = {"bitsandbytes", "tare"},
       .summary = "int8 rows; inputs of 6 and more stay floats, decided per token, the rest int8; no data"},
      {.name = "nf4",
       .algorithm = "rtn",
       .scheme = "W4A16",
       .form = "nf4",
       .formats = {"bitsandbytes", "tare"},
       .summary = "4-bit codes for normally distributed weights, blocks of 64, no data"},
      {.name = "nf4-dq",
       .algorithm = "rtn",
       .scheme = "W4A16",
       .form = "nf4-dq",
       .formats = {"bitsandbytes", "tare"},
       .summary = "the same with scales in 8 bits (double quantization)"},
      {.name = "fp4",
       .algorithm = "rtn",
       .scheme = "W4A16",
       .form = "fp4",
       .formats = {"bitsandbytes", "tare"},
       .summary = "bitsandbytes' 4-bit floats, blocks of 64, no data"},
      {.name = "fp4-dq",
       .algorithm = "rtn",
       .scheme = "W4A16",
       .form = "fp4-dq",
       .formats = {"bitsandbytes", "tare"},
       .summary = "the same with scales in 8 bits (double quantization)"},
      {.name = "fp8",
       .algorithm = "rtn",
       .scheme = "W8A8",
       .form = "fp8",
       .formats = {"compressed-tensors", "fp8", "tare"},
       .summary = "e4m3 rows, e4m3 tokens, no data"},
      {.name = "fp8-tensor",
       .algorithm = "rtn",
       .scheme = "W8A8",
       .form = "fp8-tensor",
       .formats = {"fp8", "compressed-tensors", "tare"},
       .summary = "e4m3 with one scale a matrix, e4m3 tokens, no data"},
      {.name = "fp8-static",
       .algorithm = "rtn",
       .transforms = {"static_activations"},
       .scheme = "W8A8",
       .calibrated = true,
       .form = "fp8-tensor",
       .formats = {"fp8", "compressed-tensors", "tare"},
       .summary = "the same with one activation scale a matrix, from calibration"},
      {.name = "fp8-block",
       .algorithm = "rtn",
       .scheme = "W8A8",
       .form = "fp8-block",
       .formats = {"fp8", "compressed-tensors", "tare"},
       .summary = "e4m3 in blocks of 128 x 128, inputs e4m3 a token and 128 channels, no data"},
      {.name = "hqq",
       .algorithm = "hqq",
       .scheme = "W4A16",
       .form = "hqq",
       .formats = {"hqq", "tare"},
       .summary = "half-quadratic: float zeros where few errors are large, groups of 64, no data"},
      {.name = "mxfp4",
       .algorithm = "rtn",
       .scheme = "W4A16",
       .form = "mxfp4",
       .formats = {"compressed-tensors", "gguf", "tare"},
       .summary = "e2m1 with a power of two for each 32, no data"},
      {.name = "nvfp4",
       .algorithm = "rtn",
       .scheme = "W4A16",
       .form = "nvfp4",
       .formats = {"compressed-tensors", "tare"},
       .summary = "e2m1 with e4m3 scales for each 16 under one scale, no data"},
  };
  return table;
}

Result<const Recipe*> find_recipe(std::string_view name) {
  std::string known;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return &recipe;
    known += (known.empty() ? "" : ", ") + std::string(recipe.name);
  }
  return invalid_input("unknown method", {.where = "--method", .expected = known, .found = fmt::format("'{}'", name)});
}

namespace {

// A form decides almost everything; what it leaves open comes from the flags.
Result<MatrixScheme> resolve_form(const Recipe& recipe, std::string_view name, const SchemeFlags& flags,
                                  SchemeWidths w) {
  if (recipe.form.empty() && (recipe.algorithm != "rtn" || !recipe.transforms.empty())) {
    return unsupported("the method has grids of its own",
                       {.where = "--grid", .found = std::string(name), .hint = fmt::format("use --method {}", name)});
  }
  if (flags.symmetric || !flags.scale_rule.empty()) {
    return invalid_input("the form has one rule for scales and zeros",
                         {.where = flags.symmetric ? "--symmetric/--asymmetric" : "--scale-rule",
                          .found = std::string(name),
                          .hint = "drop the flag"});
  }
  MatrixScheme out;
  TARE_TRY(set_grid(name, "--grid", w.activation == 8, out));
  const Form& form = *out.grid.form;
  if (w.activation == 8 && form.activation.type == tensor::ActivationType::kNone) {
    return unsupported("the form has no quantized inputs", {.where = "--scheme", .expected = "A16", .found = "A8"});
  }
  if (flags.bits || !flags.scheme.empty()) out.grid.bits = w.weight;
  if (flags.group_size) {
    TARE_ASSIGN(out.grid.group_size, group_size_of(*flags.group_size, "--group-size"));
  }
  if (!flags.scale_dtype.empty()) {
    TARE_ASSIGN(out.grid.scale_dtype, named(kScaleTypes, flags.scale_dtype, "--scale-dtype"));
  }
  TARE_TRY(check(out.grid));
  return out;
}

}  // namespace

Result<MatrixScheme> resolve_scheme(const Recipe& recipe, const SchemeFlags& flags, SchemeWidths* widths) {
  TARE_ASSIGN(SchemeWidths w, parse_scheme(flags.scheme.empty() ? recipe.scheme : flags.scheme));
  if (flags.bits) {
    if (!flags.scheme.empty() && w.weight != *flags.bits) {
      return invalid_input("two weight widths", {.where = "--bits",
                                                 .expected = fmt::format("{} as in --scheme", w.weight),
                                                 .found = fmt::format("{}", *flags.bits)});
    }
    w.weight = *flags.bits;
  }
  const bool own = find_form(flags.grid) != nullptr;
  if (!recipe.form.empty() && !flags.grid.empty() && flags.grid != recipe.form) {
    return invalid_input("the method has one form", {.where = "--grid",
                                                     .expected = std::string(recipe.form),
                                                     .found = flags.grid,
                                                     .hint = "use --method rtn for other grids"});
  }
  if (own || !recipe.form.empty()) {
    TARE_ASSIGN(MatrixScheme form, resolve_form(recipe, own ? flags.grid : recipe.form, flags, w));
    w.weight = form.grid.bits;
    if (widths) *widths = w;
    return form;
  }
  MatrixScheme out{.algorithm = std::string(recipe.algorithm)};
  out.keep = w.weight == 16;
  if (out.keep && w.activation != 16) {
    return unsupported("activations of unquantized weights stay as they are", {.where = "--scheme"});
  }
  GridSpec& grid = out.grid;
  grid.bits = w.weight;
  if (w.activation == 8) out.activation = {.type = tensor::ActivationType::kS8};
  const bool narrow = w.weight < 8;
  grid.group_size = narrow ? 128 : 0;
  if (flags.group_size) {
    TARE_ASSIGN(grid.group_size, group_size_of(*flags.group_size, "--group-size"));
  }
  if (!flags.grid.empty()) {
    TARE_TRY(set_grid(flags.grid, "--grid", w.activation == 8, out));
  } else if (w.weight == 4 && w.activation == 8 && !flags.symmetric) {
    // 4-bit weights meet 8-bit activations in QoQ's forms: they multiply as integers.
    grid.kind = grid.group_size > 0 ? GridKind::kProgressive : GridKind::kQoqChannel;
  }
  if (flags.symmetric) {
    if (grid.kind != GridKind::kInteger) {
      return invalid_input("only integer grids are symmetric or not",
                           {.where = "--grid", .found = flags.grid, .hint = "drop --symmetric/--asymmetric"});
    }
    grid.symmetric = *flags.symmetric;
  } else if (recipe.asymmetric && narrow && grid.kind == GridKind::kInteger) {
    grid.symmetric = false;
  }
  // Rows of 8-bit codes carry one scale each, so its width costs nothing.
  grid.scale_dtype = narrow ? DType::kF16 : DType::kF32;
  if (!flags.scale_rule.empty()) {
    TARE_ASSIGN(grid.scale_rule, named(kScaleRules, flags.scale_rule, "--scale-rule"));
  }
  if (!flags.scale_dtype.empty()) {
    TARE_ASSIGN(grid.scale_dtype, named(kScaleTypes, flags.scale_dtype, "--scale-dtype"));
  }
  if (!out.keep) TARE_TRY(check(grid));
  if (widths) *widths = w;
  return out;
}

Result<SchemeException> parse_exception(std::string_view text) {
  const size_t colon = text.rfind(':');
  const auto wrong = [&] {
    return invalid_input("wrong exception",
                         {.where = "--set", .expected = "RE:key=value,...", .found = fmt::format("'{}'", text)});
  };
  if (colon == text.npos || colon == 0) return wrong();
  SchemeException out{.pattern = std::string(text.substr(0, colon))};
  std::string_view rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view pair = rest.substr(0, comma);
    const size_t equals = pair.find('=');
    if (equals == pair.npos || equals == 0) return wrong();
    out.values.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (out.values.empty()) return wrong();
  return out;
}

std::vector<std::pair<std::string, std::string>> exception_values(const MatrixScheme& scheme) {
  if (scheme.keep) return {{"keep", "true"}};
  const GridSpec& grid = scheme.grid;
  std::vector<std::pair<std::string, std::string>> out = {
      {"bits", fmt::format("{}", grid.bits)},
      {"group_size", fmt::format("{}", grid.group_size > 0 ? grid.group_size : -1)}};
  if (grid.form) {
    out.emplace(out.begin(), "grid", grid.form->name);
  } else if (grid.kind != GridKind::kInteger) {
    out.emplace_back("grid", name_of(kGrids, grid.kind));
  } else {
    out.emplace_back("symmetric", name_of(kBools, grid.symmetric));
    if (grid.symmetric && grid.scale_rule != ScaleRule::kAbsmaxDivMax) {
      out.emplace_back("scale_rule", name_of(kScaleRules, grid.scale_rule));
    }
  }
  out.emplace_back("scale_dtype", name_of(kScaleTypes, grid.scale_dtype));
  out.emplace_back("algorithm", scheme.algorithm);
  return out;
}

Status apply_exception(const SchemeException& exception, MatrixScheme& scheme) {
  GridSpec& grid = scheme.grid;
  for (const auto& [key, value] : exception.values) {
    const std::string where = fmt::format("--set {}: {}", exception.pattern, key);
    const auto number = parse_number(value);
    if (key == "bits" || key == "group_size") {
      if (!number) return invalid_input("not a number", {.where = where, .found = fmt::format("'{}'", value)});
      if (key == "bits") {
        grid.bits = static_cast<int>(*number);
        // Progressive groups and QoQ rows exist for 4 bits; wider codes are plain integers.
        if (grid.bits != 4 && grid.kind == GridKind::kProgressive) grid.kind = GridKind::kInteger;
      } else {
        TARE_ASSIGN(grid.group_size, group_size_of(*number, where));
        if (grid.kind == GridKind::kQoqChannel && grid.group_size > 0) grid.kind = GridKind::kProgressive;
        if (grid.kind == GridKind::kProgressive && grid.group_size == 0) grid.kind = GridKind::kQoqChannel;
      }
    } else if (key == "symmetric") {
      TARE_ASSIGN(grid.symmetric, named(kBools, value, where));
    } else if (key == "grid") {
      TARE_TRY(set_grid(value, where, scheme.activation.type != tensor::ActivationType::kNone, scheme));
    } else if (key == "scale_rule") {
      TARE_ASSIGN(grid.scale_rule, named(kScaleRules, value, where));
    } else if (key == "scale_dtype") {
      TARE_ASSIGN(grid.scale_dtype, named(kScaleTypes, value, where));
    } else if (key == "keep") {
      TARE_ASSIGN(scheme.keep, named(kBools, value, where));
    } else if (key == "algorithm") {
      if (value != "rtn" && value != "gptq") {
        return invalid_input("unknown algorithm", {.where = where, .expected = "rtn, gptq", .found = value});
      }
      scheme.algorithm = value;
    } else {
      return invalid_input(
          "unknown key",
          {.where = where, .expected = "bits, group_size, symmetric, grid, scale_rule, scale_dtype, algorithm, keep"});
    }
  }
  if (scheme.keep) return {};
  TARE_TRY(check(grid));
  return check_algorithm(scheme, fmt::format("--set {}", exception.pattern));
}

}  // namespace tare::quantize
