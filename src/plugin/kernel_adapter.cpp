#include "plugin/kernel_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "checkpoints/affine.h"
#include "plugin/affine_abi.h"

namespace tare::plugin {

using kernels::LinearKernel;
using kernels::LinearProblem;

namespace {

// Kernel rows are plain function pointers, which have no room for a context. So each plugin kernel takes a slot, and
// the functions of its row are instantiated for that slot. Filled once at start-up, by one thread.
constexpr size_t kSlots = 8;

struct Slot {
  const TareLinearKernel* c = nullptr;
  LinearKernel row;
};

std::array<Slot, kSlots>& slots() {
  static std::array<Slot, kSlots> table;
  return table;
}

// Scale * (code - zero) with one scale a row and group: what TareAffineData can say.
bool is_affine(const LinearProblem& problem) {
  const auto* spec = std::get_if<tensor::QuantSpec>(&problem.weight);
  return spec && (spec->kind == tensor::CodeKind::kUint || spec->kind == tensor::CodeKind::kInt) &&
         spec->rule == tensor::Rule::kScaleFirst && spec->group_n == 1 && spec->has_inner_scale &&
         !spec->has_outer_scale && !spec->has_min && !spec->act_order && spec->zero != tensor::ZeroKind::kFloat &&
         !spec->round_inner;
}

struct CProblem {
  explicit CProblem(const LinearProblem& problem) {
    const auto* spec = std::get_if<tensor::QuantSpec>(&problem.weight);
    weight = spec ? describe(*spec) : std::string(tensor::dtype_name(std::get<tensor::DType>(problem.weight)));
    activation = describe(problem.activation);
    c = {.struct_bytes = sizeof(TareLinearProblem),
         .n = problem.n,
         .k = problem.k,
         .weight = weight.c_str(),
         .activation = activation.c_str(),
         .affine = is_affine(problem) ? 1 : 0,
         .bits = spec ? spec->bits : 0,
         .group_size = spec ? spec->group_size : 0};
  }
  std::string weight, activation;
  TareLinearProblem c;
};

struct WeightView {
  std::span<const tensor::Weight> parts;

  static int rows(const TareLinearWeight* weight, int64_t begin, int64_t end, float* out) {
    const auto& view = *static_cast<const WeightView*>(weight->host);
    int64_t first = 0;
    for (const tensor::Weight& part : view.parts) {
      const tensor::Shape shape = tensor::shape_of(part);
      const int64_t from = std::max(begin, first) - first, to = std::min(end, first + shape[0]) - first;
      first += shape[0];
      if (from >= to) continue;
      if (const auto* quantized = std::get_if<tensor::QuantizedTensor>(&part)) {
        tensor::dequantize(*quantized, from, to, out);
      } else {
        const auto& dense = std::get<tensor::Tensor>(part);
        if (!tensor::to_f32(dense, from * shape[1], (to - from) * shape[1], out).ok()) return 1;
      }
      out += (to - from) * shape[1];
    }
    return 0;
  }

  static int affine(const TareLinearWeight* weight, TareAffineData* data) {
    const auto& view = *static_cast<const WeightView*>(weight->host);
    uint8_t* codes = data->codes;
    float* scales = data->scales;
    int16_t* zeros = data->zeros;
    for (const tensor::Weight& part : view.parts) {
      const auto* quantized = std::get_if<tensor::QuantizedTensor>(&part);
      if (!quantized) return 1;
      const auto m = checkpoints::affine_view(*quantized);
      if (!m.ok() || !m->group_of_k.empty()) return 1;
      codes = std::copy(m->codes.begin(), m->codes.end(), codes);
      scales = std::copy(m->scales.begin(), m->scales.end(), scales);
      for (int64_t row = 0; row < m->n; ++row) {
        for (int64_t g = 0; g < m->groups; ++g) *zeros++ = static_cast<int16_t>(m->zero_at(row, g));
      }
    }
    return 0;
  }
};

class PackedByPlugin : public kernels::PackedLinear {
 public:
  PackedByPlugin(const TareLinearKernel* kernel, void* packed, int64_t bytes)
      : kernel_(kernel), packed_(packed), bytes_(bytes) {}
  ~PackedByPlugin() override { kernel_->release(packed_); }
  int64_t bytes() const override { return bytes_; }
  const void* packed() const { return packed_; }

