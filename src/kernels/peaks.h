#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "machine/isa.h"

/// What the machine's arithmetic units can issue: the ceilings that shares of prefill speed refer to.
namespace tare::kernels {

/// What a benchmark counts. kCpu: the time that this process was running, all threads together; for one thread on a
/// machine that others use too. Caches and memory are shared even then.
enum class BenchClock { kWall, kCpu };
double bench_seconds(BenchClock clock);

/// Bare loops of one ISA level over registers, without loads. Each runs `rounds` times and returns the products
/// (multiply-adds) that it made. The instructions are written in assembly: a compiler that sees constant operands
/// computes less than asked.
struct PeakLoops {
  double (*u4s8)(int64_t rounds);  // the sequence used for 4-bit by 8-bit products
  double (*s8s8)(int64_t rounds);  // the best exact sequence for full-range 8-bit by 8-bit products
  double (*f32)(int64_t rounds);   // fused multiply-add
  /// Loads every byte of [data, data + bytes) with the widest loads; returns a value that depends on them.
  uint64_t (*read)(const uint8_t* data, int64_t bytes);
};
extern const PeakLoops kPeaksReference;  // no products; 8-byte loads
extern const PeakLoops kPeaksAvx2;  // vpmaddubsw + vpaddw, vpmaddwd + vpaddd each 8 deep; vpmaddwd + vpaddd; vfmadd
extern const PeakLoops kPeaksAvx512Vnni;  // vpdpbusd for both (s8 x s8 with an offset of 128); vfmadd

/// Operations a second (two a product) of all threads of the pool together; best of several runs. 0 on the reference
/// level.
struct Peaks {
  double u4s8_tops = 0;
  double s8s8_tops = 0;
  double f32_gflops = 0;
};
Peaks measure_peaks(machine::Isa isa, ThreadPool& pool, BenchClock clock = BenchClock::kWall);

/// Bytes a second that all threads of the pool together read from memory: best of `passes` over a buffer of that many
/// bytes, which should be several times the last-level cache. Allocates the buffer.
double measure_read_bytes_per_s(machine::Isa isa, ThreadPool& pool, int64_t buffer_bytes = int64_t{1} << 30,
                                int passes = 10, BenchClock clock = BenchClock::kWall);

}  // namespace tare::kernels
