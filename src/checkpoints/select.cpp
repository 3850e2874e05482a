#include "checkpoints/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "checkpoints/registry.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;

namespace {

std::string normalized(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

const CheckpointFormat* find_named(const std::vector<CheckpointFormat>& formats, std::string_view name) {
  const std::string wanted = normalized(name);
  for (const CheckpointFormat& format : formats) {
    const bool alias = std::any_of(format.aliases.begin(), format.aliases.end(),
                                   [&](std::string_view a) { return normalized(a) == wanted; });
    if (normalized(format.name) == wanted || alias) return &format;
  }
  return nullptr;
}

std::string declared_method(const Source& source) {
  if (!source.has_quantization()) return "no quantization";
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && method->is_string() ? fmt::format("quant_method {}", std::string_view(method->get_string()))
                                       : "a quantization object without quant_method";
}

// Which layout I32 "qweight" tensors have, told by their shapes (docs/formats.md 11).
std::string_view method_of_tensors(const StoredTensors& tensors) {
  for (const std::string& module : modules_with(tensors, "qweight")) {
    const tensor::Tensor* codes = tensors.find(module + ".qweight");
    const tensor::Tensor* scales = tensors.find(module + ".scales");
    if (!scales || codes->rank() != 2 || scales->rank() != 2) continue;
    if (codes->dtype == tensor::DType::kI16) return "awq";
    if (codes->shape[1] == scales->shape[1]) return "gptq";
    if (codes->shape[1] * 8 == scales->shape[1] || codes->shape[0] == scales->shape[0]) return "awq";
  }
  if (!modules_with(tensors, "s_channel").empty()) return "qqq";
  if (!modules_with(tensors, "B").empty()) return "marlin";
  return {};
}

}  // namespace

Status adopt_side_file(const std::vector<CheckpointFormat>& formats, Source& source) {
  if (source.has_quantization() || source.directory.empty() || !source.gguf.empty()) return {};
  std::set<std::string> names;
  for (const CheckpointFormat& format : formats) {
    for (const std::string_view name : format.config_files) {
      std::error_code ec;
      if (name != "config.json" && fs::is_regular_file(fs::path(source.directory) / name, ec)) names.emplace(name);
    }
  }
  if (names.empty()) return {};
  if (names.size() > 1) {
    return invalid_input("several files that could hold the quantization",
                         {.where = source.directory, .found = *names.begin() + " and " + *std::next(names.begin())});
  }
  const std::string path = (fs::path(source.directory) / *names.begin()).string();
  TARE_ASSIGN(json::value parsed, json::parse_file(path));
  if (!parsed.is_object()) return invalid_input("side file is not an object", {.where = path});
  source.quantization = std::move(parsed.get_object());
  source.quantization_where = path;
  source.notes.push_back(fmt::format("quantization taken from {}: config.json has none", path));
  if (source.quantization.contains("quant_method") || source.quantization.contains("producer")) return {};
  const std::string_view method = method_of_tensors(source.tensors);
  if (method.empty()) {
    return invalid_input("side file names no quant_method, and the tensors do not tell it", {.where = path});
  }
  source.quantization["quant_method"] = method;
  source.notes.push_back(fmt::format("{} names no quant_method: {}, by the shapes of the tensors", path, method));
  return {};
}

Result<Selection> select_format(const std::vector<CheckpointFormat>& formats, const Source& source,
                                std::string_view wanted) {
  Selection out;
  for (const CheckpointFormat& format : formats) {
    if (format.detect && format.detect(source) == Match::kYes) {
      out.format = &format;
      break;
    }
  }
  const CheckpointFormat* named = nullptr;
  if (!wanted.empty()) {
    named = find_named(formats, wanted);
    if (!named) {
      std::string known;
      for (const CheckpointFormat& format : formats) known += (known.empty() ? "" : ", ") + std::string(format.name);
      return invalid_input("unknown quantization method",
                           {.where = "--quantization", .expected = known, .found = std::string(wanted)});
    }
    if (!named->reason.empty()) {
      return unsupported(fmt::format("{} has no working path", named->name),
                         {.where = "--quantization", .found = std::string(named->reason)});
    }
  }
  if (!out.format) {
    return unsupported("no format reads this checkpoint",
                       {.where = source.has_quantization() ? source.quantization_where : source.path,
                        .found = declared_method(source)});
  }
  if (!out.format->reason.empty()) {
    return unsupported(fmt::format("{} checkpoints are not read", out.format->name),
                       {.where = source.quantization_where, .found = std::string(out.format->reason)});
  }
  if (!named || named == out.format) return out;
  const auto stands_for = [](const CheckpointFormat& name, const CheckpointFormat& other) {
    return std::find(name.stands_for.begin(), name.stands_for.end(), other.name) != name.stands_for.end();
  };
  if (stands_for(*named, *out.format)) {
    if (named->accepts) TARE_TRY(named->accepts(source));
    out.notes.push_back(
        fmt::format("{} names a kernel for {} checkpoints: read as {}, and the fastest kernel of this "
                    "machine is taken for each layer, as without the name",
                    named->name, out.format->name, out.format->name));
    return out;
  }
  // The repacked layouts come under their origin's name in the configuration.
  if (stands_for(*out.format, *named)) {
    out.notes.push_back(fmt::format("{} was named; the checkpoint is its {} layout", named->name, out.format->name));
    return out;
  }
  if (!source.has_quantization() && source.gguf.empty() && named->online && named->quantize) {
    out.online = named;
    out.notes.push_back(fmt::format("{}: dense weights are quantized while loading", named->name));
    return out;
  }
  return invalid_input("named format contradicts the checkpoint",
                       {.where = source.has_quantization() ? source.quantization_where : source.path,
                        .expected = std::string(named->name),
                        .found = fmt::format("{} ({})", out.format->name, declared_method(source))});
}

}  // namespace tare::checkpoints
