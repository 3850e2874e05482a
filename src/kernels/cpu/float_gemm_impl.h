// The loops of float_gemm.h, written once over the sixteen lanes of the including file (gemm_lanes.h of its folder). No
// #pragma once on purpose of reading: each ISA file includes it exactly once, after its gemm_lanes.h.

namespace tare::kernels {
namespace {

constexpr int64_t kStepBytes = 64;
constexpr int kTileTokens = 6;
// Independent chains that hide the latency of fma and fit the registers beside decoded columns.
constexpr int kTilePanels = kRegisters == 32 ? 4 : 1;
constexpr int panels_at_once(int tokens) {
  return kRegisters == 32 ? 4 : 4 / tokens;
}
// About one DRAM latency at the rate of one thread.
constexpr int64_t kPrefetchBytes = 2048;

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

Lanes plane_at(const Plane& plane, int64_t panel, int64_t column) {
  return load_plane(plane.type, plane.data + (panel * plane.columns + column) * 16 * plane_bytes(plane.type));
}

bool has_offsets(const FloatMatrix& w) {
  return w.offset.type != PlaneType::kNone;
}
bool has_zeros(const FloatMatrix& w) {
  return w.zero.type != PlaneType::kNone || w.zero_constant != 0;
}

struct GroupTerms {
  Lanes scale;
  Lanes offset;
};

// What is added to decoded codes, times the decoder's factor (exact: a power of two).
Lanes zeros_of(const FloatMatrix& w, int64_t panel, int64_t group, float factor) {
  if (w.zero.type == PlaneType::kNone) return broadcast(w.zero_constant * factor);
  return mul(plane_at(w.zero, panel, group), broadcast(factor));
}

// scale has the decoder's factor divided out, which is exact: it is a power of two.
GroupTerms terms_of(const FloatMatrix& w, int64_t panel, int64_t group, float factor) {
  GroupTerms t = {broadcast(1.0f), zero_lanes()};
  if (w.scale.type != PlaneType::kNone) t.scale = plane_at(w.scale, panel, group);
  Lanes outer = t.scale;
  if (w.outer.type != PlaneType::kNone) {
    outer = plane_at(w.outer, panel, w.outer_column[group]);
    t.scale = w.scale.type != PlaneType::kNone ? mul(outer, t.scale) : outer;
  }
  if (w.offset.type != PlaneType::kNone) {
    t.offset = plane_at(w.offset, panel, group);
    switch (w.offset_factor) {
      case OffsetFactor::kOne:
        break;
      case OffsetFactor::kOuter:
        t.offset = mul(outer, t.offset);
        break;
      case OffsetFactor::kOwn:
        t.offset = mul(plane_at(w.own, panel, w.own_column[group]), t.offset);
        break;
    }
  }
  if (factor != 1.0f) t.scale = mul(t.scale, broadcast(1.0f / factor));
  return t;
}

void store_outputs(const FloatMatrix& w, int64_t panel, Lanes y, float* row) {
  const int64_t first = panel * 16, count = smaller(16, w.n - first);
  if (w.bias) y = add(y, load_some(w.bias + first, count));
  store_some(row + first, y, count);
}

// ---- few tokens -----------------------------------------------------------------------------------------------------

// T tokens, P panels of one block: 16 * P outputs each.
template <class D, int T, int P>
void register_tile(const FloatMatrix& w, const D& decode, const std::byte* codes, int64_t step_bytes, int64_t panel,
                   const FloatTokens& tokens, int64_t token, float* out, int64_t out_stride) {
  Lanes acc[T][P], inner[T][P];
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < P; ++p) acc[t][p] = inner[t][p] = zero_lanes();
  }
  const float* x = tokens.x + token * tokens.stride;
  const std::byte* at = codes;
  const bool zeroed = has_zeros(w);
  for (int64_t g = 0; g < w.groups; ++g) {
    GroupTerms terms[P];
    Lanes zeros[P];
    for (int p = 0; w.direct && p < P; ++p) terms[p] = terms_of(w, panel + p, g, D::kFactor);
    for (int p = 0; zeroed && p < P; ++p) zeros[p] = zeros_of(w, panel + p, g, D::kFactor);
    for (int64_t s = w.group_step[g]; s < w.group_step[g + 1]; ++s, at += step_bytes) {
      const float* xs = x + s * D::kUnit;
      for (int p = 0; p < P; ++p) {
        prefetch(at + p * kStepBytes + kPrefetchBytes);
        Lanes columns[D::kUnit];
        decode(at + p * kStepBytes, columns);
        if (zeroed) {
          for (int j = 0; j < D::kUnit; ++j) columns[j] = add(columns[j], zeros[p]);
        }
        if (w.direct) {
          for (int j = 0; j < D::kUnit; ++j) columns[j] = fma(columns[j], terms[p].scale, terms[p].offset);
        }
        for (int j = 0; j < D::kUnit; ++j) {
          for (int t = 0; t < T; ++t) inner[t][p] = fma(columns[j], broadcast(xs[t * tokens.stride + j]), inner[t][p]);
        }
      }
    }
    if (!w.scaled || w.direct) continue;
    for (int p = 0; p < P; ++p) {
      const GroupTerms term = terms_of(w, panel + p, g, D::kFactor);
      for (int t = 0; t < T; ++t) {
        acc[t][p] = fma(term.scale, inner[t][p], acc[t][p]);
        if (has_offsets(w)) {
          acc[t][p] = fma(term.offset, broadcast(tokens.group_sums[(token + t) * w.groups + g]), acc[t][p]);
        }
        inner[t][p] = zero_lanes();
      }
    }
  }
  const bool plain = !w.scaled || w.direct;
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < P; ++p) {
      store_outputs(w, panel + p, plain ? inner[t][p] : acc[t][p], out + (token + t) * out_stride);
    }
  }
}

