#include "model/linear_plan.h"

#include "model/weight_plan.h"

namespace tare::model {

Result<std::vector<PlannedLinear>> plan_linears(const tensor::ModelWeights& weights, const Architecture& arch,
                                                const ActivationPolicy& policy) {
  std::vector<PlannedLinear> out;
  const auto add = [&](const std::vector<LayerLinear>& group) -> Status {
    const size_t first = out.size();
    for (const LayerLinear& linear : group) {
      const tensor::WeightInfo* info = weights.find(linear.name + ".weight");
      if (!info) return invalid_input("weight is missing", {.where = linear.name + ".weight"});
      const kernels::LinearProblem problem{.n = linear.n,
                                           .k = linear.k,
                                           .weight = info->form,
                                           .activation = runtime_activation(info->form, info->activation, policy),
                                           .bias = linear.bias};
      if (out.size() > first && out.back().problem.weight == problem.weight &&
          out.back().problem.activation == problem.activation && out.back().problem.bias == problem.bias) {
        out.back().problem.n += linear.n;
        out.back().name += "+" + linear.kind;
        out.back().stored_bytes += info->stored_bytes;
      } else {
        out.push_back({linear.name, linear.name + ".weight", problem, info->stored_bytes});
      }
    }
    return {};
  };
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const LayerLinears linears = layer_linears(arch, layer);
    for (const auto* group : {&linears.qkv, &linears.o, &linears.gate_up, &linears.down}) TARE_TRY(add(*group));
  }
  TARE_ASSIGN(const bool tied, head_is_tied(weights, arch));
  const std::string head = tied ? kEmbedding : kHead;
  const tensor::WeightInfo* info = weights.find(head);
  if (!info) return invalid_input("weight is missing", {.where = head});
  out.push_back({"lm_head",
                 head,
                 {.n = arch.vocab_size,
                  .k = arch.hidden,
                  .weight = info->form,
                  .activation = runtime_activation(info->form, info->activation, policy)},
                 info->stored_bytes});
  return out;
}

}  // namespace tare::model
