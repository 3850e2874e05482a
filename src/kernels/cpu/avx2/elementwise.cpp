#include "kernels/elementwise.h"

#include "kernels/cpu/avx2/lanes.h"
// The bodies need Lanes.
#include "kernels/cpu/elementwise_body.h"

namespace tare::kernels {

const Elementwise kElementwiseAvx2 = kElementwiseBodies<Lanes>;

}  // namespace tare::kernels
