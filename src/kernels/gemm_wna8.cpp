#include "kernels/gemm_wna8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "kernels/group_gemm.h"
#include "kernels/huge_array.h"
#include "kernels/int_linear.h"
#include "kernels/int_pack.h"
#include "kernels/int_schedule.h"
#include "numerics/mini_float.h"

namespace tare::kernels {
namespace {

using tensor::CodeKind;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::QuantSpec;
using tensor::Rule;
using tensor::ZeroKind;

/// Columns of one packed group. Longer groups are cut and repeat their numbers: sums of 256 products of u8 and s8 stay
/// below 2^24, so that f32 holds them. 0: a size that the layout does not take.
int64_t packed_group(int64_t group_size, int64_t k) {
  if (group_size >= k && !(group_size <= 256 && (group_size == 16 || group_size % 32 == 0))) return 256;
  if (group_size <= 256) return group_size == 16 || group_size % 32 == 0 ? group_size : 0;
  for (const int64_t part : {256, 128, 64, 32, 16}) {
    if (group_size % part == 0) return part;
  }
  return 0;
}

Verdict can_implement(const LinearProblem& problem, const machine::Capabilities&) {
  const auto* spec = std::get_if<QuantSpec>(&problem.weight);
  if (!spec) return Verdict::no("weights are not quantized");
  if (spec->kind != CodeKind::kUint && spec->kind != CodeKind::kInt) {
    return Verdict::no(fmt::format("codes are {}, not integers", describe(*spec)));
  }
  if (const Verdict verdict = integer_activations(problem); !verdict.ok) return verdict;
  if (!problem.activation.symmetric || problem.activation.zero != 0) {
    return Verdict::no("activations with a zero point under float scales per group");
  }
  if (spec->rule != Rule::kScaleFirst) return Verdict::no("integer or nested inner scales");
  const int64_t group = packed_group(spec->group_size, problem.k);
  if (group == 0) return Verdict::no(fmt::format("group size {} is neither 16 nor a multiple of 32", spec->group_size));
  if (spec->has_outer_scale && spec->outer_group_size < problem.k &&
      (spec->act_order || spec->outer_group_size % group != 0)) {
    return Verdict::no("outer scales that cut the groups");
  }
  return Verdict::yes();
}

/// Upper bound of packed columns, from the problem alone. Only act-order can need more than K: each of its groups is
/// padded by itself.
int64_t most_columns(const LinearProblem& problem) {
  const auto& spec = std::get<QuantSpec>(problem.weight);
  const int64_t whole = round_up(problem.k, kColumnBlock);
  if (!spec.act_order) return whole;
  return 2 * whole + 2 * round_up(packed_group(spec.group_size, problem.k), kColumnBlock);
}

class PackedGroups final : public PackedLinear {
 public:
  int64_t bytes() const override {
    return storage.bytes() + static_cast<int64_t>(panels.size() * sizeof(GroupPanel) + source.size() * sizeof(int32_t));
  }

