#include "quantize/block_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>

#include "base/checked.h"
#include "io/mapped_file.h"
#include "io/output_file.h"

namespace tare::quantize {

namespace {

using tensor::Grid;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::Tensor;

constexpr uint64_t kAlign = 64;
constexpr std::string_view kMark = "tare block 1";

// Buffers of the file, in order, with where they will stand.
class Layout {
 public:
  json::object place(const Buffer& bytes) {
    json::object out{{"at", end_}, {"size", bytes.size()}};
    buffers_.push_back(bytes);
    end_ = (end_ + bytes.size() + kAlign - 1) / kAlign * kAlign;
    return out;
  }
  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  std::vector<Buffer> buffers_;
  uint64_t end_ = 0;
};

json::object grid_json(const Grid& grid, Layout& layout) {
  return {{"type", static_cast<int>(grid.type)},
          {"tile_n", grid.tile_n},
          {"tile_k", grid.tile_k},
          {"tiles_n", grid.tiles_n},
          {"tiles_k", grid.tiles_k},
          {"stride", grid.stride},
          {"origin_n", grid.origin_n},
          {"origin_k", grid.origin_k},
          {"values", layout.place(grid.values)}};
}

Buffer float_buffer(const std::vector<float>& values) {
  return Buffer::own(values);
}

Result<json::object> quantized_json(const QuantizedTensor& tensor, Layout& layout) {
  const QuantizedFields& f = tensor.fields();
  if (f.vq) return unsupported("codebook weights are not stored between blocks");
  json::object out{{"n", f.n},
                   {"k", f.k},
                   {"kind", static_cast<int>(f.kind)},
                   {"bits", f.bits},
                   {"codes", layout.place(f.codes)},
                   {"code_stride", f.code_stride},
                   {"code_bit_offset", f.code_bit_offset},
                   {"rule", static_cast<int>(f.rule)},
                   {"A_divides", f.A_divides},
                   {"code_first", f.code_first},
                   {"B_is_A", f.B_is_A},
                   {"round_inner", f.round_inner},
                   {"group_of_k_begin", f.group_of_k_begin},
                   {"format", f.origin.format},
                   {"bytes", f.origin.bytes},
                   {"sparse_2_4", f.origin.sparse_2_4}};
  const std::pair<const char*, const std::optional<Grid>*> grids[] = {
      {"a", &f.a}, {"A", &f.A}, {"b", &f.b}, {"B", &f.B}};
  for (const auto& [key, grid] : grids) {
    if (*grid) out[key] = grid_json(**grid, layout);
  }
  if (const auto* z = std::get_if<Grid>(&f.z)) out["z"] = grid_json(*z, layout);
  if (const auto* z = std::get_if<float>(&f.z)) out["z_constant"] = layout.place(float_buffer({*z}));
  if (!f.lut.empty()) out["lut"] = layout.place(float_buffer(f.lut));
  if (f.scale_lut) out["scale_lut"] = layout.place(float_buffer(*f.scale_lut));
  if (f.rule == tensor::Rule::kNested) out["nested_offset"] = layout.place(float_buffer({f.nested_offset}));
  if (f.group_of_k) out["group_of_k"] = layout.place(Buffer::own(*f.group_of_k));
  return out;
}

json::object activation_json(const tensor::ActivationSpec& a, Layout& layout) {
  return {{"type", static_cast<int>(a.type)},
          {"granularity", static_cast<int>(a.granularity)},
          {"group_size", a.group_size},
          {"dynamic", a.dynamic},
          {"symmetric", a.symmetric},
          {"zero", a.zero},
          {"floats", layout.place(float_buffer({a.scale, a.cap, a.outlier_threshold}))}};
}

// Reads what `Layout` placed. A file that was cut or changed gives an error, never a read outside it.
class Reader {
 public:
  Reader(Buffer file, uint64_t base, std::string path) : file_(std::move(file)), base_(base), path_(std::move(path)) {}

  Error damaged(std::string_view what) const {
    return invalid_input("damaged block file", {.where = path_, .found = std::string(what)});
  }
  Result<Buffer> buffer(const json::object& from, std::string_view key) const {
    const json::value* at = from.if_contains(key);
    if (!at || !at->is_object()) return damaged(key);
    TARE_ASSIGN(const int64_t offset, json::get_int(at->get_object(), "at", path_));
    TARE_ASSIGN(const int64_t size, json::get_int(at->get_object(), "size", path_));
    const auto start = base_ + static_cast<uint64_t>(offset);
    if (offset < 0 || size < 0 || start > file_.size() || static_cast<uint64_t>(size) > file_.size() - start) {
      return damaged(fmt::format("{} lies outside the file", key));
    }
    return file_.slice(start, static_cast<size_t>(size));
  }
  template <class T>
  Result<std::vector<T>> values(const json::object& from, std::string_view key) const {
    TARE_ASSIGN(const Buffer bytes, buffer(from, key));
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
  }
  Result<int64_t> number(const json::object& from, std::string_view key) const {
    return json::get_int(from, key, path_);
  }
  Result<bool> flag(const json::object& from, std::string_view key) const {
    return json::get_bool_or(from, key, false, path_);
  }

