#include <immintrin.h>

#include "kernels/group_gemm.h"

namespace tare::kernels {
namespace {

constexpr int64_t kExpandedBlock = 8 * kLineBytes;
constexpr int64_t kPrefetchBytes = 8192;

/// Codes of one row block and column block from their planes (int_gemm.h) to 8 lines of u8.
template <int Bits>
void expand_block(const uint8_t* lines, uint8_t* to) {
  if constexpr (Bits == 8) {
    for (int i = 0; i < 8; ++i) _mm512_storeu_si512(to + i * kLineBytes, _mm512_loadu_si512(lines + i * kLineBytes));
    return;
  }
  __m512i out[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) out[i] = _mm512_setzero_si512();
  int left = Bits;
#pragma GCC unroll 3
  for (int plane = 4; plane > 0; plane /= 2) {
    if ((Bits & plane) == 0) continue;
    left -= plane;
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << plane) - 1) << left));
#pragma GCC unroll 4
    for (int j = 0; j < plane; ++j, lines += kLineBytes) {
      const __m512i bytes = _mm512_loadu_si512(lines);
#pragma GCC unroll 8
      for (int field = 0; field < 8 / plane; ++field) {
        const int shift = field * plane - left;
        const __m512i moved = shift >= 0 ? _mm512_srli_epi16(bytes, static_cast<unsigned>(shift >= 0 ? shift : 0))
                                         : _mm512_slli_epi16(bytes, static_cast<unsigned>(shift < 0 ? -shift : 0));
        __m512i& line = out[j * (8 / plane) + field];
        line = _mm512_or_si512(line, _mm512_and_si512(moved, mask));
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) _mm512_storeu_si512(to + i * kLineBytes, out[i]);
}

inline __m512 load_field(FieldType type, const uint8_t* from, float constant) {
  switch (type) {
    case FieldType::kU8:
      return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    case FieldType::kS8:
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    case FieldType::kF16:
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    case FieldType::kBF16:
      return _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
    case FieldType::kF32:
      return _mm512_loadu_ps(from);
    default:
      return _mm512_set1_ps(constant);
  }
}

inline const uint8_t* block_at(const GroupShape& shape, const GroupPanel& panel, int64_t block) {
  return panel.codes + block * panel.row_blocks * shape.bits * kLineBytes +
         (block / shape.record_blocks + 1) * record_bytes(shape, panel.row_blocks);
}

/// Groups [first, end) of T tokens and R row blocks into c [T][64] f32. w: the chunk's operand, first column block
/// first_block.
template <int T, int R>
void tile(const GroupShape& shape, const GroupPanel& panel, const uint8_t* w, int64_t first_block, const int8_t* x,
          int64_t stride, const float* sums, int64_t first, int64_t end, float* c) {
  const int64_t halves = 2 * shape.column_blocks;
  const int64_t scale_bytes = field_bytes(shape.scale) * kRowBlock;
  const int64_t zero_bytes = field_bytes(shape.zero) * kRowBlock;
  const int64_t min_bytes = field_bytes(shape.min) * kRowBlock;
  for (int64_t g = first; g < end; ++g) {
    __m512i acc[T][R];
#pragma GCC unroll 6
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_si512();
    }
    const int64_t from = g * shape.group_halves;
    const int64_t to = from + shape.group_halves < halves ? from + shape.group_halves : halves;
    for (int64_t h = from; h < to; ++h) {
      const int64_t local = h - 2 * first_block;
      const uint8_t* lines = w + local / 2 * R * kExpandedBlock + local % 2 * 4 * kLineBytes;
      const int8_t* columns = x + local * 16;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m512i weights[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) weights[r] = _mm512_loadu_si512(lines + r * kExpandedBlock + j * kLineBytes);
#pragma GCC unroll 6
        for (int t = 0; t < T; ++t) {
          int32_t four;
          __builtin_memcpy(&four, columns + t * stride + j * 4, 4);
          const __m512i tokens = _mm512_set1_epi32(four);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) acc[t][r] = _mm512_dpbusd_epi32(acc[t][r], weights[r], tokens);
        }
      }
    }
    const int64_t block = from / 2 / shape.record_blocks * shape.record_blocks;
    const uint8_t* numbers = block_at(shape, panel, block) - record_bytes(shape, R);
    if (shape.record_groups == 2) numbers += g % 2 * group_number_bytes(shape, R);
    const int64_t outer = shape.outer_groups != 0 ? g / shape.outer_groups * R * kRowBlock : 0;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      __m512 scale = load_field(shape.scale, numbers + r * scale_bytes, 1);
      const __m512 zero = load_field(shape.zero, numbers + R * scale_bytes + r * zero_bytes, shape.zero_constant);
      __m512 min = load_field(shape.min, numbers + R * (scale_bytes + zero_bytes) + r * min_bytes, 0);
      if (panel.outer_scale) scale = _mm512_mul_ps(_mm512_loadu_ps(panel.outer_scale + outer + r * kRowBlock), scale);
      if (panel.outer_min) min = _mm512_mul_ps(_mm512_loadu_ps(panel.outer_min + outer + r * kRowBlock), min);
#pragma GCC unroll 6
      for (int t = 0; t < T; ++t) {
        const __m512 sum = _mm512_set1_ps(sums[t * shape.groups + g]);
        float* at = c + t * kPanelRows + r * kRowBlock;
        __m512 f = _mm512_cvtepi32_ps(acc[t][r]);
        if (shape.zero != FieldType::kNone) f = _mm512_fnmadd_ps(zero, sum, f);
        __m512 y = _mm512_fmadd_ps(scale, f, _mm512_loadu_ps(at));
        if (shape.min != FieldType::kNone) y = _mm512_fmadd_ps(min, sum, y);
        _mm512_storeu_ps(at, y);
      }
    }
  }
}

