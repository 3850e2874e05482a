#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoints/losses.h"
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

struct MatrixToStore;

struct StoredMatrix {
  std::vector<StoredPart> parts;
  json::object scheme;
  bool dense = false;  // the format keeps this matrix unquantized

  /// One more tensor of the matrix, "<module>.<suffix>". Errors: those of making the tensor.
  Status add(const MatrixToStore& matrix, std::string_view suffix, Result<tensor::Tensor> tensor);
};

/// A quantized matrix on its way into a file.
struct MatrixToStore {
  std::string module;
  const tensor::QuantizedTensor* weight = nullptr;
  tensor::ActivationSpec activation;
  const json::object* config = nullptr;  // of the model

  std::string name() const { return module + ".weight"; }
};

struct WriteRequest;
struct WriteReport;

/// Matrices of different forms in one file. Engines that join q, k, v and gate, up into one product want one form for
/// each of the two, and run fewer widths than the format can say.
struct MixedForms {
  bool held = false;
  bool joined_alike = false;  // q, k, v and gate, up must agree
  std::vector<int> bits;      // widths that readers of the format run
};

/// How a format is written. One function returns it, in the format's file; writers() lists them.
struct CheckpointWriter {
  std::string_view name;
  std::string_view writes;  // in words, for the table of methods
  bool holds_kv = false;    // its configuration says what the KV cache should be
  MixedForms mixed = {};

  /// The tensors of one quantized matrix, without copying where the layout allows. Nothing is lost without a word: what
  /// the format cannot say goes through `losses`. nullptr: the format holds dense weights only. Called twice a matrix.
  Result<StoredMatrix> (*store)(const MatrixToStore& matrix, Losses& losses) = nullptr;
  /// quantization_config for config.json; nullptr: the format has none. `dense`: names of matrices that stay dense.
  Result<json::object> (*configuration)(const std::vector<WrittenModule>& modules,
                                        const std::vector<std::string>& dense, const WriteRequest& request) = nullptr;
  std::string_view config_file;  // a second home of the configuration, where older readers look for it
  /// What else the format cannot say of this model (dense weights included), before anything is written.
  Status (*check)(const WriteRequest& request, Losses& losses) = nullptr;
  /// A format with a container of its own writes everything itself.
  Result<WriteReport> (*write)(const WriteRequest& request, Losses& losses) = nullptr;
};

const std::vector<CheckpointWriter>& writers();
/// Errors: unknown; the names that exist are listed.
Result<const CheckpointWriter*> find_writer(std::string_view format);

/// What to write where. Weights are loaded twice, one at a time, in the order of their names: to declare them, and to
/// write them.
struct WriteRequest {
  std::string folder;  // exists
  std::string format;  // a name of writers()
  std::string source;  // the model it is made from: a GGUF takes the tokenizer from there
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

/// A matrix that the format cannot hold quantized, decoded to the model's own 16-bit type (or to F32): a loss of size,
/// and of digits where 16 bits round. `why` for the message.
Result<StoredMatrix> store_dense(const MatrixToStore& matrix, const std::string& why, Losses& losses);
/// What every module says of itself, for formats that have one form for the whole file. Errors: modules that differ;
/// `hint` names a format that holds both.
Result<json::object> only_scheme(const std::vector<WrittenModule>& modules, std::string_view format, std::string hint);
/// For formats of weights only: quantized inputs are a loss.
Status lose_activation(const MatrixToStore& matrix, Losses& losses);
/// True for an embedding table: most formats keep it dense.
bool is_embedding(std::string_view module);
/// A dense tensor in another float type, nearest even. Errors: a value that float16 cannot hold.
Result<tensor::Tensor> cast_dense(const tensor::Tensor& t, tensor::DType dtype, const std::string& name);

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
/// loader reads; not so for `format` gguf, whose file holds them itself.
Result<SideFiles> copy_side_files(const std::string& source, const std::string& folder, std::string_view format = {});

}  // namespace tare::checkpoints
