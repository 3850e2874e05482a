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
// From memory into the second-level cache, and half way into the first (docs/decisions/decode.md).
constexpr int64_t kFarBytes = 8192;
constexpr int64_t kNearBytes = 4096;

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

bool has_offsets(const FloatMatrix& w) {
  return w.offset.type != PlaneType::kNone || w.zero.type != PlaneType::kNone || w.zero_constant != 0;
}

// Scales and offsets of a few groups, computed ahead of the loops that use them.
constexpr int kTermGroups = 8;
template <int P>
struct Terms {
  Lanes scale[kTermGroups][P];
  Lanes offset[kTermGroups][P];
};

// Calls body with a plane type known to the compiler, so that it is not asked again for each number.
template <PlaneType T>
struct TypeTag {
  static constexpr PlaneType value = T;
};
template <class Body>
void with_type(PlaneType type, Body&& body) {
  switch (type) {
    case PlaneType::kF32:
      return body(TypeTag<PlaneType::kF32>());
    case PlaneType::kF16:
      return body(TypeTag<PlaneType::kF16>());
    case PlaneType::kBF16:
      return body(TypeTag<PlaneType::kBF16>());
    case PlaneType::kS8:
      return body(TypeTag<PlaneType::kS8>());
    case PlaneType::kU8:
      return body(TypeTag<PlaneType::kU8>());
    case PlaneType::kE4M3:
      return body(TypeTag<PlaneType::kE4M3>());
    case PlaneType::kE8M0:
      return body(TypeTag<PlaneType::kE8M0>());
    case PlaneType::kNone:
      return;
  }
}

// use(i, p, numbers of group first + i of panel + p): column_of maps groups to columns of the plane, or is null.
template <int P, class Use>
void each_of_plane(const Plane& plane, const int32_t* column_of, int64_t panel, int64_t first, int64_t count,
                   Use&& use) {
  with_type(plane.type, [&](auto tag) {
    constexpr int64_t bytes = 16 * plane_bytes(tag.value);
    for (int p = 0; p < P; ++p) {
      const std::byte* row = plane.data + (panel + p) * plane.columns * bytes;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t column = column_of ? column_of[first + i] : first + i;
        use(i, p, load_plane(tag.value, row + column * bytes));
      }
    }
  });
}

// Groups [first, first + count) of P panels. The decoder's factor is divided out of scales, which is exact: it is a
// power of two.
template <int P>
void fill_terms(const FloatMatrix& w, int64_t panel, int64_t first, int64_t count, float factor, Terms<P>& terms) {
  Lanes outer[kTermGroups][P];
  const auto for_all = [&](auto&& body) {
    for (int64_t i = 0; i < count; ++i) {
      for (int p = 0; p < P; ++p) body(i, p);
    }
  };
  for_all([&](int64_t i, int p) {
    terms.scale[i][p] = outer[i][p] = broadcast(1.0f);
    terms.offset[i][p] = zero_lanes();
  });
  each_of_plane<P>(w.outer, w.outer_column, panel, first, count,
                   [&](int64_t i, int p, Lanes v) { terms.scale[i][p] = outer[i][p] = v; });
  each_of_plane<P>(w.scale, nullptr, panel, first, count,
                   [&](int64_t i, int p, Lanes v) { terms.scale[i][p] = mul(outer[i][p], v); });
  if (w.offset.type != PlaneType::kNone) {
    if (w.offset_factor == OffsetFactor::kOwn) {
      each_of_plane<P>(w.own, w.own_column, panel, first, count, [&](int64_t i, int p, Lanes v) { outer[i][p] = v; });
    }
    const bool plain = w.offset_factor == OffsetFactor::kOne;
    each_of_plane<P>(w.offset, nullptr, panel, first, count,
                     [&](int64_t i, int p, Lanes v) { terms.offset[i][p] = plain ? v : mul(outer[i][p], v); });
  }
  each_of_plane<P>(w.zero, nullptr, panel, first, count, [&](int64_t i, int p, Lanes v) {
    terms.offset[i][p] = fma(terms.scale[i][p], v, terms.offset[i][p]);
  });
  if (w.zero_constant != 0) {
    const Lanes zero = broadcast(w.zero_constant);
    for_all([&](int64_t i, int p) { terms.offset[i][p] = fma(terms.scale[i][p], zero, terms.offset[i][p]); });
  }
  if (factor != 1.0f) {
    const Lanes unfactor = broadcast(1.0f / factor);
    for_all([&](int64_t i, int p) { terms.scale[i][p] = mul(terms.scale[i][p], unfactor); });
  }
}

void store_outputs(const FloatMatrix& w, int64_t panel, Lanes y, float* row) {
  const int64_t first = panel * 16, count = smaller(16, w.n - first);
  if (w.bias) y = add(y, load_some(w.bias + first, count));
  store_some(row + first, y, count);
}

// ---- few tokens -----------------------------------------------------------------------------------------------------

