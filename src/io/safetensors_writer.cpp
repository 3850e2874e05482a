#include "io/safetensors_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <cstring>
#include <set>

#include "base/checked.h"
#include "io/names.h"
#include "io/safetensors.h"

namespace tare::io {

namespace {

std::string json_text(std::string_view text) {
  return boost::json::serialize(boost::json::string_view(text.data(), text.size()));
}

// Bytes of a tensor, as the reader will compute them.
Result<uint64_t> bytes_of(const TensorDeclaration& t) {
  TARE_ASSIGN(const int64_t count, tensor::element_count(t.shape));
  const int64_t bits = count * tensor::dtype_bits(t.dtype);
  if (bits % 8 != 0) {
    return invalid_input("tensor is not whole bytes",
                         {.where = printable(t.name),
                          .found = fmt::format("{} {}", tensor::dtype_name(t.dtype), tensor::shape_text(t.shape))});
  }
  return static_cast<uint64_t>(bits / 8);
}

uint64_t alignment_of(const TensorDeclaration& t) {
  return static_cast<uint64_t>(std::max(1, tensor::dtype_bits(t.dtype) / 8));
}

// Gives the tensors [first, last) of one file their offsets in its data and returns them in file order.
std::vector<size_t> lay_out(const std::vector<TensorDeclaration>& tensors, size_t first, size_t last,
                            std::vector<PlannedTensor>& plan) {
  std::vector<size_t> order;
  bool aligned = true;
  uint64_t position = 0;
  for (size_t i = first; i < last; ++i) {
    order.push_back(i);
    aligned = aligned && position % alignment_of(tensors[i]) == 0;
    position += plan[i].bytes;
  }
  if (!aligned) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return alignment_of(tensors[a]) > alignment_of(tensors[b]); });
  }
  position = 0;
  for (const size_t i : order) {
    plan[i].offset = position;
    position += plan[i].bytes;
  }
  return order;
}

// Header with its length, and adds its size to the offsets of the plan.
Result<std::string> header_of(const std::vector<TensorDeclaration>& tensors, const std::vector<size_t>& order,
                              const SafetensorsWriterOptions& options, std::vector<PlannedTensor>& plan) {
  std::string text = "{";
  if (!options.metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : options.metadata) {
      if (text.back() != '{') text += ',';
      text += json_text(key) + ":" + json_text(value);
    }
    text += '}';
  }
  for (const size_t i : order) {
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json_text(tensors[i].name),
                        tensor::dtype_name(tensors[i].dtype), fmt::join(tensors[i].shape, ","), plan[i].offset,
                        plan[i].offset + plan[i].bytes);
  }
  text += '}';
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return invalid_input("safetensors header too long",
                         {.expected = fmt::format("at most {}", kMaxSafetensorsHeaderBytes),
                          .found = fmt::format("{} bytes", text.size()),
                          .hint = "write shards"});
  }
  for (const size_t i : order) plan[i].offset += 8 + text.size();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

// First tensor of each file, and the end.
std::vector<size_t> cut_into_shards(const std::vector<PlannedTensor>& plan, uint64_t limit) {
  std::vector<size_t> starts = {0};
  uint64_t filled = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (limit > 0 && i > starts.back() && plan[i].bytes > 0 && plan[i].bytes > limit - std::min(limit, filled)) {
      starts.push_back(i);
      filled = 0;
    }
    filled += plan[i].bytes;
  }
  starts.push_back(plan.size());
  return starts;
}