  Result<Grid> grid(const json::object& from) const {
    Grid out;
    TARE_ASSIGN(const int64_t type, number(from, "type"));
    out.type = static_cast<tensor::GridType>(type);
    TARE_ASSIGN(out.tile_n, number(from, "tile_n"));
    TARE_ASSIGN(out.tile_k, number(from, "tile_k"));
    TARE_ASSIGN(out.tiles_n, number(from, "tiles_n"));
    TARE_ASSIGN(out.tiles_k, number(from, "tiles_k"));
    TARE_ASSIGN(out.stride, number(from, "stride"));
    TARE_ASSIGN(out.origin_n, number(from, "origin_n"));
    TARE_ASSIGN(out.origin_k, number(from, "origin_k"));
    TARE_ASSIGN(out.values, buffer(from, "values"));
    return out;
  }

  Result<QuantizedTensor> quantized(const json::object& from) const {
    QuantizedFields f;
    TARE_ASSIGN(f.n, number(from, "n"));
    TARE_ASSIGN(f.k, number(from, "k"));
    TARE_ASSIGN(const int64_t kind, number(from, "kind"));
    f.kind = static_cast<tensor::CodeKind>(kind);
    TARE_ASSIGN(const int64_t bits, number(from, "bits"));
    f.bits = static_cast<int>(bits);
    TARE_ASSIGN(f.codes, buffer(from, "codes"));
    TARE_ASSIGN(f.code_stride, number(from, "code_stride"));
    TARE_ASSIGN(f.code_bit_offset, number(from, "code_bit_offset"));
    TARE_ASSIGN(const int64_t rule, number(from, "rule"));
    f.rule = static_cast<tensor::Rule>(rule);
    TARE_ASSIGN(f.A_divides, flag(from, "A_divides"));
    TARE_ASSIGN(f.code_first, flag(from, "code_first"));
    TARE_ASSIGN(f.B_is_A, flag(from, "B_is_A"));
    TARE_ASSIGN(f.round_inner, flag(from, "round_inner"));
    TARE_ASSIGN(f.group_of_k_begin, number(from, "group_of_k_begin"));
    TARE_ASSIGN(f.origin.format, json::get_string(from, "format", path_));
    TARE_ASSIGN(f.origin.bytes, number(from, "bytes"));
    TARE_ASSIGN(f.origin.sparse_2_4, flag(from, "sparse_2_4"));
    const std::pair<const char*, std::optional<Grid>*> grids[] = {{"a", &f.a}, {"A", &f.A}, {"b", &f.b}, {"B", &f.B}};
    for (const auto& [key, into] : grids) {
      const json::value* at = from.if_contains(key);
      if (!at || !at->is_object()) continue;
      TARE_ASSIGN(*into, grid(at->get_object()));
    }
    if (const json::value* z = from.if_contains("z"); z && z->is_object()) {
      TARE_ASSIGN(f.z, grid(z->get_object()));
    }
    if (from.contains("z_constant")) {
      TARE_ASSIGN(const std::vector<float> z, values<float>(from, "z_constant"));
      if (z.size() != 1) return damaged("z_constant");
      f.z = z[0];
    }
    if (from.contains("lut")) {
      TARE_ASSIGN(f.lut, values<float>(from, "lut"));
    }
    if (from.contains("scale_lut")) {
      TARE_ASSIGN(std::vector<float> lut, values<float>(from, "scale_lut"));
      f.scale_lut = std::make_shared<const std::vector<float>>(std::move(lut));
    }
    if (from.contains("nested_offset")) {
      TARE_ASSIGN(const std::vector<float> offset, values<float>(from, "nested_offset"));
      if (offset.size() != 1) return damaged("nested_offset");
      f.nested_offset = offset[0];
    }
    if (from.contains("group_of_k")) {
      TARE_ASSIGN(std::vector<int32_t> map, values<int32_t>(from, "group_of_k"));
      f.group_of_k = std::make_shared<const std::vector<int32_t>>(std::move(map));
    }
    return QuantizedTensor::make(std::move(f));
  }

  Result<Tensor> dense(const json::object& from) const {
    TARE_ASSIGN(const int64_t dtype, number(from, "dtype"));
    const json::value* extents = from.if_contains("shape");
    if (!extents || !extents->is_array()) return damaged("shape");
    tensor::Shape shape;
    for (const json::value& extent : extents->get_array()) {
      const auto value = json::as_int(extent);
      if (!value) return damaged("shape");
      shape.push_back(*value);
    }
    TARE_ASSIGN(Buffer data, buffer(from, "data"));
    return Tensor::make(static_cast<tensor::DType>(dtype), std::move(shape), std::move(data));
  }

