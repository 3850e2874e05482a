#include "kernels/cpu/avx512vnni/gemm_lanes.h"
#include "kernels/cpu/float_gemm.h"
// After gemm_lanes.h, whose lanes it is written over.
#include "kernels/cpu/float_gemm_impl.h"

namespace tare::kernels {

extern const FloatGemmOps kFloatGemmAvx512 = {
    .decode_in_registers = decode_in_registers,
    .decode_to_panel = decode_to_panel,
    .sum_groups = sum_groups,
};

}  // namespace tare::kernels
