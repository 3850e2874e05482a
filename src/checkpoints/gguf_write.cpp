#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/checked.h"
#include "checkpoints/gguf.h"
#include "checkpoints/gguf_config.h"
#include "checkpoints/gguf_export.h"
#include "checkpoints/gguf_pack.h"
#include "checkpoints/source.h"
#include "io/gguf_writer.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Tensor;

namespace {

// Names of experts that tools write in other ways (docs/formats.md 9.2), as the architecture's table spells them.
std::string table_spelling(const std::string& name, bool mixtral) {
  if (!mixtral) return name;
  std::string out = name;
  const auto replace = [&](std::string_view from, std::string_view to) {
    const size_t at = out.find(from);
    if (at != out.npos) out.replace(at, from.size(), to);
    return at != out.npos;
  };
  replace(".mlp.gate.", ".block_sparse_moe.gate.");
  replace(".mlp.experts.", ".block_sparse_moe.experts.");
  if (out.find(".block_sparse_moe.experts.") != out.npos) {
    replace(".gate_proj.", ".w1.");
    replace(".up_proj.", ".w3.");
    replace(".down_proj.", ".w2.");
  }
  return out;
}

struct Place {
  std::string name;     // of the GGUF tensor
  int64_t expert = -1;  // row of a stack
  enum class Rows { kAsStored, kQuery, kKey } rows = Rows::kAsStored;
};

// Where a weight goes; nothing when the architecture has no such tensor.
std::optional<Place> place_of(const GgufArchitecture& architecture, const std::string& weight) {
  const std::string name = table_spelling(weight, architecture.model_type == "mixtral");
  const std::string_view part = last_part(name);
  if (part != "weight" && part != "bias") return std::nullopt;
  const std::string_view module = parent_module(name);
  if (module == "model.embed_tokens") return Place{"token_embd.weight"};
  if (module == "model.norm") return Place{"output_norm.weight"};
  if (module == "lm_head") return Place{fmt::format("output.{}", part)};
  constexpr std::string_view kLayers = "model.layers.";
  if (!module.starts_with(kLayers)) return std::nullopt;
  const std::string_view rest = module.substr(kLayers.size());
  const size_t dot = rest.find('.');
  if (dot == rest.npos) return std::nullopt;
  const std::string_view layer = rest.substr(0, dot), inner = rest.substr(dot + 1);
  for (const GgufName& row : architecture.layer) {
    Place place{fmt::format("blk.{}.{}.{}", layer, row.gguf, part)};
    const size_t at = row.hf.find("{e}");
    if (at == row.hf.npos) {
      if (row.hf != inner) continue;
      if (architecture.permuted_qk && row.gguf == "attn_q") place.rows = Place::Rows::kQuery;
      if (architecture.permuted_qk && row.gguf == "attn_k") place.rows = Place::Rows::kKey;
      return place;
    }
    const std::string_view before = row.hf.substr(0, at), after = row.hf.substr(at + 3);
    if (!inner.starts_with(before) || !inner.ends_with(after) || inner.size() <= before.size() + after.size()) continue;
    const std::string_view digits = inner.substr(before.size(), inner.size() - before.size() - after.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), place.expert);
    if (error == std::errc() && end == digits.data() + digits.size()) return place;
  }
  return std::nullopt;
}

// general.file_type of files that are mostly of one type.
uint32_t file_type(std::string_view type) {
  constexpr std::pair<std::string_view, uint32_t> kRows[] = {
      {"F32", 0},   {"F16", 1},    {"Q4_0", 2},   {"Q4_1", 3},  {"Q8_0", 7},  {"Q5_0", 8},    {"Q5_1", 9},
      {"Q2_K", 10}, {"Q3_K", 12},  {"Q4_K", 15},  {"Q5_K", 17}, {"Q6_K", 18}, {"IQ4_NL", 25}, {"IQ4_XS", 30},
      {"BF16", 32}, {"TQ2_0", 37}, {"MXFP4", 38}, {"Q1_0", 40}, {"Q2_0", 41}};
  for (const auto& [name, number] : kRows) {
    if (name == type) return number;
  }
  return 0;
}

// One tensor of the file: one weight, or one an expert.
struct Entry {
  std::vector<std::string> weights;
  Place place;
  const io::GgmlType* type = nullptr;
  tensor::Shape shape;  // of one weight
};

class Writer {
 public:
  Writer(const WriteRequest& request, Losses& losses) : request_(request), losses_(losses) {}