template <class D, int T>
void register_panels(const FloatMatrix& w, const D& decode, int64_t block, const FloatTokens& tokens, int64_t token,
                     float* out, int64_t out_stride) {
  constexpr int P = panels_at_once(T);
  const int64_t first = block * kPanelsPerBlock, count = smaller(kPanelsPerBlock, w.panels - first);
  const std::byte* codes = w.codes + first * (w.k_padded / D::kUnit) * kStepBytes;
  int64_t p = 0;
  for (; p + P <= count; p += P) {
    register_tile<D, T, P>(w, decode, codes + p * kStepBytes, count * kStepBytes, first + p, tokens, token, out,
                           out_stride);
  }
  if constexpr (P > 1) {
    for (; p < count; ++p) {
      register_tile<D, T, 1>(w, decode, codes + p * kStepBytes, count * kStepBytes, first + p, tokens, token, out,
                             out_stride);
    }
  }
}

template <class D>
void register_blocks(const FloatMatrix& w, int64_t begin, int64_t end, const FloatTokens& tokens, float* out,
                     int64_t out_stride) {
  const D decode(w);
  for (int64_t block = begin; block < end; ++block) {
    int64_t token = 0;
    for (; token + 4 <= tokens.m; token += 4) register_panels<D, 4>(w, decode, block, tokens, token, out, out_stride);
    if (token + 2 <= tokens.m) {
      register_panels<D, 2>(w, decode, block, tokens, token, out, out_stride);
      token += 2;
    }
    if (token < tokens.m) register_panels<D, 1>(w, decode, block, tokens, token, out, out_stride);
  }
}

// ---- many tokens ----------------------------------------------------------------------------------------------------

// Steps [begin, end) of a block, decoded to panel[p][column][16]. They start in group `group`.
template <class D>
void decode_steps(const FloatMatrix& w, const D& decode, int64_t block, int64_t begin, int64_t end, int64_t group,
                  float* panel, int64_t panel_stride) {
  const int64_t first = block * kPanelsPerBlock, count = smaller(kPanelsPerBlock, w.panels - first);
  const std::byte* codes = w.codes + first * (w.k_padded / D::kUnit) * kStepBytes;
  const bool zeroed = has_zeros(w);
  for (int64_t p = 0; p < count; ++p) {
    int64_t g = group, next = begin;
    GroupTerms terms = {};
    Lanes zeros = zero_lanes();
    for (int64_t s = begin; s < end; ++s) {
      if (s == next) {
        if (w.direct) terms = terms_of(w, first + p, g, D::kFactor);
        if (zeroed) zeros = zeros_of(w, first + p, g, D::kFactor);
        next = w.group_step[++g];
      }
      Lanes columns[D::kUnit];
      decode(codes + (s * count + p) * kStepBytes, columns);
      if (zeroed) {
        for (int j = 0; j < D::kUnit; ++j) columns[j] = add(columns[j], zeros);
      }
      if (w.direct) {
        for (int j = 0; j < D::kUnit; ++j) columns[j] = fma(columns[j], terms.scale, terms.offset);
      }
      float* to = panel + p * panel_stride + (s - begin) * D::kUnit * 16;
      for (int j = 0; j < D::kUnit; ++j) store_lanes(to + j * 16, columns[j]);
    }
  }
}

// What a tile does with its sums: carry them on, or add them scaled to the accumulators.
struct TileTerms {
  const GroupTerms* terms = nullptr;  // [panels], or null: carry
  bool offsets = false;
  const float* group_sums = nullptr;  // of the tile's first token and this group
  int64_t groups = 0;
};