  Result<tensor::ActivationSpec> activation(const json::object& from) const {
    tensor::ActivationSpec out;
    TARE_ASSIGN(const int64_t type, number(from, "type"));
    out.type = static_cast<tensor::ActivationType>(type);
    TARE_ASSIGN(const int64_t granularity, number(from, "granularity"));
    out.granularity = static_cast<tensor::ActivationGranularity>(granularity);
    TARE_ASSIGN(out.group_size, number(from, "group_size"));
    TARE_ASSIGN(out.dynamic, flag(from, "dynamic"));
    TARE_ASSIGN(out.symmetric, flag(from, "symmetric"));
    TARE_ASSIGN(const int64_t zero, number(from, "zero"));
    out.zero = static_cast<int32_t>(zero);
    TARE_ASSIGN(const std::vector<float> floats, values<float>(from, "floats"));
    if (floats.size() != 3) return damaged("activation");
    out.scale = floats[0];
    out.cap = floats[1];
    out.outlier_threshold = floats[2];
    return out;
  }

 private:
  Buffer file_;
  uint64_t base_;
  std::string path_;
};

}  // namespace

Status write_weights(const std::string& path, const std::vector<NamedWeight>& weights) {
  Layout layout;
  json::array list;
  for (const NamedWeight& named : weights) {
    json::object row{{"name", named.name}};
    if (const auto* dense = std::get_if<Tensor>(&named.weight)) {
      row["dense"] = {{"dtype", static_cast<int>(dense->dtype)},
                      {"shape", json::array(dense->shape.begin(), dense->shape.end())},
                      {"data", layout.place(dense->data)}};
    } else {
      TARE_ASSIGN(row["quantized"], quantized_json(std::get<QuantizedTensor>(named.weight), layout));
    }
    row["activation"] = activation_json(named.activation, layout);
    list.push_back(std::move(row));
  }
  std::string text = boost::json::serialize(json::object{{"mark", kMark}, {"weights", std::move(list)}});
  text.resize((text.size() + 8 + kAlign - 1) / kAlign * kAlign - 8, ' ');
  TARE_ASSIGN(io::OutputFile file, io::OutputFile::create(path));
  const auto length = static_cast<uint64_t>(text.size());
  TARE_TRY(file.write(std::as_bytes(std::span(&length, 1))));
  TARE_TRY(file.write(text));
  const std::string zeros(kAlign, '\0');
  for (const Buffer& buffer : layout.buffers()) {
    TARE_TRY(file.write(buffer.bytes()));
    TARE_TRY(file.write(std::string_view(zeros).substr(0, (kAlign - buffer.size() % kAlign) % kAlign)));
  }
  TARE_ASSIGN([[maybe_unused]] const io::WrittenFile written, file.finish());
  return {};
}

Result<std::vector<NamedWeight>> map_weights(const std::string& path) {
  TARE_ASSIGN(const Buffer file, io::map_file(path));
  const auto damaged = [&](std::string_view what) {
    return invalid_input("damaged block file", {.where = path, .found = std::string(what)});
  };
  uint64_t length = 0;
  if (file.size() < sizeof(length)) return damaged("too short");
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > file.size() - sizeof(length)) return damaged("description longer than the file");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(length), length);
  TARE_ASSIGN(const json::value parsed, json::parse(text.substr(0, text.find_last_not_of(' ') + 1), path));
  const json::object* top = parsed.if_object();
  const json::value* mark = top ? top->if_contains("mark") : nullptr;
  const json::value* list = top ? top->if_contains("weights") : nullptr;
  if (!mark || !mark->is_string() || mark->get_string() != kMark || !list || !list->is_array()) {
    return damaged("not a block file of this version");
  }
  const Reader reader(file, sizeof(length) + length, path);
  std::vector<NamedWeight> out;
  for (const json::value& item : list->get_array()) {
    const json::object* row = item.if_object();
    if (!row) return damaged("a weight that is no object");
    TARE_ASSIGN(std::string name, json::get_string(*row, "name", path));
    const json::value* activation = row->if_contains("activation");
    if (!activation || !activation->is_object()) return damaged(name);
    TARE_ASSIGN(tensor::ActivationSpec spec, reader.activation(activation->get_object()));
    const json::value* dense = row->if_contains("dense");
    const json::value* quantized = row->if_contains("quantized");
    if (dense && dense->is_object()) {
      TARE_ASSIGN(Tensor tensor, reader.dense(dense->get_object()));
      out.push_back({std::move(name), std::move(tensor), spec});
    } else if (quantized && quantized->is_object()) {
      TARE_ASSIGN(QuantizedTensor tensor, reader.quantized(quantized->get_object()));
      out.push_back({std::move(name), std::move(tensor), spec});
    } else {
      return damaged(name);
    }
  }
  return out;
}

}  // namespace tare::quantize
