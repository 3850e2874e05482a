#include "checkpoints/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/sha256.h"
#include "base/version.h"
#include "checkpoints/awq.h"
#include "checkpoints/bitsandbytes.h"
#include "checkpoints/compressed_tensors.h"
#include "checkpoints/fp8.h"
#include "checkpoints/gguf.h"
#include "checkpoints/gptq.h"
#include "checkpoints/hqq.h"
#include "checkpoints/qserve.h"
#include "checkpoints/registry.h"
#include "checkpoints/source.h"
#include "checkpoints/tare.h"
#include "io/gguf_writer.h"
#include "io/mapped_file.h"
#include "io/safetensors_writer.h"
#include "numerics/mini_float.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::QuantizedTensor;
using tensor::Tensor;

namespace {

CheckpointWriter safetensors_writer() {
  return {.name = "safetensors", .writes = "dense weights"};
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF64;
}

// What a weight becomes in the file.
Result<StoredMatrix> parts_of(const WriteRequest& request, const CheckpointWriter& writer, const std::string& name,
                              Losses& losses) {
  const tensor::WeightInfo& info = *request.weights->find(name);
  TARE_ASSIGN(const tensor::Weight weight, request.weights->load(name));
  StoredMatrix out{.dense = true};
  if (const auto* quantized = std::get_if<QuantizedTensor>(&weight)) {
    if (!writer.store) {
      return unsupported("format holds dense weights only", {.where = name, .found = describe(quantized->spec())});
    }
    return writer.store({.module = std::string(parent_module(name)),
                         .weight = quantized,
                         .activation = info.activation,
                         .config = &request.weights->config},
                        losses);
  }
  Tensor dense = std::get<Tensor>(weight);
  if (request.dense_dtype && is_float(dense.dtype)) {
    TARE_ASSIGN(dense, cast_dense(dense, *request.dense_dtype, name));
  }
  out.parts.push_back({name, std::move(dense)});
  return out;
}

// GGUF metadata that makes tokens and templates; the rest of the file is weights.
Status write_vocabulary(const io::GgufFile& file, const std::string& path) {
  io::GgufMetadata metadata;
  for (const io::GgufKeyValue& pair : file.metadata) {
    if (pair.key.starts_with("tokenizer.") || pair.key.starts_with("general.")) metadata.add(pair.key, pair.value);
  }
  TARE_ASSIGN(io::GgufWriter writer, io::GgufWriter::create(path, metadata, {}));
  TARE_ASSIGN([[maybe_unused]] const io::WrittenFile written, writer.finish());
  return {};
}

bool is_weight_file(std::string_view name) {
  for (const std::string_view ending : {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}) {
    if (name.ends_with(ending)) return true;
  }
  return name.ends_with(".index.json");
}

}  // namespace

const std::vector<CheckpointWriter>& writers() {
  static const std::vector<CheckpointWriter> table = {
      tare_writer(),        compressed_tensors_writer(),
      gptq_writer(),        gptq_v2_writer(),
      gptq_planar_writer(), awq_writer(),
      fp8_writer(),         bitsandbytes_writer(),
      hqq_writer(),         qserve_writer(),
      gguf_writer(),        safetensors_writer(),
  };
  return table;
}

Result<const CheckpointWriter*> find_writer(std::string_view format) {
  std::string known;
  for (const CheckpointWriter& writer : writers()) {
    if (writer.name == format) return &writer;
    known += (known.empty() ? "" : ", ") + std::string(writer.name);
  }
  return unsupported("format is not written",
                     {.where = "--format", .expected = known, .found = fmt::format("'{}'", format)});
}

Result<Tensor> cast_dense(const Tensor& t, DType dtype, const std::string& name) {
  if (t.dtype == dtype) return t;
  TARE_ASSIGN(std::vector<float> values, tensor::to_f32(t));
  if (dtype == DType::kF32) return Tensor::from_f32(t.shape, std::move(values));
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (const float v : values) {
    out.push_back(dtype == DType::kF16 ? numerics::f32_to_f16(v) : numerics::f32_to_bf16(v));
    if (dtype == DType::kF16 && (out.back() & 0x7fffu) >= 0x7c00u) {
      return make_error(ErrorKind::kNotFinite, "weight does not fit float16",
                        {.where = name, .found = fmt::format("{}", v), .hint = "use --dtype bfloat16 or float32"});
    }
  }
  return Tensor::make(dtype, t.shape, Buffer::own(std::move(out)));
}

