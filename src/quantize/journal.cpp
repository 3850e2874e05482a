#include "quantize/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/sha256.h"

namespace tare::quantize {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kName = "journal.jsonl";

Error system_error(const std::string& what, const std::string& where) {
  return io_error(what, {.where = where, .found = std::strerror(errno)});
}

json::object file_record(const std::string& path, const std::string& sha256) {
  std::error_code ec;
  return {{"file", fs::path(path).filename().string()}, {"bytes", fs::file_size(path, ec)}, {"sha256", sha256}};
}

std::string short_text(const json::value& value) {
  std::string text = boost::json::serialize(value);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

// Every entry that differs, one level down where both are objects.
void differences(const json::object& now, const json::object& then, const std::string& prefix,
                 std::vector<std::string>& out) {
  for (const auto& [key, value] : now) {
    const std::string name = prefix.empty() ? std::string(key) : prefix + " " + std::string(key);
    const json::value* before = then.if_contains(key);
    if (before && *before == value) continue;
    if (before && before->is_object() && value.is_object()) {
      differences(value.get_object(), before->get_object(), name, out);
    } else {
      out.push_back(
          fmt::format("{}: was {}, is {}", name, before ? short_text(*before) : "nothing", short_text(value)));
    }
  }
  for (const auto& [key, value] : then) {
    if (!now.contains(key))
      out.push_back(fmt::format("{} {}: was {}, is nothing", prefix, std::string_view(key), short_text(value)));
  }
}

}  // namespace

Result<std::string> file_sha256(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("cannot open file", path);
  Sha256 hash;
  std::vector<std::byte> chunk(1 << 20);
  while (true) {
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const Error error = system_error("cannot read file", path);
      ::close(fd);
      return error;
    }
    if (got == 0) break;
    hash.update({chunk.data(), static_cast<size_t>(got)});
    if (interrupted()) break;
  }
  ::close(fd);
  TARE_TRY(check_interrupt("reading " + path));
  return hash.hex();
}

