#include "checkpoints/gguf_metadata.h"

#include <fmt/format.h>

namespace tare::checkpoints {

GgufMetadata::GgufMetadata(const io::GgufFile& file, std::string_view architecture)
    : file_(&file), prefix_(std::string(architecture) + ".") {}

std::string GgufMetadata::full(std::string_view key) const {
  return prefix_ + std::string(key);
}

bool GgufMetadata::has(std::string_view key) const {
  return file_->find(full(key)) != nullptr;
}

void GgufMetadata::ignore(std::string_view key) {
  read_.insert(full(key));
}

Result<int64_t> GgufMetadata::get_int(std::string_view key) {
  TARE_ASSIGN(const std::optional<int64_t> value, find_int(key));
  if (!value) return invalid_input("GGUF metadata key is missing", {.where = file_->path + ": " + full(key)});
  return *value;
}

Result<std::optional<int64_t>> GgufMetadata::find_int(std::string_view key) {
  const std::string name = full(key);
  if (!file_->find(name)) return std::optional<int64_t>();
  read_.insert(name);
  TARE_ASSIGN(const uint64_t value, file_->get_uint(name));
  if (value > uint64_t{1} << 40) {
    return invalid_input("GGUF metadata number out of range",
                         {.where = file_->path + ": " + name, .found = fmt::format("{}", value)});
  }
  return std::optional<int64_t>(static_cast<int64_t>(value));
}

Result<std::optional<int64_t>> GgufMetadata::find_uniform_int(std::string_view key) {
  const std::string name = full(key);
  const io::GgufValue* value = file_->find(name);
  if (!value || value->type != io::GgufType::kArray) return find_int(key);
  read_.insert(name);
  TARE_ASSIGN(const std::vector<int64_t> values, file_->get_ints(name));
  for (const int64_t one : values) {
    if (one != values.front()) {
      return unsupported("GGUF metadata differs from layer to layer",
                         {.where = file_->path + ": " + name,
                          .expected = "one value for all layers",
                          .found = fmt::format("{} and {}", values.front(), one)});
    }
  }
  if (values.empty()) return invalid_input("GGUF metadata array is empty", {.where = file_->path + ": " + name});
  return std::optional<int64_t>(values.front());
}

Result<std::optional<double>> GgufMetadata::find_float(std::string_view key) {
  const std::string name = full(key);
  if (!file_->find(name)) return std::optional<double>();
  read_.insert(name);
  TARE_ASSIGN(const double value, file_->get_float(name));
  return std::optional<double>(value);
}

Result<std::optional<std::string>> GgufMetadata::find_string(std::string_view key) {
  const std::string name = full(key);
  if (!file_->find(name)) return std::optional<std::string>();
  read_.insert(name);
  TARE_ASSIGN(const std::string_view value, file_->get_string(name));
  return std::optional<std::string>(std::string(value));
}

Status GgufMetadata::check_all_read() const {
  for (const io::GgufKeyValue& pair : file_->metadata) {
    if (pair.key.starts_with(prefix_) && read_.count(pair.key) == 0) {
      return unsupported(
          "GGUF metadata key that is not understood",
          {.where = file_->path + ": " + pair.key, .found = "a setting of the model that tare would silently ignore"});
    }
  }
  return {};
}

}  // namespace tare::checkpoints
