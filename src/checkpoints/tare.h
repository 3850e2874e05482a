#pragma once

#include "checkpoints/format.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// tare's own file: every quantized tensor that the middle can hold, bit for bit.
///
/// safetensors, natural k order. For a matrix P [N, K] with codes of b bits:
///     P.qweight   u8 [N, ceil(K*b/8)], LSB first, each row padded to a byte (b = 4: even k in the low nibble)
///     P.s1 f16 [N], P.s2 u8 [N, G], P.min8 s8 [N, G]         progressive groups (QoQ), G = ceil(K/g): short last group
///     P.scales, P.outer_scales, P.minima, P.outer_minima     [tile rows, tile columns] in the type the scheme names
///     P.zeros, or P.qzeros (packed like codes)               zero points
///     P.group_of_k i32 [K], P.offset f32 [1], P.codebooks f16, P.input_scale f32 [1], P.input_zero i32 [1]
/// config.json: quantization_config {quant_method "tare", version 1, schemes: [{..., modules: [P, ...]}], kv, and what
/// the quantizer says of itself: scheme, group_size, head, transforms, calibration}. Every quantized module is named by
/// exactly one scheme; all other tensors are dense.
CheckpointFormat tare_format();
CheckpointWriter tare_writer();

}  // namespace tare::checkpoints
