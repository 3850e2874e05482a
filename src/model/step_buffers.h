#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/aligned_bytes.h"
#include "base/thread_pool.h"
#include "kernels/activations.h"
#include "model/architecture.h"
#include "model/linear.h"
#include "model/step_profile.h"

namespace tare::model {

struct Batch;

/// cos and sin of each token of the batch: [M, rotary_dim / 2] each.
struct RopeTable {
  int64_t half = 0;
  std::vector<float> cos;
  std::vector<float> sin;
};

/// The input [M, K] of a group of matrices: rows that stand in memory, or rows that are made one at a time. Where every
/// matrix of the group takes 8-bit codes, a made row goes from a register-sized scratch straight to its codes, and the
/// f32 rows never exist in memory (norm + quantization, activation + quantization).
struct RowSource {
  const float* rows = nullptr;                        // [M, k], or
  std::function<void(int64_t row, float* out)> make;  // writes k values; called by many threads
  float* buffer = nullptr;                            // where made rows go when they are wanted in memory
  int64_t k = 0;
};

/// Scratch of one forward step, made once for the largest batch, and the small operations that fill it. All arrays are
/// f32.
class StepBuffers {
 public:
  StepBuffers() = default;
  StepBuffers(const Architecture& arch, int64_t max_tokens, machine::Isa isa);

  /// Makes room for the scratch and the input form of these matrices at max_tokens tokens.
  void require(const LinearGroup& group, int64_t max_tokens, int threads);

  float* hidden() { return hidden_.data(); }        // [M, hidden] residual stream
  float* qkv() { return qkv_.data(); }              // [M, q + k + v]
  float* attention() { return attention_.data(); }  // [M, heads * head_dim]
  float* gate_up() { return gate_up_.data(); }      // [M, gate + up]
  float* branch() { return branch_.data(); }        // [M, hidden] output of attention or mlp before it is added
  const RopeTable& rope(int index) const { return ropes_[static_cast<size_t>(index)]; }

  void set_positions(const Batch& batch, const Architecture& arch, const std::vector<RopeFrequencies>& frequencies);

  /// RMSNorm of the residual stream, or the stream itself when there is no norm. `weight` must outlive its use.
  RowSource normed(const std::vector<float>& weight, const Architecture& arch);
  /// activation(gate) * up
  RowSource activated(const Architecture& arch);
  /// Final norm of chosen rows of the residual stream, packed.
  RowSource gather_norm(std::span<const int32_t> rows, const std::vector<float>& weight, const Architecture& arch);
  RowSource attended(const Architecture& arch) const { return {.rows = attention_.data(), .k = arch.q_size()}; }
  /// Makes the rows in memory, for observers and for kernels that read f32.
  const float* materialize(RowSource& source, int64_t m, ThreadPool& pool);

  /// hidden += residual_multiplier * norm(branch)
  void add_branch(const std::vector<float>& norm, const Architecture& arch, int64_t m, ThreadPool& pool);

  /// out[:, all columns of the group] = group(x); x [M, K] is brought into each form that a kernel of the group asks
  /// for, once. `product`: what the time is booked as.
  void run_group(const LinearGroup& group, RowSource x, int64_t m, float* out, int64_t out_stride, ThreadPool& pool,
                 StepOp product);

  /// Where time is booked from now on; null: nowhere.
  void set_profile(StepProfile* profile) { profile_ = profile; }
  StepProfile* profile() const { return profile_; }

  int64_t bytes() const;

 private:
  /// Codes of all rows: of `rows` [M, k], or of made ones where that is null.
  void write_codes(const kernels::ActivationStorage& storage, const float* rows, const RowSource& source,
                   ThreadPool& pool);

  AlignedFloats hidden_, normed_, qkv_, attention_, gate_up_, mlp_, branch_, transformed_;
  std::vector<RopeTable> ropes_;
  AlignedBytes workspace_;    // of the kernels
  AlignedBytes activations_;  // input of a kernel in the form it asked for
  AlignedBytes row_scratch_;  // one row for each thread
  machine::Isa isa_ = machine::Isa::kReference;
  StepProfile* profile_ = nullptr;
};

/// out [M, K] = x with all transforms applied, in order.
void apply_transforms(const std::vector<InputTransform>& transforms, const float* x, int64_t m, int64_t k, float* out);
/// RMSNorm over each of `heads` runs of `width` channels of each row, in place.
void norm_heads(float* x, int64_t m, int64_t stride, int64_t heads, int64_t width, const std::vector<float>& weight,
                const Architecture& arch, machine::Isa isa, ThreadPool& pool);
/// Turns channel pairs (j, j + half) of each head in place.
void apply_rope(float* x, int64_t m, int64_t stride, int64_t heads, int64_t head_dim, const RopeTable& table,
                machine::Isa isa, ThreadPool& pool);
/// logits_divisor, then soft cap, in place.
void finish_logits(float* logits, int64_t count, const Architecture& arch, ThreadPool& pool);

}  // namespace tare::model
