#pragma once

#include <cstddef>
#include <cstdint>

namespace tare::checkpoints {

/// Planar streams of GPTQModel (docs/formats.md 1.4): each run of 32 codes takes `bits` words, split in planes of 4, 2
/// and 1 bits, the low one first; a plane of width w takes w words.

/// `count` codes (a multiple of 32) from planar words to the plain LSB-first stream; `out` is written over.
void planar_to_stream(const uint32_t* words, int64_t count, int bits, std::byte* out);
/// `count` codes, one a byte, to planar words [count * bits / 32].
void codes_to_planar(const uint8_t* codes, int64_t count, int bits, uint32_t* words);

}  // namespace tare::checkpoints
