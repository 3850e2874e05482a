#include "model/linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/release.h"

namespace tare::model {

namespace {

using tensor::DType;
using tensor::QuantizedTensor;
using tensor::QuantSpec;
using tensor::Tensor;
using tensor::Weight;

std::variant<DType, QuantSpec> form_of(const Weight& weight) {
  if (const Tensor* dense = std::get_if<Tensor>(&weight)) return dense->dtype;
  return std::get<QuantizedTensor>(weight).spec();
}

std::string describe_form(const std::variant<DType, QuantSpec>& form) {
  if (const DType* dtype = std::get_if<DType>(&form)) return std::string(tensor::dtype_name(*dtype));
  return tensor::describe(std::get<QuantSpec>(form));
}

int64_t stored_bytes(const Weight& weight) {
  if (const Tensor* dense = std::get_if<Tensor>(&weight)) return static_cast<int64_t>(dense->data.size());
  return std::get<QuantizedTensor>(weight)->origin.bytes;
}

// A scale that covers a whole tensor covers the rows of one part only, so parts of unlike size differ in group_n
// without differing in meaning for a kernel that reads scales per part.
bool fusible(const Linear& a, const Linear& b) {
  return form_of(a.parts.front()) == form_of(b.parts.front()) && a.activation == b.activation && a.input.empty() &&
         b.input.empty() && a.bias.empty() == b.bias.empty();
}

}  // namespace

Result<BoundLinear> BoundLinear::bind(Linear linear, const BindOptions& options, ThreadPool& pool) {
  BoundLinear bound;
  bound.problem_.weight = form_of(linear.parts.front());
  bound.problem_.activation = runtime_activation(bound.problem_.weight, linear.activation, options.activations);
  bound.problem_.bias = !linear.bias.empty();
  bound.record_.name = linear.name;
  for (const Weight& part : linear.parts) {
    const tensor::Shape shape = tensor::shape_of(part);
    bound.problem_.n += shape[0];
    bound.problem_.k = shape[1];
    bound.record_.stored_bytes += stored_bytes(part);
  }
  TARE_ASSIGN(kernels::Selection selection, kernels::select_linear(options.registry, bound.problem_, options.caps,
                                                                   options.forced_kernel, *options.self_tests));
  bound.kernel_ = selection.kernel;
  TARE_ASSIGN(std::unique_ptr<kernels::PackedLinear> packed,
              selection.kernel->prepack(bound.problem_, linear.parts, linear.bias, pool));
  for (const Weight& part : linear.parts) release_pages(part);
  bound.packed_ = std::move(packed);
  bound.input_ = std::move(linear.input);
  bound.record_.n = bound.problem_.n;
  bound.record_.k = bound.problem_.k;
  bound.record_.weight = describe_form(bound.problem_.weight);
  bound.record_.activation = tensor::describe(bound.problem_.activation);
  bound.record_.kernel = std::string(selection.kernel->name);
  bound.record_.rejected = std::move(selection.rejected);
  bound.record_.packed_bytes = bound.packed_->bytes();
  return bound;
}

Result<LinearGroup> bind_group(std::vector<Linear> linears, const BindOptions& options, ThreadPool& pool) {
  LinearGroup group;
  for (size_t i = 0; i < linears.size();) {
    Linear fused = std::move(linears[i++]);
    while (i < linears.size() && fusible(fused, linears[i])) {
      std::move(linears[i].parts.begin(), linears[i].parts.end(), std::back_inserter(fused.parts));
      fused.bias.insert(fused.bias.end(), linears[i].bias.begin(), linears[i].bias.end());
      fused.name += "+" + linears[i].role.kind;
      ++i;
    }
    TARE_ASSIGN(BoundLinear bound, BoundLinear::bind(std::move(fused), options, pool));
    group.push_back(std::move(bound));
  }
  return group;
}

int64_t output_size(const LinearGroup& group) {
  int64_t n = 0;
  for (const BoundLinear& linear : group) n += linear.n();
  return n;
}

}  // namespace tare::model
