#include "checkpoints/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/file.h"
#include "base/sha256.h"
#include "base/version.h"
#include "io/mapped_file.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kSealKey = "\"manifest_sha256\":\"";
constexpr size_t kHashLength = 64;

std::string hash_of(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

std::string manifest_path(const std::string& folder) {
  return (fs::path(folder) / kManifestName).string();
}

// Files below the folder by relative name, in order, without the manifest.
Result<std::vector<std::string>> files_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (!it->is_regular_file(ec)) continue;
    std::string name = fs::relative(it->path(), folder, ec).string();
    if (name != kManifestName) names.push_back(std::move(name));
  }
  if (ec) return io_error("cannot list folder", {.where = folder, .found = ec.message()});
  std::sort(names.begin(), names.end());
  return names;
}

// A name of the manifest is used as a path only when it is one below the folder.
bool stays_inside(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && path.is_relative() && path == path.lexically_normal() && *path.begin() != "..";
}

bool seal_holds(std::string text) {
  const size_t at = text.rfind(kSealKey);
  if (at == text.npos || at + kSealKey.size() + kHashLength > text.size()) return false;
  const std::string seal = text.substr(at + kSealKey.size(), kHashLength);
  text.replace(at + kSealKey.size(), kHashLength, kHashLength, '0');
  return hash_of(text) == seal;
}

struct Entry {
  uint64_t bytes = 0;
  std::string sha256;
};

Result<std::map<std::string, Entry>> entries_of(const json::value& document, const std::string& where) {
  const Error wrong = invalid_input("the manifest has the wrong form", {.where = where});
  const json::value* files = document.is_object() ? json::find(document.get_object(), "files") : nullptr;
  if (!files || !files->is_array()) return wrong;
  std::map<std::string, Entry> out;
  for (const json::value& row : files->get_array()) {
    if (!row.is_object()) return wrong;
    TARE_ASSIGN(const std::string name, json::get_string(row.get_object(), "name", where));
    TARE_ASSIGN(const int64_t bytes, json::get_int(row.get_object(), "bytes", where));
    TARE_ASSIGN(const std::string sha256, json::get_string(row.get_object(), "sha256", where));
    if (!stays_inside(name) || bytes < 0) return wrong;
    if (!out.emplace(name, Entry{static_cast<uint64_t>(bytes), sha256}).second) return wrong;
  }
  return out;
}

Result<std::string> difference(const std::string& path, const Entry& entry) {
  std::error_code ec;
  const uint64_t bytes = fs::file_size(path, ec);
  if (ec) return fmt::format("cannot be read: {}", ec.message());
  if (bytes != entry.bytes) return fmt::format("expected {} bytes, found {}", entry.bytes, bytes);
  TARE_ASSIGN(const Buffer content, io::map_file(path));
  const std::string sha256 = sha256_hex(content.bytes());
  if (sha256 != entry.sha256) return fmt::format("expected SHA-256 {}, found {}", entry.sha256, sha256);
  return std::string();
}

}  // namespace

Status write_manifest(const std::string& folder, json::object record, const std::vector<io::WrittenFile>& written) {
  std::map<std::string, const io::WrittenFile*> known;
  for (const io::WrittenFile& file : written) known[fs::path(file.path).filename().string()] = &file;
  TARE_ASSIGN(const std::vector<std::string> names, files_of(folder));
  json::array files;
  for (const std::string& name : names) {
    if (const auto at = known.find(name); at != known.end()) {
      files.push_back({{"name", name}, {"bytes", at->second->bytes}, {"sha256", at->second->sha256}});
      continue;
    }
    TARE_ASSIGN(const Buffer bytes, io::map_file((fs::path(folder) / name).string()));
    files.push_back({{"name", name}, {"bytes", bytes.size()}, {"sha256", sha256_hex(bytes.bytes())}});
  }
  json::object manifest{{"tool", "tare"}, {"tool_version", kVersion}};
  for (const auto& member : record) manifest[member.key()] = member.value();
  manifest["files"] = std::move(files);
  manifest.erase("manifest_sha256");
  manifest["manifest_sha256"] = std::string(kHashLength, '0');
  std::string text = boost::json::serialize(manifest) + "\n";
  const size_t at = text.rfind(kSealKey);
  text.replace(at + kSealKey.size(), kHashLength, hash_of(text));
  return write_file_atomically(manifest_path(folder), text);
}

bool has_manifest(const std::string& folder) {
  std::error_code ec;
  return fs::is_regular_file(manifest_path(folder), ec);
}

Status check_replaceable(const std::string& folder, const std::string& source) {
  std::error_code ec;
  if (!fs::exists(folder, ec)) return {};
  if (fs::equivalent(folder, source, ec)) {
    return invalid_input("output would replace the model it is made from",
                         {.where = folder, .hint = "choose another --out"});
  }
  if (has_manifest(folder) || (fs::is_directory(folder, ec) && fs::is_empty(folder, ec))) return {};
  return invalid_input("only what tare wrote is replaced", {.where = folder,
                                                            .expected = fmt::format("a folder with {}", kManifestName),
                                                            .found = "something else",
                                                            .hint = "remove it yourself or choose another --out"});
}

Result<std::vector<ManifestProblem>> check_manifest(const std::string& folder,
                                                    const std::function<Status(const std::string& file)>& progress) {
  const std::string path = manifest_path(folder);
  TARE_ASSIGN(const std::string text, read_text_file(path));
  std::vector<ManifestProblem> problems;
  if (!seal_holds(text)) problems.push_back({std::string(kManifestName), "the manifest itself was changed"});
  const auto document = json::parse(text, path);
  const auto entries =
      document.ok() ? entries_of(*document, path) : Result<std::map<std::string, Entry>>(document.error());
  if (!entries.ok()) {
    problems.push_back({std::string(kManifestName), entries.error().message()});
    return problems;
  }
  TARE_ASSIGN(const std::vector<std::string> names, files_of(folder));
  const std::set<std::string> present(names.begin(), names.end());
  for (const auto& [name, entry] : *entries) {
    if (progress) TARE_TRY(progress(name));
    if (present.count(name) == 0) {
      problems.push_back({name, "is missing"});
      continue;
    }
    TARE_ASSIGN(const std::string what, difference((fs::path(folder) / name).string(), entry));
    if (!what.empty()) problems.push_back({name, what});
  }
  for (const std::string& name : names) {
    if (entries->count(name) == 0) problems.push_back({name, "is not in the manifest"});
  }
  return problems;
}

}  // namespace tare::checkpoints