Result<json::object> model_fingerprint(const std::string& path) {
  std::vector<std::string> files;
  std::error_code ec;
  if (fs::is_directory(path, ec)) {
    for (const auto& entry : fs::directory_iterator(path, ec)) {
      const std::string extension = entry.path().extension().string();
      if (entry.is_regular_file() && (extension == ".safetensors" || extension == ".gguf" || extension == ".json")) {
        files.push_back(entry.path().string());
      }
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  json::object out;
  for (const std::string& file : files) {
    TARE_ASSIGN(out[fs::path(file).filename().string()], file_sha256(file));
  }
  return out;
}

Result<Journal> Journal::open(const std::string& folder, json::object fingerprint, bool resume) {
  Journal out;
  out.folder_ = folder;
  const std::string path = folder + "/" + std::string(kName);
  const json::object first{{"journal", 1}, {"fingerprint", fingerprint}};
  std::error_code ec;
  const bool there = fs::exists(path, ec);
  if (there && !resume) {
    return invalid_input(
        "an unfinished run is there",
        {.where = folder, .expected = "no journal", .hint = "--resume goes on with it; to start anew, remove it"});
  }
  if (!there) {
    fs::create_directories(folder, ec);
    if (ec) return io_error("cannot create the journal", {.where = folder, .found = ec.message()});
    TARE_TRY(write_file_atomically(path, boost::json::serialize(first) + "\n"));
    return out;
  }
  TARE_ASSIGN(const std::string text, read_text_file(path));
  size_t at = 0;
  std::string whole;
  bool is_first = true;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    if (end == text.npos) break;  // torn by the end of the run before
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    auto parsed = json::parse(line, path);
    if (!parsed.ok() || !parsed->is_object()) {
      return invalid_input("damaged journal", {.where = path, .hint = "remove it and start anew"});
    }
    const json::object& row = parsed->get_object();
    if (is_first) {
      const json::value* then = row.if_contains("fingerprint");
      std::vector<std::string> changed;
      if (then && then->is_object()) {
        // Compared as text brings both to the same number types.
        TARE_ASSIGN(const json::value now, json::parse(boost::json::serialize(fingerprint), "fingerprint"));
        differences(now.get_object(), then->get_object(), "", changed);
      } else {
        changed = {"no fingerprint"};
      }
      if (!changed.empty()) {
        return invalid_input("the unfinished run was another one",
                             {.where = folder,
                              .found = fmt::format("{}", fmt::join(changed, "; ")),
                              .hint = "repeat the first command's flags and inputs, or remove the journal"});
      }
      is_first = false;
    } else if (row.contains("block_done")) {
      out.lines_.push_back(row);
    }
    whole += std::string(line) + "\n";
  }
  if (is_first) {
    TARE_TRY(write_file_atomically(path, boost::json::serialize(first) + "\n"));
  } else if (whole.size() != text.size()) {
    TARE_TRY(write_file_atomically(path, whole));
  }
  TARE_TRY(out.check_files());
  return out;
}

std::string Journal::block_path(int64_t block) const {
  return fmt::format("{}/block-{:04}.bin", folder_, block);
}
std::string Journal::stream_path(int64_t block, size_t stream) const {
  return fmt::format("{}/stream-{}-{:04}.bin", folder_, stream, block);
}

Status Journal::check_files() const {
  for (size_t b = 0; b < lines_.size(); ++b) {
    const json::value* files = lines_[b].if_contains("files");
    if (!files || !files->is_array()) return invalid_input("damaged journal", {.where = folder_});
    for (size_t f = 0; f < files->get_array().size(); ++f) {
      if (f > 0 && b + 1 < lines_.size()) break;  // streams of blocks before the last are gone
      const json::object* record = files->get_array()[f].if_object();
      if (!record) return invalid_input("damaged journal", {.where = folder_});
      TARE_ASSIGN(const std::string name, json::get_string(*record, "file", folder_));
      TARE_ASSIGN(const std::string expected, json::get_string(*record, "sha256", folder_));
      TARE_ASSIGN(const std::string found, file_sha256(folder_ + "/" + name));
      if (found != expected) {
        return invalid_input("file of the unfinished run is not as it was written",
                             {.where = folder_ + "/" + name, .hint = "remove the journal and start anew"});
      }
    }
  }
  return {};
}

Status Journal::write_line(const json::object& line, bool sync) {
  const std::string path = folder_ + "/" + std::string(kName);
  const std::string text = boost::json::serialize(line) + "\n";
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return system_error("cannot write the journal", path);
  const ssize_t put = ::write(fd, text.data(), text.size());
  const bool good = put == static_cast<ssize_t>(text.size()) && (!sync || ::fsync(fd) == 0);
  const Error error = system_error("cannot write the journal", path);
  ::close(fd);
  if (!good) return error;
  return {};
}

Status Journal::phase(std::string_view name, int64_t block) {
  json::object line{{"phase", name}};
  if (block >= 0) line["block"] = block;
  return write_line(line, false);
}

Status Journal::append(const std::vector<NamedWeight>& weights, json::object report,
                       const std::vector<TokenStore*>& streams) {
  const int64_t block = blocks();
  TARE_TRY(write_weights(block_path(block), weights));
  json::array files;
  TARE_ASSIGN(const std::string hash, file_sha256(block_path(block)));
  files.push_back(file_record(block_path(block), hash));
  for (size_t s = 0; s < streams.size(); ++s) {
    TARE_ASSIGN(const std::string stream_hash, streams[s]->save(stream_path(block, s)));
    files.push_back(file_record(stream_path(block, s), stream_hash));
  }
  report["block_done"] = block;
  report["files"] = std::move(files);
  TARE_TRY(write_line(report, true));
  lines_.push_back(std::move(report));
  for (size_t s = 0; s < streams.size() && block > 0; ++s) {
    std::error_code ignored;
    fs::remove(stream_path(block - 1, s), ignored);
  }
  return {};
}

Result<std::vector<NamedWeight>> Journal::weights(int64_t block) const {
  return map_weights(block_path(block));
}

Status Journal::restore(const std::vector<TokenStore*>& streams) const {
  for (size_t s = 0; s < streams.size(); ++s) TARE_TRY(streams[s]->load(stream_path(blocks() - 1, s)));
  return {};
}

Status Journal::remove() {
  std::error_code ec;
  fs::remove_all(folder_, ec);
  if (ec) return io_error("cannot remove the journal", {.where = folder_, .found = ec.message()});
  return {};
}

}  // namespace tare::quantize
