#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "quantize/block_data.h"

namespace tare::quantize {

/// What one site of a block reads, summed over all tokens of the data.
struct SiteInputs {
  Gram gram;  // of the quantized stream, rounded as the activation spec says
  /// sum over tokens of (reference - quantized) x quantized^T, [K, K]; empty without a reference stream.
  std::vector<float> cross;
  /// The same for the residual stream that the site's output is added to, [hidden, K]; kOut and kDown only.
  std::vector<float> residual;
  int64_t zero_tokens = 0;  // all channels 0
};

/// Sends the calibration streams through one block, site by site: qkv, out, gate_up, down. At each site the inputs are
/// those that the matrices before, already quantized, produce. Every matrix is multiplied once a stream.
///
///     collect(kQkv), solve, set(kQkv) -> collect(kOut), ... -> set(kDown) -> finish()
class BlockWalk {
 public:
  /// dense: the transformed block, which the reference stream runs. Both must outlive the walk.
  /// correct: collect cross terms too (needs the reference stream).
  static Result<BlockWalk> begin(BlockData& data, const Block& dense, int kv_bits, bool correct);

  Result<SiteInputs> collect(model::Site site);
  /// The matrices of a site become those of `solved` (decoded weights); the dense ones of that site are packed for the
  /// reference stream. Neither block's matrices of this site are read afterwards.
  Status set(model::Site site, const Block& solved);
  /// Runs the last site and moves both streams behind the block.
  Status finish();

 private:
  BlockWalk(BlockData& data, const Block& dense) : data_(&data), dense_(&dense) {}
  // Brings the runner to the input of `site` for one span and stream; returns that input [M, K].
  Result<const float*> advance(model::Site site, BlockData::Stream stream, const BlockData::Span& span,
                               const model::Batch& batch);
  model::LinearGroup& group(model::BoundLayer& layer, model::Site site);

  BlockData* data_;
  const Block* dense_;
  bool correct_ = false;
  std::optional<ActivationRounder> rounder_;
  std::array<model::BoundLayer, 2> bound_;  // by stream
  std::array<std::optional<model::AttentionCache>, 2> caches_;
  std::array<TokenStore, 2> inner_;  // attention output, then MLP activations
};

}  // namespace tare::quantize
