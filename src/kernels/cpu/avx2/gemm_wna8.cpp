#include <immintrin.h>

#include "kernels/cpu/avx2/in_order.h"
#include "kernels/group_gemm.h"

namespace tare::kernels {
namespace {

constexpr int64_t kExpandedBlock = 8 * kLineBytes;
constexpr int64_t kPrefetchBytes = 4096;
constexpr int64_t kMostTokens = 6;

inline __m256i load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store256(void* to, __m256i value) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), value);
}

/// Codes of one row block and column block from their planes (int_gemm.h) to 8 lines of u8; one half of each line.
template <int Bits>
void expand_half(const uint8_t* lines, uint8_t* to) {
  __m256i out[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) out[i] = _mm256_setzero_si256();
  int left = Bits;
#pragma GCC unroll 4
  for (int plane = 8; plane > 0; plane /= 2) {
    if ((Bits & plane) == 0) continue;
    left -= plane;
    const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << plane) - 1) << left));
#pragma GCC unroll 8
    for (int j = 0; j < plane; ++j, lines += kLineBytes) {
      const __m256i bytes = load256(lines);
#pragma GCC unroll 8
      for (int field = 0; field < 8 / plane; ++field) {
        const int shift = field * plane - left;
        const __m256i moved = shift >= 0 ? _mm256_srli_epi16(bytes, shift >= 0 ? shift : 0)
                                         : _mm256_slli_epi16(bytes, shift < 0 ? -shift : 0);
        __m256i& line = out[j * (8 / plane) + field];
        line = _mm256_or_si256(line, _mm256_and_si256(moved, mask));
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) store256(to + i * kLineBytes, out[i]);
}

inline __m256 load_field(FieldType type, const uint8_t* from, float constant) {
  switch (type) {
    case FieldType::kU8:
      return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    case FieldType::kS8:
      return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    case FieldType::kF16:
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    case FieldType::kBF16:
      return _mm256_castsi256_ps(
          _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16));
    case FieldType::kF32:
      return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
    default:
      return _mm256_set1_ps(constant);
  }
}

inline const uint8_t* block_at(const GroupShape& shape, const GroupPanel& panel, int64_t block) {
  return panel.codes + block * panel.row_blocks * shape.bits * kLineBytes +
         (block / shape.record_blocks + 1) * record_bytes(shape, panel.row_blocks);
}

/// Exact sums of one group, 16 rows x T tokens, into acc [T][16]. Lines and columns of the group's first half block;
/// a column block of the operand is w_stride apart.
///
/// Codes up to 15: a `vpmaddubsw` pair is at most 2 * 15 * 128 = 3840, four of them stay in s16.
template <int T>
void sums_narrow(const uint8_t* w, int64_t w_stride, int64_t half, int64_t halves, const int8_t* x, int64_t stride,
                 int32_t* sums) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 6
  for (int t = 0; t < T; ++t) {
    store256(sums + t * kRowBlock, _mm256_setzero_si256());
    store256(sums + t * kRowBlock + 8, _mm256_setzero_si256());
  }
  for (int64_t h = half; h < half + halves;) {
    // Both halves of a column block at once where the group has them: eight pairs still fit.
    const int steps = h % 2 == 0 && h + 1 < half + halves ? 8 : 4;
    const uint8_t* lines = w + h / 2 * w_stride + h % 2 * 4 * kLineBytes;
    const int8_t* columns = x + h * 16;
    __m256i acc[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    for (int j = 0; j < steps; j += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i w0 = load256(lines + (j + i) * kLineBytes);
        const __m256i w1 = load256(lines + (j + i) * kLineBytes + 32);
#pragma GCC unroll 6
        for (int t = 0; t < T; ++t) {
          int32_t four;
          __builtin_memcpy(&four, columns + t * stride + (j + i) * 4, 4);
          const __m256i tokens = _mm256_set1_epi32(four);
          acc[t][0] = add16_in_order(acc[t][0], _mm256_maddubs_epi16(w0, tokens));
          acc[t][1] = add16_in_order(acc[t][1], _mm256_maddubs_epi16(w1, tokens));
        }
      }
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
      int32_t* to = sums + t * kRowBlock;
      store256(to, _mm256_add_epi32(load256(to), _mm256_madd_epi16(acc[t][0], ones)));
      store256(to + 8, _mm256_add_epi32(load256(to + 8), _mm256_madd_epi16(acc[t][1], ones)));
    }
    h += steps / 4;
  }
}

