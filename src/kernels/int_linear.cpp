#include "kernels/int_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "kernels/huge_array.h"
#include "kernels/int_pack.h"
#include "kernels/int_schedule.h"

namespace tare::kernels {

using tensor::Grid;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;
using tensor::QuantSpec;
using tensor::Rule;

namespace {

/// Columns that share one sum of activations, in column blocks. Groups longer than 128 are cut so that the sums stay in
/// s16 and pairs of them in one lane; the cut parts repeat their scales.
int64_t inner_group_blocks(const QuantSpec& spec, int64_t k) {
  if (spec.rule != Rule::kIntegerFirst) return 0;
  if (spec.group_size >= k) return 4;
  const int64_t blocks = spec.group_size / kColumnBlock;
  for (const int64_t part : {4, 3, 2}) {
    if (blocks % part == 0) return part;
  }
  return 1;
}

IntShape shape_of(const QuantSpec& spec, int64_t k) {
  IntShape shape{.column_blocks = ceil_div(k, kColumnBlock), .chunk_blocks = kChunkBlocks, .k = k};
  shape.group_blocks = inner_group_blocks(spec, k);
  if (shape.group_blocks > 0) {
    shape.groups = ceil_div(shape.column_blocks, shape.group_blocks);
    shape.group_pairs = ceil_div(shape.groups, 2);
    shape.chunk_blocks = kChunkBlocks / shape.group_blocks * shape.group_blocks;  // whole groups
  }
  return shape;
}

class PackedInt final : public PackedLinear {
 public:
  int64_t bytes() const override { return storage.bytes() + static_cast<int64_t>(panels.size() * sizeof(IntPanel)); }

  IntShape shape;
  HugeArray storage;
  std::vector<IntPanel> panels;
  std::vector<int64_t> first_row;
};

struct Arrays {
  uint8_t* codes;
  float* scale;
  float* min;
  float* bias;
  int32_t* zero;
  int32_t* weight_sum;

  Arrays(Carver& carver, const IntShape& shape, int64_t code_bytes, int64_t rows, const QuantSpec& spec, bool has_bias,
         bool has_zero) {
    codes = carver.take<uint8_t>(code_bytes);
    scale = carver.take<float>(rows);
    min = shape.groups == 0 && spec.has_min ? carver.take<float>(rows) : nullptr;
    bias = has_bias ? carver.take<float>(rows) : nullptr;
    zero = has_zero ? carver.take<int32_t>(rows) : nullptr;
    weight_sum = carver.take<int32_t>(rows);
  }
};

float row_value(const std::optional<Grid>& grid, int64_t row) {
  return grid ? grid->value(grid->row_index(row)) : 1.0f;
}

/// Zero of the unsigned codes: what the form says, plus the shift of signed codes.
int32_t code_zero(const QuantizedFields& f, int64_t row) {
  int32_t zero = f.kind == tensor::CodeKind::kInt ? 1 << (f.bits - 1) : 0;
  if (const float* constant = std::get_if<float>(&f.z)) zero += static_cast<int32_t>(*constant);
  if (const Grid* grid = std::get_if<Grid>(&f.z)) zero += grid->integer(grid->row_index(row));
  return zero;
}

bool has_zero(const QuantSpec& spec) {
  return spec.kind == tensor::CodeKind::kInt || spec.zero == tensor::ZeroKind::kInteger ||
         (spec.zero == tensor::ZeroKind::kConstant && spec.zero_constant != 0);
}

/// Fills the arrays of row blocks; what it finds out on the way comes back in atomics, since blocks are packed by many
/// threads.
struct Packer {
  const LinearProblem& problem;
  const QuantSpec& spec;
  std::span<const tensor::Weight> parts;
  std::span<const float> bias;
  const Arrays& arrays;
  PackedInt& packed;
  std::atomic<bool> wide{false};
  std::atomic<bool> leaves_s8{false};
  std::atomic<bool> overflow{false};

