#pragma once

#include "checkpoints/compressed_tensors_config.h"
#include "checkpoints/format.h"
#include "checkpoints/parts.h"
#include "checkpoints/write.h"

namespace tare::checkpoints {

/// compressed-tensors: all its storage formats (docs/formats.md 3).
CheckpointFormat compressed_tensors_format();
CheckpointWriter compressed_tensors_writer();

/// What a storage format has to read: one module, the group it falls in, and what to call the result.
struct CtModule {
  Source& source;
  const CtConfig& config;
  const CtArgs& weights;
  const std::string& format;
  tensor::ActivationSpec activation;  // of its input
  Parts parts;
  tensor::ModelWeights& out;

  std::string weight() const { return parts.name("weight"); }
};

/// The readers of the storage formats; each takes the weight's tensors of one module and adds "P.weight".
Status read_ct_packed(CtModule& module);  // pack-quantized
Status read_ct_plain(CtModule& module);   // int-, float-, naive-quantized, mxfp8; with or without 2:4 bitmask
Status read_ct_fp4(CtModule& module);     // nvfp4-, mxfp4-pack-quantized

/// A grid of scales over [n, k] as the strategy of `args` lays it out, straight from the file.
/// Errors: another shape than the strategy says.
struct CtScaleShape {
  tensor::Shape shape;  // as stored; {1} for tensor
  int64_t tile_n = 1;
  int64_t tile_k = 1;
};
Result<CtScaleShape> ct_scale_shape(const CtArgs& args, int64_t n, int64_t k, const Parts& parts);

}  // namespace tare::checkpoints
