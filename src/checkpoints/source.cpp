#include "checkpoints/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "checkpoints/text_part.h"
#include "io/sharded.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

bool is_file(const fs::path& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

// Files of a folder (not of its sub-folders) with an ending, by name.
Result<std::vector<std::string>> files_with_ending(const std::string& directory, std::string_view ending) {
  std::vector<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(ending) && is_file(it->path())) out.push_back(name);
  }
  if (ec) return io_error("cannot list folder", {.where = directory, .found = ec.message()});
  std::sort(out.begin(), out.end());
  return out;
}

// Adds tensors under the names that the text part of a model gives them.
class TensorNames {
 public:
  explicit TensorNames(Source& source) : source_(source) {
    const json::value* text = json::find(source.config, "text_config");
    nested_ = text && text->is_object();
  }
  Status add(const std::string& name, tensor::Tensor tensor, const std::string& file) {
    if (!nested_) return source_.tensors.add(name, std::move(tensor), file);
    std::optional<std::string> inner = name_in_text_part(name);
    if (!inner) {
      ++left_out_;
      return {};
    }
    stripped_ = stripped_ || *inner != name;
    return source_.tensors.add(std::move(*inner), std::move(tensor), file);
  }
  void finish() {
    if (stripped_ || left_out_ > 0) adopt_text_part(source_, left_out_);
  }

 private:
  Source& source_;
  bool nested_ = false, stripped_ = false;
  int64_t left_out_ = 0;
};

Status add_safetensors(Source& source, const std::string& path) {
  TARE_ASSIGN(io::SafetensorsFile file, io::open_safetensors(path));
  TensorNames names(source);
  for (io::NamedTensor& named : file.tensors) {
    TARE_TRY(names.add(named.name, std::move(named.tensor), path));
  }
  names.finish();
  source.metadata.merge(file.metadata);
  return {};
}

// model.safetensors, or the shards of the index: io holds index and files against each other.
Status add_model_files(Source& source) {
  TARE_ASSIGN(io::TensorFiles files, io::open_tensor_files(source.directory));
  TensorNames names(source);
  for (auto& [name, entry] : files.tensors) {
    TARE_TRY(names.add(name, std::move(entry.tensor), files.files[entry.file]));
  }
  names.finish();
  for (auto& metadata : files.metadata) source.metadata.merge(metadata);
  for (const std::string& name : files.unread_files) {
    source.notes.push_back(fmt::format("left out {}: it is no part of the model's weights", name));
  }
  return {};
}

Status read_config(Source& source, const std::string& path) {
  TARE_ASSIGN(json::value parsed, json::parse_file(path));
  if (!parsed.is_object()) return invalid_input("configuration is not an object", {.where = path});
  source.config = std::move(parsed.get_object());
  source.config_where = path;
  const json::object* homes[] = {&source.config, nullptr};
  if (const json::value* text = json::find(source.config, "text_config"); text && text->is_object()) {
    homes[1] = &text->get_object();
  }
  for (const json::object* home : homes) {
    if (!home) continue;
    for (const std::string_view key : {"quantization_config", "compression_config"}) {
      const json::value* found = json::find(*home, key);
      if (!found) continue;
      const std::string where = fmt::format("{}: {}{}", path, home == homes[1] ? "text_config." : "", key);
      if (!found->is_object()) return invalid_input("quantization is not an object", {.where = where});
      if (source.has_quantization()) {
        if (found->get_object() == source.quantization) continue;
        return invalid_input("two different quantization objects",
                             {.where = source.quantization_where, .found = "another in " + where});
      }
      source.quantization = found->get_object();
      source.quantization_where = where;
    }
  }
  return {};
}

// F16 and BF16 among tensors of one kind: a dtype that was changed in a header looks like this, and the numbers would
// be wrong without a sign. Writers keep one of them a kind (biases and scales may differ from weights).
Status check_half_types(const Source& source) {
  struct Count {
    std::string f16, bf16;  // an example each
    int f16_count = 0, bf16_count = 0;
  };
  std::map<std::string, Count, std::less<>> kinds;
  for (const std::string& name : source.tensors.names()) {
    const tensor::DType dtype = source.tensors.find(name)->dtype;
    if (dtype != tensor::DType::kF16 && dtype != tensor::DType::kBF16) continue;
    Count& count = kinds[std::string(last_part(name))];
    (dtype == tensor::DType::kF16 ? count.f16 : count.bf16) = name;
    ++(dtype == tensor::DType::kF16 ? count.f16_count : count.bf16_count);
  }
  for (const auto& [kind, count] : kinds) {
    if (count.f16_count == 0 || count.bf16_count == 0) continue;
    const bool odd_f16 = count.f16_count < count.bf16_count;
    return invalid_input("tensors of one kind mix F16 and BF16",
                         {.where = odd_f16 ? count.f16 : count.bf16,
                          .expected = odd_f16 ? "BF16 like " + count.bf16 : "F16 like " + count.f16,
                          .found = odd_f16 ? "F16" : "BF16"});
  }
  return {};
}