  Result<WriteReport> run() {
    TARE_TRY(prepare());
    TARE_TRY(plan());
    TARE_TRY(add_metadata());
    std::vector<io::GgufTensorDeclaration> declarations;
    for (const auto& [name, data] : extra_) {
      declarations.push_back({name, io::find_ggml_type("F32"), {static_cast<int64_t>(data.size() / 4)}});
    }
    for (const Entry& entry : entries_) {
      tensor::Shape shape = entry.shape;
      if (entry.place.expert >= 0) shape.insert(shape.begin(), static_cast<int64_t>(entry.weights.size()));
      declarations.push_back({entry.place.name, entry.type, shape});
    }
    const std::string path = (fs::path(request_.folder) / "model.gguf").string();
    TARE_ASSIGN(io::GgufWriter out, io::GgufWriter::create(path, metadata_, declarations));
    WriteReport report;
    for (const auto& [name, data] : extra_) TARE_TRY(out.append(name, data.bytes()));
    for (const Entry& entry : entries_) {
      for (const std::string& weight : entry.weights) {
        if (request_.progress) TARE_TRY(request_.progress(weight));
        TARE_ASSIGN(const Bytes bytes, bytes_of(weight, entry.place));
        TARE_TRY(out.append(entry.place.name, bytes.data.bytes()));
        report.tensor_bytes += static_cast<int64_t>(bytes.data.size());
      }
    }
    TARE_ASSIGN(io::WrittenFile written, out.finish());
    report.files.push_back(std::move(written));
    return report;
  }

 private:
  struct Bytes {
    const io::GgmlType* type = nullptr;
    Buffer data;
  };

  // The architecture: as the source file says, or from the configuration.
  Status prepare() {
    if (!request_.source.empty()) {
      TARE_ASSIGN(source_, open_source(request_.source));
    }
    if (!source_.gguf.empty()) {
      std::vector<std::string> notes;
      TARE_ASSIGN(const GgufModel model, read_gguf_model(source_.gguf, notes));
      export_.architecture = model.architecture;
      export_.heads = model.heads;
      export_.kv_heads = model.kv_heads;
      export_.head_dim = model.head_dim;
      export_.experts = model.experts;
      return {};
    }
    const std::string folder = fs::path(request_.source).lexically_normal().filename().string();
    TARE_ASSIGN(export_, gguf_export(request_.weights->config, folder.empty() ? "model" : folder, losses_));
    return {};
  }

  Status plan() {
    std::map<std::string, size_t> index;
    for (const std::string& name : request_.weights->names()) {
      const tensor::WeightInfo& info = *request_.weights->find(name);
      const std::optional<Place> place = place_of(export_.architecture, name);
      if (!place) {
        TARE_TRY(
            losses_.lose(name, fmt::format("no tensor of the architecture {}; left out", export_.architecture.name)));
        continue;
      }
      if (info.activation.type != tensor::ActivationType::kNone) {
        TARE_TRY(losses_.lose(name, fmt::format("inputs quantized as {}: left out", describe(info.activation))));
      }
      TARE_ASSIGN(const io::GgmlType* type, type_of(name, info));
      const auto [at, inserted] = index.emplace(place->name, entries_.size());
      if (inserted) entries_.push_back({.place = *place, .type = type, .shape = info.shape});
      Entry& entry = entries_[at->second];
      if (entry.shape != info.shape || entry.type != type) {
        return losses_.refuse(name, fmt::format("{} {} in a stack of {} {}", type->name, tensor::shape_text(info.shape),
                                                entry.type->name, tensor::shape_text(entry.shape)));
      }
      const auto expert = place->expert < 0 ? size_t{0} : static_cast<size_t>(place->expert);
      if (entry.weights.size() <= expert) entry.weights.resize(expert + 1);
      if (!entry.weights[expert].empty()) return losses_.refuse(name, "two weights for " + place->name);
      entry.weights[expert] = name;
      bytes_[std::string(type->name)] += info.stored_bytes;
    }
    for (const Entry& entry : entries_) {
      const auto wanted = static_cast<size_t>(entry.place.expert < 0 ? 1 : export_.experts);
      const bool gap = std::any_of(entry.weights.begin(), entry.weights.end(), [](const auto& w) { return w.empty(); });
      if (gap || entry.weights.size() != wanted)
        return losses_.refuse(entry.place.name, "a stack with experts missing");
    }
    return {};
  }

  // Norms, biases and routers are F32, as llama.cpp keeps them; widening is exact.
  Result<const io::GgmlType*> type_of(const std::string& name, const tensor::WeightInfo& info) {
    if (std::holds_alternative<tensor::QuantSpec>(info.form)) {
      TARE_ASSIGN(const tensor::Weight weight, request_.weights->load(name));
      TARE_ASSIGN(const GgmlParts parts, ggml_parts(std::get<tensor::QuantizedTensor>(weight), name, losses_));
      return parts.type;
    }
    return io::find_ggml_type(dtype_name(dense_dtype(name, info)));
  }

