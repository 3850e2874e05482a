#include "quantize/allocate.h"

#include <fmt/format.h>

#include <algorithm>

namespace tare::quantize {

namespace {

// Options of one unit that no other beats in both numbers: bytes rise, cost falls.
std::vector<size_t> frontier(const std::vector<AllocationOption>& options) {
  std::vector<size_t> order(options.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return options[a].bytes != options[b].bytes ? options[a].bytes < options[b].bytes
                                                : options[a].cost < options[b].cost;
  });
  std::vector<size_t> out;
  for (const size_t i : order) {
    if (out.empty() || options[i].cost < options[out.back()].cost) out.push_back(i);
  }
  return out;
}

double saved_per_byte(const AllocationOption& from, const AllocationOption& to) {
  return (from.cost - to.cost) / static_cast<double>(to.bytes - from.bytes);
}

// The part of a frontier on its lower convex hull: what a step saves a byte falls from step to step.
std::vector<size_t> hull(const std::vector<AllocationOption>& options, const std::vector<size_t>& frontier) {
  std::vector<size_t> out;
  for (const size_t i : frontier) {
    while (out.size() >= 2 && saved_per_byte(options[out[out.size() - 2]], options[out.back()]) <=
                                  saved_per_byte(options[out.back()], options[i])) {
      out.pop_back();
    }
    out.push_back(i);
  }
  return out;
}

struct Step {
  size_t unit = 0;
  size_t option = 0;
  int64_t bytes = 0;
  double rate = 0;
};

}  // namespace

Result<Allocation> allocate(const std::vector<std::vector<AllocationOption>>& units, int64_t budget) {
  Allocation out;
  std::vector<std::vector<size_t>> frontiers;
  std::vector<Step> steps;
  for (size_t u = 0; u < units.size(); ++u) {
    const std::vector<AllocationOption>& options = units[u];
    if (options.empty()) return invalid_input("nothing to choose from", {.where = fmt::format("unit {}", u)});
    frontiers.push_back(frontier(options));
    const std::vector<size_t> path = hull(options, frontiers.back());
    out.choice.push_back(path.front());
    out.bytes += options[path.front()].bytes;
    for (size_t i = 1; i < path.size(); ++i) {
      const AllocationOption& from = options[path[i - 1]];
      const AllocationOption& to = options[path[i]];
      steps.push_back({.unit = u, .option = path[i], .bytes = to.bytes - from.bytes, .rate = saved_per_byte(from, to)});
    }
  }
  if (out.bytes > budget) {
    return invalid_input(
        "the target is below the smallest forms",
        {.expected = fmt::format("at least {} bytes for the matrices", out.bytes), .found = fmt::format("{}", budget)});
  }
  // Steps of one unit fall in rate, so the order keeps them in order; equal rates of one unit do not occur on a hull.
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.rate > b.rate; });
  std::vector<bool> stuck(units.size());
  for (const Step& step : steps) {
    if (stuck[step.unit]) continue;
    if (out.bytes + step.bytes > budget) {
      stuck[step.unit] = true;  // later steps start behind this one
      continue;
    }
    out.choice[step.unit] = step.option;
    out.bytes += step.bytes;
  }
  while (true) {
    Step best;
    double most = 0;
    for (size_t u = 0; u < units.size(); ++u) {
      const AllocationOption& now = units[u][out.choice[u]];
      for (const size_t i : frontiers[u]) {
        const AllocationOption& other = units[u][i];
        const double saved = now.cost - other.cost;
        if (out.bytes + other.bytes - now.bytes > budget || saved <= most) continue;
        most = saved;
        best = {.unit = u, .option = i, .bytes = other.bytes - now.bytes};
      }
    }
    if (most <= 0) break;
    out.choice[best.unit] = best.option;
    out.bytes += best.bytes;
  }
  for (size_t u = 0; u < units.size(); ++u) out.cost += units[u][out.choice[u]].cost;
  return out;
}

}  // namespace tare::quantize