// T tokens, P panels of one block: 16 * P outputs each.
template <class D, bool Scaled, int T, int P>
void register_tile(const FloatMatrix& w, const D& decode, const std::byte* codes, int64_t step_bytes, int64_t panel,
                   const FloatTokens& tokens, int64_t token, float* out, int64_t out_stride) {
  Lanes acc[T][P], inner[T][P];
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < P; ++p) acc[t][p] = inner[t][p] = zero_lanes();
  }
  const float* x = tokens.x + token * tokens.stride;
  const std::byte* at = codes;
  const bool grouped = w.scaled && !Scaled;
  const bool offsets = grouped && has_offsets(w);
  Terms<P> terms;
  for (int64_t g = 0; g < w.groups; ++g) {
    const int64_t i = g % kTermGroups;
    if (i == 0 && w.scaled) fill_terms<P>(w, panel, g, smaller(kTermGroups, w.groups - g), D::kFactor, terms);
    const int64_t end = w.group_step[g + 1];
    for (int64_t s = w.group_step[g]; s < end; ++s, at += step_bytes) {
      const float* xs = x + s * D::kUnit;
      for (int p = 0; p < P; ++p) {
        prefetch_far(at + p * kStepBytes + kFarBytes);
        prefetch_near(at + p * kStepBytes + kNearBytes);
      }
      const auto multiply = [&](const typename D::Step& step, int j, int p) {
        Lanes column = decode.column(step, j);
        if constexpr (Scaled) column = fma(column, terms.scale[i][p], terms.offset[i][p]);
        for (int t = 0; t < T; ++t) inner[t][p] = fma(column, broadcast(xs[t * tokens.stride + j]), inner[t][p]);
      };
      if constexpr (kRegisters == 32) {
        // Chains take turns: none waits for the latency of its last product.
        typename D::Step steps[P];
        for (int p = 0; p < P; ++p) steps[p] = decode.load(at + p * kStepBytes);
#pragma GCC unroll 16
        for (int j = 0; j < D::kUnit; ++j) {
          for (int p = 0; p < P; ++p) multiply(steps[p], j, p);
        }
      } else {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const typename D::Step step = decode.load(at + p * kStepBytes);
          for (int j = 0; j < D::kUnit; ++j) multiply(step, j, p);
        }
      }
    }
    if (!grouped) continue;
    for (int p = 0; p < P; ++p) {
      for (int t = 0; t < T; ++t) {
        acc[t][p] = fma(terms.scale[i][p], inner[t][p], acc[t][p]);
        if (offsets) {
          acc[t][p] = fma(terms.offset[i][p], broadcast(tokens.group_sums[(token + t) * w.groups + g]), acc[t][p]);
        }
        inner[t][p] = zero_lanes();
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int p = 0; p < P; ++p) {
      store_outputs(w, panel + p, grouped ? acc[t][p] : inner[t][p], out + (token + t) * out_stride);
    }
  }
}

template <class D, bool Scaled, int T>
void register_panels(const FloatMatrix& w, const D& decode, int64_t block, const FloatTokens& tokens, int64_t token,
                     float* out, int64_t out_stride) {
  constexpr int P = panels_at_once(T);
  const int64_t first = block * kPanelsPerBlock, count = smaller(kPanelsPerBlock, w.panels - first);
  const std::byte* codes = w.codes + first * (w.k_padded / D::kUnit) * kStepBytes;
  int64_t p = 0;
  for (; p + P <= count; p += P) {
    register_tile<D, Scaled, T, P>(w, decode, codes + p * kStepBytes, count * kStepBytes, first + p, tokens, token, out,
                                   out_stride);
  }
  if constexpr (P > 1) {
    for (; p < count; ++p) {
      register_tile<D, Scaled, T, 1>(w, decode, codes + p * kStepBytes, count * kStepBytes, first + p, tokens, token,
                                     out, out_stride);
    }
  }
}

template <class D, bool Scaled>
void register_blocks_in(const FloatMatrix& w, int64_t begin, int64_t end, const FloatTokens& tokens, float* out,
                        int64_t out_stride) {
  const D decode(w);
  for (int64_t block = begin; block < end; ++block) {
    int64_t token = 0;
    for (; token + 4 <= tokens.m; token += 4)
      register_panels<D, Scaled, 4>(w, decode, block, tokens, token, out, out_stride);
    if (token + 2 <= tokens.m) {
      register_panels<D, Scaled, 2>(w, decode, block, tokens, token, out, out_stride);
      token += 2;
    }
    if (token < tokens.m) register_panels<D, Scaled, 1>(w, decode, block, tokens, token, out, out_stride);
  }
}

template <class D>
void register_blocks(const FloatMatrix& w, int64_t begin, int64_t end, const FloatTokens& tokens, float* out,
                     int64_t out_stride) {
  if constexpr (D::kUnit >= 4) {  // coded weights only
    if (w.direct) return register_blocks_in<D, true>(w, begin, end, tokens, out, out_stride);
  }
  register_blocks_in<D, false>(w, begin, end, tokens, out, out_stride);
}

