#include "kernels/elementwise.h"

#include "kernels/cpu/avx512vnni/lanes.h"
// The bodies need Lanes.
#include "kernels/cpu/elementwise_body.h"

namespace tare::kernels {

const Elementwise kElementwiseAvx512Vnni = {.silu_mul = silu_mul_body<Lanes>};

}  // namespace tare::kernels
