#include "checkpoints/gptq_planar.h"

#include <algorithm>
#include <vector>

#include "numerics/packing.h"

namespace tare::checkpoints {

using numerics::write_code;

namespace {

// Where code `i` of a run of 32 stands in the planar form: low plane first, each plane of width w in w words.
struct Plane {
  int width;
  int shift;  // of the plane's bits inside the code
};
std::vector<Plane> planes_of(int bits) {
  switch (bits) {
    case 3:
      return {{2, 0}, {1, 2}};
    case 5:
      return {{4, 0}, {1, 4}};
    case 6:
      return {{4, 0}, {2, 4}};
    case 7:
      return {{4, 0}, {2, 4}, {1, 6}};
    default:
      return {{bits, 0}};
  }
}

}  // namespace

void planar_to_stream(const uint32_t* words, int64_t count, int bits, std::byte* out) {
  const std::vector<Plane> planes = planes_of(bits);
  for (int64_t run = 0; run < count / 32; ++run) {
    const uint32_t* word = words + run * bits;
    uint32_t codes[32] = {};
    for (const Plane& plane : planes) {
      const int per_word = 32 / plane.width;
      for (int i = 0; i < 32; ++i) {
        const uint32_t bits_here = (word[i / per_word] >> plane.width * (i % per_word)) & ((1u << plane.width) - 1);
        codes[i] |= bits_here << plane.shift;
      }
      word += plane.width;
    }
    for (int i = 0; i < 32; ++i) write_code(out, (run * 32 + i) * bits, bits, codes[i]);
  }
}

void codes_to_planar(const uint8_t* codes, int64_t count, int bits, uint32_t* words) {
  const std::vector<Plane> planes = planes_of(bits);
  std::fill(words, words + count / 32 * bits, 0u);
  for (int64_t run = 0; run < count / 32; ++run) {
    uint32_t* word = words + run * bits;
    for (const Plane& plane : planes) {
      const int per_word = 32 / plane.width;
      for (int i = 0; i < 32; ++i) {
        const uint32_t part = (codes[run * 32 + i] >> plane.shift) & ((1u << plane.width) - 1);
        word[i / per_word] |= part << plane.width * (i % per_word);
      }
      word += plane.width;
    }
  }
}

}  // namespace tare::checkpoints
