#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/linear.h"
#include "model/activation_policy.h"
#include "tensor/quantized_tensor.h"

namespace tare::model {

/// A change of the input of a matrix that could not be folded into the weights, applied before quantization, in order:
/// x[k] *= multiply[k] (AWQ act scales) or x'[k] = x[gather[k]] (Atom, static act-order).
struct InputTransform {
  std::vector<float> multiply;  // [K] or empty
  std::vector<int32_t> gather;  // [K] or empty
};

/// Where a matrix stands in the model, for reports, recipes and reasons.
struct LinearRole {
  int64_t layer = -1;  // -1: outside the layers (head)
  std::string kind;    // "q_proj", "down_proj", "lm_head"
};

/// A matrix as the model means it, before a kernel is chosen: row blocks that share one input.
struct Linear {
  std::string name;                   // of the first part, without ".weight"
  std::vector<tensor::Weight> parts;  // stacked along N
  std::vector<float> bias;            // [N] or empty
  std::vector<InputTransform> input;
  tensor::ActivationSpec activation;
  LinearRole role;
};

/// Settings of binding that come from the command line.
struct BindOptions {
  kernels::LinearRegistry registry;
  machine::Capabilities caps;
  std::string forced_kernel;                                                                // --kernel
  ActivationPolicy activations;                                                             // --activations
  std::shared_ptr<kernels::SelfTests> self_tests = std::make_shared<kernels::SelfTests>();  // of one process, shared
};

/// What was chosen for one matrix, for explain, reports and benchmark records.
struct LinearRecord {
  std::string name;
  int64_t n = 0;
  int64_t k = 0;
  std::string weight;      // describe(QuantSpec) or dtype
  std::string activation;  // describe(ActivationSpec)
  std::string kernel;
  std::vector<kernels::Rejection> rejected;
  int64_t packed_bytes = 0;
  int64_t stored_bytes = 0;
};

/// A matrix with its kernel and its prepacked weight.
class BoundLinear {
 public:
  /// Chooses a kernel and prepacks; the parts of `linear` are released afterwards.
  /// Errors: no kernel, or the forced one refuses; what prepack says.
  static Result<BoundLinear> bind(Linear linear, const BindOptions& options, ThreadPool& pool);

  int64_t n() const { return problem_.n; }
  int64_t k() const { return problem_.k; }
  const std::vector<InputTransform>& input() const { return input_; }
  kernels::ActivationForm form() const { return kernel_->form(problem_); }
  const LinearRecord& record() const { return record_; }

  int64_t workspace_bytes(int64_t m, int threads) const { return kernel_->workspace_bytes(problem_, m, threads); }
  void run(const kernels::Activations& x, float* out, int64_t out_stride, std::span<std::byte> workspace,
           ThreadPool& pool) const {
    kernel_->run(*packed_, x, out, out_stride, workspace, pool);
  }

 private:
  kernels::LinearProblem problem_;
  const kernels::LinearKernel* kernel_ = nullptr;
  std::shared_ptr<const kernels::PackedLinear> packed_;
  std::vector<InputTransform> input_;
  LinearRecord record_;
};

/// Matrices that read the same input and write neighbouring columns of one output: q, k, v; gate, up. Equal neighbours
/// are fused into one BoundLinear at bind time; unlike ones stay apart.
using LinearGroup = std::vector<BoundLinear>;
Result<LinearGroup> bind_group(std::vector<Linear> linears, const BindOptions& options, ThreadPool& pool);
int64_t output_size(const LinearGroup& group);

}  // namespace tare::model
