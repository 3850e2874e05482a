#pragma once

#include <cstdint>

#include "machine/isa.h"

/// Ceilings of the integer products, measured with dependence-free loops that touch no memory, and the read bandwidth.
namespace tare::bench {

/// Runs `rounds` rounds of the best exact u4 x s8 (s8 = false) or s8 x s8 sequence of the level; returns the
/// multiply-adds.
double run_int_peak(machine::Isa isa, bool s8, int64_t rounds);

/// Reads `bytes` bytes with the widest loads of the level; returns something that depends on them.
uint64_t read_bytes(machine::Isa isa, const uint8_t* data, int64_t bytes);

}  // namespace tare::bench
