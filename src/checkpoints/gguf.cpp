#include "checkpoints/gguf.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>

#include "checkpoints/gguf_architectures.h"
#include "checkpoints/gguf_blocks.h"
#include "checkpoints/gguf_config.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Tensor;

namespace {

// What one GGUF tensor stands for.
struct Role {
  std::vector<std::string> names;  // one, or one an expert
  enum class Rows { kAsStored, kQuery, kKey } rows = Rows::kAsStored;
  bool norm = false;
};

std::optional<int64_t> parse_index(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || (text.size() > 1 && text[0] == '0')) {
    return std::nullopt;
  }
  return value;
}

Error unknown_tensor(const io::GgufFile& file, std::string_view name, std::string_view architecture) {
  return invalid_input("GGUF tensor is no part of its architecture",
                       {.where = fmt::format("{}: {}", file.path, name), .expected = std::string(architecture)});
}

Result<Role> role_of(const GgufArchitecture& arch, const io::GgufFile& file, const io::GgufTensor& t,
                     int64_t layer_count, int64_t expert_count) {
  const std::string_view name = t.name;
  const size_t dot = name.rfind('.');
  const std::string_view stem = dot == name.npos ? name : name.substr(0, dot);
  const std::string_view part = dot == name.npos ? std::string_view() : name.substr(dot + 1);
  Role role;
  if (part != "weight" && part != "bias") return unknown_tensor(file, name, arch.name);
  if (stem == "token_embd" && part == "weight") {
    role.names = {"model.embed_tokens.weight"};
    return role;
  }
  if (stem == "output_norm" && part == "weight") {
    role.names = {"model.norm.weight"};
    role.norm = true;
    return role;
  }
  if (stem == "output") {
    role.names = {fmt::format("lm_head.{}", part)};
    return role;
  }
  constexpr std::string_view kBlock = "blk.";
  if (!stem.starts_with(kBlock)) return unknown_tensor(file, name, arch.name);
  const std::string_view rest = stem.substr(kBlock.size());
  const size_t next = rest.find('.');
  const auto layer = next == rest.npos ? std::nullopt : parse_index(rest.substr(0, next));
  if (!layer) return unknown_tensor(file, name, arch.name);
  if (*layer >= layer_count) {
    return invalid_input(
        "GGUF tensor of a layer that the metadata does not count",
        {.where = fmt::format("{}: {}", file.path, name), .expected = fmt::format("layers below {}", layer_count)});
  }
  std::string_view inner = rest.substr(next + 1);
  // The older form has one tensor an expert: ffn_gate.3 means row 3 of ffn_gate_exps.
  std::optional<int64_t> expert;
  std::string stacked;
  if (const size_t split = inner.find('.'); split != inner.npos) {
    expert = parse_index(inner.substr(split + 1));
    if (!expert || *expert >= expert_count) return unknown_tensor(file, name, arch.name);
    stacked = std::string(inner.substr(0, split)) + "_exps";
    inner = stacked;
  }
  for (const GgufName& row : arch.layer) {
    if (row.gguf != inner) continue;
    const std::string hf = fmt::format("model.layers.{}.{}.{}", *layer, row.hf, part);
    const size_t place = hf.find("{e}");
    if (place == hf.npos) {
      role.names = {hf};
    } else {
      if (!expert && (t.shape.size() != 3 || t.shape[0] != expert_count)) {
        return invalid_input("stacked experts have another shape than the metadata says",
                             {.where = fmt::format("{}: {}", file.path, name),
                              .expected = fmt::format("{} experts", expert_count),
                              .found = tensor::shape_text(t.shape)});
      }
      for (int64_t e = expert.value_or(0); e < (expert ? *expert + 1 : expert_count); ++e) {
        role.names.push_back(fmt::format("{}{}{}", hf.substr(0, place), e, hf.substr(place + 3)));
      }
    }
    role.norm = row.gguf.ends_with("_norm");
    if (arch.permuted_qk && row.gguf == "attn_q") role.rows = Role::Rows::kQuery;
    if (arch.permuted_qk && row.gguf == "attn_k") role.rows = Role::Rows::kKey;
    return role;
  }
  return unknown_tensor(file, name, arch.name);
}

Buffer reorder_rows(const Buffer& data, const std::vector<int32_t>& source) {
  const size_t row_bytes = data.size() / source.size();
  std::vector<std::byte> out(data.size());
  for (size_t row = 0; row < source.size(); ++row) {
    std::memcpy(out.data() + row * row_bytes, data.data() + static_cast<size_t>(source[row]) * row_bytes, row_bytes);
  }
  return Buffer::own(std::move(out));
}

