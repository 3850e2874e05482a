#include <fmt/format.h>

#include <algorithm>

#include "checkpoints/source.h"

namespace tare::checkpoints {

Status StoredTensors::add(std::string name, tensor::Tensor tensor, std::string file) {
  const auto [at, inserted] = entries_.emplace(std::move(name), Entry{std::move(tensor), file, false});
  if (!inserted) {
    return invalid_input("tensor appears twice",
                         {.where = at->first, .expected = "one file", .found = at->second.file + " and " + file});
  }
  return {};
}

const tensor::Tensor* StoredTensors::find(std::string_view name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second.tensor;
}

Result<tensor::Tensor> StoredTensors::take(std::string_view name) {
  const auto at = entries_.find(name);
  if (at == entries_.end()) return invalid_input("tensor is missing", {.where = std::string(name)});
  if (at->second.taken) return internal_error("tensor taken twice", {.where = std::string(name)});
  at->second.taken = true;
  return at->second.tensor;
}

std::vector<std::string> StoredTensors::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

std::vector<std::string> StoredTensors::remaining() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : entries_) {
    if (!entry.taken) out.push_back(name);
  }
  return out;
}

std::string StoredTensors::file_of(std::string_view name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? std::string() : at->second.file;
}

std::string_view last_part(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

std::string_view parent_module(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot);
}

std::vector<std::string> modules_with(const StoredTensors& tensors, std::string_view suffix) {
  std::vector<std::string> out;
  for (const std::string& name : tensors.names()) {
    if (name.size() > suffix.size() + 1 && name.ends_with(suffix) && name[name.size() - suffix.size() - 1] == '.') {
      out.push_back(name.substr(0, name.size() - suffix.size() - 1));
    }
  }
  return out;
}

namespace {
Status wrong(std::string_view what, std::string_view name, std::string expected, std::string found) {
  return invalid_input(std::string(what),
                       {.where = std::string(name), .expected = std::move(expected), .found = std::move(found)});
}
}  // namespace

Status expect(const tensor::Tensor& t, std::string_view name, tensor::DType dtype, const tensor::Shape& shape) {
  return expect_one_of(t, name, {dtype}, shape);
}

Status expect_one_of(const tensor::Tensor& t, std::string_view name, std::initializer_list<tensor::DType> dtypes,
                     const tensor::Shape& shape) {
  if (std::find(dtypes.begin(), dtypes.end(), t.dtype) == dtypes.end()) {
    std::string list;
    for (const tensor::DType dtype : dtypes)
      list += (list.empty() ? "" : " or ") + std::string(tensor::dtype_name(dtype));
    return wrong("tensor has another type than its format says", name, list, std::string(tensor::dtype_name(t.dtype)));
  }
  if (t.shape != shape) {
    return wrong("tensor has another shape than its format says", name, tensor::shape_text(shape),
                 tensor::shape_text(t.shape));
  }
  return {};
}

Status expect_rank(const tensor::Tensor& t, std::string_view name, int64_t rank) {
  if (t.rank() == rank) return {};
  return wrong("tensor has another shape than its format says", name, fmt::format("{} axes", rank),
               tensor::shape_text(t.shape));
}

}  // namespace tare::checkpoints
