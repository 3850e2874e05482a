#include "kernels/int_pack.h"

#include <cstring>

#include "kernels/int_gemm.h"
#include "numerics/packing.h"

namespace tare::kernels {

void unpack_row(const tensor::QuantizedFields& f, int64_t row, uint8_t* out) {
  const std::byte* stream = f.codes.data() + row * f.code_stride;
  const int64_t offset = f.code_bit_offset;
  const auto flip = static_cast<uint8_t>(f.kind == tensor::CodeKind::kInt ? 1u << (f.bits - 1) : 0u);
  int64_t k = 0;
  if (f.bits == 8) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(stream) + offset / 8;
    for (; k < f.k; ++k) out[k] = static_cast<uint8_t>(bytes[k] ^ flip);
  } else if (f.bits == 4 && offset % 8 == 0) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(stream) + offset / 8;
    for (; k + 1 < f.k; k += 2) {
      out[k] = static_cast<uint8_t>((bytes[k / 2] & 15) ^ flip);
      out[k + 1] = static_cast<uint8_t>((bytes[k / 2] >> 4) ^ flip);
    }
  }
  for (; k < f.k; ++k) {
    out[k] = static_cast<uint8_t>(numerics::read_code(stream, offset + k * f.bits, f.bits) ^ flip);
  }
}

void pack_row_block(const uint8_t* codes, int64_t stride, int64_t column_blocks, int bits, uint8_t* out,
                    int64_t out_stride) {
  for (int64_t b = 0; b < column_blocks; ++b) {
    const uint8_t* block = codes + b * kColumnBlock;
    uint8_t* line = out + b * out_stride;
    int left = bits;
    for (int plane = 8; plane > 0; plane /= 2) {
      if ((bits & plane) == 0) continue;
      left -= plane;
      const uint32_t mask = 0x01010101u * ((1u << plane) - 1u);
      for (int j = 0; j < plane; ++j, line += kLineBytes) {
        for (int row = 0; row < kRowBlock; ++row) {
          const uint8_t* from = block + row * stride + j * (kColumnBlock / plane);
          uint32_t word = 0;
          for (int field = 0; field < 8 / plane; ++field) {
            uint32_t four;
            std::memcpy(&four, from + field * 4, 4);
            word |= ((four >> left) & mask) << (field * plane);
          }
          std::memcpy(line + row * 4, &word, 4);
        }
      }
    }
  }
}

}  // namespace tare::kernels