// Norm weights of Gemma stand as 1 + w in the file; taking 1 off is exact, and the model adds it again.
Result<Tensor> minus_one(const Tensor& t) {
  TARE_ASSIGN(std::vector<float> values, tensor::to_f32(t));
  for (float& value : values) value -= 1.0f;
  return Tensor::from_f32(t.shape, std::move(values));
}

class Reader {
 public:
  Reader(Source& source, tensor::ModelWeights& out) : source_(source), out_(out) {}

  Status read() {
    const io::GgufFile& first = source_.gguf.front();
    TARE_ASSIGN(const GgufModel model, read_gguf_model(source_.gguf, source_.notes));
    model_ = &model;
    out_.config = model.config;
    for (const io::GgufFile& file : source_.gguf) {
      for (const io::GgufTensor& t : file.tensors) TARE_TRY(add(file, t));
    }
    for (const std::string& name : scales_unused()) {
      return invalid_input("GGUF scale without its weight", {.where = first.path + ": " + name});
    }
    return {};
  }

 private:
  Status add(const io::GgufFile& file, const io::GgufTensor& t) {
    if (is_side_tensor(t.name)) return {};
    TARE_ASSIGN(const Role role, role_of(model_->architecture, file, t, model_->layers, model_->experts));
    std::vector<int32_t> rows;
    if (role.rows != Role::Rows::kAsStored) {
      const int64_t heads = role.rows == Role::Rows::kQuery ? model_->heads : model_->kv_heads;
      if (t.shape.empty() || t.shape[0] != heads * model_->head_dim) {
        return invalid_input("GGUF tensor has another shape than the metadata says",
                             {.where = fmt::format("{}: {}", file.path, t.name),
                              .expected = fmt::format("{} heads of {} rows", heads, model_->head_dim),
                              .found = tensor::shape_text(t.shape)});
      }
      rows = rotary_row_source(heads, model_->head_dim);
    }
    const bool stacked = t.shape.size() == 3;
    if (stacked && (static_cast<int64_t>(role.names.size()) != t.shape[0])) {
      return invalid_input("GGUF tensor has three axes and is no stack of experts",
                           {.where = fmt::format("{}: {}", file.path, t.name)});
    }
    const int64_t parts = stacked ? t.shape[0] : 1;
    const tensor::Shape shape = stacked ? tensor::Shape{t.shape[1], t.shape[2]} : t.shape;
    const size_t part_bytes = t.data.size() / static_cast<size_t>(parts);
    for (int64_t e = 0; e < parts; ++e) {
      const Buffer data = t.data.slice(static_cast<size_t>(e) * part_bytes, part_bytes);
      TARE_TRY(add_one(file, t, role, shape, data, rows, role.names[static_cast<size_t>(e)], e));
    }
    return {};
  }

  Status add_one(const io::GgufFile& file, const io::GgufTensor& t, const Role& role, const tensor::Shape& shape,
                 const Buffer& data, const std::vector<int32_t>& rows, const std::string& name, int64_t part) {
    const std::string where = fmt::format("{}: {}", file.path, t.name);
    const bool matrix = shape.size() == 2;
    TARE_ASSIGN(const std::optional<float> scale, tensor_scale(t, part));
    TARE_ASSIGN(const auto form,
                ggml_form(*t.type, matrix ? shape[0] : 1, shape.empty() ? 1 : shape.back(), scale.has_value(), where));
    if (const DType* dtype = std::get_if<DType>(&form)) {
      TARE_ASSIGN(Tensor dense, Tensor::make(*dtype, shape, data));
      if (!rows.empty() || (role.norm && model_->architecture.norm_plus_one)) {
        const bool norm = role.norm && model_->architecture.norm_plus_one;
        tensor::WeightInfo info{
            .shape = shape, .form = norm ? DType::kF32 : *dtype, .stored_bytes = static_cast<int64_t>(data.size())};
        return out_.add(name, std::move(info), [dense, rows, norm, name]() -> Result<tensor::Weight> {
          TARE_TRY(check_finite(dense, name));
          if (norm) {
            TARE_ASSIGN(Tensor shifted, minus_one(dense));
            return tensor::Weight(std::move(shifted));
          }
          Tensor moved = dense;
          moved.data = reorder_rows(dense.data, rows);
          return tensor::Weight(std::move(moved));
        });
      }
      return add_dense(out_, name, std::move(dense));
    }
    if (!matrix) {
      return invalid_input("GGUF block type on a tensor that is no matrix",
                           {.where = where, .found = std::string(t.type->name)});
    }
    tensor::WeightInfo info{
        .shape = shape, .form = std::get<tensor::QuantSpec>(form), .stored_bytes = static_cast<int64_t>(data.size())};
    const io::GgmlType* type = t.type;
    const int64_t n = shape[0];
    const int64_t k = shape[1];
    return out_.add(name, std::move(info), [type, data, n, k, rows, scale, where]() -> Result<tensor::Weight> {
      auto repacked = repack_ggml(*type, data, n, k, rows, scale);
      if (!repacked.ok()) {
        Error error = std::move(repacked).error();
        error.where = error.where.empty() ? where : where + ", " + error.where;
        return error;
      }
      return tensor::Weight(std::move(repacked).value());
    });
  }