  GroupShape shape;
  HugeArray storage;
  std::vector<GroupPanel> panels;
  std::vector<int64_t> first_row;
  std::vector<int32_t> source;  // packed column -> column of x, -1 = padding; empty: the same
};

/// Which columns stand where, and one column that speaks for each packed group (-1: padding only).
struct Columns {
  std::vector<int32_t> source;
  std::vector<int32_t> speaker;
  bool moved = false;
};

Columns arrange_columns(const QuantizedFields& f, int64_t group) {
  Columns out;
  const auto append = [&](std::span<const int32_t> columns) {
    for (size_t at = 0; at < columns.size(); at += static_cast<size_t>(group)) {
      const size_t count = std::min(columns.size() - at, static_cast<size_t>(group));
      out.speaker.push_back(columns[at]);
      out.source.insert(out.source.end(), columns.begin() + static_cast<int64_t>(at),
                        columns.begin() + static_cast<int64_t>(at + count));
      out.source.resize(out.source.size() + static_cast<size_t>(group) - count, -1);
    }
  };
  if (f.group_of_k) {
    std::vector<std::vector<int32_t>> groups;
    for (int64_t k = 0; k < f.k; ++k) {
      const auto g = static_cast<size_t>((*f.group_of_k)[static_cast<size_t>(f.group_of_k_begin + k)]);
      if (g >= groups.size()) groups.resize(g + 1);
      groups[g].push_back(static_cast<int32_t>(k));
    }
    for (const auto& columns : groups) append(columns);
  } else {
    std::vector<int32_t> all(static_cast<size_t>(f.k));
    for (size_t k = 0; k < all.size(); ++k) all[k] = static_cast<int32_t>(k);
    append(all);
  }
  // Whole column blocks; trailing padding of the last group beyond them is not stored.
  if (!f.group_of_k) out.source.resize(static_cast<size_t>(round_up(f.k, kColumnBlock)), -1);
  out.source.resize(static_cast<size_t>(round_up(static_cast<int64_t>(out.source.size()), kColumnBlock)), -1);
  const int64_t groups = ceil_div(static_cast<int64_t>(out.source.size()), group);
  out.speaker.resize(static_cast<size_t>(groups), -1);
  out.moved = static_cast<int64_t>(out.source.size()) != round_up(f.k, kColumnBlock);
  for (size_t i = 0; i < out.source.size(); ++i) {
    out.moved = out.moved || (out.source[i] >= 0 && out.source[i] != static_cast<int32_t>(i));
  }
  return out;
}

bool byte_scales(GridType type) {
  return type == GridType::kU4 || type == GridType::kU6 || type == GridType::kU8 || type == GridType::kS6 ||
         type == GridType::kS8;
}
FieldType byte_field(GridType type) {
  return type == GridType::kS6 || type == GridType::kS8 ? FieldType::kS8 : FieldType::kU8;
}
FieldType float_field(GridType type) {
  return type == GridType::kF16 ? FieldType::kF16 : type == GridType::kBF16 ? FieldType::kBF16 : FieldType::kF32;
}

/// Whether scales (and minima) stay small integers under outer scales, as in GGUF's super-blocks.
bool keeps_outer(const QuantizedFields& f) {
  if (!f.A || !f.a || f.A_divides || f.group_of_k || !byte_scales(f.a->type) || f.A->origin_k != 0) return false;
  if (!f.b) return true;
  if (!byte_scales(f.b->type)) return false;
  return f.B_is_A || (f.B && f.B->tile_k == f.A->tile_k && f.B->origin_k == 0);
}

/// How the numbers of all parts are stored. Every part has the problem's form; grids may still differ in type, and then
/// the wider choice is taken.
void choose_fields(std::span<const QuantizedFields* const> parts, int64_t group, GroupShape& shape) {
  const QuantizedFields& first = *parts[0];
  const auto all = [&](auto predicate) {
    return std::all_of(parts.begin(), parts.end(), [&](const QuantizedFields* f) { return predicate(*f); });
  };
  const auto shift = static_cast<float>(first.kind == CodeKind::kInt ? 1 << (first.bits - 1) : 0);
  const bool outer = all([&](const QuantizedFields& f) {
    return keeps_outer(f) && f.A->tile_k == first.A->tile_k && byte_field(f.a->type) == byte_field(first.a->type) &&
           (!f.b || byte_field(f.b->type) == byte_field(first.b->type));
  });
  if (outer) {
    shape.outer_groups = std::max<int64_t>(1, std::min(first.A->tile_k, shape.column_blocks * kColumnBlock) / group);
    if (first.A->tile_k >= first.k) shape.outer_groups = shape.groups;
    shape.scale = byte_field(first.a->type);
    shape.min = first.b ? byte_field(first.b->type) : FieldType::kNone;
  } else {
    const bool plain = all([&](const QuantizedFields& f) { return f.a && !f.A && f.a->type == first.a->type; });
    shape.scale = plain ? float_field(first.a->type) : FieldType::kF32;
    const bool plain_min =
        first.b && all([&](const QuantizedFields& f) { return !f.B && !f.B_is_A && f.b->type == first.b->type; });
    shape.min = !first.b ? FieldType::kNone : plain_min ? float_field(first.b->type) : FieldType::kF32;
  }
  if (std::holds_alternative<Grid>(first.z)) {
    const bool small = all([&](const QuantizedFields& f) {
      const Grid& z = std::get<Grid>(f.z);
      if (!is_integer(z.type)) return false;
      for (int64_t i = 0; i < z.tiles_n; ++i) {
        for (int64_t j = 0; j < z.tiles_k; ++j) {
          const float value = z.value(i * z.stride + j) + shift;
          if (value < 0 || value > 255) return false;
        }
      }
      return true;
    });
    const bool half =
        shift == 0 && all([](const QuantizedFields& f) { return std::get<Grid>(f.z).type == GridType::kF16; });
    shape.zero = small ? FieldType::kU8 : half ? FieldType::kF16 : FieldType::kF32;
  } else {
    const float* constant = std::get_if<float>(&first.z);
    shape.zero_constant = shift + (constant ? *constant : 0.0f);
    shape.zero = shape.zero_constant != 0 ? FieldType::kConstant : FieldType::kNone;
  }
}

void store_field(FieldType type, float value, uint8_t* to) {
  uint16_t half;
  switch (type) {
    case FieldType::kU8:
      *to = static_cast<uint8_t>(value);
      break;
    case FieldType::kS8:
      *to = static_cast<uint8_t>(static_cast<int8_t>(value));
      break;
    case FieldType::kF16:
      half = numerics::f32_to_f16(value);
      std::memcpy(to, &half, 2);
      break;
    case FieldType::kBF16:
      std::memcpy(&half, reinterpret_cast<const uint8_t*>(&value) + 2, 2);  // exact: the value came from bf16
      std::memcpy(to, &half, 2);
      break;
    case FieldType::kF32:
      std::memcpy(to, &value, 4);
      break;
    case FieldType::kNone:
    case FieldType::kConstant:
      break;
  }
}

/// Row r of `panel`, global arrays behind it: codes in packed order to `codes`, numbers of all groups to the records.
struct RowPacker {
  const GroupShape& shape;
  const Columns& columns;
  std::vector<uint8_t> natural;

