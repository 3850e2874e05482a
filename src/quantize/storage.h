#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoints/write.h"
#include "io/safetensors_writer.h"
#include "kernels/linear.h"
#include "model/weight_plan.h"
#include "quantize/recipe.h"

namespace tare::quantize {

/// What a file holds for each weight, in the file's order.
using WeightTensors = std::map<std::string, std::vector<io::TensorDeclaration>>;

/// Schemes that a matrix may become when a budget decides: widths 3, 4, 5, 6 and 8 (as far as `widths` has them) in
/// groups of 32, 64, 128 and whole rows, with and without zeros up to 4 bits. What `flags` fix stays fixed; the width
/// of flags.scheme does not count, its activations and cache do.
std::vector<MatrixScheme> candidate_schemes(const Recipe& recipe, const SchemeFlags& flags,
                                            const std::vector<int>& widths);

/// What a format makes of matrices in a scheme, from shapes alone.
class Storage {
 public:
  /// config: of the model. Both writer and config outlive the table.
  Storage(const checkpoints::CheckpointWriter& writer, const json::object& config, bool allow_loss,
          kernels::LinearRegistry registry, machine::Capabilities caps, ThreadPool& pool)
      : writer_(&writer),
        config_(&config),
        allow_loss_(allow_loss),
        registry_(std::move(registry)),
        caps_(caps),
        pool_(&pool) {}

  /// The tensors of "<module>.weight" [n, k] in the file. The writer itself is asked, with a matrix of made-up weights.
  /// Errors: the scheme does not exist, or the format cannot hold it for this shape (kUnsupported).
  Result<std::vector<io::TensorDeclaration>> tensors(const std::string& module, int64_t n, int64_t k,
                                                     const MatrixScheme& scheme);
  /// The same for a matrix of `source`, which a scheme may also keep as it is stored there.
  Result<std::vector<io::TensorDeclaration>> tensors(const tensor::ModelWeights& source,
                                                     const model::LayerLinear& linear, const MatrixScheme& scheme);
  /// The kernel that would multiply with it on this machine. Errors: as above.
  Result<const kernels::LinearKernel*> kernel(int64_t n, int64_t k, bool bias, const MatrixScheme& scheme);

 private:
  struct Stored {
    tensor::QuantSpec spec;
    std::vector<io::TensorDeclaration> tensors;  // of a module named "M"
  };
  Result<const Stored*> stored(int64_t n, int64_t k, const MatrixScheme& scheme);
  Result<Stored> make(int64_t n, int64_t k, const MatrixScheme& scheme);

  const checkpoints::CheckpointWriter* writer_;
  const json::object* config_;
  bool allow_loss_;
  kernels::LinearRegistry registry_;
  machine::Capabilities caps_;
  ThreadPool* pool_;
  std::map<std::string, Result<Stored>> known_;
};

/// Tensors of a weight that is stored as it is.
Result<std::vector<io::TensorDeclaration>> stored_tensors(const tensor::ModelWeights& weights, const std::string& name,
                                                          const checkpoints::CheckpointWriter& writer, bool allow_loss);

/// Bytes of these tensors alone.
Result<int64_t> data_bytes(const std::vector<io::TensorDeclaration>& tensors);
/// The same and at most what their entries in a header take in a file below `file_bytes`.
Result<int64_t> bytes_with_entries(const std::vector<io::TensorDeclaration>& tensors, int64_t file_bytes);

}  // namespace tare::quantize
