#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoints/manifest.h"
#include "io/output_file.h"
#include "tensor/model_weights.h"

namespace tare::checkpoints {

/// One tensor of an output file: `name` is the full one.
struct StoredPart {
  std::string name;
  tensor::Tensor tensor;
};

/// A quantized matrix of an output with what its format's configuration has to say of it.
struct WrittenModule {
  std::string module;  // "model.layers.0.mlp.down_proj"
  tensor::Shape shape;
  tensor::QuantSpec spec;
  tensor::ActivationSpec activation;
  json::object scheme;  // what `store` returned: the format's own description
};

struct StoredMatrix {
  std::vector<StoredPart> parts;
  json::object scheme;
};

struct WriteRequest;

/// How a format is written. One function returns it, in the format's file; writers() lists them.
struct CheckpointWriter {
  std::string_view name;
  std::string_view writes;  // in words, for the table of methods
  bool holds_kv = false;    // its configuration says what the KV cache should be

  /// The tensors of one quantized matrix, without copying where the layout allows. Nothing may be lost: what the format
  /// cannot say is an error (kUnsupported) that names it. nullptr: the format holds dense weights only.
  Result<StoredMatrix> (*store)(const std::string& module, const tensor::QuantizedTensor& weight,
                                const tensor::ActivationSpec& activation) = nullptr;
  /// quantization_config for config.json. `dense`: names of matrices that stay dense.
  Result<json::object> (*configuration)(const std::vector<WrittenModule>& modules,
                                        const std::vector<std::string>& dense, const WriteRequest& request) = nullptr;
};

const std::vector<CheckpointWriter>& writers();
/// Errors: unknown; the names that exist are listed.
Result<const CheckpointWriter*> find_writer(std::string_view format);

/// What to write where. Weights are loaded twice, one at a time, in the order of their names: to declare them, and to
/// write them.
struct WriteRequest {
  std::string folder;  // exists
  std::string format;  // "tare", "compressed-tensors", "safetensors"
  const tensor::ModelWeights* weights = nullptr;
  json::object settings;  // more keys for quantization_config, where the format takes any: scheme, calibration, ...
  std::optional<tensor::DType> dense_dtype;  // of dense weights; nothing: as they are
  bool allow_loss = false;                   // what the format cannot say is left out and listed, instead of refused
  uint64_t max_shard_bytes = uint64_t{5} << 30;
  std::function<Status(const std::string& name)> progress;  // before each weight is written; an error stops
};

struct WriteReport {
  std::vector<io::WrittenFile> files;
  int64_t tensor_bytes = 0;
  std::vector<std::string> losses;  // "model.embed_tokens.weight: F32 rounded to BF16"
};

/// Writes weights and config.json. Errors: kUnsupported (what the format cannot say); kIo; whatever loading says.
Result<WriteReport> write_checkpoint(const WriteRequest& request);

/// What a model's folder holds beside its weights: tokenizer, chat template, generation settings, licence, ...
struct SideFiles {
  std::vector<std::string> copied;  // relative to the folder
  std::vector<std::string> left_out;
  std::vector<std::string> notes;
};

/// Copies everything beside the weights of the model at `source` into `folder`: all files but weights, their index,
/// config.json, an older manifest and the files in which formats keep their quantization settings. A GGUF holds its
/// vocabulary and template in its metadata: they are written as `tokenizer.gguf` (metadata only), which the tokenizer's
/// loader reads.
Result<SideFiles> copy_side_files(const std::string& source, const std::string& folder);

}  // namespace tare::checkpoints