  void pack_panel(size_t index) {
    const IntShape& shape = packed.shape;
    const IntPanel& panel = packed.panels[index];
    const int64_t columns = shape.column_blocks * kColumnBlock;
    std::vector<uint8_t> rows(static_cast<size_t>(kRowBlock * columns));
    for (int64_t r = 0; r < panel.row_blocks; ++r) {
      std::fill(rows.begin(), rows.end(), uint8_t{0});
      for (int64_t i = 0; i < kRowBlock; ++i) {
        const int64_t row = packed.first_row[index] + r * kRowBlock + i;
        if (row < problem.n) pack_row(panel, r * kRowBlock + i, row, rows.data() + i * columns);
      }
      const int64_t block_bytes = static_cast<int64_t>(spec.bits) * kLineBytes;
      const int64_t run = shape.groups > 0 ? shape.group_blocks : shape.column_blocks;
      for (int64_t first = 0; first < shape.column_blocks; first += run) {
        pack_row_block(rows.data() + first * kColumnBlock, columns, std::min(run, shape.column_blocks - first),
                       spec.bits, block_at(panel, first) + r * block_bytes, panel.row_blocks * block_bytes);
      }
    }
  }

  /// First line of a column block; the metadata of its group stand before the first block of the group.
  uint8_t* block_at(const IntPanel& panel, int64_t block) const {
    const IntShape& shape = packed.shape;
    int64_t offset = block * panel.row_blocks * spec.bits * kLineBytes;
    if (shape.groups > 0) offset += (block / shape.group_blocks + 1) * group_bytes(panel.row_blocks);
    return const_cast<uint8_t*>(panel.codes) + offset;
  }

