#include "checkpoints/checkpoint.h"

#include <fmt/format.h>

#include "checkpoints/registry.h"
#include "checkpoints/select.h"

namespace tare::checkpoints {

Result<tensor::ModelWeights> load_checkpoint(const std::string& path, const LoadOptions& options) {
  return load_checkpoint(path, options, options.formats ? *options.formats : builtin_formats());
}

Result<tensor::ModelWeights> load_checkpoint(const std::string& path, const LoadOptions& options,
                                             const std::vector<CheckpointFormat>& formats) {
  TARE_ASSIGN(Source source, open_source(path));
  TARE_TRY(adopt_side_file(formats, source));
  TARE_ASSIGN(const Selection selection, select_format(formats, source, options.format));
  const CheckpointFormat& format = *selection.format;
  tensor::ModelWeights out;
  out.format = format.name;
  out.config = source.config;
  out.notes = selection.notes;
  TARE_TRY(format.read(source, options, out));
  const std::vector<std::string> rest = source.tensors.remaining();
  if (!rest.empty()) {
    return invalid_input("tensor is no part of this format",
                         {.where = fmt::format("{}: {}", source.tensors.file_of(rest[0]), rest[0]),
                          .found = fmt::format("{} tensors that {} does not explain", rest.size(), format.name)});
  }
  if (selection.online) {
    TARE_TRY(selection.online->quantize(out));
    out.format = fmt::format("{} at load", selection.online->name);
  }
  out.notes.insert(out.notes.end(), source.notes.begin(), source.notes.end());
  return out;
}

}  // namespace tare::checkpoints