template <int M, int P>
void multiply_tile(const float* panel, int64_t panel_stride, int64_t columns, const float* x, int64_t x_stride,
                   float* acc, const TileTerms& tile) {
  Lanes inner[M][P];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < P; ++p) {
      inner[m][p] = tile.terms ? zero_lanes() : load_lanes(acc + (m * kPanelsPerBlock + p) * 16);
    }
  }
  for (int64_t k = 0; k < columns; ++k) {
    Lanes w[P];
    for (int p = 0; p < P; ++p) w[p] = load_lanes(panel + p * panel_stride + k * 16);
    for (int m = 0; m < M; ++m) {
      const Lanes a = broadcast(x[m * x_stride + k]);
      for (int p = 0; p < P; ++p) inner[m][p] = fma(w[p], a, inner[m][p]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < P; ++p) {
      float* at = acc + (m * kPanelsPerBlock + p) * 16;
      Lanes y = inner[m][p];
      if (tile.terms) {
        y = fma(tile.terms[p].scale, y, load_lanes(at));
        if (tile.offsets) y = fma(tile.terms[p].offset, broadcast(tile.group_sums[m * tile.groups]), y);
      }
      store_lanes(at, y);
    }
  }
}

template <int M>
void multiply_panels(const float* panel, int64_t panel_stride, int64_t count, int64_t columns, const float* x,
                     int64_t x_stride, float* acc, TileTerms tile) {
  int64_t p = 0;
  const auto advance = [&](int by) {
    p += by;
    if (tile.terms) tile.terms += by;
  };
  for (; p + kTilePanels <= count; advance(kTilePanels)) {
    multiply_tile<M, kTilePanels>(panel + p * panel_stride, panel_stride, columns, x, x_stride, acc + p * 16, tile);
  }
  if constexpr (kTilePanels > 1) {
    for (; p < count; advance(1)) {
      multiply_tile<M, 1>(panel + p * panel_stride, panel_stride, columns, x, x_stride, acc + p * 16, tile);
    }
  }
}

void multiply_tokens(const float* panel, int64_t panel_stride, int64_t count, int64_t columns,
                     const FloatTokens& tokens, int64_t first_column, float* acc, TileTerms tile) {
  const float* sums = tile.group_sums;
  int64_t m = 0;
  const auto call = [&](auto multiply) {
    tile.group_sums = sums ? sums + m * tile.groups : nullptr;
    multiply(panel, panel_stride, count, columns, tokens.x + m * tokens.stride + first_column, tokens.stride,
             acc + m * kPanelsPerBlock * 16, tile);
  };
  for (; m + kTileTokens <= tokens.m; m += kTileTokens) call(multiply_panels<kTileTokens>);
  switch (tokens.m - m) {
    case 5:
      return call(multiply_panels<5>);
    case 4:
      return call(multiply_panels<4>);
    case 3:
      return call(multiply_panels<3>);
    case 2:
      return call(multiply_panels<2>);
    case 1:
      return call(multiply_panels<1>);
    default:
      return;
  }
}

// A group wider than the panel: its sums are carried over its chunks in `inner`, then added scaled.
void add_scaled(const FloatTokens& tokens, int64_t count, const float* inner, float* acc, const TileTerms& tile) {
  for (int64_t m = 0; m < tokens.m; ++m) {
    for (int64_t p = 0; p < count; ++p) {
      const int64_t at = (m * kPanelsPerBlock + p) * 16;
      Lanes y = fma(tile.terms[p].scale, load_lanes(inner + at), load_lanes(acc + at));
      if (tile.offsets) y = fma(tile.terms[p].offset, broadcast(tile.group_sums[m * tile.groups]), y);
      store_lanes(acc + at, y);
    }
  }
}