using TileFn = void (*)(const GroupShape&, const GroupPanel&, const uint8_t*, int64_t, const int8_t*, int64_t,
                        const float*, int64_t, int64_t, float*);
constexpr int64_t kMostTokens = 6;
constexpr TileFn kTiles[3][kMostTokens] = {{tile<1, 1>, tile<2, 1>, tile<3, 1>, tile<4, 1>, tile<5, 1>, tile<6, 1>},
                                           {tile<1, 2>, tile<2, 2>, tile<3, 2>, tile<4, 2>, tile<5, 2>, tile<6, 2>},
                                           {tile<1, 4>, tile<2, 4>, tile<3, 4>, tile<4, 4>, tile<5, 4>, tile<6, 4>}};

void write_outputs(const GroupPanel& panel, const GroupTokens& tokens, int64_t token, int64_t count, const float* c,
                   float* out, int64_t out_stride) {
  for (int row = 0; row < panel.rows; row += kRowBlock) {
    const int left = panel.rows - row;
    const auto mask = static_cast<__mmask16>(left >= kRowBlock ? 0xffff : (1u << left) - 1);
    for (int64_t t = 0; t < count; ++t) {
      __m512 y = _mm512_mul_ps(_mm512_loadu_ps(c + t * kPanelRows + row), _mm512_set1_ps(tokens.scale[token + t]));
      if (panel.bias) y = _mm512_add_ps(y, _mm512_loadu_ps(panel.bias + row));
      _mm512_mask_storeu_ps(out + (token + t) * out_stride + row, mask, y);
    }
  }
}

template <int Bits>
void panel_wna8(const GroupShape& shape, const GroupPanel& panel, const GroupTokens& tokens, float* out,
                int64_t out_stride, uint8_t* scratch) {
  auto* accumulators = reinterpret_cast<float*>(scratch);
  uint8_t* expanded = scratch + (tokens.end - tokens.begin) * kPanelRows * 4;
  const int64_t rb = panel.row_blocks;
  constexpr int64_t kBlockBytes = Bits * kLineBytes;
  for (int64_t first = 0; first < shape.column_blocks; first += shape.chunk_blocks) {
    const int64_t rest = shape.column_blocks - first;
    const int64_t blocks = rest < shape.chunk_blocks ? rest : shape.chunk_blocks;
    uint8_t* to = expanded;
    for (int64_t b = first; b < first + blocks; ++b) {
      const uint8_t* lines = block_at(shape, panel, b);
      for (int64_t r = 0; r < rb; ++r, lines += kBlockBytes, to += kExpandedBlock) {
#pragma GCC unroll 8
        for (int i = 0; i < Bits; ++i) {
          _mm_prefetch(reinterpret_cast<const char*>(lines + i * kLineBytes + kPrefetchBytes), _MM_HINT_T1);
        }
        expand_block<Bits>(lines, to);
      }
    }
    const int64_t first_group = 2 * first / shape.group_halves;
    const int64_t last = (2 * (first + blocks) + shape.group_halves - 1) / shape.group_halves;
    const int64_t end_group = last < shape.groups ? last : shape.groups;
    for (int64_t m = tokens.begin; m < tokens.end;) {
      const int64_t tiles = (tokens.end - m + kMostTokens - 1) / kMostTokens;
      const int64_t count = (tokens.end - m + tiles - 1) / tiles;
      float* c = accumulators + (m - tokens.begin) * kPanelRows;
      if (first == 0) {
        for (int64_t i = 0; i < count * kPanelRows; i += kRowBlock) _mm512_storeu_ps(c + i, _mm512_setzero_ps());
      }
      kTiles[rb / 2][count - 1](shape, panel, expanded, first, tokens.x + m * tokens.stride + first * kColumnBlock,
                                tokens.stride, tokens.sums + m * shape.groups, first_group, end_group, c);
      if (blocks == rest) write_outputs(panel, tokens, m, count, c, out, out_stride);
      m += count;
    }
  }
}

void group_sums(const GroupShape& shape, const int8_t* x, int64_t stride, int64_t begin, int64_t end, float* sums) {
  const __m128i ones = _mm_set1_epi8(1);
  const int64_t halves = 2 * shape.column_blocks;
  for (int64_t m = begin; m < end; ++m) {
    const int8_t* row = x + m * stride;
    for (int64_t g = 0; g < shape.groups; ++g) {
      __m128i acc = _mm_setzero_si128();
      const int64_t from = g * shape.group_halves;
      const int64_t to = from + shape.group_halves < halves ? from + shape.group_halves : halves;
      for (int64_t h = from; h < to; ++h) {
        acc = _mm_dpbusd_epi32(acc, ones, _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + h * 16)));
      }
      acc = _mm_add_epi32(acc, _mm_shuffle_epi32(acc, 0x4e));
      acc = _mm_add_epi32(acc, _mm_shuffle_epi32(acc, 0xb1));
      sums[m * shape.groups + g] = static_cast<float>(_mm_cvtsi128_si32(acc));
    }
  }
}

template <int Bits>
constexpr GroupGemmOps kOps = {.panel = panel_wna8<Bits>, .sums = group_sums};

}  // namespace

const GroupGemmOps& wna8_ops_avx512vnni(int32_t bits) {
  static constexpr const GroupGemmOps* kByBits[] = {&kOps<1>, &kOps<2>, &kOps<3>, &kOps<4>,
                                                    &kOps<5>, &kOps<6>, &kOps<7>, &kOps<8>};
  return *kByBits[bits - 1];
}

}  // namespace tare::kernels