  void pack_row(const IntPanel& panel, int64_t in_panel, int64_t row, uint8_t* codes) {
    const IntShape& shape = packed.shape;
    size_t part = 0;
    int64_t local = row;
    while (local >= std::get<QuantizedTensor>(parts[part]).n()) local -= std::get<QuantizedTensor>(parts[part++]).n();
    const QuantizedFields& f = std::get<QuantizedTensor>(parts[part]).fields();
    unpack_row(f, local, codes);

    int64_t sum = 0;
    int64_t magnitude = 0;  // sum of |w|: bounds the accumulator
    if (f.rule == Rule::kIntegerFirst) {
      const float outer = row_value(f.A, local);
      arrays.scale[row] = f.A_divides ? 1.0f / outer : outer;
      for (int64_t g = 0, k = 0; k < f.k; ++g) {
        const int64_t end = std::min(f.k, k + shape.group_blocks * kColumnBlock);
        const int32_t a = f.a ? f.a->integer(f.a->row_index(local) + f.a->column_index(k)) : 1;
        const int32_t b = f.b ? f.b->integer(f.b->row_index(local) + f.b->column_index(k)) : 0;
        uint8_t* group = block_at(panel, g * shape.group_blocks) - group_bytes(panel.row_blocks) + in_panel;
        group[0] = static_cast<uint8_t>(a);
        group[panel.row_blocks * kRowBlock] = static_cast<uint8_t>(b);
        int64_t code_sum = 0;
        int32_t low = 15, high = 0;
        for (; k < end; ++k) {
          code_sum += codes[k];
          low = std::min<int32_t>(low, codes[k]);
          high = std::max<int32_t>(high, codes[k]);
        }
        if (a * low + b < -128 || a * high + b > 127) leaves_s8.store(true, std::memory_order_relaxed);
        const int64_t count = end - (g * shape.group_blocks * kColumnBlock);
        sum += a * code_sum + b * count;
        magnitude += a * code_sum + std::abs(b) * count;
        if (a * ((1 << f.bits) - 1) > 255) wide.store(true, std::memory_order_relaxed);
      }
    } else {
      const float inner = row_value(f.a, local);
      const float outer = row_value(f.A, local);
      arrays.scale[row] = !f.A ? inner : f.A_divides ? inner / outer : outer * inner;
      if (arrays.min && f.b) {
        float minimum = row_value(f.b, local);
        if (f.B_is_A) minimum = outer * minimum;
        if (f.B) minimum = row_value(f.B, local) * minimum;
        arrays.min[row] = minimum;
      }
      const int32_t zero = code_zero(f, local);
      if (arrays.zero) arrays.zero[row] = zero;
      for (int64_t k = 0; k < f.k; ++k) {
        const int32_t w = codes[k] - zero;
        sum += w;
        magnitude += std::abs(w);
      }
    }
    if (arrays.bias) arrays.bias[row] = bias[static_cast<size_t>(row)];
    arrays.weight_sum[row] = static_cast<int32_t>(sum);
    // |q - zx| is at most 255 with a zero, 128 without.
    const int64_t largest = problem.activation.zero != 0 || !problem.activation.symmetric ? 255 : 128;
    if (magnitude * largest > INT32_MAX) overflow.store(true, std::memory_order_relaxed);
  }
};

Status check_parts(const LinearProblem& problem, const QuantSpec& spec, std::span<const tensor::Weight> parts,
                   std::span<const float> bias) {
  int64_t rows = 0;
  for (const tensor::Weight& part : parts) {
    const auto* quantized = std::get_if<QuantizedTensor>(&part);
    if (!quantized) return internal_error("prepack: a part is not quantized");
    if (quantized->k() != problem.k || (*quantized)->bits != spec.bits || (*quantized)->kind != spec.kind ||
        (*quantized)->rule != spec.rule || (*quantized)->group_of_k) {
      return internal_error("prepack: a part is not of the problem's form",
                            {.expected = describe(spec), .found = describe(quantized->spec())});
    }
    rows += quantized->n();
  }
  if (rows != problem.n || (!bias.empty() && static_cast<int64_t>(bias.size()) != problem.n)) {
    return internal_error("prepack: rows of parts or bias", {.expected = fmt::format("{}", problem.n),
                                                             .found = fmt::format("{}, {}", rows, bias.size())});
  }
  return {};
}

int64_t prepared_bytes(const IntShape& shape, int64_t m, const IntGemmOps& ops) {
  int64_t bytes = 0;
  if (ops.group_sums && shape.group_pairs > 0) bytes += round_up(m * shape.group_pairs * 4, kLineBytes);
  if (ops.widen) bytes += round_up(m * shape.column_blocks * kColumnBlock * 2, kLineBytes);
  return bytes;
}

}  // namespace

Verdict integer_activations(const LinearProblem& problem) {
  const tensor::ActivationSpec& spec = problem.activation;
  if (spec.type == tensor::ActivationType::kNone) return Verdict::no("activations stay in floating point");
  if (spec.type != tensor::ActivationType::kS8) {
    return Verdict::no(fmt::format("activations are {}, not s8", describe(spec)));
  }
  if (spec.granularity == tensor::ActivationGranularity::kTokenGroup) {
    return Verdict::no("activation scales per group of columns");
  }
  if (spec.outlier_threshold != 0) return Verdict::no("activation outliers stay in floating point");
  return Verdict::yes();
}

ActivationForm integer_activation_form(const LinearProblem& problem) {
  return {.dtype = tensor::DType::kI8, .layout = ActivationLayout::kRowMajor, .quantizer = problem.activation};
}

int64_t int_workspace_bytes(const LinearProblem& problem, int64_t m, int threads, const IntGemmOps& ops) {
  const IntShape shape = shape_of(std::get<QuantSpec>(problem.weight), problem.k);
  return prepared_bytes(shape, m, ops) + threads * thread_bytes(m) + kLineBytes;
}

Result<std::unique_ptr<PackedLinear>> int_prepack(const LinearProblem& problem, std::span<const tensor::Weight> parts,
                                                  std::span<const float> bias, ThreadPool& pool) {
  const auto& spec = std::get<QuantSpec>(problem.weight);
  TARE_TRY(check_parts(problem, spec, parts, bias));
  auto packed = std::make_unique<PackedInt>();
  packed->shape = shape_of(spec, problem.k);
  const IntShape& shape = packed->shape;
  const int64_t row_blocks = ceil_div(problem.n, kRowBlock);
  const int64_t rows = row_blocks * kRowBlock;

  int64_t code_bytes = 0;
  const std::vector<PanelPlace> places = place_panels(
      problem.n, pool.size(),
      [&](int64_t size) {
        return size * shape.column_blocks * spec.bits * kLineBytes + shape.groups * group_bytes(size);
      },
      code_bytes);

  Carver measure(nullptr);
  Arrays(measure, shape, code_bytes, rows, spec, !bias.empty(), has_zero(spec));
  TARE_ASSIGN(packed->storage, HugeArray::make(measure.used()));
  Carver carver(packed->storage.data());
  const Arrays arrays(carver, shape, code_bytes, rows, spec, !bias.empty(), has_zero(spec));

  for (const PanelPlace& place : places) {
    const int64_t row = place.block * kRowBlock;
    IntPanel panel{.row_blocks = static_cast<int32_t>(place.row_blocks),
                   .rows = static_cast<int32_t>(std::min(problem.n - row, place.row_blocks * kRowBlock))};
    panel.codes = arrays.codes + place.offset;
    panel.scale = arrays.scale + row;
    if (arrays.min) panel.min = arrays.min + row;
    if (arrays.bias) panel.bias = arrays.bias + row;
    if (arrays.zero) panel.zero = arrays.zero + row;
    panel.weight_sum = arrays.weight_sum + row;
    packed->panels.push_back(panel);
    packed->first_row.push_back(row);
  }

  Packer packer{problem, spec, parts, bias, arrays, *packed};
  pool.parallel_for(static_cast<int64_t>(packed->panels.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) packer.pack_panel(static_cast<size_t>(i));
  });
  if (packer.overflow) {
    return unsupported("the integer sums of a row can leave 32 bits",
                       {.where = fmt::format("[{}, {}] {}", problem.n, problem.k, describe(spec)),
                        .hint = "use floating-point activations for this matrix"});
  }
  packed->shape.wide_scales = packer.wide;
  packed->shape.fits_s8 = !packer.leaves_s8 && !packer.wide;
  return std::unique_ptr<PackedLinear>(std::move(packed));
}

