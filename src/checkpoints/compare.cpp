#include "checkpoints/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoints/gguf.h"

namespace tare::checkpoints {

namespace {

// Rows at a time, so that a large matrix never stands in memory as f32 twice.
Status rows_f32(const tensor::Weight& weight, int64_t begin, int64_t end, int64_t columns, std::vector<float>& out) {
  out.resize(static_cast<size_t>((end - begin) * columns));
  if (const auto* quantized = std::get_if<tensor::QuantizedTensor>(&weight)) {
    tensor::dequantize(*quantized, begin, end, out.data());
    return {};
  }
  return tensor::to_f32(std::get<tensor::Tensor>(weight), begin * columns, (end - begin) * columns, out.data());
}

}  // namespace

Result<std::vector<WeightDifference>> compare_weights(const tensor::ModelWeights& left,
                                                      const tensor::ModelWeights& right,
                                                      const std::function<Status(const std::string&)>& progress) {
  std::vector<WeightDifference> out;
  std::set<std::string> seen;
  for (const std::string& name : left.names()) {
    if (progress) TARE_TRY(progress(name));
    const std::string there = right.contains(name) ? name : gguf_weight_spelling(name);
    if (!right.contains(there)) {
      out.push_back({name, "is missing"});
      continue;
    }
    seen.insert(there);
    TARE_ASSIGN(const tensor::Weight a, left.load(name));
    TARE_ASSIGN(const tensor::Weight b, right.load(there));
    const tensor::Shape shape = tensor::shape_of(a);
    if (shape != tensor::shape_of(b)) {
      out.push_back({name, fmt::format("shape {} instead of {}", tensor::shape_text(tensor::shape_of(b)),
                                       tensor::shape_text(shape))});
      continue;
    }
    if (left.find(name)->activation != right.find(there)->activation) {
      out.push_back({name, fmt::format("inputs {} instead of {}", describe(right.find(there)->activation),
                                       describe(left.find(name)->activation))});
    }
    TARE_ASSIGN(const int64_t count, tensor::element_count(shape));
    const int64_t columns = shape.size() == 2 ? shape[1] : count;
    const int64_t rows = columns == 0 ? 0 : count / columns;
    const int64_t step = std::max<int64_t>(1, (int64_t{1} << 20) / std::max<int64_t>(columns, 1));
    std::vector<float> x, y;
    float worst = 0;
    int64_t different = 0;
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t end = std::min(rows, row + step);
      TARE_TRY(rows_f32(a, row, end, columns, x));
      TARE_TRY(rows_f32(b, row, end, columns, y));
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] == y[i]) continue;
        ++different;
        worst = std::max(worst, std::abs(x[i] - y[i]));
      }
    }
    if (different > 0)
      out.push_back({name, fmt::format("{} values differ, by at most {:.3g}", different, worst), worst});
  }
  for (const std::string& name : right.names()) {
    if (seen.count(name) == 0) out.push_back({name, "is new"});
  }
  return out;
}

}  // namespace tare::checkpoints
