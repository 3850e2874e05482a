#pragma once

namespace tare::kernels {

/// 2^f for |f| <= 1/2 as a polynomial, lowest power first: minimax in relative error (7.5e-8), then the constant set to
/// 1 so that 2^0 is exact (1.5e-7). Every instruction set evaluates it by Horner's rule with fused steps.
inline constexpr float kExp2[] = {1.0f,           0x1.62e428p-1f, 0x1.ebf918p-3f,
                                  0x1.c6b6e4p-5f, 0x1.3d0c52p-7f, 0x1.5c08e6p-10f};

}  // namespace tare::kernels
