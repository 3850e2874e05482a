#include <algorithm>
#include <cmath>

#include "quantize/gptq.h"

namespace tare::quantize {

namespace {

// The state of a refinement: d = w - decoded and its gradient g = d (G + added), both [N, K].
class Refinement {
 public:
  Refinement(ChosenGrid& grid, const float* w, const Gram& gram, float added, std::vector<uint8_t>& codes,
             Products& products)
      : grid_(grid),
        w_(w),
        gram_(gram),
        added_(added),
        codes_(codes),
        products_(products),
        n_(grid.n()),
        k_(grid.k()) {}

  Status start() {
    d_.resize(static_cast<size_t>(n_ * k_));
    g_.resize(d_.size());
    for_rows([&](int64_t row) {
      for (int64_t j = 0; j < k_; ++j) {
        const auto at = static_cast<size_t>(row * k_ + j);
        d_[at] = w_[at] - grid_.decode(row, j, codes_[at]);
      }
    });
    TARE_TRY(products_.multiply(d_.data(), k_, n_, k_, gram_.data(), k_, g_.data(), k_));
    for_rows([&](int64_t row) {
      for (int64_t j = 0; j < k_; ++j)
        g_[static_cast<size_t>(row * k_ + j)] += added_ * d_[static_cast<size_t>(row * k_ + j)];
    });
    return {};
  }

  // Each group's scale and minimum to the best for its codes, group by group; all rows at once.
  Status refit(int64_t group) {
    const int64_t first = grid_.group_first(group);
    const int64_t width = grid_.group_end(group) - first;
    std::vector<float> change(static_cast<size_t>(n_ * width));
    for_rows([&](int64_t row) { refit_row(row, group, first, width, change.data() + row * width); });
    // g -= change * G[group, :]
    std::vector<float> columns(static_cast<size_t>(k_ * width));
    for (int64_t j = 0; j < k_; ++j) std::copy_n(gram_.data() + j * k_ + first, width, columns.data() + j * width);
    product_.resize(static_cast<size_t>(n_ * k_));
    TARE_TRY(products_.multiply(change.data(), width, n_, width, columns.data(), k_, product_.data(), k_));
    for_rows([&](int64_t row) {
      float* g = g_.data() + row * k_;
      float* d = d_.data() + row * k_;
      for (int64_t j = 0; j < k_; ++j) g[j] -= product_[static_cast<size_t>(row * k_ + j)];
      for (int64_t j = 0; j < width; ++j) {
        const float c = change[static_cast<size_t>(row * width + j)];
        g[first + j] -= added_ * c;
        d[first + j] -= c;
      }
    });
    return {};
  }

  // Every code once more, with all others held: the nearest to where the gradient of its own weight is 0.
  void sweep() {
    constexpr int64_t kRows = 8;  // share a row of G
    products_.pool().parallel_for(n_, kRows, [&](int64_t begin, int64_t end) {
      for (int64_t j = 0; j < k_; ++j) {
        const float curvature = gram_.at(j, j) + added_;
        if (!(curvature > 0)) continue;
        const float* h = gram_.data() + j * k_;
        for (int64_t row = begin; row < end; ++row) {
          float* g = g_.data() + row * k_;
          float& d = d_[static_cast<size_t>(row * k_ + j)];
          uint8_t& code = codes_[static_cast<size_t>(row * k_ + j)];
          const float now = w_[row * k_ + j] - d;
          const uint8_t better = grid_.encode(row, j, now + g[j] / curvature);
          if (better == code) continue;
          const float change = grid_.decode(row, j, better) - now;
          // Only if it is an improvement by itself: the nearest code can be a clamped one.
          if (!(change * (change * curvature - 2 * g[j]) < 0)) continue;
          code = better;
          for (int64_t i = 0; i < k_; ++i) g[i] -= change * h[i];
          g[j] -= added_ * change;
          d -= change;
        }
      }
    });
  }

 private:
  template <class Body>
  void for_rows(const Body& body) {
    products_.pool().parallel_for(n_, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) body(row);
    });
  }

