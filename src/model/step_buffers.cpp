#include "model/step_buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "kernels/cpu/tasks.h"
#include "kernels/elementwise.h"
#include "model/transformer.h"

namespace tare::model {

namespace {

constexpr int64_t kRowGrain = 4;  // rows that a thread takes at a time

AlignedFloats floats(int64_t rows, int64_t columns) {
  return AlignedFloats(static_cast<size_t>(rows * columns));
}

void rms_norm_row(const float* x, const std::vector<float>& weight, int64_t n, const Architecture& arch,
                  machine::Isa isa, float* out) {
  kernels::elementwise(isa).rms_norm(x, weight.data(), n, arch.norm_eps, arch.norm_plus_one ? 1.0f : 0.0f, out);
}

void activate_row(MlpActivation kind, const float* gate, const float* up, int64_t n, machine::Isa isa, float* out) {
  switch (kind) {
    case MlpActivation::kSilu:
      return kernels::elementwise(isa).silu_mul(gate, up, n, out);
    case MlpActivation::kGeluTanh:
      return kernels::elementwise(isa).gelu_tanh_mul(gate, up, n, out);
    case MlpActivation::kGelu:
      for (int64_t k = 0; k < n; ++k) {
        out[k] = 0.5f * gate[k] * (1.0f + std::erf(gate[k] * 0.70710678118654752f)) * up[k];
      }
  }
}

}  // namespace

StepBuffers::StepBuffers(const Architecture& arch, int64_t max_tokens, machine::Isa isa)
    : hidden_(floats(max_tokens, arch.hidden)),
      normed_(floats(max_tokens, arch.hidden)),
      qkv_(floats(max_tokens, arch.q_size() + 2 * arch.kv_size())),
      attention_(floats(max_tokens, arch.q_size())),
      gate_up_(floats(max_tokens, 2 * arch.intermediate)),
      mlp_(floats(max_tokens, arch.intermediate)),
      branch_(floats(max_tokens, arch.hidden)),
      ropes_(arch.ropes.size()),
      isa_(isa) {}

void StepBuffers::require(const LinearGroup& group, int64_t max_tokens, int threads) {
  size_t workspace = 0;
  size_t activations = 0;
  size_t transformed = 0;
  size_t rows = 0;
  for (const BoundLinear& linear : group) {
    workspace = std::max(workspace, static_cast<size_t>(linear.workspace_bytes(max_tokens, threads)));
    activations =
        std::max(activations, static_cast<size_t>(kernels::activation_bytes(linear.form(), max_tokens, linear.k())));
    rows = std::max(rows, static_cast<size_t>(round_up(linear.k() * 4, 64) * threads));
    if (!linear.input().empty()) transformed = std::max(transformed, static_cast<size_t>(max_tokens * linear.k()));
  }
  if (workspace > workspace_.size()) workspace_ = AlignedBytes(workspace);
  if (activations > activations_.size()) activations_ = AlignedBytes(activations);
  if (rows > row_scratch_.size()) row_scratch_ = AlignedBytes(rows);
  if (transformed > transformed_.size()) transformed_ = AlignedFloats(transformed);
}

void StepBuffers::set_positions(const Batch& batch, const Architecture& arch,
                                const std::vector<RopeFrequencies>& frequencies) {
  (void)arch;
  for (size_t r = 0; r < ropes_.size(); ++r) {
    const RopeFrequencies& f = frequencies[r];
    RopeTable& table = ropes_[r];
    table.half = static_cast<int64_t>(f.inv_freq.size());
    table.cos.resize(batch.tokens.size() * f.inv_freq.size());
    table.sin.resize(table.cos.size());
    size_t at = 0;
    for (const SequenceSlice& slice : batch.sequences) {
      for (int64_t i = 0; i < slice.count; ++i) {
        for (const float inv : f.inv_freq) {
          // The angle is rounded to f32 as the models were trained; its cosine is then exact to f32.
          const auto angle = static_cast<double>(static_cast<float>(slice.first_position + i) * inv);
          table.cos[at] = static_cast<float>(std::cos(angle)) * f.attention_scaling;
          table.sin[at++] = static_cast<float>(std::sin(angle)) * f.attention_scaling;
        }
      }
    }
  }
}

RowSource StepBuffers::normed(const std::vector<float>& weight, const Architecture& arch) {
  if (weight.empty()) return {.rows = hidden_.data(), .k = arch.hidden};
  return {.make =
              [this, &weight, &arch](int64_t row, float* out) {
                rms_norm_row(hidden_.data() + row * arch.hidden, weight, arch.hidden, arch, isa_, out);
              },
          .buffer = normed_.data(),
          .k = arch.hidden};
}

RowSource StepBuffers::activated(const Architecture& arch) {
  return {.make =
              [this, &arch](int64_t row, float* out) {
                const float* gate = gate_up_.data() + row * 2 * arch.intermediate;
                activate_row(arch.activation, gate, gate + arch.intermediate, arch.intermediate, isa_, out);
              },
          .buffer = mlp_.data(),
          .k = arch.intermediate};
}

RowSource StepBuffers::gather_norm(std::span<const int32_t> rows, const std::vector<float>& weight,
                                   const Architecture& arch) {
  return {.make =
              [this, rows, &weight, &arch](int64_t row, float* out) {
                const int64_t from = rows[static_cast<size_t>(row)];
                rms_norm_row(hidden_.data() + from * arch.hidden, weight, arch.hidden, arch, isa_, out);
              },
          .buffer = normed_.data(),
          .k = arch.hidden};
}

const float* StepBuffers::materialize(RowSource& source, int64_t m, ThreadPool& pool) {
  if (!source.rows) {
    pool.parallel_for(m, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) source.make(i, source.buffer + i * source.k);
    });
    source.rows = source.buffer;
  }
  return source.rows;
}

