#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "tensor/model_weights.h"

namespace tare::checkpoints {

/// The tensors of a checkpoint by name, over all its files. A reader *takes* what it understands; what is left at the
/// end is an error.
class StoredTensors {
 public:
  /// Errors: the name is there already (both files named).
  Status add(std::string name, tensor::Tensor tensor, std::string file);

  /// Looks without taking; nullptr when absent (taken or not).
  const tensor::Tensor* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// Errors: absent (kInvalidInput); taken before (kInternal).
  Result<tensor::Tensor> take(std::string_view name);

  /// Names in order; those not taken yet.
  std::vector<std::string> names() const;
  std::vector<std::string> remaining() const;
  size_t size() const { return entries_.size(); }

  /// File that holds a tensor, for messages.
  std::string file_of(std::string_view name) const;

 private:
  struct Entry {
    tensor::Tensor tensor;
    std::string file;
    bool taken = false;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

/// A checkpoint opened but not understood: configuration, headers, and which tensors have been taken. Nothing heavy has
/// been read: all formats decide from this whether a checkpoint is theirs.
struct Source {
  std::string path;       // as given
  std::string directory;  // folder of configuration and side files; empty when there is none
  json::object config;    // config.json; empty when there is none
  std::string config_where;
  // The quantization object: quantization_config, compression_config or a side file of a format.
  json::object quantization;
  std::string quantization_where;
  StoredTensors tensors;                                     // safetensors; GGUF tensors stand in `gguf`
  std::map<std::string, std::string, std::less<>> metadata;  // free text of the safetensors files
  std::vector<io::GgufFile> gguf;                            // the parts of a (split) GGUF
  std::vector<std::string> notes;

  bool has_config() const { return !config_where.empty(); }
  bool has_quantization() const { return !quantization_where.empty(); }
};

/// Opens path as load_checkpoint describes. Errors: kIo; a folder without weights, with two sets of weights or with
/// pickles only; an index that does not match the headers (tensor and file named).
Result<Source> open_source(const std::string& path);

/// Takes every tensor that is left as a dense weight: floating point, and a name whose last part is known to be one
/// ("weight", "bias", stacked experts); KV-cache scales go through their table. Known leftovers are told in notes.
/// Errors: anything else, named; F16 and BF16 mixed among tensors of one kind (a damaged dtype looks like that).
Status take_dense_rest(Source& source, tensor::ModelWeights& out);

/// Adds a dense weight; loading it scans for NaN and inf (once).
Status add_dense(tensor::ModelWeights& out, const std::string& name, tensor::Tensor tensor);

/// Refuses NaN and inf. `name` for the message. Only floating-point dtypes are looked at.
Status check_finite(const tensor::Tensor& tensor, const std::string& name);

/// Refuses a tensor of another dtype or shape than expected, naming both.
Status expect(const tensor::Tensor& tensor, std::string_view name, tensor::DType dtype, const tensor::Shape& shape);
/// The same with several dtypes allowed.
Status expect_one_of(const tensor::Tensor& tensor, std::string_view name, std::initializer_list<tensor::DType> dtypes,
                     const tensor::Shape& shape);
Status expect_rank(const tensor::Tensor& tensor, std::string_view name, int64_t rank);

/// "a.b.c" -> "c"; the part before: "a.b" (empty without a dot).
std::string_view last_part(std::string_view name);
std::string_view parent_module(std::string_view name);

/// Modules P for which the tensor "P.<suffix>" exists, in order of name.
std::vector<std::string> modules_with(const StoredTensors& tensors, std::string_view suffix);

}  // namespace tare::checkpoints