// ---- many tokens ----------------------------------------------------------------------------------------------------

// Steps [begin, end) of a block, decoded to panel[p][column][16]. They start in group `group`.
template <class D, bool Scaled>
void decode_steps_in(const FloatMatrix& w, const D& decode, int64_t block, int64_t begin, int64_t end, int64_t group,
                     float* panel, int64_t panel_stride) {
  const int64_t first = block * kPanelsPerBlock, count = smaller(kPanelsPerBlock, w.panels - first);
  const std::byte* codes = w.codes + first * (w.k_padded / D::kUnit) * kStepBytes;
  for (int64_t p = 0; p < count; ++p) {
    Terms<1> terms;
    int64_t i = 0, s = begin;
    for (int64_t g = group; s < end; ++g, ++i) {
      if (i % kTermGroups == 0 && Scaled) {
        i = 0;
        fill_terms<1>(w, first + p, g, smaller(kTermGroups, w.groups - g), D::kFactor, terms);
      }
      const Lanes scale = terms.scale[i][0], offset = terms.offset[i][0];
      for (const int64_t last = smaller(end, w.group_step[g + 1]); s < last; ++s) {
        const std::byte* from = codes + (s * count + p) * kStepBytes;
        // The next columns come while these are multiplied.
        prefetch_far(from + kPanelColumns / D::kUnit * kPanelsPerBlock * kStepBytes);
        const typename D::Step step = decode.load(from);
        float* to = panel + p * panel_stride + (s - begin) * D::kUnit * 16;
        for (int j = 0; j < D::kUnit; ++j) {
          const Lanes column = decode.column(step, j);
          store_lanes(to + j * 16, Scaled ? fma(column, scale, offset) : column);
        }
      }
    }
  }
}

template <class D>
void decode_steps(const FloatMatrix& w, const D& decode, int64_t block, int64_t begin, int64_t end, int64_t group,
                  float* panel, int64_t panel_stride) {
  if constexpr (D::kUnit >= 4) {
    if (w.direct) return decode_steps_in<D, true>(w, decode, block, begin, end, group, panel, panel_stride);
  }
  decode_steps_in<D, false>(w, decode, block, begin, end, group, panel, panel_stride);
}

// What a tile does with its sums: carry them on, or add them scaled to the accumulators.
struct TileTerms {
  const Lanes* scale = nullptr;       // [panels], or null: carry
  const Lanes* offset = nullptr;      // [panels], or null: none
  const float* group_sums = nullptr;  // of the tile's first token and this group
  int64_t groups = 0;
};

template <int M, int P>
void multiply_tile(const float* panel, int64_t panel_stride, int64_t columns, const float* x, int64_t x_stride,
                   float* acc, const TileTerms& tile) {
  Lanes inner[M][P];
  for (int m = 0; m < M; ++m) {
    for (int p = 0; p < P; ++p) {
      inner[m][p] = tile.scale ? zero_lanes() : load_lanes(acc + (m * kPanelsPerBlock + p) * 16);
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
      if (tile.scale) y = fma(tile.scale[p], y, load_lanes(at));
      if (tile.offset) y = fma(tile.offset[p], broadcast(tile.group_sums[m * tile.groups]), y);
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
    if (tile.scale) tile.scale += by;
    if (tile.offset) tile.offset += by;
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
      Lanes y = fma(tile.scale[p], load_lanes(inner + at), load_lanes(acc + at));
      if (tile.offset) y = fma(tile.offset[p], broadcast(tile.group_sums[m * tile.groups]), y);
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
  Lanes scales[kTermGroups][kPanelsPerBlock], offsets[kTermGroups][kPanelsPerBlock];
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
        const int64_t slot = g % kTermGroups;
        for (int64_t p = 0; slot == 0 && p < count; ++p) {
          Terms<1> terms;
          const int64_t groups = smaller(kTermGroups, w.groups - g);
          fill_terms<1>(w, first + p, g, groups, D::kFactor, terms);
          for (int64_t j = 0; j < groups; ++j) {
            scales[j][p] = terms.scale[j][0];
            offsets[j][p] = terms.offset[j][0];
          }
        }
        const bool with_offsets = has_offsets(w);
        const TileTerms tile = {scales[slot], with_offsets ? offsets[slot] : nullptr,
                                with_offsets ? tokens.group_sums + g : nullptr, w.groups};
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
      Terms<1> terms;
      if (scale_at_end) fill_terms<1>(w, first + p, 0, 1, D::kFactor, terms);
      for (int64_t m = 0; m < tokens.m; ++m) {
        Lanes y = load_lanes(acc + (m * kPanelsPerBlock + p) * 16);
        if (scale_at_end) {
          y = fma(terms.scale[0][0], y, zero_lanes());
          if (has_offsets(w)) y = fma(terms.offset[0][0], broadcast(tokens.group_sums[m]), y);
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