void StepBuffers::add_branch(const std::vector<float>& norm, const Architecture& arch, int64_t m, ThreadPool& pool) {
  const int64_t n = arch.hidden;
  pool.parallel_for(m, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* branch = branch_.data() + i * n;
      if (!norm.empty()) rms_norm_row(branch, norm, n, arch, isa_, branch);
      kernels::elementwise(isa_).add_scaled(branch, arch.residual_multiplier, n, hidden_.data() + i * n);
    }
  });
}

void StepBuffers::run_group(const LinearGroup& group, RowSource x, int64_t m, float* out, int64_t out_stride,
                            ThreadPool& pool, StepOp product) {
  // Unless all matrices share one set of codes, the rows are wanted more than once.
  const bool fused = std::all_of(group.begin(), group.end(), [&](const BoundLinear& linear) {
    return linear.input().empty() && linear.form().dtype == tensor::DType::kI8 && linear.form() == group[0].form();
  });
  if (!fused) {
    const StepTimer timer(profile_, input_of(product));
    materialize(x, m, pool);
  }
  kernels::Activations made;
  bool reusable = false;  // `made` holds x itself, not a transformed copy
  for (const BoundLinear& linear : group) {
    const kernels::ActivationForm form = linear.form();
    const bool plain = linear.input().empty();
    if (!(plain && reusable && made.form == form)) {
      const StepTimer timer(plain && form.dtype == tensor::DType::kF32 ? nullptr : profile_, input_of(product));
      const float* input = x.rows;
      if (!plain) {
        apply_transforms(linear.input(), x.rows, m, linear.k(), transformed_.data());
        input = transformed_.data();
      }
      if (form.dtype == tensor::DType::kF32) {
        made = kernels::f32_activations(input, m, linear.k(), linear.k());
      } else {
        const auto storage = kernels::carve_activations(form, m, linear.k(), activations_.bytes());
        write_codes(storage, input, x, pool);
        made = storage.view();
      }
      reusable = plain;
    }
    {
      const StepTimer timer(profile_, product, linear.record().stored_bytes);
      linear.run(made, out, out_stride, workspace_.bytes(), pool);
    }
    out += linear.n();
  }
}

void StepBuffers::write_codes(const kernels::ActivationStorage& storage, const float* rows, const RowSource& source,
                              ThreadPool& pool) {
  const int64_t k = storage.k;
  kernels::for_each_task(pool, ceil_div(storage.m, kRowGrain), [&](int64_t task, int thread) {
    const int64_t begin = task * kRowGrain;
    const int64_t end = std::min(storage.m, begin + kRowGrain);
    if (rows) return kernels::write_activations(storage, rows, k, begin, end, isa_);
    auto* scratch = reinterpret_cast<float*>(row_scratch_.data() + thread * round_up(k * 4, 64));
    for (int64_t row = begin; row < end; ++row) {
      source.make(row, scratch);
      kernels::write_activations(storage, scratch, 0, row, row + 1, isa_);
    }
  });
}

void apply_transforms(const std::vector<InputTransform>& transforms, const float* x, int64_t m, int64_t k, float* out) {
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t i = 0; i < m; ++i) {
    std::copy_n(x + i * k, k, row.data());
    for (const InputTransform& t : transforms) {
      for (size_t c = 0; c < t.multiply.size(); ++c) row[c] *= t.multiply[c];
      if (!t.gather.empty()) {
        std::vector<float> moved(row.size());
        for (size_t c = 0; c < row.size(); ++c) moved[c] = row[static_cast<size_t>(t.gather[c])];
        row.swap(moved);
      }
    }
    std::copy_n(row.data(), k, out + i * k);
  }
}

int64_t StepBuffers::bytes() const {
  size_t count = 0;
  for (const auto* v : {&hidden_, &normed_, &qkv_, &attention_, &gate_up_, &mlp_, &branch_, &transformed_})
    count += v->size();
  return static_cast<int64_t>(count * sizeof(float) + workspace_.size() + activations_.size() + row_scratch_.size());
}

void norm_heads(float* x, int64_t m, int64_t stride, int64_t heads, int64_t width, const std::vector<float>& weight,
                const Architecture& arch, machine::Isa isa, ThreadPool& pool) {
  pool.parallel_for(m, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = 0; h < heads; ++h) {
        float* head = x + i * stride + h * width;
        rms_norm_row(head, weight, width, arch, isa, head);
      }
    }
  });
}

void apply_rope(float* x, int64_t m, int64_t stride, int64_t heads, int64_t head_dim, const RopeTable& table,
                machine::Isa isa, ThreadPool& pool) {
  const kernels::Elementwise& ops = kernels::elementwise(isa);
  const int64_t half = table.half;
  pool.parallel_for(m, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* cos = table.cos.data() + i * half;
      const float* sin = table.sin.data() + i * half;
      for (int64_t h = 0; h < heads; ++h) ops.rope(x + i * stride + h * head_dim, cos, sin, half);
    }
  });
}

void finish_logits(float* logits, int64_t count, const Architecture& arch, ThreadPool& pool) {
  if (arch.logits_divisor == 1 && arch.logit_soft_cap == 0) return;
  pool.parallel_for(count, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      logits[i] /= arch.logits_divisor;
      if (arch.logit_soft_cap > 0) logits[i] = arch.logit_soft_cap * std::tanh(logits[i] / arch.logit_soft_cap);
    }
  });
}

}  // namespace tare::model