// model-00001-of-00003.gguf: the names of all parts; just the path when it is no such name.
Result<std::vector<std::string>> gguf_parts(const std::string& path) {
  const std::string_view name = path;
  constexpr std::string_view kTail = "-00001-of-00003.gguf";
  if (name.size() <= kTail.size()) return std::vector<std::string>{path};
  const std::string_view tail = name.substr(name.size() - kTail.size());
  const auto digits = [&](size_t at) {
    return std::all_of(tail.begin() + static_cast<int64_t>(at), tail.begin() + static_cast<int64_t>(at) + 5,
                       [](char c) { return c >= '0' && c <= '9'; });
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !digits(1) || !digits(10)) return std::vector<std::string>{path};
  const int count = std::stoi(std::string(tail.substr(10, 5)));
  std::vector<std::string> out;
  for (int i = 1; i <= count; ++i) {
    out.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", name.substr(0, name.size() - kTail.size()), i, count));
    if (!is_file(out.back())) {
      return invalid_input("part of a split GGUF is missing", {.where = out.back(), .found = "no such file"});
    }
  }
  if (out.empty()) return invalid_input("split GGUF of no parts", {.where = path});
  return out;
}

Status open_gguf_source(Source& source, const std::string& path) {
  TARE_ASSIGN(const std::vector<std::string> parts, gguf_parts(path));
  int64_t tensors = 0;
  for (const std::string& part : parts) {
    TARE_ASSIGN(io::GgufFile file, io::open_gguf(part));
    tensors += static_cast<int64_t>(file.tensors.size());
    source.gguf.push_back(std::move(file));
  }
  for (size_t i = 0; i < source.gguf.size(); ++i) {
    const io::GgufFile& file = source.gguf[i];
    TARE_ASSIGN(const uint64_t count, file.get_uint_or("split.count", 1));
    TARE_ASSIGN(const uint64_t number, file.get_uint_or("split.no", 0));
    if (std::max<uint64_t>(count, 1) != parts.size() || number != i) {
      return invalid_input("GGUF part is not what its name says",
                           {.where = file.path,
                            .expected = fmt::format("part {} of {}", i, parts.size()),
                            .found = fmt::format("split.no {} of split.count {}", number, count)});
    }
    if (file.find("split.tensors.count")) {
      TARE_ASSIGN(const int64_t declared, file.get_int("split.tensors.count"));
      if (declared != tensors) {
        return invalid_input(
            "GGUF parts do not hold the tensors they declare",
            {.where = file.path, .expected = fmt::format("{} tensors", declared), .found = fmt::format("{}", tensors)});
      }
    }
  }
  return {};
}

Status open_directory(Source& source) {
  const fs::path folder = source.directory;
  TARE_ASSIGN(const std::vector<std::string> safetensors, files_with_ending(source.directory, ".safetensors"));
  if (safetensors.empty()) {
    TARE_ASSIGN(const std::vector<std::string> gguf, files_with_ending(source.directory, ".gguf"));
    std::vector<std::string> first;
    for (const std::string& name : gguf) {
      if (name.find("-of-") == name.npos || name.find("-00001-of-") != name.npos) first.push_back(name);
    }
    if (first.size() == 1) return open_gguf_source(source, (folder / first[0]).string());
    if (first.size() > 1) {
      return invalid_input("several GGUF files in one folder",
                           {.where = source.directory, .found = first[0] + ", " + first[1], .hint = "name the file"});
    }
    for (const std::string_view pickle : {".bin", ".pt", ".pth"}) {
      TARE_ASSIGN(const std::vector<std::string> found, files_with_ending(source.directory, pickle));
      if (!found.empty()) {
        return unsupported("weights are a pickle",
                           {.where = (folder / found[0]).string(),
                            .expected = ".safetensors or .gguf",
                            .hint = "a pickle can run code: convert it to safetensors with the tool that wrote it"});
      }
    }
    return invalid_input("no weights in folder",
                         {.where = source.directory, .expected = ".safetensors files or one .gguf file"});
  }
  if (!is_file(folder / "config.json")) {
    return invalid_input("config.json is missing", {.where = source.directory});
  }
  TARE_TRY(read_config(source, (folder / "config.json").string()));
  if (is_file(folder / kIndexName) || is_file(folder / "model.safetensors")) return add_model_files(source);
  if (safetensors.size() == 1) return add_safetensors(source, (folder / safetensors[0]).string());
  return invalid_input("several .safetensors files and no index",
                       {.where = source.directory,
                        .expected = std::string(kIndexName) + " or model.safetensors",
                        .found = safetensors[0] + ", " + safetensors[1]});
}

}  // namespace

Result<Source> open_source(const std::string& path) {
  Source source;
  source.path = path;
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (!fs::exists(status)) {
    return invalid_input("no such model", {.where = path, .expected = "a folder, a .gguf or a .safetensors file"});
  }
  if (fs::is_directory(status)) {
    source.directory = path;
    TARE_TRY(open_directory(source));
  } else if (path.ends_with(".gguf")) {
    TARE_TRY(open_gguf_source(source, path));
  } else if (path.ends_with(".safetensors")) {
    const fs::path parent = fs::path(path).parent_path();
    source.directory = parent.empty() ? "." : parent.string();
    const std::string config = (fs::path(source.directory) / "config.json").string();
    if (is_file(config)) {
      TARE_TRY(read_config(source, config));
      source.notes.push_back("configuration taken from " + config + ", beside the weights");
    }
    TARE_TRY(add_safetensors(source, path));
  } else {
    return invalid_input("not a model", {.where = path, .expected = "a folder, a .gguf or a .safetensors file"});
  }
  TARE_TRY(check_half_types(source));
  return source;
}

}  // namespace tare::checkpoints
