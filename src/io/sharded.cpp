#include "io/sharded.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/json.h"
#include "io/names.h"
#include "io/safetensors.h"

namespace tare::io {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

using WeightMap = std::map<std::string, std::string, std::less<>>;  // tensor -> file

std::string list(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names) shown.push_back(printable(name));
  return fmt::format("{}", fmt::join(shown, ", "));
}
std::string list(const std::set<std::string>& names) {
  return list(std::vector<std::string>(names.begin(), names.end()));
}

// A shard's name may lead into a subfolder, never out of the model's.
bool stays_inside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute() || !path.has_filename()) return false;
  return std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".." || part == "."; });
}

Result<WeightMap> read_index(const std::string& path) {
  TARE_ASSIGN(const json::value document, json::parse_file(path));
  const auto bad = [&](std::string what, std::string expected, std::string found) {
    return invalid_input(std::move(what), {.where = path, .expected = std::move(expected), .found = std::move(found)});
  };
  if (!document.is_object()) return bad("bad index", "an object with 'weight_map'", "something else");
  const json::value* map = json::find(document.get_object(), "weight_map");
  if (!map || !map->is_object()) return bad("bad index", "an object 'weight_map'", map ? "something else" : "none");
  WeightMap out;
  for (const auto& [key, file] : map->get_object()) {
    const std::string name(key);
    TARE_TRY(check_name(name, "tensor name", path));
    if (!file.is_string())
      return bad(fmt::format("bad file of tensor {}", printable(name)), "a file name", "something else");
    std::string shard(file.get_string());
    if (!stays_inside(shard) || !shard.ends_with(".safetensors") || shard.find('\0') != shard.npos) {
      return bad(fmt::format("bad file of tensor {}", printable(name)), "a .safetensors file inside the model's folder",
                 printable(shard));
    }
    out.emplace(name, std::move(shard));
  }
  if (out.empty()) return bad("bad index", "at least one tensor in 'weight_map'", "none");
  return out;
}

bool is_shard_name(const std::string& name) {
  return name.starts_with("model-") && name.find("-of-") != name.npos;
}

std::set<std::string> safetensors_in(const std::string& folder) {
  std::set<std::string> out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors")) out.insert(name);
  }
  return out;
}

// One difference of indexed and found, told with all its names.
void tell(std::vector<std::string>& problems, std::string_view what, const std::vector<std::string>& names) {
  if (!names.empty()) problems.push_back(fmt::format("{} {}", what, list(names)));
}

Error mismatch(const std::string& index, std::vector<std::string> problems) {
  return invalid_input("index and files disagree",
                       {.where = index,
                        .expected = "every file and tensor of the index, each once, and no other",
                        .found = fmt::format("{}", fmt::join(problems, "; "))});
}

// Files of the index against files of the folder. Nothing else can be compared while one is missing.
Status check_files(const std::string& folder, const std::string& index, const std::set<std::string>& indexed) {
  std::vector<std::string> missing;
  for (const std::string& name : indexed) {
    std::error_code ec;
    if (!fs::exists(folder + "/" + name, ec)) missing.push_back(name);
  }
  std::vector<std::string> leftover;
  for (const std::string& name : safetensors_in(folder)) {
    if (!indexed.contains(name) && (name == kSingleName || is_shard_name(name))) leftover.push_back(name);
  }
  std::vector<std::string> problems;
  tell(problems, "missing files", missing);
  tell(problems, "files of another save", leftover);
  if (problems.empty()) return {};
  if (!missing.empty()) problems.push_back(fmt::format("the index names {}", list(indexed)));
  return mismatch(index, std::move(problems));
}

