#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <cstring>
#include <numeric>
#include <optional>

#include "io/mapped_file.h"
#include "io/names.h"

namespace tare::io {

namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

// What the header says of one tensor, before it is held against the file.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;  // [begin, end)
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

// Reads the header token by token into entries, so that a hostile header of many megabytes is refused at its first
// wrong token and never becomes a tree in memory. Level 1 is the header's object, level 2 an entry or the metadata.
class HeaderHandler {
 public:
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_key_size = size_t(-1);
  static constexpr size_t max_string_size = size_t(-1);

  using error_code = boost::json::error_code;
  using string_view = boost::json::string_view;

  std::vector<Entry> entries;
  std::optional<std::map<std::string, std::string, std::less<>>> metadata;
  std::string problem;  // why parsing stopped, if this handler stopped it

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }

  bool on_object_begin(error_code& ec) {
    if (level_ == 0) {
      level_ = 1;
      return true;
    }
    if (level_ != 1) return unexpected("an object", ec);
    level_ = 2;
    in_metadata_ = key_ == kMetadataKey;
    if (in_metadata_) {
      if (metadata) return stop("'__metadata__' twice", ec);
      metadata.emplace();
    } else {
      entries.emplace_back().name = key_;
    }
    return true;
  }
  bool on_object_end(size_t, error_code& ec) {
    if (level_ == 2 && !in_metadata_) {
      const Entry& entry = entries.back();
      if (!entry.has_dtype) return stop(fmt::format("tensor {} without dtype", printable(entry.name)), ec);
      if (!entry.has_shape) return stop(fmt::format("tensor {} without shape", printable(entry.name)), ec);
      if (!entry.has_offsets) return stop(fmt::format("tensor {} without data_offsets", printable(entry.name)), ec);
      if (entry.offsets.size() != 2) {
        return stop(fmt::format("{} data_offsets of tensor {}", entry.offsets.size(), printable(entry.name)), ec);
      }
    }
    --level_;
    return true;
  }
  bool on_array_begin(error_code& ec) {
    if (level_ != 2 || in_metadata_ || numbers_) return unexpected("a list", ec);
    Entry& entry = entries.back();
    const bool is_shape = key_ == "shape";
    if (!is_shape && key_ != "data_offsets") return unexpected("a list", ec);
    bool& seen = is_shape ? entry.has_shape : entry.has_offsets;
    if (seen) return stop(fmt::format("tensor {} with {} twice", printable(entry.name), key_), ec);
    seen = true;
    numbers_ = is_shape ? &entry.shape : &entry.offsets;
    return true;
  }
  bool on_array_end(size_t, error_code&) {
    numbers_ = nullptr;
    return true;
  }

  bool on_key_part(string_view part, size_t, error_code&) { return collect(part); }
  bool on_key(string_view part, size_t, error_code&) {
    collect(part);
    key_ = std::exchange(text_, {});
    return true;
  }
  bool on_string_part(string_view part, size_t, error_code&) { return collect(part); }
  bool on_string(string_view part, size_t, error_code& ec) {
    collect(part);
    std::string text = std::exchange(text_, {});
    if (level_ != 2 || numbers_) return unexpected("a string", ec);
    if (in_metadata_) {
      if (!metadata->emplace(key_, std::move(text)).second) {
        return stop(fmt::format("metadata key {} twice", printable(key_)), ec);
      }
      return true;
    }
    if (key_ != "dtype") return unexpected("a string", ec);
    Entry& entry = entries.back();
    if (entry.has_dtype) return stop(fmt::format("tensor {} with dtype twice", printable(entry.name)), ec);
    entry.has_dtype = true;
    entry.dtype = std::move(text);
    return true;
  }

  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(int64_t number, string_view text, error_code& ec) {
    if (number < 0 || text.starts_with('-')) return unexpected("a negative number", ec);
    return on_uint64(static_cast<uint64_t>(number), text, ec);
  }
  bool on_uint64(uint64_t number, string_view, error_code& ec) {
    if (!numbers_) return unexpected("a number", ec);
    if (numbers_->size() == kMaxRank) return stop(fmt::format("too many numbers {}", place()), ec);
    numbers_->push_back(number);
    return true;
  }
  bool on_double(double, string_view, error_code& ec) {
    return unexpected("a number that is not whole or too large", ec);
  }
  bool on_bool(bool, error_code& ec) { return unexpected("a truth value", ec); }
  bool on_null(error_code& ec) { return unexpected("null", ec); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  static constexpr size_t kMaxRank = 64;

  bool collect(string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool stop(std::string why, error_code& ec) {
    problem = std::move(why);
    ec = boost::json::make_error_code(boost::json::error::exception);
    return false;
  }
  std::string place() const {
    if (level_ == 0) return "instead of the header object";
    if (level_ == 1) return fmt::format("as value of {}", printable(key_));
    if (in_metadata_) return fmt::format("in __metadata__ {}", printable(key_));
    return fmt::format("in {} of tensor {}", printable(key_), printable(entries.back().name));
  }
  bool unexpected(const char* what, error_code& ec) { return stop(fmt::format("{} {}", what, place()), ec); }

  int level_ = 0;
  bool in_metadata_ = false;
  std::vector<uint64_t>* numbers_ = nullptr;  // the list that is open
  std::string key_;
  std::string text_;
};

Error bad_file(std::string what, std::string_view where, std::string expected, std::string found,
               std::string hint = {}) {
  return invalid_input(std::move(what), {.where = std::string(where),
                                         .expected = std::move(expected),
                                         .found = std::move(found),
                                         .hint = std::move(hint)});
}

// Says what a file is that is not safetensors at all: the two cases people meet.
Error not_safetensors(std::string_view start, std::string_view where) {
  if (start.starts_with("GGUF")) return bad_file("not a safetensors file", where, "safetensors", "a GGUF file");
  if (start.starts_with("version ")) {
    return bad_file("not a safetensors file", where, "safetensors", "a Git LFS pointer",
                    "fetch the real file (git lfs pull)");
  }
  if (start.starts_with("PK\x03\x04") || start.starts_with("\x80\x02")) {
    return bad_file("not a safetensors file", where, "safetensors", "a pickle, which may run code and is never loaded");
  }
  return bad_file("not a safetensors file", where, "a header length and '{'", printable(start.substr(0, 9)));
}

Result<tensor::Tensor> tensor_of(const Entry& entry, const Buffer& data, std::string_view where) {
  TARE_TRY(check_name(entry.name, "tensor name", where));
  const std::string place = fmt::format("{}, tensor {}", where, printable(entry.name));
  auto dtype = tensor::parse_dtype(entry.dtype);
  if (!dtype.ok()) return bad_file("unknown dtype", place, "a safetensors dtype", printable(entry.dtype));
  tensor::Shape shape;
  for (const uint64_t extent : entry.shape) {
    if (extent > static_cast<uint64_t>(INT64_MAX)) {
      return bad_file("shape too large", place, "extents below 2^63", fmt::format("{}", extent));
    }
    shape.push_back(static_cast<int64_t>(extent));
  }
  const uint64_t begin = entry.offsets[0];
  const uint64_t end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    return bad_file("tensor outside the file", place, fmt::format("begin <= end <= {}", data.size()),
                    fmt::format("[{}, {}]", begin, end));
  }
  auto made = tensor::Tensor::make(*dtype, std::move(shape), data.slice(begin, end - begin));
  if (!made.ok()) {
    Error error = std::move(made).error();
    error.where = place;
    return error;
  }
  return made;
}

}  // namespace

