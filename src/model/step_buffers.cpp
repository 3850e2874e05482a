#include "model/step_buffers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/activations.h"
#include "kernels/elementwise.h"
#include "model/transformer.h"

namespace tare::model {

namespace {

std::vector<float> floats(int64_t rows, int64_t columns) {
  return std::vector<float>(static_cast<size_t>(rows * columns));
}

void rms_norm_row(const float* x, const float* weight, int64_t n, const Architecture& arch, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const float scale = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(n)) + arch.norm_eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * (arch.norm_plus_one ? 1.0f + weight[i] : weight[i]);
}

float activate_one(MlpActivation kind, float x) {
  switch (kind) {
    case MlpActivation::kSilu:
      return x / (1.0f + std::exp(-x));
    case MlpActivation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    case MlpActivation::kGeluTanh:
      return 0.5f * x * (1.0f + std::tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
  }
  return x;
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
  for (const BoundLinear& linear : group) {
    workspace = std::max(workspace, static_cast<size_t>(linear.workspace_bytes(max_tokens, threads)));
    activations =
        std::max(activations, static_cast<size_t>(kernels::activation_bytes(linear.form(), max_tokens, linear.k())));
    if (!linear.input().empty()) transformed = std::max(transformed, static_cast<size_t>(max_tokens * linear.k()));
  }
  if (workspace > workspace_.size()) workspace_ = AlignedBytes(workspace);
  if (activations > activations_.size()) activations_ = AlignedBytes(activations);
  if (transformed > transformed_.size()) transformed_.resize(transformed);
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

const float* StepBuffers::norm_in(const float* h, const std::vector<float>& weight, const Architecture& arch, int64_t m,
                                  ThreadPool& pool) {
  if (weight.empty()) return h;
  pool.parallel_for(m, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rms_norm_row(h + i * arch.hidden, weight.data(), arch.hidden, arch, normed_.data() + i * arch.hidden);
    }
  });
  return normed_.data();
}

void StepBuffers::add_branch(const std::vector<float>& norm, const Architecture& arch, int64_t m, ThreadPool& pool) {
  const int64_t n = arch.hidden;
  pool.parallel_for(m, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* branch = branch_.data() + i * n;
      float* h = hidden_.data() + i * n;
      if (!norm.empty()) rms_norm_row(branch, norm.data(), n, arch, branch);
      for (int64_t k = 0; k < n; ++k) h[k] += arch.residual_multiplier * branch[k];
    }
  });
}

void StepBuffers::activate(const Architecture& arch, int64_t m, ThreadPool& pool) {
  const int64_t n = arch.intermediate;
  pool.parallel_for(m, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* gate = gate_up_.data() + i * 2 * n;
      const float* up = gate + n;
      float* out = mlp_.data() + i * n;
      if (arch.activation == MlpActivation::kSilu) {
        kernels::elementwise(isa_).silu_mul(gate, up, n, out);
        continue;
      }
      for (int64_t k = 0; k < n; ++k) out[k] = activate_one(arch.activation, gate[k]) * up[k];
    }
  });
}

const float* StepBuffers::gather_norm(std::span<const int32_t> rows, const std::vector<float>& weight,
                                      const Architecture& arch, ThreadPool& pool) {
  const int64_t n = arch.hidden;
  pool.parallel_for(static_cast<int64_t>(rows.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rms_norm_row(hidden_.data() + rows[static_cast<size_t>(i)] * n, weight.data(), n, arch, normed_.data() + i * n);
    }
  });
  return normed_.data();
}

void StepBuffers::run_group(const LinearGroup& group, const float* x, int64_t m, float* out, int64_t out_stride,
                            ThreadPool& pool) {
  kernels::Activations made;
  bool reusable = false;  // `made` holds x itself, not a transformed copy
  for (const BoundLinear& linear : group) {
    const kernels::ActivationForm form = linear.form();
    const bool plain = linear.input().empty();
    if (!(plain && reusable && made.form == form)) {
      const float* input = x;
      if (!plain) {
        apply_transforms(linear.input(), x, m, linear.k(), transformed_.data());
        input = transformed_.data();
      }
      if (form.dtype == tensor::DType::kF32) {
        made = kernels::f32_activations(input, m, linear.k(), linear.k());
      } else {
        const auto storage = kernels::carve_activations(form, m, linear.k(), activations_.bytes());
        pool.parallel_for(m, 4, [&](int64_t begin, int64_t end) {
          kernels::write_activations(storage, input, linear.k(), begin, end, isa_);
        });
        made = storage.view();
      }
      reusable = plain;
    }
    linear.run(made, out, out_stride, workspace_.bytes(), pool);
    out += linear.n();
  }
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
  return static_cast<int64_t>(count * sizeof(float) + workspace_.bytes().size() + activations_.bytes().size());
}

void norm_heads(float* x, int64_t m, int64_t stride, int64_t heads, int64_t width, const std::vector<float>& weight,
                const Architecture& arch) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + i * stride + h * width;
      rms_norm_row(head, weight.data(), width, arch, head);
    }
  }
}

void apply_rope(float* x, int64_t m, int64_t stride, int64_t heads, int64_t head_dim, const RopeTable& table,
                ThreadPool& pool) {
  const int64_t half = table.half;
  pool.parallel_for(m, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* cos = table.cos.data() + i * half;
      const float* sin = table.sin.data() + i * half;
      for (int64_t h = 0; h < heads; ++h) {
        float* head = x + i * stride + h * head_dim;
        for (int64_t j = 0; j < half; ++j) {
          const float a = head[j];
          const float b = head[j + half];
          head[j] = a * cos[j] - b * sin[j];
          head[j + half] = b * cos[j] + a * sin[j];
        }
      }
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