bool is_embedding(std::string_view module) {
  return last_part(module) == "embed_tokens";
}

Status lose_activation(const MatrixToStore& matrix, Losses& losses) {
  if (matrix.activation.type == tensor::ActivationType::kNone) return {};
  return losses.lose(matrix.name(), fmt::format("inputs quantized as {}: left out", describe(matrix.activation)));
}

Status StoredMatrix::add(const MatrixToStore& matrix, std::string_view suffix, Result<tensor::Tensor> tensor) {
  if (!tensor.ok()) return std::move(tensor).error();
  parts.push_back({fmt::format("{}.{}", matrix.module, suffix), std::move(tensor).value()});
  return {};
}

Result<json::object> only_scheme(const std::vector<WrittenModule>& modules, std::string_view format, std::string hint) {
  const json::object& first = modules.front().scheme;
  for (const WrittenModule& module : modules) {
    if (module.scheme == first) continue;
    return unsupported(fmt::format("{} has one form for the whole file", format),
                       {.where = module.module + ".weight",
                        .expected = boost::json::serialize(first) + " as in " + modules.front().module,
                        .found = boost::json::serialize(module.scheme),
                        .hint = std::move(hint)});
  }
  return first;
}

Result<StoredMatrix> store_dense(const MatrixToStore& matrix, const std::string& why, Losses& losses) {
  DType dtype = DType::kF32;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const json::value* value = json::find(*matrix.config, key);
    if (!value || !value->is_string()) continue;
    if (value->get_string() == "float16") dtype = DType::kF16;
    if (value->get_string() == "bfloat16") dtype = DType::kBF16;
    break;
  }
  TARE_TRY(losses.lose(matrix.name(), fmt::format("{}; written dense as {}", why, dtype_name(dtype))));
  const Tensor decoded = Tensor::from_f32({matrix.weight->n(), matrix.weight->k()}, tensor::dequantize(*matrix.weight));
  TARE_ASSIGN(Tensor dense, cast_dense(decoded, dtype, matrix.name()));
  StoredMatrix out{.dense = true};
  out.parts.push_back({matrix.name(), std::move(dense)});
  return out;
}

Result<WriteReport> write_checkpoint(const WriteRequest& request) {
  TARE_ASSIGN(const CheckpointWriter* writer, find_writer(request.format));
  WriteReport report;
  Losses losses(std::string(writer->name), request.allow_loss);
  const tensor::KvSpec& kv = request.weights->kv;
  if (!kv.k_dtype.empty() && !writer->holds_kv) {
    TARE_TRY(losses.lose("KV cache", fmt::format("{}, {}: left out", kv.k_dtype, kv.v_dtype)));
  }
  if (writer->check) TARE_TRY(writer->check(request, losses));
  if (writer->write) {
    TARE_ASSIGN(report, writer->write(request, losses));
    report.losses = losses.list();
    return report;
  }
  std::vector<io::TensorDeclaration> declarations;
  std::vector<WrittenModule> modules;
  std::vector<std::string> dense;
  const std::vector<std::string> names = request.weights->names();
  for (const std::string& name : names) {
    const tensor::WeightInfo& info = *request.weights->find(name);
    if (const DType* dtype = std::get_if<DType>(&info.form)) {
      if (info.shape.size() == 2 && name.ends_with(".weight")) dense.emplace_back(parent_module(name));
      const bool changes = request.dense_dtype && is_float(*dtype) && *dtype != *request.dense_dtype;
      const DType written = changes ? *request.dense_dtype : *dtype;
      if (changes && tensor::dtype_bits(written) < tensor::dtype_bits(*dtype)) {
        report.losses.push_back(
            fmt::format("{}: {} rounded to {}", name, tensor::dtype_name(*dtype), tensor::dtype_name(written)));
      }
      declarations.push_back({name, written, info.shape});
      continue;
    }
    TARE_ASSIGN(StoredMatrix stored, parts_of(request, *writer, name, losses));
    for (const StoredPart& part : stored.parts) {
      declarations.push_back({part.name, part.tensor.dtype, part.tensor.shape});
    }
    if (stored.dense) {
      dense.emplace_back(parent_module(name));
      continue;
    }
    modules.push_back({.module = std::string(parent_module(name)),
                       .shape = info.shape,
                       .spec = std::get<tensor::QuantSpec>(info.form),
                       .activation = info.activation,
                       .scheme = std::move(stored.scheme)});
  }
  json::object config = request.weights->config;
  config.erase("quantization_config");
  config.erase("compression_config");
  json::object quantization;
  if (!modules.empty() && writer->configuration) {
    TARE_ASSIGN(quantization, writer->configuration(modules, dense, request));
    config["quantization_config"] = quantization;
  }
  TARE_ASSIGN(io::SafetensorsWriter out,
              io::SafetensorsWriter::create_in_folder(request.folder, declarations,
                                                      {.max_shard_bytes = request.max_shard_bytes}));
  for (const std::string& name : names) {
    if (request.progress) TARE_TRY(request.progress(name));
    TARE_ASSIGN(const StoredMatrix stored, parts_of(request, *writer, name, losses));
    for (const StoredPart& part : stored.parts) {
      if (!part.tensor.data.empty()) TARE_TRY(out.append(part.name, part.tensor.data.bytes()));
      io::advise(part.tensor.data, io::Advice::kDrop);
      report.tensor_bytes += static_cast<int64_t>(part.tensor.data.size());
    }
  }
  TARE_ASSIGN(report.files, out.finish());
  TARE_TRY(write_file_atomically((fs::path(request.folder) / "config.json").string(),
                                 boost::json::serialize(config) + "\n"));
  if (!writer->config_file.empty() && !quantization.empty()) {
    TARE_TRY(write_file_atomically((fs::path(request.folder) / writer->config_file).string(),
                                   boost::json::serialize(quantization) + "\n"));
  }
  report.losses.insert(report.losses.end(), losses.list().begin(), losses.list().end());
  return report;
}

