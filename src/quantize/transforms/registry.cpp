#include <fmt/format.h>

#include "quantize/transform.h"
#include "quantize/transforms/awq.h"
#include "quantize/transforms/clip.h"
#include "quantize/transforms/reorder.h"
#include "quantize/transforms/rotate.h"
#include "quantize/transforms/smooth.h"
#include "quantize/transforms/smooth_attention.h"

namespace tare::quantize {

const std::vector<Transform>& transforms() {
  static const std::vector<Transform> table = {
      {.name = "fold_norms", .summary = "norm weights into the matrices that read them", .model = fold_norms},
      {.name = "rotate", .summary = "Hadamard rotation of the residual stream", .model = rotate_stream},
      {.name = "rotate_heads", .summary = "Hadamard rotation of each value head", .block = rotate_heads},
      {.name = "reorder",
       .summary = "input channels of down_proj by rising range",
       .needs_data = true,
       .block = reorder_channels},
      {.name = "smooth_attention",
       .summary = "outlier channels of keys move to the queries",
       .needs_data = true,
       .block = smooth_attention},
      {.name = "smooth_outputs",
       .summary = "range moves from the input of down_proj into its weights",
       .needs_data = true,
       .block = smooth_outputs},
      {.name = "smoothquant",
       .summary = "range moves from what norms give into the weights behind",
       .needs_data = true,
       .block = smoothquant},
      {.name = "awq", .summary = "weights scaled by what activates them", .needs_data = true, .block = awq_scales},
      {.name = "clip", .summary = "ranges shrunk where outputs gain", .needs_data = true, .block = clip_ranges},
      {.name = "static_activations",
       .summary = "one activation scale a matrix, from calibration",
       .needs_data = true,
       .block = static_activations},
  };
  return table;
}

Result<const Transform*> find_transform(std::string_view name) {
  std::string known;
  for (const Transform& row : transforms()) {
    if (row.name == name) return &row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_input("unknown transform", {.expected = known, .found = fmt::format("'{}'", name)});
}

}  // namespace tare::quantize