/// Wider codes would saturate there: `vpmaddwd` of widened operands, 8 rows at a time.
template <int T>
void sums_wide(const uint8_t* w, int64_t w_stride, int64_t half, int64_t halves, const int16_t* x, int64_t stride,
               int32_t* sums) {
  for (int rows = 0; rows < kRowBlock; rows += 8) {
    __m256i acc[T][2];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    for (int64_t h = half; h < half + halves; ++h) {
      const uint8_t* lines = w + h / 2 * w_stride + h % 2 * 4 * kLineBytes + rows * 4;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const auto* line = reinterpret_cast<const __m128i*>(lines + j * kLineBytes);
        const __m256i w0 = _mm256_cvtepu8_epi16(_mm_loadu_si128(line));
        const __m256i w1 = _mm256_cvtepu8_epi16(_mm_loadu_si128(line + 1));
#pragma GCC unroll 6
        for (int t = 0; t < T; ++t) {
          int64_t four;
          __builtin_memcpy(&four, x + t * stride + h * 16 + j * 4, 8);
          const __m256i tokens = _mm256_set1_epi64x(four);
          acc[t][0] = add32_in_order(acc[t][0], _mm256_madd_epi16(w0, tokens));
          acc[t][1] = add32_in_order(acc[t][1], _mm256_madd_epi16(w1, tokens));
        }
      }
    }
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
      store256(sums + t * kRowBlock + rows, _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[t][0], acc[t][1]), 0xd8));
    }
  }
}

using NarrowFn = void (*)(const uint8_t*, int64_t, int64_t, int64_t, const int8_t*, int64_t, int32_t*);
using WideFn = void (*)(const uint8_t*, int64_t, int64_t, int64_t, const int16_t*, int64_t, int32_t*);
constexpr NarrowFn kNarrow[] = {sums_narrow<1>, sums_narrow<2>, sums_narrow<3>,
                                sums_narrow<4>, sums_narrow<5>, sums_narrow<6>};
constexpr WideFn kWide[] = {sums_wide<1>, sums_wide<2>, sums_wide<3>, sums_wide<4>, sums_wide<5>, sums_wide<6>};

/// One group of one row block: sums to float accumulators c [count][64].
void add_group(const GroupShape& shape, const GroupPanel& panel, int64_t group, int64_t r, const float* sums,
               int64_t count, const int32_t* acc, float* c) {
  const int64_t rb = panel.row_blocks;
  const int64_t block = group * shape.group_halves / 2 / shape.record_blocks * shape.record_blocks;
  const uint8_t* numbers = block_at(shape, panel, block) - record_bytes(shape, rb);
  if (shape.record_groups == 2) numbers += group % 2 * group_number_bytes(shape, rb);
  const uint8_t* scales = numbers;
  const uint8_t* zeros = scales + field_bytes(shape.scale) * rb * kRowBlock;
  const uint8_t* minima = zeros + field_bytes(shape.zero) * rb * kRowBlock;
  const int64_t outer = shape.outer_groups != 0 ? group / shape.outer_groups * rb * kRowBlock : 0;
  for (int half = 0; half < kRowBlock; half += 8) {
    const int64_t row = r * kRowBlock + half;
    __m256 scale = load_field(shape.scale, scales + field_bytes(shape.scale) * row, 1);
    const __m256 zero = load_field(shape.zero, zeros + field_bytes(shape.zero) * row, shape.zero_constant);
    __m256 min = load_field(shape.min, minima + field_bytes(shape.min) * row, 0);
    if (panel.outer_scale) scale = _mm256_mul_ps(_mm256_loadu_ps(panel.outer_scale + outer + row), scale);
    if (panel.outer_min) min = _mm256_mul_ps(_mm256_loadu_ps(panel.outer_min + outer + row), min);
    for (int64_t t = 0; t < count; ++t) {
      const __m256 sum = _mm256_set1_ps(sums[t * shape.groups + group]);
      float* at = c + t * kPanelRows + row;
      __m256 f = _mm256_cvtepi32_ps(load256(acc + t * kRowBlock + half));
      if (shape.zero != FieldType::kNone) f = _mm256_fnmadd_ps(zero, sum, f);
      __m256 y = _mm256_fmadd_ps(scale, f, _mm256_loadu_ps(at));
      if (shape.min != FieldType::kNone) y = _mm256_fmadd_ps(min, sum, y);
      _mm256_storeu_ps(at, y);
    }
  }
}

void write_outputs(const GroupPanel& panel, const GroupTokens& tokens, int64_t token, int64_t count, const float* c,
                   float* out, int64_t out_stride) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  for (int row = 0; row < panel.rows; row += 8) {
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(panel.rows - row), lanes);
    for (int64_t t = 0; t < count; ++t) {
      __m256 y = _mm256_mul_ps(_mm256_loadu_ps(c + t * kPanelRows + row), _mm256_set1_ps(tokens.scale[token + t]));
      if (panel.bias) y = _mm256_add_ps(y, _mm256_loadu_ps(panel.bias + row));
      _mm256_maskstore_ps(out + (token + t) * out_stride + row, mask, y);
    }
  }
}