void int_run(const PackedLinear& packed_linear, const Activations& x, float* out, int64_t out_stride,
             std::span<std::byte> workspace, ThreadPool& pool, const IntGemmOps& ops) {
  const auto& packed = static_cast<const PackedInt&>(packed_linear);
  const IntShape& shape = packed.shape;
  if (x.m == 0 || packed.panels.empty()) return;

  uint8_t* free = first_line(workspace);
  IntTokens tokens{.x = static_cast<const int8_t*>(x.data),
                   .stride = x.row_stride,
                   .scale = x.scale,
                   .zero = x.zero,
                   .sum = x.row_sum};
  int16_t* sums = nullptr;
  int16_t* x16 = nullptr;
  if (ops.group_sums && shape.group_pairs > 0 && !(ops.sums_unless_s8 && shape.fits_s8)) {
    sums = reinterpret_cast<int16_t*>(free);
    free += round_up(x.m * shape.group_pairs * 4, kLineBytes);
  }
  if (ops.widen) {
    x16 = reinterpret_cast<int16_t*>(free);
    free += round_up(x.m * shape.column_blocks * kColumnBlock * 2, kLineBytes);
  }
  tokens.group_sums = sums;
  tokens.x16 = x16;
  if (sums || x16) {
    pool.parallel_for(x.m, 8, [&](int64_t begin, int64_t end) {
      if (sums) ops.group_sums(shape, tokens.x, tokens.stride, begin, end, sums);
      if (x16) ops.widen(shape, tokens.x, tokens.stride, begin, end, x16);
    });
  }

  const auto panels = static_cast<int64_t>(packed.panels.size());
  const int64_t scratch_bytes = thread_bytes(x.m);
  for_each_unit(pool, x.m, panels, [&](int thread, int64_t panel, int64_t begin, int64_t end) {
    const auto index = static_cast<size_t>(panel);
    IntTokens range = tokens;
    range.begin = begin;
    range.end = end;
    ops.panel(shape, packed.panels[index], range, out + packed.first_row[index], out_stride,
              free + thread * scratch_bytes);
  });
}

}  // namespace tare::kernels