  // Tensors that belong to another one or to the configuration.
  bool is_side_tensor(std::string_view name) {
    return name.ends_with(".scale") || name.ends_with(".input_scale") || is_gguf_config_tensor(name);
  }

  const io::GgufTensor* find(std::string_view name) const {
    for (const io::GgufFile& file : source_.gguf) {
      if (const io::GgufTensor* t = file.find_tensor(name)) return t;
    }
    return nullptr;
  }

  Result<std::optional<float>> tensor_scale(const io::GgufTensor& t, int64_t part) {
    if (t.type->name != "NVFP4") return std::optional<float>();
    const std::string stem(parent_module(t.name));
    const io::GgufTensor* scale = find(stem + ".scale");
    if (const io::GgufTensor* input = find(stem + ".input_scale")) {
      used_scales_.push_back(input->name);
      if (part == 0)
        source_.notes.push_back("left out " + input->name + ": weights are used without activation scales");
    }
    if (!scale) return std::optional<float>();
    used_scales_.push_back(scale->name);
    TARE_ASSIGN(const Tensor values, Tensor::make(DType::kF32, scale->shape, scale->data));
    if (scale->type->name != "F32" || part >= values.count()) {
      return invalid_input(
          "bad NVFP4 tensor scale",
          {.where = scale->name, .expected = "F32, one a matrix", .found = tensor::shape_text(scale->shape)});
    }
    float value = 0;
    TARE_TRY(check_finite(values, scale->name));
    TARE_TRY(tensor::to_f32(values, part, 1, &value));
    return std::optional<float>(value);
  }

  std::vector<std::string> scales_unused() const {
    std::vector<std::string> out;
    for (const io::GgufFile& file : source_.gguf) {
      for (const io::GgufTensor& t : file.tensors) {
        if (!t.name.ends_with(".scale") && !t.name.ends_with(".input_scale")) continue;
        if (std::find(used_scales_.begin(), used_scales_.end(), t.name) == used_scales_.end()) out.push_back(t.name);
      }
    }
    return out;
  }

  Source& source_;
  tensor::ModelWeights& out_;
  const GgufModel* model_ = nullptr;
  std::vector<std::string> used_scales_;
};

Match detect(const Source& source) {
  return source.gguf.empty() ? Match::kNo : Match::kYes;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  return Reader(source, out).read();
}

}  // namespace

std::vector<int32_t> rotary_row_source(int64_t heads, int64_t head_dim) {
  std::vector<int32_t> out(static_cast<size_t>(heads * head_dim));
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t a = 0; a < 2; ++a) {
      for (int64_t i = 0; i < half; ++i) {
        out[static_cast<size_t>(h * head_dim + a * half + i)] = static_cast<int32_t>(h * head_dim + 2 * i + a);
      }
    }
  }
  return out;
}

Result<std::vector<std::string>> gguf_weight_names(const io::GgufFile& file, const io::GgufTensor& t) {
  std::vector<std::string> notes;
  std::vector<io::GgufFile> files = {file};
  TARE_ASSIGN(const GgufModel model, read_gguf_model(files, notes));
  TARE_ASSIGN(Role role, role_of(model.architecture, file, t, model.layers, model.experts));
  return std::move(role.names);
}

CheckpointFormat gguf_format() {
  return {
      .name = "gguf",
      .min_capability = 60,
      .activation_dtypes = {"float16", "bfloat16", "float32"},
      .reads =
          "GGUF v2 and v3, split or not: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K..Q6_K IQ4 MXFP4 NVFP4 TQ1_0 TQ2_0 Q1_0 Q2_0",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