  // change [width]: new decoded minus old.
  void refit_row(int64_t row, int64_t group, int64_t first, int64_t width, float* change) {
    std::fill_n(change, width, 0.0f);
    const uint8_t* codes = codes_.data() + row * k_ + first;
    const float* g = g_.data() + row * k_ + first;
    const ChosenGrid::Group old = grid_.group(row, group);
    std::vector<float> unit(static_cast<size_t>(width));
    for (int64_t j = 0; j < width; ++j) unit[static_cast<size_t>(j)] = grid_.unit(row, first + j, codes[j]);
    double a = 0, b = 0, uu = 0, u1 = 0, ones = 0;
    for (int64_t i = 0; i < width; ++i) {
      const float* h = gram_.data() + (first + i) * k_ + first;
      float along_u = 0, along_1 = 0;
      for (int64_t j = 0; j < width; ++j) {
        along_u += h[j] * unit[static_cast<size_t>(j)];
        along_1 += h[j];
      }
      const auto u = static_cast<double>(unit[static_cast<size_t>(i)]);
      const auto damp = static_cast<double>(added_);
      a += u * static_cast<double>(g[i]);
      b += static_cast<double>(g[i]);
      uu += u * (static_cast<double>(along_u) + damp * u);
      u1 += u * (static_cast<double>(along_1) + damp);
      ones += static_cast<double>(along_1) + damp;
    }
    if (!(uu > 0)) return;
    // Loss of moving the scale by s and the minimum by m.
    const auto loss = [&](double s, double m) {
      return -2 * (s * a + m * b) + s * s * uu + 2 * s * m * u1 + m * m * ones;
    };
    double best = 0;
    float best_scale = old.scale, best_minimum = old.minimum;
    const auto attempt = [&](double s) {
      const double m = old.has_minimum && ones > 0 ? (b - s * u1) / ones : 0.0;
      const auto scale = static_cast<float>(static_cast<double>(old.scale) + s);
      const auto minimum = static_cast<float>(static_cast<double>(old.minimum) + m);
      if (!grid_.move(row, group, scale, minimum, codes)) return;
      const ChosenGrid::Group now = grid_.group(row, group);
      const double gain = loss(static_cast<double>(now.scale) - static_cast<double>(old.scale),
                               static_cast<double>(now.minimum) - static_cast<double>(old.minimum));
      if (gain < best) {
        best = gain;
        best_scale = now.scale;
        best_minimum = now.minimum;
      }
    };
    const double determinant = uu * ones - u1 * u1;
    double s = a / uu;
    if (old.has_minimum && determinant > 1e-6 * uu * ones) s = (a * ones - b * u1) / determinant;
    if (old.step > 0) {
      const double step = static_cast<double>(old.step);
      for (const double whole : {std::floor(s / step), std::floor(s / step) + 1, 0.0}) attempt(whole * step);
    } else {
      attempt(s);
    }
    grid_.move(row, group, best_scale, best_minimum, codes);
    if (best_scale == old.scale && best_minimum == old.minimum) return;
    const ChosenGrid::Group now = grid_.group(row, group);
    for (int64_t j = 0; j < width; ++j) {
      const float before = old.scale * unit[static_cast<size_t>(j)] + old.minimum;
      change[j] = now.scale * unit[static_cast<size_t>(j)] + now.minimum - before;
    }
  }

  ChosenGrid& grid_;
  const float* w_;
  const Gram& gram_;
  float added_;
  std::vector<uint8_t>& codes_;
  Products& products_;
  int64_t n_, k_;
  std::vector<float> d_, g_, product_;
};

}  // namespace

Status refine(ChosenGrid& grid, const float* w, const Gram& gram, float added, int sweeps, std::vector<uint8_t>& codes,
              Products& products) {
  if (sweeps <= 0 || grid.n() == 0 || grid.k() == 0) return {};
  Refinement state(grid, w, gram, added, codes, products);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    TARE_TRY(state.start());
    if (!grid.spec().per_tensor) {
      for (int64_t group = 0; group < grid.groups(); ++group) TARE_TRY(state.refit(group));
    }
    state.sweep();
  }
  return {};
}

}  // namespace tare::quantize
