#include "kernels/cpu/avx512vnni/int_tile.h"

namespace tare::kernels {
namespace {

/// Weights are stored as w + 128: the unsigned operand as it is. The epilogue takes 128 * sum(x) back.
struct Codes8 {
  static int passes(const IntShape&) { return 1; }
  static int32_t operand_zero(const IntShape&) { return 0; }  // the zero of the codes holds it
  static const uint8_t* line_at(const IntShape&, const IntPanel& panel, int64_t block) {
    return panel.codes + block * panel.row_blocks * kExpandedBlock;
  }
  static const uint8_t* chunk(const IntShape& shape, const IntPanel& panel, int64_t first, int64_t, int, uint8_t*) {
    return line_at(shape, panel, first);
  }
  static bool start(const IntShape&, const IntPanel&, const IntTokens&, int64_t, int64_t, int, int32_t*) {
    return false;
  }
};

}  // namespace

const IntGemmOps kW8A8Avx512Vnni = {.panel = run_panel<Codes8>};

}  // namespace tare::kernels
