#include "checkpoints/checkpoint.h"

#include <fmt/format.h>

#include "checkpoints/registry.h"

namespace tare::checkpoints {

namespace {

std::string declared_method(const Source& source) {
  if (!source.gguf.empty()) return "gguf";
  if (!source.has_quantization()) return "safetensors";
  const json::value* method = json::find(source.quantization, "quant_method");
  return method && method->is_string() ? std::string(method->get_string()) : "without a quant_method";
}

Result<const CheckpointFormat*> choose_format(const std::vector<CheckpointFormat>& formats, const Source& source) {
  for (const CheckpointFormat& format : formats) {
    if (format.detect && format.detect(source) == Match::kYes) return &format;
  }
  return unsupported("no format reads this checkpoint",
                     {.where = source.has_quantization() ? source.quantization_where : source.path,
                      .found = "quantization " + declared_method(source)});
}

}  // namespace

Result<tensor::ModelWeights> load_checkpoint(const std::string& path, const LoadOptions& options) {
  const std::vector<CheckpointFormat> formats = builtin_formats();
  TARE_ASSIGN(Source source, open_source(path));
  TARE_ASSIGN(const CheckpointFormat* format, choose_format(formats, source));
  if (!options.format.empty()) {
    const CheckpointFormat* wanted = find_format(formats, options.format);
    if (!wanted) return invalid_input("unknown format", {.where = "--quantization", .found = options.format});
    if (wanted->name != format->name) {
      return invalid_input("named format contradicts the checkpoint",
                           {.where = path, .expected = std::string(wanted->name), .found = std::string(format->name)});
    }
  }
  tensor::ModelWeights out;
  out.format = format->name;
  out.config = source.config;
  TARE_TRY(format->read(source, options, out));
  const std::vector<std::string> rest = source.tensors.remaining();
  if (!rest.empty()) {
    return invalid_input("tensor is no part of this format",
                         {.where = fmt::format("{}: {}", source.tensors.file_of(rest[0]), rest[0]),
                          .found = fmt::format("{} tensors that {} does not explain", rest.size(), format->name)});
  }
  out.notes.insert(out.notes.end(), source.notes.begin(), source.notes.end());
  return out;
}

}  // namespace tare::checkpoints