namespace {

// Side files in which some format keeps its quantization settings: beside other weights they would contradict them.
bool describes_quantization(const std::string& name) {
  for (const CheckpointFormat& format : builtin_formats()) {
    const auto& files = format.config_files;
    if (std::find(files.begin(), files.end(), name) != files.end()) return true;
  }
  return false;
}

}  // namespace

Result<SideFiles> copy_side_files(const std::string& source, const std::string& folder, std::string_view format) {
  SideFiles out;
  TARE_ASSIGN(const Source opened, open_source(source));
  if (!opened.gguf.empty() && format == "gguf") return out;
  if (!opened.gguf.empty()) {
    TARE_TRY(write_vocabulary(opened.gguf.front(), (fs::path(folder) / "tokenizer.gguf").string()));
    out.copied.push_back("tokenizer.gguf");
    out.notes.push_back("vocabulary and chat template kept as the metadata of tokenizer.gguf");
    return out;
  }
  if (opened.directory.empty()) return out;
  std::error_code ec;
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator it(opened.directory, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename().string().starts_with(".")) {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_regular_file(ec)) files.push_back(fs::relative(it->path(), opened.directory, ec));
  }
  if (ec) return io_error("cannot list folder", {.where = opened.directory, .found = ec.message()});
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const std::string name = file.string();
    if (name == "config.json" || name == kManifestName || name == kPlanName) continue;
    if (describes_quantization(name)) {
      out.notes.push_back(fmt::format("{} left out: it describes how the source was quantized", name));
      continue;
    }
    if (name == "tokenizer.gguf" && format == "gguf") continue;  // its metadata goes into the model's file
    if (is_weight_file(name) && name != "tokenizer.gguf") {
      if (!name.ends_with(".safetensors") && !name.ends_with(".index.json")) out.left_out.push_back(name);
      continue;
    }
    const fs::path target = fs::path(folder) / file;
    fs::create_directories(target.parent_path(), ec);
    if (!ec) fs::copy_file(fs::path(opened.directory) / file, target, fs::copy_options::overwrite_existing, ec);
    if (ec) return io_error("cannot copy file", {.where = name, .found = ec.message()});
    fs::permissions(target, fs::perms::owner_write, fs::perm_options::add, ec);
    out.copied.push_back(name);
  }
  return out;
}

}  // namespace tare::checkpoints
