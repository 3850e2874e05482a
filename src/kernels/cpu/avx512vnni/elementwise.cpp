#include "kernels/elementwise.h"

#include "kernels/cpu/avx512vnni/lanes.h"
// The bodies need Lanes.
#include "kernels/cpu/elementwise_body.h"

namespace tare::kernels {

const Elementwise kElementwiseAvx512Vnni = kElementwiseBodies<Lanes>;

}  // namespace tare::kernels
