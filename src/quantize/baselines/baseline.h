#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/transformer.h"
#include "quantize/block_data.h"
#include "tensor/model_weights.h"

/// Published forms that tare evaluates beside its own and does not run: their inputs are transformed while the model
/// runs (Hadamard matrices, a gather), and everything is computed in f32 with rounded values.
namespace tare::quantize {

struct Baseline {
  std::string name;
  std::string scheme;                                   // "W4A4KV4"
  std::shared_ptr<const tensor::ModelWeights> weights;  // decoded, f32
  model::Architecture arch;
  model::Observer observer;  // transforms and rounds inputs, turns queries and keys; for one forward pass at a time
  int kv_bits = 4;
  std::vector<std::string> notes;  // where it differs from what was published
};

struct BaselineOptions {
  bool round = true;       // false: only the transforms, which must leave the function as it is (tests)
  int64_t outliers = 128;  // Atom: channels that stay in 8 bits; at most a quarter of an input
};

/// QuaRot W4A4KV4: stream rotated with random signs, values per head, a Hadamard matrix on the input of down_proj and
/// on queries and keys after RoPE while running; across heads before o_proj where the number of heads has a matrix.
/// Weights s4 per row, ranges searched by |error|^2.4, GPTQ; activations s4 per token, 0.9 of the range.
/// Errors: as rotate_stream. Source: QuaRot (arXiv:2404.00456).
Result<Baseline> quarot_baseline(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                                 const CalibrationData& data, const BaselineOptions& options, Products& products);

/// Atom W4A4KV4: the input channels of largest square sum stay s8 (per token, per row), the others are ordered by it
/// and rounded to s4 in groups of 128 (activations at 0.9, weights at 0.85 of their range, GPTQ). Source: Atom
/// (arXiv:2310.19102).
Result<Baseline> atom_baseline(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                               const CalibrationData& data, const BaselineOptions& options, Products& products);

/// By name. Errors: unknown; the names are listed.
Result<Baseline> make_baseline(const std::string& name, std::shared_ptr<const tensor::ModelWeights> source,
                               const model::Architecture& arch, const CalibrationData& data,
                               const BaselineOptions& options, Products& products);

// For the files of this folder.

/// Signed codes of `bits` for x [n] with one scale ratio * absmax / (2^(b-1) - 1), decoded in place.
void round_signed(float* x, int64_t n, int bits, float ratio);
/// Moves the stream of the data behind a block, nothing rounded.
Status advance(BlockData& data, const Block& block);
/// Adds a block's tensors to `out` in f32.
Status add_block(const Block& block, tensor::ModelWeights& out);
/// Adds what is in `source` and not in `out`.
Status add_rest(std::shared_ptr<const tensor::ModelWeights> source, tensor::ModelWeights& out);

}  // namespace tare::quantize