 private:
  const TareLinearKernel* kernel_;
  void* packed_;
  int64_t bytes_;
};

struct PoolView {
  ThreadPool* pool;
  static void parallel_for(const TareThreads* threads, int64_t count, int64_t grain,
                           void (*body)(void* context, int64_t begin, int64_t end), void* context) {
    static_cast<PoolView*>(threads->host)
        ->pool->parallel_for(count, std::max<int64_t>(grain, 1),
                             [&](int64_t begin, int64_t end) { body(context, begin, end); });
  }
};

kernels::Verdict can_implement(const TareLinearKernel& kernel, const LinearProblem& problem) {
  if (problem.activation.type != tensor::ActivationType::kNone) {
    return kernels::Verdict::no("plugins get inputs as they are, these are quantized: " + describe(problem.activation));
  }
  const CProblem c(problem);
  ErrorText why;
  return kernel.can_implement(&c.c, why.c()) == 1 ? kernels::Verdict::yes() : kernels::Verdict::no(why.text());
}

Result<std::unique_ptr<kernels::PackedLinear>> prepack(const TareLinearKernel& kernel, const LinearProblem& problem,
                                                       std::span<const tensor::Weight> parts,
                                                       std::span<const float> bias) {
  const CProblem c(problem);
  const WeightView view{parts};
  const TareLinearWeight weight{.struct_bytes = sizeof(TareLinearWeight),
                                .host = const_cast<WeightView*>(&view),
                                .bias = bias.empty() ? nullptr : bias.data(),
                                .rows = WeightView::rows,
                                .affine = WeightView::affine};
  int64_t bytes = 0;
  ErrorText why;
  void* packed = kernel.prepack(&c.c, &weight, &bytes, why.c());
  if (!packed) {
    return invalid_input(fmt::format("plugin kernel {} could not pack a weight", kernel.name), {.found = why.text()});
  }
  return std::unique_ptr<kernels::PackedLinear>(std::make_unique<PackedByPlugin>(&kernel, packed, bytes));
}

void run(const TareLinearKernel& kernel, const kernels::PackedLinear& packed, const kernels::Activations& x, float* out,
         int64_t out_stride, ThreadPool& pool) {
  PoolView view{&pool};
  const TareThreads threads{
      .struct_bytes = sizeof(TareThreads), .host = &view, .count = pool.size(), .parallel_for = PoolView::parallel_for};
  kernel.run(static_cast<const PackedByPlugin&>(packed).packed(), static_cast<const float*>(x.data), x.m, x.row_stride,
             out, out_stride, &threads);
}

template <size_t I>
LinearKernel row_of() {
  return {
      .can_implement = [](const LinearProblem& p,
                          const machine::Capabilities&) { return can_implement(*slots()[I].c, p); },
      .form = [](const LinearProblem&) { return kernels::ActivationForm{}; },
      .workspace_bytes = [](const LinearProblem&, int64_t, int) { return int64_t{0}; },
      .prepack = [](const LinearProblem& p, std::span<const tensor::Weight> parts, std::span<const float> bias,
                    ThreadPool&) { return prepack(*slots()[I].c, p, parts, bias); },
      .run = [](const kernels::PackedLinear& packed, const kernels::Activations& x, float* out, int64_t out_stride,
                std::span<std::byte>, ThreadPool& pool) { run(*slots()[I].c, packed, x, out, out_stride, pool); },
  };
}

template <size_t... I>
std::array<LinearKernel, kSlots> all_rows(std::index_sequence<I...>) {
  return {row_of<I>()...};
}

}  // namespace

Result<const LinearKernel*> adapt_kernel(const TareLinearKernel& kernel) {
  for (size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots()[i];
    if (slot.c == &kernel) return &slot.row;  // loaded before, by a test
    if (slot.c) continue;
    slot.c = &kernel;
    slot.row = all_rows(std::make_index_sequence<kSlots>())[i];
    slot.row.name = kernel.name;
    slot.row.op = kernel.op;
    return &slot.row;
  }
  return unsupported("too many plugin kernels", {.where = kernel.name, .expected = fmt::format("at most {}", kSlots)});
}

}  // namespace tare::plugin
