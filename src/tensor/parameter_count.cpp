#include "tensor/parameter_count.h"

namespace tare::tensor {

Result<int64_t> parameter_count(const ModelWeights& weights) {
  int64_t parameters = 0;
  for (const std::string& name : weights.names()) {
    TARE_ASSIGN(const int64_t count, element_count(weights.find(name)->shape));
    parameters += count;
  }
  return parameters;
}

}  // namespace tare::tensor
