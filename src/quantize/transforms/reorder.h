#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quantize/transform.h"

namespace tare::quantize {

/// Channels by rising value; equal ones keep their order.
std::vector<int32_t> ascending_order(std::span<const float> values);

/// Input channel i of down_proj becomes what channel order[i] was: columns of down, rows of gate and up and their
/// biases. The function stays; runs of a group now hold channels of similar range. Touches the block.
void reorder_down(Block& block, std::span<const int32_t> order);

/// The same inside each head: values of kv head h take order[h * head_dim ..] (indices within the head), the columns of
/// o_proj follow for each query head that shares it. order: [kv_heads * head_dim].
void reorder_heads(Block& block, std::span<const int32_t> order);

/// Orders the input of down_proj by the largest magnitude that calibration saw, so that channels of similar importance
/// share a scale; with the setting "reorder.heads" = 1 the channels of each value head as well (it does nothing where a
/// group is a head, and nothing useful where heads are rotated). Per-channel grids have no groups: nothing is done.
/// Source: QServe (arXiv:2405.04532), section 4.3.
Result<TransformReport> reorder_channels(Block& block, BlockData& data, const TransformContext& context);

}  // namespace tare::quantize