std::string index_of(const std::vector<PlannedTensor>& plan, const std::vector<std::string>& file_names) {
  std::map<std::string, std::string> lines;
  uint64_t total = 0;
  for (const PlannedTensor& t : plan) {
    lines.emplace(t.name, file_names[t.file]);
    total += t.bytes;
  }
  std::string text = fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{\n", total);
  for (auto line = lines.begin(); line != lines.end(); ++line) {
    text += fmt::format("    {}: {}{}\n", json_text(line->first), json_text(line->second),
                        std::next(line) == lines.end() ? "" : ",");
  }
  return text + "  }\n}\n";
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::vector<Shard> shards, std::vector<PlannedTensor> plan, std::string index_path,
                                     std::string index)
    : shards_(std::move(shards)),
      cursor_(std::move(plan)),
      index_path_(std::move(index_path)),
      index_(std::move(index)) {}

Result<SafetensorsWriter> SafetensorsWriter::create_file(const std::string& path,
                                                         const std::vector<TensorDeclaration>& tensors,
                                                         const SafetensorsWriterOptions& options) {
  if (options.max_shard_bytes != 0) return internal_error("a shard limit for a single file", {.where = path});
  return create({}, path, tensors, options);
}

Result<SafetensorsWriter> SafetensorsWriter::create_in_folder(const std::string& folder,
                                                              const std::vector<TensorDeclaration>& tensors,
                                                              const SafetensorsWriterOptions& options) {
  return create(folder, folder + "/model.safetensors", tensors, options);
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& folder, const std::string& single_path,
                                                    const std::vector<TensorDeclaration>& tensors,
                                                    const SafetensorsWriterOptions& options) {
  TARE_ASSIGN(Layout layout, lay_out_files(folder, single_path, tensors, options));
  SafetensorsWriter writer(std::move(layout.shards), std::move(layout.plan), std::move(layout.index_path),
                           std::move(layout.index));
  TARE_TRY(writer.open_until(0));
  return writer;
}

Result<SafetensorsWriter::Layout> SafetensorsWriter::lay_out_files(const std::string& folder,
                                                                   const std::string& single_path,
                                                                   const std::vector<TensorDeclaration>& tensors,
                                                                   const SafetensorsWriterOptions& options) {
  Layout out;
  std::vector<PlannedTensor>& plan = out.plan;
  std::set<std::string_view> names;
  uint64_t total = 0;
  for (const TensorDeclaration& t : tensors) {
    TARE_TRY(check_name(t.name, "tensor name", single_path));
    if (t.name == "__metadata__" || !names.insert(t.name).second) {
      return invalid_input("tensor name twice or reserved", {.where = single_path, .found = printable(t.name)});
    }
    TARE_ASSIGN(const uint64_t bytes, bytes_of(t));
    const auto sum = checked_add(total, bytes);
    if (!sum || *sum > static_cast<uint64_t>(INT64_MAX) / 2)
      return invalid_input("output too large", {.where = single_path});
    total = *sum;
    plan.push_back({.name = t.name, .file = 0, .offset = 0, .bytes = bytes});
  }
  for (const auto& [key, value] : options.metadata) {
    if (!is_valid_utf8(key) || !is_valid_utf8(value)) {
      return invalid_input("metadata is not UTF-8", {.where = single_path, .found = printable(key)});
    }
  }

  const std::vector<size_t> starts = cut_into_shards(plan, options.max_shard_bytes);
  const size_t count = starts.size() - 1;
  std::vector<std::string> file_names;
  for (size_t s = 0; s < count; ++s) {
    for (size_t i = starts[s]; i < starts[s + 1]; ++i) plan[i].file = s;
    const std::vector<size_t> order = lay_out(tensors, starts[s], starts[s + 1], plan);
    TARE_ASSIGN(std::string header, header_of(tensors, order, options, plan));
    file_names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, count));
    out.shards.push_back({count == 1 ? single_path : folder + "/" + file_names.back(), std::move(header)});
  }
  if (count > 1) {
    out.index_path = folder + "/model.safetensors.index.json";
    out.index = index_of(plan, file_names);
  }
  return out;
}

Result<uint64_t> SafetensorsWriter::bytes_in_folder(const std::vector<TensorDeclaration>& tensors,
                                                    const SafetensorsWriterOptions& options) {
  TARE_ASSIGN(const Layout layout, lay_out_files({}, {}, tensors, options));
  uint64_t total = layout.index.size();
  for (const Shard& shard : layout.shards) total += shard.header.size();
  for (const PlannedTensor& tensor : layout.plan) total += tensor.bytes;
  return total;
}

// Finishes files until the given one is open.
Status SafetensorsWriter::open_until(size_t shard) {
  while (!open_ || written_.size() < shard) {
    if (open_) {
      TARE_ASSIGN(WrittenFile file, open_->finish());
      written_.push_back(std::move(file));
      open_.reset();
    }
    if (written_.size() == shards_.size()) break;
    TARE_ASSIGN(OutputFile file, OutputFile::create(shards_[written_.size()].path));
    TARE_TRY(file.write(shards_[written_.size()].header));
    open_.emplace(std::move(file));
  }
  return {};
}

Status SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (!open_) return internal_error("write to a finished safetensors file", {.found = printable(name)});
  TARE_ASSIGN(const WriteCursor::Place place, cursor_.next(name, bytes.size()));
  TARE_TRY(open_until(place.file));
  return open_->write_at(place.offset, bytes);
}

Result<std::vector<WrittenFile>> SafetensorsWriter::finish() {
  if (!open_) return internal_error("safetensors writer finished twice");
  TARE_TRY(cursor_.complete());
  TARE_TRY(open_until(shards_.size()));
  if (!index_path_.empty()) {
    TARE_ASSIGN(OutputFile file, OutputFile::create(index_path_));
    TARE_TRY(file.write(index_));
    TARE_ASSIGN(WrittenFile written, file.finish());
    written_.push_back(std::move(written));
  }
  return std::move(written_);
}

}  // namespace tare::io
