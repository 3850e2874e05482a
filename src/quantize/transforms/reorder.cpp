#include "quantize/transforms/reorder.h"

#include <algorithm>
#include <numeric>

#include "quantize/transforms/fold.h"

namespace tare::quantize {

using model::Site;

namespace {

// Row i becomes what row order[i] was; bias too.
void permute_rows(const RoleView& view, std::span<const int32_t> order) {
  std::vector<float> moved(static_cast<size_t>(view.n * view.k));
  std::vector<float> bias;
  for (int64_t i = 0; i < view.n; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    std::copy_n(view.w + from * view.k, view.k, moved.data() + i * view.k);
    if (view.bias) bias.push_back(view.bias[from]);
  }
  std::copy(moved.begin(), moved.end(), view.w);
  std::copy(bias.begin(), bias.end(), view.bias);
}

void permute_columns(const RoleView& view, std::span<const int32_t> order) {
  std::vector<float> row(static_cast<size_t>(view.k));
  for (int64_t n = 0; n < view.n; ++n) {
    float* w = view.w + n * view.k;
    for (int64_t i = 0; i < view.k; ++i) row[static_cast<size_t>(i)] = w[order[static_cast<size_t>(i)]];
    std::copy(row.begin(), row.end(), w);
  }
}

bool has_groups(const BlockMatrix& m) {
  return !m.scheme.keep && m.groups() > 1;
}

}  // namespace

std::vector<int32_t> ascending_order(std::span<const float> values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] < values[static_cast<size_t>(b)];
  });
  return order;
}

void reorder_down(Block& block, std::span<const int32_t> order) {
  permute_columns(block.view(Role::kDown), order);
  permute_rows(block.view(Role::kGate), order);
  permute_rows(block.view(Role::kUp), order);
  block.touch();
}

void reorder_heads(Block& block, std::span<const int32_t> order) {
  const model::Architecture& arch = *block.arch;
  const int64_t d = arch.head_dim;
  const int64_t shared = arch.heads / arch.kv_heads;
  std::vector<int32_t> rows;
  std::vector<int32_t> columns;
  for (int64_t c = 0; c < arch.kv_size(); ++c) {
    rows.push_back(static_cast<int32_t>(c / d * d) + order[static_cast<size_t>(c)]);
  }
  for (int64_t c = 0; c < arch.q_size(); ++c) {
    columns.push_back(static_cast<int32_t>(c / d * d) + order[static_cast<size_t>(c / d / shared * d + c % d)]);
  }
  permute_rows(block.view(Role::kV), rows);
  permute_columns(block.view(Role::kO), columns);
  block.touch();
}

Result<TransformReport> reorder_channels(Block& block, BlockData& data, const TransformContext& context) {
  TransformReport report{.name = "reorder", .layer = block.layer};
  const bool down = has_groups(block.matrix(Role::kDown));
  const bool heads = context.setting("reorder.heads", 0) != 0 && has_groups(block.matrix(Role::kO));
  if (!down && !heads) {
    report.summary = "nothing to order: no groups";
    return report;
  }
  TARE_ASSIGN(const BlockStatistics* statistics, data.statistics(block));
  const std::vector<float> at_down = statistics->at(Site::kDown).absmax;
  const std::vector<float> at_o = per_factor_max(block, Site::kOut, statistics->at(Site::kOut).absmax);
  if (down) {
    reorder_down(block, ascending_order(at_down));
    report.summary = "input channels of down_proj by rising range";
  }
  if (heads) {
    const int64_t d = block.arch->head_dim;
    std::vector<int32_t> order;
    for (int64_t first = 0; first < block.arch->kv_size(); first += d) {
      const std::vector<int32_t> one =
          ascending_order(std::span(at_o).subspan(static_cast<size_t>(first), static_cast<size_t>(d)));
      order.insert(order.end(), one.begin(), one.end());
    }
    reorder_heads(block, order);
    report.summary += report.summary.empty() ? "channels of each value head by rising range" : ", value heads too";
  }
  return report;
}

}  // namespace tare::quantize