  void pack(const QuantizedTensor& tensor, int64_t row, const GroupPanel& panel, int64_t in_panel, uint8_t* codes) {
    const QuantizedFields& f = tensor.fields();
    natural.resize(static_cast<size_t>(f.k));
    unpack_row(f, row, natural.data());
    for (size_t i = 0; i < columns.source.size(); ++i) {
      const int32_t from = columns.source[i];
      codes[i] = from < 0 ? uint8_t{0} : natural[static_cast<size_t>(from)];
    }
    const int64_t rows = panel.row_blocks * kRowBlock;
    const auto shift = static_cast<float>(f.kind == CodeKind::kInt ? 1 << (f.bits - 1) : 0);
    const auto at = [&](const Grid& grid, int64_t k) {
      return grid.value(grid.row_index(row) + tensor.group(grid, k));
    };
    const auto outer_at = [&](const Grid& grid, int64_t k) {
      return grid.value(grid.row_index(row) + grid.column_index(k));
    };
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int64_t k = columns.speaker[static_cast<size_t>(g)];
      if (k < 0) continue;  // the memory is zero
      const float a = f.a ? at(*f.a, k) : 1.0f;
      const float outer = f.A ? outer_at(*f.A, k) : 1.0f;
      float b = f.b ? at(*f.b, k) : 0.0f;
      const float outer_b = f.B_is_A ? outer : f.B ? outer_at(*f.B, k) : 1.0f;
      float scale = a;
      if (shape.outer_groups != 0) {
        const int64_t index = g / shape.outer_groups * rows + in_panel;
        const_cast<float*>(panel.outer_scale)[index] = outer;
        if (panel.outer_min) const_cast<float*>(panel.outer_min)[index] = outer_b;
      } else {
        if (f.A) scale = f.A_divides ? a / outer : outer * a;
        b = outer_b * b;
      }
      uint8_t* numbers = record(panel, g);
      store_field(shape.scale, scale, numbers + in_panel * field_bytes(shape.scale));
      numbers += rows * field_bytes(shape.scale);
      if (const Grid* z = std::get_if<Grid>(&f.z)) {
        store_field(shape.zero, at(*z, k) + shift, numbers + in_panel * field_bytes(shape.zero));
      }
      numbers += rows * field_bytes(shape.zero);
      store_field(shape.min, b, numbers + in_panel * field_bytes(shape.min));
    }
  }