const tensor::Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : &tensors[found->second].tensor;
}

Result<SafetensorsFile> parse_safetensors(Buffer file, std::string_view where) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.size() < 8) {
    return bad_file("safetensors file too short", where, "at least 8 bytes", fmt::format("{} bytes", text.size()));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);  // every supported machine is little-endian
  if (text.size() < 9 || text[8] != '{') return not_safetensors(text.substr(0, 16), where);
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return bad_file("safetensors header too long", where, fmt::format("at most {} bytes", kMaxSafetensorsHeaderBytes),
                    fmt::format("{}", header_bytes));
  }
  if (header_bytes > text.size() - 8) {
    return bad_file("safetensors file ends inside its header", where, fmt::format("{} header bytes", header_bytes),
                    fmt::format("{}", text.size() - 8), "the file is cut: copy or download it again");
  }
  std::string_view header = text.substr(8, header_bytes);
  header = header.substr(0, header.find_last_not_of(' ') + 1);

  boost::json::parse_options options;
  options.max_depth = 4;  // object, entry, list: one more, so that the handler names the place
  boost::json::basic_parser<HeaderHandler> parser(options);
  boost::json::error_code ec;
  const size_t consumed = parser.write_some(false, header.data(), header.size(), ec);
  HeaderHandler& parsed = parser.handler();
  if (!parsed.problem.empty()) {
    return bad_file("bad safetensors header", where, "entries of dtype, shape and data_offsets", parsed.problem);
  }
  // Newlines after the object are JSON, but not padding.
  if (ec || consumed != header.size() || header.back() != '}') {
    return bad_file("safetensors header is not JSON", where, "one object, then spaces",
                    fmt::format("{} at byte {}", ec ? ec.message() : "text after the object", 8 + consumed));
  }

  SafetensorsFile out;
  out.path = std::string(where);
  if (parsed.metadata) out.metadata = std::move(*parsed.metadata);
  const Buffer data = file.slice(8 + header_bytes, file.size() - 8 - header_bytes);
  std::vector<Entry>& entries = parsed.entries;
  // By begin, then end: an empty tensor comes before the one that starts where it lies.
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const std::vector<uint64_t>& x = entries[a].offsets;
    const std::vector<uint64_t>& y = entries[b].offsets;
    return x[0] != y[0] ? x[0] < y[0] : x[1] < y[1];
  });
  uint64_t position = 0;
  out.tensors.reserve(entries.size());
  for (const size_t place : order) {
    Entry& entry = entries[place];
    TARE_ASSIGN(tensor::Tensor made, tensor_of(entry, data, where));
    const uint64_t begin = entry.offsets[0];
    if (begin != position) {
      return bad_file(begin < position ? "tensors overlap" : "hole between tensors",
                      fmt::format("{}, tensor {}", where, printable(entry.name)), fmt::format("begin {}", position),
                      fmt::format("{}", begin));
    }
    position = entry.offsets[1];
    if (!out.index.emplace(entry.name, out.tensors.size()).second) {
      return bad_file("tensor name twice", where, "unique names", printable(entry.name));
    }
    out.tensors.push_back({std::move(entry.name), std::move(made)});
  }
  if (position != data.size()) {
    return bad_file("bytes after the last tensor", where, fmt::format("{} bytes of tensors", position),
                    fmt::format("{}", data.size()));
  }
  return out;
}

Result<SafetensorsFile> open_safetensors(const std::string& path) {
  TARE_ASSIGN(Buffer file, map_file(path));
  return parse_safetensors(std::move(file), path);
}

}  // namespace tare::io