template <int Bits>
void panel_wna8(const GroupShape& shape, const GroupPanel& panel, const GroupTokens& tokens, float* out,
                int64_t out_stride, uint8_t* scratch) {
  auto* accumulators = reinterpret_cast<float*>(scratch);
  uint8_t* expanded = scratch + (tokens.end - tokens.begin) * kPanelRows * 4;
  const int64_t rb = panel.row_blocks;
  const int64_t w_stride = rb * kExpandedBlock;
  const int64_t x16_stride = shape.column_blocks * kColumnBlock;
  alignas(32) int32_t acc[kMostTokens * kRowBlock];
  for (int64_t first = 0; first < shape.column_blocks; first += shape.chunk_blocks) {
    const int64_t rest = shape.column_blocks - first;
    const int64_t blocks = rest < shape.chunk_blocks ? rest : shape.chunk_blocks;
    uint8_t* to = expanded;
    for (int64_t b = first; b < first + blocks; ++b) {
      const uint8_t* lines = block_at(shape, panel, b);
      for (int64_t r = 0; r < rb; ++r, lines += Bits * kLineBytes, to += kExpandedBlock) {
#pragma GCC unroll 8
        for (int i = 0; i < Bits; ++i) {
          _mm_prefetch(reinterpret_cast<const char*>(lines + i * kLineBytes + kPrefetchBytes), _MM_HINT_T1);
        }
        expand_half<Bits>(lines, to);
        expand_half<Bits>(lines + 32, to + 32);
      }
    }
    const int64_t last = (2 * (first + blocks) + shape.group_halves - 1) / shape.group_halves;
    const int64_t end_group = last < shape.groups ? last : shape.groups;
    for (int64_t m = tokens.begin; m < tokens.end;) {
      const int64_t tiles = (tokens.end - m + kMostTokens - 1) / kMostTokens;
      const int64_t count = (tokens.end - m + tiles - 1) / tiles;
      float* c = accumulators + (m - tokens.begin) * kPanelRows;
      if (first == 0) {
        for (int64_t i = 0; i < count * kPanelRows; i += 8) _mm256_storeu_ps(c + i, _mm256_setzero_ps());
      }
      for (int64_t r = 0; r < rb; ++r) {
        for (int64_t g = 2 * first / shape.group_halves; g < end_group; ++g) {
          const int64_t half = g * shape.group_halves - 2 * first;
          const int64_t left = 2 * blocks - half;
          const int64_t halves = left < shape.group_halves ? left : shape.group_halves;
          const uint8_t* w = expanded + r * kExpandedBlock;
          if constexpr (Bits <= 4) {
            kNarrow[count - 1](w, w_stride, half, halves, tokens.x + m * tokens.stride + first * kColumnBlock,
                               tokens.stride, acc);
          } else {
            kWide[count - 1](w, w_stride, half, halves, tokens.x16 + m * x16_stride + first * kColumnBlock, x16_stride,
                             acc);
          }
          add_group(shape, panel, g, r, tokens.sums + m * shape.groups, count, acc, c);
        }
      }
      if (blocks == rest) write_outputs(panel, tokens, m, count, c, out, out_stride);
      m += count;
    }
  }
}

void group_sums(const GroupShape& shape, const int8_t* x, int64_t stride, int64_t begin, int64_t end, float* sums) {
  const __m128i ones8 = _mm_set1_epi8(1);
  const __m128i ones16 = _mm_set1_epi16(1);
  const int64_t halves = 2 * shape.column_blocks;
  for (int64_t m = begin; m < end; ++m) {
    const int8_t* row = x + m * stride;
    for (int64_t g = 0; g < shape.groups; ++g) {
      __m128i acc = _mm_setzero_si128();
      const int64_t from = g * shape.group_halves;
      const int64_t to = from + shape.group_halves < halves ? from + shape.group_halves : halves;
      for (int64_t h = from; h < to; ++h) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + h * 16));
        acc = _mm_add_epi32(acc, _mm_madd_epi16(_mm_maddubs_epi16(ones8, bytes), ones16));
      }
      acc = _mm_add_epi32(acc, _mm_shuffle_epi32(acc, 0x4e));
      acc = _mm_add_epi32(acc, _mm_shuffle_epi32(acc, 0xb1));
      sums[m * shape.groups + g] = static_cast<float>(_mm_cvtsi128_si32(acc));
    }
  }
}

void widen(const GroupShape& shape, const int8_t* x, int64_t stride, int64_t begin, int64_t end, int16_t* x16) {
  const int64_t columns = shape.column_blocks * kColumnBlock;
  for (int64_t m = begin; m < end; ++m) {
    for (int64_t k = 0; k < columns; k += 16) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + m * stride + k));
      store256(x16 + m * columns + k, _mm256_cvtepi8_epi16(codes));
    }
  }
}

template <int Bits>
constexpr GroupGemmOps kOps = {.panel = panel_wna8<Bits>, .sums = group_sums, .widen = Bits <= 4 ? nullptr : widen};

}  // namespace

const GroupGemmOps& wna8_ops_avx2(int32_t bits) {
  static constexpr const GroupGemmOps* kByBits[] = {&kOps<1>, &kOps<2>, &kOps<3>, &kOps<4>,
                                                    &kOps<5>, &kOps<6>, &kOps<7>, &kOps<8>};
  return *kByBits[bits - 1];
}

}  // namespace tare::kernels