  uint8_t* record(const GroupPanel& panel, int64_t group) const {
    const int64_t block = group * shape.group_halves / 2 / shape.record_blocks * shape.record_blocks;
    uint8_t* at = block_at(panel, block) - record_bytes(shape, panel.row_blocks);
    return shape.record_groups == 2 ? at + group % 2 * group_number_bytes(shape, panel.row_blocks) : at;
  }
  uint8_t* block_at(const GroupPanel& panel, int64_t block) const {
    return const_cast<uint8_t*>(panel.codes) + block * panel.row_blocks * shape.bits * kLineBytes +
           (block / shape.record_blocks + 1) * record_bytes(shape, panel.row_blocks);
  }
};

Status check_grids(const QuantizedFields& f, int64_t group) {
  const auto whole = [&](const Grid* grid) {
    return !grid || f.group_of_k || grid->tile_k >= f.k || (grid->tile_k % group == 0 && grid->origin_k % group == 0);
  };
  const Grid* z = std::get_if<Grid>(&f.z);
  if (whole(f.a ? &*f.a : nullptr) && whole(z) && whole(f.b ? &*f.b : nullptr) && whole(f.B ? &*f.B : nullptr))
    return {};
  return unsupported("scales, zero points and minima on different groups of columns",
                     {.hint = "use floating-point activations for this matrix"});
}

Result<std::unique_ptr<PackedLinear>> prepack(const LinearProblem& problem, std::span<const tensor::Weight> parts,
                                              std::span<const float> bias, ThreadPool& pool) {
  const auto& spec = std::get<QuantSpec>(problem.weight);
  const int64_t group = packed_group(spec.group_size, problem.k);
  std::vector<const QuantizedFields*> fields;
  int64_t rows_found = 0;
  for (const tensor::Weight& part : parts) {
    const auto* quantized = std::get_if<QuantizedTensor>(&part);
    if (!quantized || quantized->k() != problem.k || (*quantized)->bits != spec.bits ||
        (*quantized)->kind != spec.kind || (*quantized)->rule != spec.rule ||
        (*quantized)->b.has_value() != spec.has_min ||
        std::holds_alternative<Grid>((*quantized)->z) !=
            (spec.zero == ZeroKind::kInteger || spec.zero == ZeroKind::kFloat)) {
      return internal_error("prepack: a part is not of the problem's form", {.expected = describe(spec)});
    }
    if (quantized->n() == 0) continue;
    rows_found += quantized->n();
    fields.push_back(&quantized->fields());
    TARE_TRY(check_grids(quantized->fields(), group));
  }
  if (rows_found != problem.n || (!bias.empty() && static_cast<int64_t>(bias.size()) != problem.n)) {
    return internal_error("prepack: rows of parts or bias", {.expected = fmt::format("{}", problem.n),
                                                             .found = fmt::format("{}, {}", rows_found, bias.size())});
  }
  auto packed = std::make_unique<PackedGroups>();
  if (fields.empty()) return std::unique_ptr<PackedLinear>(std::move(packed));

  Columns columns = arrange_columns(*fields[0], group);
  for (size_t i = 1; i < fields.size(); ++i) {
    if (spec.act_order && arrange_columns(*fields[i], group).source != columns.source) {
      return unsupported("parts of one matrix with different column orders", {.hint = "do not fuse them"});
    }
  }
  const auto column_count = static_cast<int64_t>(columns.source.size());
  if (column_count > most_columns(problem)) {
    return unsupported("groups of columns too uneven for the packed layout",
                       {.expected = fmt::format("at most {} columns with padding", most_columns(problem)),
                        .found = fmt::format("{}", column_count)});
  }
  GroupShape& shape = packed->shape;
  shape = {.column_blocks = column_count / kColumnBlock, .group_halves = group / 16, .k = problem.k, .bits = spec.bits};
  shape.groups = static_cast<int64_t>(columns.speaker.size());
  shape.record_blocks = std::max<int64_t>(1, group / kColumnBlock);
  shape.record_groups = group == 16 ? 2 : 1;
  shape.chunk_blocks = kChunkBlocks / shape.record_blocks * shape.record_blocks;
  choose_fields(fields, group, shape);

  int64_t code_bytes = 0;
  const std::vector<PanelPlace> places = place_panels(
      problem.n, pool.size(),
      [&](int64_t row_blocks) {
        return row_blocks * shape.column_blocks * shape.bits * kLineBytes +
               ceil_div(shape.column_blocks, shape.record_blocks) * record_bytes(shape, row_blocks);
      },
      code_bytes);
  const int64_t rows = round_up(problem.n, kRowBlock);
  const int64_t outer = shape.outer_groups != 0 ? ceil_div(shape.groups, shape.outer_groups) : 0;
  const auto carve = [&](uint8_t* base, GroupPanel& whole) {
    Carver carver(base);
    whole.codes = carver.take<uint8_t>(code_bytes);
    if (outer != 0) whole.outer_scale = carver.take<float>(outer * rows);
    if (outer != 0 && shape.min != FieldType::kNone) whole.outer_min = carver.take<float>(outer * rows);
    if (!bias.empty()) whole.bias = carver.take<float>(rows);
    return carver.used();
  };
  GroupPanel whole;
  TARE_ASSIGN(packed->storage, HugeArray::make(carve(nullptr, whole)));
  whole = {};
  carve(packed->storage.data(), whole);
  if (!bias.empty()) std::memcpy(const_cast<float*>(whole.bias), bias.data(), bias.size_bytes());
  for (const PanelPlace& place : places) {
    const int64_t row = place.block * kRowBlock;
    GroupPanel panel{.codes = whole.codes + place.offset,
                     .row_blocks = static_cast<int32_t>(place.row_blocks),
                     .rows = static_cast<int32_t>(std::min(problem.n - row, place.row_blocks * kRowBlock))};
    if (whole.outer_scale) panel.outer_scale = whole.outer_scale + row * outer;
    if (whole.outer_min) panel.outer_min = whole.outer_min + row * outer;
    if (whole.bias) panel.bias = whole.bias + row;
    packed->panels.push_back(panel);
    packed->first_row.push_back(row);
  }

  pool.parallel_for(static_cast<int64_t>(packed->panels.size()), 1, [&](int64_t begin, int64_t end) {
    RowPacker packer{shape, columns, {}};
    std::vector<uint8_t> codes(static_cast<size_t>(kRowBlock * column_count));
    for (int64_t i = begin; i < end; ++i) {
      const GroupPanel& panel = packed->panels[static_cast<size_t>(i)];
      for (int64_t r = 0; r < panel.row_blocks; ++r) {
        std::fill(codes.begin(), codes.end(), uint8_t{0});
        for (int64_t row = 0; row < kRowBlock; ++row) {
          const int64_t in_panel = r * kRowBlock + row;
          int64_t local = packed->first_row[static_cast<size_t>(i)] + in_panel;
          if (local >= problem.n) break;
          size_t part = 0;
          while (local >= std::get<QuantizedTensor>(parts[part]).n()) {
            local -= std::get<QuantizedTensor>(parts[part++]).n();
          }
          packer.pack(std::get<QuantizedTensor>(parts[part]), local, panel, in_panel,
                      codes.data() + row * column_count);
        }
        const int64_t block_bytes = shape.bits * int64_t{kLineBytes};
        for (int64_t b = 0; b < shape.column_blocks; b += shape.record_blocks) {
          pack_row_block(codes.data() + b * kColumnBlock, column_count,
                         std::min(shape.record_blocks, shape.column_blocks - b), shape.bits,
                         packer.block_at(panel, b) + r * block_bytes, panel.row_blocks * block_bytes);
        }
      }
    }
  });
  if (columns.moved) packed->source = std::move(columns.source);
  return std::unique_ptr<PackedLinear>(std::move(packed));
}

using OpsOf = const GroupGemmOps& (*)(int32_t bits);

template <OpsOf Ops>
int64_t workspace_bytes(const LinearProblem& problem, int64_t m, int threads) {
  const auto& spec = std::get<QuantSpec>(problem.weight);
  const int64_t columns = most_columns(problem);
  const int64_t group = packed_group(spec.group_size, problem.k);
  int64_t bytes = round_up(m * ceil_div(columns, group) * 4, kLineBytes);
  if (spec.act_order) bytes += round_up(m * columns, kLineBytes);
  if (Ops(spec.bits).widen) bytes += round_up(m * columns * 2, kLineBytes);
  return bytes + threads * thread_bytes(m) + kLineBytes;
}

template <OpsOf Ops>
void run(const PackedLinear& packed_linear, const Activations& x, float* out, int64_t out_stride,
         std::span<std::byte> workspace, ThreadPool& pool) {
  const auto& packed = static_cast<const PackedGroups&>(packed_linear);
  if (x.m == 0 || packed.panels.empty()) return;
  const GroupShape& shape = packed.shape;
  const GroupGemmOps& ops = Ops(shape.bits);
  const int64_t columns = shape.column_blocks * kColumnBlock;
  Carver carver(first_line(workspace));
  auto* sums = carver.take<float>(x.m * shape.groups);
  int8_t* gathered = packed.source.empty() ? nullptr : carver.take<int8_t>(x.m * columns);
  int16_t* x16 = ops.widen ? carver.take<int16_t>(x.m * columns) : nullptr;
  uint8_t* scratch = carver.take<uint8_t>(pool.size() * thread_bytes(x.m));

  const auto* codes = static_cast<const int8_t*>(x.data);
  GroupTokens tokens{.x = gathered ? gathered : codes,
                     .x16 = x16,
                     .sums = sums,
                     .stride = gathered ? columns : x.row_stride,
                     .scale = x.scale};
  pool.parallel_for(x.m, 4, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; gathered && m < end; ++m) {
      for (int64_t i = 0; i < columns; ++i) {
        const int32_t from = packed.source[static_cast<size_t>(i)];
        gathered[m * columns + i] = from < 0 ? int8_t{0} : codes[m * x.row_stride + from];
      }
    }
    ops.sums(shape, tokens.x, tokens.stride, begin, end, sums);
    if (x16) ops.widen(shape, tokens.x, tokens.stride, begin, end, x16);
  });
  for_each_unit(pool, x.m, static_cast<int64_t>(packed.panels.size()),
                [&](int thread, int64_t panel, int64_t begin, int64_t end) {
                  const auto index = static_cast<size_t>(panel);
                  GroupTokens range = tokens;
                  range.begin = begin;
                  range.end = end;
                  ops.panel(shape, packed.panels[index], range, out + packed.first_row[index], out_stride,
                            scratch + thread * thread_bytes(x.m));
                });
}

}  // namespace

const LinearKernel kGemmWNa8Avx512Vnni = {.name = "gemm_wna8_avx512vnni",
                                          .op = "gemm_wna8",
                                          .isa = machine::Isa::kAvx512Vnni,
                                          .can_implement = can_implement,
                                          .form = integer_activation_form,
                                          .workspace_bytes = workspace_bytes<wna8_ops_avx512vnni>,
                                          .prepack = prepack,
                                          .run = run<wna8_ops_avx512vnni>};

const LinearKernel kGemmWNa8Avx2 = {.name = "gemm_wna8_avx2",
                                    .op = "gemm_wna8",
                                    .isa = machine::Isa::kAvx2,
                                    .can_implement = can_implement,
                                    .form = integer_activation_form,
                                    .workspace_bytes = workspace_bytes<wna8_ops_avx2>,
                                    .prepack = prepack,
                                    .run = run<wna8_ops_avx2>};

}  // namespace tare::kernels