template <class D>
void panel_blocks(const FloatMatrix& w, int64_t begin, int64_t end, const FloatTokens& tokens, float* out,
                  int64_t out_stride, std::byte* scratch) {
  const D decode(w);
  constexpr int64_t panel_stride = kPanelColumns * 16, chunk = kPanelColumns / D::kUnit;
  constexpr TileTerms carry = {};
  auto* panel = reinterpret_cast<float*>(scratch);
  float* acc = panel + kPanelsPerBlock * panel_stride;
  float* inner = acc + kPanelTokens * kPanelsPerBlock * 16;
  const int64_t steps = w.k_padded / D::kUnit;
  const bool by_group = w.scaled && !w.direct && w.groups > 1;
  const int64_t sums = tokens.m * kPanelsPerBlock * 16;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * kPanelsPerBlock, count = smaller(kPanelsPerBlock, w.panels - first);
    for (int64_t i = 0; i < sums; i += 16) store_lanes(acc + i, zero_lanes());
    const auto multiply_steps = [&](int64_t from, int64_t to, int64_t group, float* to_sums, const TileTerms& tile) {
      for (int64_t s = from; s < to; s += chunk) {
        const int64_t last = smaller(to, s + chunk);
        while (w.group_step[group + 1] <= s) ++group;
        decode_steps(w, decode, block, s, last, group, panel, panel_stride);
        multiply_tokens(panel, panel_stride, count, (last - s) * D::kUnit, tokens, s * D::kUnit, to_sums, tile);
      }
    };
    if (by_group) {
      for (int64_t g = 0; g < w.groups; ++g) {
        GroupTerms terms[kPanelsPerBlock];
        for (int64_t p = 0; p < count; ++p) terms[p] = terms_of(w, first + p, g, D::kFactor);
        const TileTerms tile = {terms, has_offsets(w), tokens.group_sums ? tokens.group_sums + g : nullptr, w.groups};
        if (w.group_step[g + 1] - w.group_step[g] <= chunk) {
          multiply_steps(w.group_step[g], w.group_step[g + 1], g, acc, tile);
        } else {
          for (int64_t i = 0; i < sums; i += 16) store_lanes(inner + i, zero_lanes());
          multiply_steps(w.group_step[g], w.group_step[g + 1], g, inner, carry);
          add_scaled(tokens, count, inner, acc, tile);
        }
      }
    } else {
      multiply_steps(0, steps, 0, acc, carry);
    }
    const bool scale_at_end = w.scaled && !w.direct && !by_group;
    for (int64_t p = 0; p < count; ++p) {
      const GroupTerms term = scale_at_end ? terms_of(w, first + p, 0, D::kFactor) : GroupTerms{};
      for (int64_t m = 0; m < tokens.m; ++m) {
        Lanes y = load_lanes(acc + (m * kPanelsPerBlock + p) * 16);
        if (scale_at_end) {
          y = fma(term.scale, y, zero_lanes());
          if (has_offsets(w)) y = fma(term.offset, broadcast(tokens.group_sums[m]), y);
        }
        store_outputs(w, first + p, y, out + m * out_stride);
      }
    }
  }
}

// ---- dispatch -------------------------------------------------------------------------------------------------------

void decode_in_registers(const FloatMatrix& w, int64_t begin, int64_t end, const FloatTokens& tokens, float* out,
                         int64_t out_stride) {
  switch (w.code) {
    case FloatCode::kF32:
      return register_blocks<DecodeF32>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kBF16:
      return register_blocks<DecodeBF16>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kF16:
      return register_blocks<DecodeF16>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kInt8:
      return register_blocks<DecodeInt8>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kE4M3:
      return register_blocks<DecodeE4M3>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kE5M2:
      return register_blocks<DecodeE5M2>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kInt4:
      return register_blocks<DecodeInt4>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kLut4:
      return register_blocks<DecodeLut4>(w, begin, end, tokens, out, out_stride);
    case FloatCode::kLut2:
      return register_blocks<DecodeLut2>(w, begin, end, tokens, out, out_stride);
  }
}

void decode_to_panel(const FloatMatrix& w, int64_t begin, int64_t end, const FloatTokens& tokens, float* out,
                     int64_t out_stride, std::byte* scratch) {
  switch (w.code) {
    case FloatCode::kF32:
      return panel_blocks<DecodeF32>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kBF16:
      return panel_blocks<DecodeBF16>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kF16:
      return panel_blocks<DecodeF16>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kInt8:
      return panel_blocks<DecodeInt8>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kE4M3:
      return panel_blocks<DecodeE4M3>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kE5M2:
      return panel_blocks<DecodeE5M2>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kInt4:
      return panel_blocks<DecodeInt4>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kLut4:
      return panel_blocks<DecodeLut4>(w, begin, end, tokens, out, out_stride, scratch);
    case FloatCode::kLut2:
      return panel_blocks<DecodeLut2>(w, begin, end, tokens, out, out_stride, scratch);
  }
}

void sum_groups(const FloatMatrix& w, const FloatTokens& tokens, int64_t begin, int64_t end, float* sums) {
  const int64_t unit = unit_of(w.code);
  for (int64_t m = begin; m < end; ++m) {
    const float* x = tokens.x + m * tokens.stride;
    for (int64_t g = 0; g < w.groups; ++g) {
      Lanes sum = zero_lanes();
      const int64_t last = w.group_step[g + 1] * unit;
      for (int64_t k = w.group_step[g] * unit; k < last; k += 16)
        sum = add(sum, load_some(x + k, smaller(16, last - k)));
      float lanes[16];
      store_lanes(lanes, sum);
      for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
      }
      sums[m * w.groups + g] = lanes[0];
    }
  }
}

}  // namespace
}  // namespace tare::kernels
