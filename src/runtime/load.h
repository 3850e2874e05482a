#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kvcache/paged_cache.h"
#include "model/transformer.h"

namespace tare::checkpoints {
struct CheckpointFormat;
}

namespace tare::runtime {

/// How to open a model for running; from the global flags.
struct LoadOptions {
  std::string format;                                                   // --quantization
  const std::vector<checkpoints::CheckpointFormat>* formats = nullptr;  // with those of plugins; nullptr: built in
  kernels::LinearRegistry registry = kernels::builtin_linear_kernels();
  std::string forced_kernel;            // --kernel
  model::ActivationPolicy activations;  // --activations
  machine::Capabilities caps;
  int64_t max_batch_tokens = 512;
  int64_t context = 0;  // 0 = what the model was trained for
  MemoryBudget* budget = nullptr;
  std::function<void(int64_t done, int64_t total)> progress;
};

/// A model ready to run, with what the checkpoint says about it.
struct LoadedModel {
  std::string path;
  std::string format;
  json::object config;
  tensor::KvSpec kv;
  std::vector<kvcache::KvLayerScales> kv_scales;  // [layers] of an fp8 cache, as the checkpoint has them; or empty
  std::vector<std::string> notes;                 // substitutions, leftovers, decisions: the report shows them
  int64_t stored_bytes = 0;                       // of all tensors in the file
  int64_t parameters = 0;
  std::unique_ptr<model::Transformer> transformer;
  MemoryBudget::Reservation reservation;

  double bits_per_weight() const {
    return parameters == 0 ? 0 : 8.0 * static_cast<double>(stored_bytes) / static_cast<double>(parameters);
  }
};

Result<LoadedModel> load_model(const std::string& path, const LoadOptions& options, ThreadPool& pool);

}  // namespace tare::runtime