  DType dense_dtype(const std::string& name, const tensor::WeightInfo& info) const {
    const bool router = name.ends_with(".gate.weight") || name.ends_with("expert_gate.weight");
    if (info.shape.size() != 2 || router) return DType::kF32;
    const DType dtype = request_.dense_dtype.value_or(std::get<DType>(info.form));
    return dtype == DType::kF64 ? DType::kF32 : dtype;
  }

  std::vector<int32_t> row_source(const Place& place) const {
    if (place.rows == Place::Rows::kAsStored) return {};
    const int64_t heads = place.rows == Place::Rows::kQuery ? export_.heads : export_.kv_heads;
    const std::vector<int32_t> file_row = rotary_row_source(heads, export_.head_dim);
    std::vector<int32_t> out(file_row.size());
    for (size_t row = 0; row < file_row.size(); ++row)
      out[static_cast<size_t>(file_row[row])] = static_cast<int32_t>(row);
    return out;
  }

  Result<Bytes> bytes_of(const std::string& name, const Place& place) {
    const tensor::WeightInfo& info = *request_.weights->find(name);
    TARE_ASSIGN(const tensor::Weight weight, request_.weights->load(name));
    const std::vector<int32_t> rows = row_source(place);
    if (!rows.empty() && static_cast<int64_t>(rows.size()) != info.shape[0]) {
      return invalid_input(
          "weight has another shape than the configuration says",
          {.where = name, .expected = fmt::format("{} rows", rows.size()), .found = tensor::shape_text(info.shape)});
    }
    if (const auto* quantized = std::get_if<tensor::QuantizedTensor>(&weight)) {
      TARE_ASSIGN(const GgmlParts parts, ggml_parts(*quantized, name, losses_));
      return Bytes{parts.type, Buffer::own(pack_ggml(parts, rows))};
    }
    const DType dtype = dense_dtype(name, info);
    TARE_ASSIGN(Tensor dense, cast_dense(std::get<Tensor>(weight), dtype, name));
    Bytes out{io::find_ggml_type(dtype_name(dtype)), dense.data};
    if (rows.empty()) return out;
    const size_t row_bytes = dense.data.size() / rows.size();
    std::vector<std::byte> moved(dense.data.size());
    for (size_t row = 0; row < rows.size(); ++row) {
      std::copy_n(dense.data.data() + static_cast<size_t>(rows[row]) * row_bytes, row_bytes,
                  moved.data() + row * row_bytes);
    }
    out.data = Buffer::own(std::move(moved));
    return out;
  }

  Status add_metadata() {
    std::string most;
    int64_t most_bytes = -1;
    for (const auto& [type, bytes] : bytes_) {
      if (bytes > most_bytes) {
        most = type;
        most_bytes = bytes;
      }
    }
    if (!source_.gguf.empty()) {
      for (const io::GgufKeyValue& pair : source_.gguf.front().metadata) {
        if (!pair.key.starts_with("split.")) metadata_.add(pair.key, pair.value);
      }
      for (const io::GgufFile& file : source_.gguf) {
        for (const io::GgufTensor& t : file.tensors) {
          if (is_gguf_config_tensor(t.name)) extra_.emplace_back(t.name, t.data);
        }
      }
      return {};
    }
    metadata_ = export_.metadata;
    const tensor::WeightInfo* embedding = request_.weights->find("model.embed_tokens.weight");
    if (!embedding || embedding->shape.size() != 2)
      return losses_.refuse("model.embed_tokens.weight", "no embedding table");
    TARE_TRY(
        gguf_export_tokenizer(source_.directory, embedding->shape[0], request_.weights->config, metadata_, losses_));
    metadata_.add_u32("general.quantization_version", 2);
    metadata_.add_u32("general.file_type", file_type(most));
    if (!export_.rope_freqs.empty()) extra_.emplace_back("rope_freqs.weight", Buffer::own(export_.rope_freqs));
    return {};
  }

  const WriteRequest& request_;
  Losses& losses_;
  Source source_;
  GgufExport export_;
  io::GgufMetadata metadata_;
  std::vector<std::pair<std::string, Buffer>> extra_;  // F32 tensors of the configuration
  std::vector<Entry> entries_;
  std::map<std::string, int64_t> bytes_;  // a type
};

Result<WriteReport> write(const WriteRequest& request, Losses& losses) {
  return Writer(request, losses).run();
}

}  // namespace

std::string gguf_weight_spelling(const std::string& name) {
  return table_spelling(name, true);
}

CheckpointWriter gguf_writer() {
  return {
      .name = "gguf",
      .writes =
          "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, K-quants, IQ4, MXFP4, TQ2_0 and dense types, from weights that have their form",
      .write = write};
}

}  // namespace tare::checkpoints