Status check_tensors(const std::string& index, const WeightMap& indexed, const std::vector<std::string>& names,
                     const std::vector<SafetensorsFile>& files) {
  std::map<std::string, std::vector<std::string>, std::less<>> found;  // tensor -> files
  for (size_t i = 0; i < files.size(); ++i) {
    for (const NamedTensor& t : files[i].tensors) found[t.name].push_back(names[i]);
  }
  std::vector<std::string> missing, extra, moved, twice;
  for (const auto& [tensor, file] : indexed) {
    const auto at = found.find(tensor);
    if (at == found.end()) {
      missing.push_back(tensor);
    } else if (at->second.size() == 1 && at->second[0] != file) {
      moved.push_back(fmt::format("{} (index: {}, found: {})", tensor, file, at->second[0]));
    }
  }
  for (const auto& [tensor, where] : found) {
    if (where.size() > 1) {
      twice.push_back(fmt::format("{} ({})", tensor, fmt::join(where, ", ")));
    } else if (!indexed.contains(tensor)) {
      extra.push_back(tensor);
    }
  }
  std::vector<std::string> problems;
  tell(problems, "tensors that no file holds:", missing);
  tell(problems, "tensors that the index does not name:", extra);
  tell(problems, "tensors in another file:", moved);
  tell(problems, "tensors in two files:", twice);
  if (problems.empty()) return {};
  return mismatch(index, std::move(problems));
}

void take(SafetensorsFile file, TensorFiles& out) {
  for (NamedTensor& t : file.tensors)
    out.tensors.emplace(std::move(t.name), TensorFiles::Entry{std::move(t.tensor), out.files.size()});
  out.files.push_back(std::move(file.path));
  out.metadata.push_back(std::move(file.metadata));
}

Result<TensorFiles> open_single(const std::string& path) {
  TARE_ASSIGN(SafetensorsFile file, open_safetensors(path));
  TensorFiles out;
  take(std::move(file), out);
  return out;
}

Result<TensorFiles> open_indexed(const std::string& folder, const std::string& index) {
  TARE_ASSIGN(const WeightMap indexed, read_index(index));
  std::set<std::string> file_set;
  for (const auto& [tensor, file] : indexed) file_set.insert(file);
  TARE_TRY(check_files(folder, index, file_set));
  const std::vector<std::string> names(file_set.begin(), file_set.end());
  std::vector<SafetensorsFile> files;
  for (const std::string& name : names) {
    TARE_ASSIGN(SafetensorsFile file, open_safetensors(folder + "/" + name));
    files.push_back(std::move(file));
  }
  TARE_TRY(check_tensors(index, indexed, names, files));
  TensorFiles out;
  for (SafetensorsFile& file : files) take(std::move(file), out);
  return out;
}

}  // namespace

const tensor::Tensor* TensorFiles::find(std::string_view name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second.tensor;
}

uint64_t TensorFiles::total_bytes() const {
  uint64_t total = 0;
  for (const auto& [name, entry] : tensors) total += entry.tensor.data.size();
  return total;
}

Result<TensorFiles> open_tensor_files(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return open_single(path);
  const std::string single = path + "/" + kSingleName;
  const std::string index = path + "/" + kIndexName;
  const std::set<std::string> present = safetensors_in(path);
  std::set<std::string> read;
  TensorFiles out;
  if (fs::exists(index, ec)) {
    TARE_ASSIGN(out, open_indexed(path, index));
  } else if (fs::exists(single, ec)) {
    std::vector<std::string> shards;
    for (const std::string& name : present) {
      if (is_shard_name(name)) shards.push_back(name);
    }
    if (!shards.empty()) {
      return invalid_input("two sets of weights in one folder", {.where = path,
                                                                 .expected = "model.safetensors or shards",
                                                                 .found = fmt::format("both: {}", list(shards)),
                                                                 .hint = "name the file to read"});
    }
    TARE_ASSIGN(out, open_single(single));
  } else {
    return invalid_input("no weights in the folder",
                         {.where = path,
                          .expected = fmt::format("{} or {}", kIndexName, kSingleName),
                          .found = present.empty() ? "no .safetensors file" : list(present)});
  }
  for (const std::string& file : out.files) read.insert(fs::path(file).filename().string());
  for (const std::string& name : present) {
    if (!read.contains(name)) out.unread_files.push_back(path + "/" + name);
  }
  return out;
}

}  // namespace tare::io
