#include "checkpoints/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Tensor;

Result<tensor::Shape> Parts::shape(std::string_view suffix, int64_t rank) const {
  const Tensor* t = source_->tensors.find(name(suffix));
  if (!t) return invalid_input("tensor is missing", {.where = name(suffix)});
  TARE_TRY(expect_rank(*t, name(suffix), rank));
  return t->shape;
}

Result<DType> Parts::dtype(std::string_view suffix) const {
  const Tensor* t = source_->tensors.find(name(suffix));
  if (!t) return invalid_input("tensor is missing", {.where = name(suffix)});
  return t->dtype;
}

Result<Tensor> Parts::take(std::string_view suffix, std::initializer_list<DType> dtypes, const tensor::Shape& shape) {
  TARE_ASSIGN(Tensor t, source_->tensors.take(name(suffix)));
  TARE_TRY(expect_one_of(t, name(suffix), dtypes, shape));
  bytes_ += static_cast<int64_t>(t.data.size());
  return t;
}

Result<Tensor> Parts::take_shaped(std::string_view suffix, std::initializer_list<DType> dtypes,
                                  std::initializer_list<tensor::Shape> shapes) {
  const Tensor* t = source_->tensors.find(name(suffix));
  for (const tensor::Shape& shape : shapes) {
    if (t && t->shape == shape) return take(suffix, dtypes, shape);
  }
  return take(suffix, dtypes, *shapes.begin());
}

Result<float> Parts::take_scalar(std::string_view suffix, std::initializer_list<DType> dtypes) {
  TARE_ASSIGN(const Tensor t, take_shaped(suffix, dtypes, {{1}, {}}));
  float value = 0;
  TARE_TRY(tensor::to_f32(t, 0, 1, &value));
  if (!std::isfinite(value)) {
    return make_error(ErrorKind::kNotFinite, "scale is not finite",
                      {.where = name(suffix), .found = fmt::format("{}", value)});
  }
  return value;
}

Error Parts::contradiction(std::string_view suffix, std::string expected, std::string found) const {
  return invalid_input("configuration and weights contradict each other",
                       {.where = name(suffix), .expected = std::move(expected), .found = std::move(found)});
}

tensor::GridType grid_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return tensor::GridType::kF16;
    case DType::kBF16:
      return tensor::GridType::kBF16;
    case DType::kF8E4M3:
      return tensor::GridType::kE4M3;
    case DType::kF8E8M0:
    case DType::kU8:
      return tensor::GridType::kE8M0;
    default:
      return tensor::GridType::kF32;
  }
}

namespace {

// Tiles of 16 x 16: both sides stay in a few cache lines.
template <int Bytes>
void transpose_elements(const std::byte* in, int64_t rows, int64_t columns, std::byte* out) {
  constexpr int64_t kTile = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t r1 = std::min(rows, r0 + kTile);
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      const int64_t c1 = std::min(columns, c0 + kTile);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) {
          std::memcpy(out + (c * rows + r) * Bytes, in + (r * columns + c) * Bytes, Bytes);
        }
      }
    }
  }
}

}  // namespace

Buffer transpose(const Buffer& data, int64_t rows, int64_t columns, int element_bytes) {
  std::vector<std::byte> out(data.size());
  switch (element_bytes) {
    case 1:
      transpose_elements<1>(data.data(), rows, columns, out.data());
      break;
    case 2:
      transpose_elements<2>(data.data(), rows, columns, out.data());
      break;
    default:
      transpose_elements<4>(data.data(), rows, columns, out.data());
      break;
  }
  return Buffer::own(std::move(out));
}

bool names_module(std::string_view entry, std::string_view module) {
  if (entry.empty()) return false;
  for (size_t at = module.find(entry); at != module.npos; at = module.find(entry, at + 1)) {
    const size_t end = at + entry.size();
    if ((at == 0 || module[at - 1] == '.') && (end == module.size() || module[end] == '.')) return true;
  }
  return false;
}

Result<std::vector<std::string>> string_list(const json::object& from, std::string_view key, std::string_view where) {
  std::vector<std::string> out;
  const json::value* list = json::find(from, key);
  if (!list) return out;
  const auto wrong = [&] {
    return invalid_input(fmt::format("'{}' is no list of names", key), {.where = std::string(where)});
  };
  if (!list->is_array()) return wrong();
  for (const json::value& entry : list->get_array()) {
    if (!entry.is_string()) return wrong();
    out.emplace_back(entry.get_string());
  }
  return out;
}

