#include "runtime/load.h"

#include <fmt/format.h>

#include "checkpoints/checkpoint.h"
#include "runtime/kv_scales.h"
#include "tensor/parameter_count.h"

namespace tare::runtime {

Result<LoadedModel> load_model(const std::string& path, const LoadOptions& options, ThreadPool& pool) {
  TARE_ASSIGN(tensor::ModelWeights weights,
              checkpoints::load_checkpoint(path, {.format = options.format, .formats = options.formats}));
  TARE_ASSIGN(model::Architecture arch, model::describe_architecture(weights.config));

  TARE_ASSIGN(const int64_t parameters, tensor::parameter_count(weights));
  LoadedModel out{.path = path,
                  .format = weights.format,
                  .config = weights.config,
                  .kv = weights.kv,
                  .notes = weights.notes,
                  .stored_bytes = weights.stored_bytes(),
                  .parameters = parameters};
  out.notes.insert(out.notes.end(), arch.notes.begin(), arch.notes.end());
  if (std::string note = model::activation_note(weights, options.activations); !note.empty()) {
    out.notes.push_back(std::move(note));
  }
  TARE_ASSIGN(CheckpointKvScales scales, take_kv_scales(weights, arch));
  out.kv_scales = std::move(scales.layers);
  out.notes.insert(out.notes.end(), scales.notes.begin(), scales.notes.end());

  if (options.budget) {
    // Packed weights are never larger than the stored ones by more than padding; the workspace comes on top.
    TARE_ASSIGN(out.reservation, options.budget->reserve("weights", static_cast<uint64_t>(out.stored_bytes)));
  }
  model::Transformer::Options load{.bind = {.registry = options.registry,
                                            .caps = options.caps,
                                            .forced_kernel = options.forced_kernel,
                                            .activations = options.activations},
                                   .max_batch_tokens = options.max_batch_tokens,
                                   .context = options.context,
                                   .progress = options.progress};
  TARE_ASSIGN(model::Transformer transformer,
              model::Transformer::load(weights, std::move(arch), std::move(load), pool));
  out.transformer = std::make_unique<model::Transformer>(std::move(transformer));
  out.notes.insert(out.notes.end(), out.transformer->notes().begin(), out.transformer->notes().end());
  if (options.budget) {
    TARE_TRY(out.reservation.resize(
        static_cast<uint64_t>(out.transformer->packed_bytes() + out.transformer->workspace_bytes())));
  }
  return out;
}

}  // namespace tare::runtime
