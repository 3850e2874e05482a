#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "checkpoints/hqq.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::QuantizedFields;
using tensor::Tensor;

namespace {

// How many row blocks share an element, and of how many bytes it is (hqq.h).
struct Stack {
  int bits;
  std::string_view name, view;
  int stacked, element;
};
constexpr Stack kStacks[] = {{8, "8bit_u8", "torch.uint8", 1, 1},
                             {4, "4bit_u8", "torch.uint8", 2, 1},
                             {3, "3bit_32", "torch.int32", 10, 4},
                             {2, "2bit_u8", "torch.uint8", 4, 1},
                             {1, "1bit_u8", "torch.uint8", 8, 1}};

bool whole(const Grid& grid, const QuantizedFields& f) {
  return grid.type == tensor::GridType::kF32 && grid.tile_n == 1 && grid.origin_n == 0 && grid.origin_k == 0 &&
         grid.stride == f.k / grid.tile_k;
}

// Row block i of the groups [N * K / g, g] stands at the i-th highest place of each element.
std::vector<std::byte> stack_codes(const tensor::QuantizedTensor& weight, int64_t group, const Stack& stack) {
  const int64_t per_row = weight.k() / group;
  const int64_t rows = weight.n() * per_row;
  const int64_t stacked_rows = ceil_div(rows, stack.stacked);
  std::vector<std::byte> out(static_cast<size_t>(stacked_rows * group * stack.element));
  const int width = stack.bits;
  for (int64_t row = 0; row < rows; ++row) {
    const int shift = width * static_cast<int>(stack.stacked - 1 - row / stacked_rows);
    std::byte* to = out.data() + row % stacked_rows * group * stack.element;
    for (int64_t i = 0; i < group; ++i, to += stack.element) {
      uint32_t word = 0;
      std::memcpy(&word, to, static_cast<size_t>(stack.element));
      word |= weight.code(row / per_row, row % per_row * group + i) << shift;
      std::memcpy(to, &word, static_cast<size_t>(stack.element));
    }
  }
  return out;
}

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses) {
  const QuantizedFields& f = matrix.weight->fields();
  const std::string where = matrix.name();
  if (is_embedding(matrix.module)) return store_dense(matrix, "a quantized embedding table", losses);
  TARE_TRY(lose_activation(matrix, losses));
  const auto* stack =
      std::find_if(std::begin(kStacks), std::end(kStacks), [&](const Stack& s) { return s.bits == f.bits; });
  const auto* zero = std::get_if<Grid>(&f.z);
  if (f.kind != tensor::CodeKind::kUint || stack == std::end(kStacks) || f.rule != tensor::Rule::kScaleFirst || !f.a ||
      !zero || f.A || f.b || f.group_of_k) {
    return losses.refuse(where, fmt::format("{}: HQQ has unsigned codes with a float zero and a scale a group",
                                            describe(matrix.weight->spec())));
  }
  const int64_t group = f.a->tile_k;
  if (f.k % group != 0 || zero->tile_k != group || !whole(*f.a, f) || !whole(*zero, f)) {
    return losses.refuse(
        where, fmt::format("{}: scales and zeros of whole groups in f32 are written", describe(matrix.weight->spec())));
  }
  const int64_t groups = f.n * (f.k / group);
  if (stack->element == 1 && groups % stack->stacked != 0) {
    return losses.refuse(where, fmt::format("{} groups: {} share a byte", groups, stack->stacked));
  }
  const auto bytes = static_cast<size_t>(groups) * 4;
  const auto number = [](int64_t value) {
    return Tensor::make(DType::kI32, {}, Buffer::own(std::vector<int32_t>{static_cast<int32_t>(value)}));
  };
  const auto flag = [](bool value) {
    return Tensor::make(DType::kU8, {}, Buffer::own(std::vector<uint8_t>{static_cast<uint8_t>(value ? 1 : 0)}));
  };
  const auto text = [](std::string_view value) {
    return Tensor::make(DType::kU8, {static_cast<int64_t>(value.size())},
                        Buffer::own(std::vector<char>(value.begin(), value.end())));
  };
  StoredMatrix out;
  TARE_TRY(
      out.add(matrix, "W_q",
              Tensor::make(stack->element == 4 ? DType::kI32 : DType::kU8, {ceil_div(groups, stack->stacked), group},
                           Buffer::own(stack_codes(*matrix.weight, group, *stack)))));
  TARE_TRY(out.add(matrix, "scale", Tensor::make(DType::kF32, {groups, 1}, f.a->values.slice(0, bytes))));
  TARE_TRY(out.add(matrix, "zero", Tensor::make(DType::kF32, {groups, 1}, zero->values.slice(0, bytes))));
  TARE_TRY(out.add(matrix, "shape", Tensor::make(DType::kI64, {2}, Buffer::own(std::vector<int64_t>{f.n, f.k}))));
  TARE_TRY(out.add(matrix, "nbits", number(f.bits)));
  TARE_TRY(out.add(matrix, "group_size", number(group)));
  TARE_TRY(out.add(matrix, "axis", number(1)));
  TARE_TRY(out.add(matrix, "packing", text(stack->name)));
  TARE_TRY(out.add(matrix, "unpack_view_dtype", text(stack->view)));
  for (const std::string_view suffix :
       {"channel_wise", "optimize", "round_zero", "encoded_state_dict", "stores_quant_config"}) {
    TARE_TRY(out.add(matrix, suffix, flag(true)));
  }
  for (const std::string_view suffix : {"view_as_float", "quant_scale", "quant_zero", "offload_meta"}) {
    TARE_TRY(out.add(matrix, suffix, flag(false)));
  }
  out.scheme = {{"nbits", f.bits}, {"group_size", group}};
  return out;
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   const WriteRequest&) {
  TARE_ASSIGN(const json::object first, only_scheme(modules, "hqq", "write it as tare"));
  json::array skipped;
  for (const std::string& name : dense) {
    if (!is_embedding(name) && name != "lm_head") skipped.emplace_back(name);
  }
  skipped.emplace_back("lm_head");
  json::object weights{{"nbits", first.at("nbits")},
                       {"group_size", first.at("group_size")},
                       {"axis", 1},
                       {"channel_wise", true},
                       {"optimize", true},
                       {"round_zero", true},
                       {"view_as_float", false}};
  return json::object{{"quant_method", "hqq"},
                      {"quant_config", json::object{{"weight_quant_params", std::move(weights)},
                                                    {"scale_quant_params", nullptr},
                                                    {"zero_quant_params", nullptr},
                                                    {"offload_meta", false}}},
                      {"skip_modules", std::move(skipped)}};
}

}  // namespace

CheckpointWriter hqq_writer() {
  return {.name = "hqq",
          .writes = "8, 4, 3, 2 and 1 bit with float zeros, groups along the row",
          .store = store,
          .configuration = configuration};
}

}  // namespace tare::checkpoints