Status check_e4m3(const Buffer& codes, const std::string& name) {
  const auto bytes = codes.bytes();
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return (b & std::byte{0x7f}) == std::byte{0x7f}; });
  if (bad == bytes.end()) return {};
  return make_error(ErrorKind::kNotFinite, "weight holds NaN or inf",
                    {.where = fmt::format("{}, byte {}", name, bad - bytes.begin())});
}

Result<std::vector<int64_t>> integers(const Tensor& t, std::string_view name) {
  std::vector<int64_t> out(static_cast<size_t>(t.count()));
  for (size_t i = 0; i < out.size(); ++i) {
    if (t.dtype == DType::kI32) {
      int32_t value;
      std::memcpy(&value, t.data.data() + i * 4, 4);
      out[i] = value;
    } else if (t.dtype == DType::kI64) {
      std::memcpy(&out[i], t.data.data() + i * 8, 8);
    } else {
      return invalid_input(
          "tensor has another type than its format says",
          {.where = std::string(name), .expected = "I32 or I64", .found = std::string(dtype_name(t.dtype))});
    }
  }
  return out;
}

Result<std::shared_ptr<const std::vector<int32_t>>> group_map(const Tensor& g_idx, int64_t k, int64_t group,
                                                              std::string_view name) {
  TARE_ASSIGN(const std::vector<int64_t> values, integers(g_idx, name));
  const int64_t groups = ceil_div(k, group);
  std::vector<int64_t> counts(static_cast<size_t>(groups));
  std::vector<int32_t> map(values.size());
  bool natural = true;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t g = values[static_cast<size_t>(i)];
    if (g < 0 || g >= groups) {
      return invalid_input("group index out of range", {.where = fmt::format("{}[{}]", name, i),
                                                        .expected = fmt::format("0..{}", groups - 1),
                                                        .found = fmt::format("{}", g)});
    }
    ++counts[static_cast<size_t>(g)];
    map[static_cast<size_t>(i)] = static_cast<int32_t>(g);
    natural = natural && g == i / group;
  }
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t expected = std::min(group, k - g * group);
    if (counts[static_cast<size_t>(g)] != expected) {
      return invalid_input("groups have other sizes than the configuration says",
                           {.where = std::string(name),
                            .expected = fmt::format("{} columns in group {}", expected, g),
                            .found = fmt::format("{}", counts[static_cast<size_t>(g)])});
    }
  }
  if (natural) return std::shared_ptr<const std::vector<int32_t>>();
  return std::shared_ptr<const std::vector<int32_t>>(std::make_shared<std::vector<int32_t>>(std::move(map)));
}

Status add_decoded(tensor::ModelWeights& out, const std::string& weight, const tensor::Shape& shape,
                   int64_t stored_bytes, std::function<Result<std::vector<float>>()> decode) {
  tensor::WeightInfo info{.shape = shape, .form = DType::kF32, .stored_bytes = stored_bytes};
  return out.add(weight, std::move(info), [weight, shape, decode = std::move(decode)]() -> Result<tensor::Weight> {
    auto values = decode();
    if (!values.ok()) {
      Error error = std::move(values).error();
      if (error.where.find(weight) == error.where.npos) error.where = weight + ", " + error.where;
      return error;
    }
    Tensor dense = Tensor::from_f32(shape, std::move(values).value());
    TARE_TRY(check_finite(dense, weight));
    return tensor::Weight(std::move(dense));
  });
}

Status add_quantized(tensor::ModelWeights& out, const std::string& weight, const tensor::Shape& shape,
                     const tensor::QuantSpec& spec, const tensor::ActivationSpec& activation, int64_t stored_bytes,
                     std::function<Result<tensor::QuantizedTensor>()> build) {
  tensor::WeightInfo info{.shape = shape, .form = spec, .activation = activation, .stored_bytes = stored_bytes};
  return out.add(weight, std::move(info), [weight, build = std::move(build)]() -> Result<tensor::Weight> {
    auto built = build();
    if (built.ok()) return tensor::Weight(std::move(built).value());
    Error error = std::move(built).error();
    if (error.where.find(weight) == error.where.npos) {
      error.where = error.where.empty() ? weight : weight + ", " + error.where;
    }
    return error;
  });
}

}  // namespace tare::checkpoints
