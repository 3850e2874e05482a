#pragma once

#include "quantize/transform.h"

namespace tare::quantize {

/// QoQ's smoothing of what blocks hand to their last matrices: s = max|x|^alpha / max|w|^(1 - alpha) on the input of
/// down_proj, and of o_proj unless its heads were rotated ("smooth_outputs.o" = 1). alpha is small there: the weights
/// decide. "smooth_outputs.alpha" fixes it; otherwise it is searched in 0, 0.05 .. 0.35 (and no smoothing at all) by
/// the error of the half layer with these matrices and all activations rounded.
/// Source: QServe (arXiv:2405.04532), section 4.3.
Result<TransformReport> smooth_outputs(Block& block, BlockData& data, const TransformContext& context);

/// SmoothQuant: s = max|x|^alpha / max|w|^(1 - alpha) between the norms and what reads them (qkv; gate, up), both spans
/// floored at 1e-5. "smoothquant.alpha" fixes alpha for all layers; otherwise each site of each layer searches 0.3, 0.4
/// .. 0.9 (and no smoothing) by the error of its half layer with weights and activations rounded.
/// Source: SmoothQuant (arXiv:2211.10438), eq. 4.
Result<TransformReport> smoothquant(Block& block, BlockData& data, const TransformContext& context);

/// Static activation scales: the input of each quantized matrix that has 8-bit activations gets one scale, largest
/// magnitude over all calibration tokens / 127. Weights stay. Runs after every transform that changes inputs.
Result<TransformReport> static_activations(Block& block, BlockData& data, const TransformContext& context);

}  // namespace tare::quantize
