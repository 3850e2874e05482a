#include "checkpoints/gguf_config.h"

#include <fmt/format.h>

#include <cmath>

#include "tensor/tensor.h"

namespace tare::checkpoints {

namespace {

constexpr std::string_view kRopeFreqs = "rope_freqs.weight";
constexpr std::string_view kRopeLong = "rope_factors_long.weight";
constexpr std::string_view kRopeShort = "rope_factors_short.weight";

const io::GgufTensor* find_tensor(const std::vector<io::GgufFile>& files, std::string_view name) {
  for (const io::GgufFile& file : files) {
    if (const io::GgufTensor* t = file.find_tensor(name)) return t;
  }
  return nullptr;
}

Result<json::array> rope_factors(const io::GgufTensor& t, int64_t count) {
  if (t.type->name != "F32" || t.shape != tensor::Shape{count}) {
    return invalid_input("bad rotary factors",
                         {.where = t.name,
                          .expected = fmt::format("F32 [{}]", count),
                          .found = fmt::format("{} {}", t.type->name, tensor::shape_text(t.shape))});
  }
  TARE_ASSIGN(const tensor::Tensor values, tensor::Tensor::make(tensor::DType::kF32, t.shape, t.data));
  TARE_ASSIGN(const std::vector<float> floats, tensor::to_f32(values));
  json::array out;
  for (const float value : floats) {
    if (!std::isfinite(value) || value <= 0) {
      return make_error(ErrorKind::kNotFinite, "bad rotary factor",
                        {.where = t.name, .expected = "finite and above 0", .found = fmt::format("{}", value)});
    }
    out.push_back(value);
  }
  return out;
}

Status read_rope(GgufMetadata& metadata, const std::vector<io::GgufFile>& files, GgufModel& model,
                 std::vector<std::string>& notes) {
  json::object& config = model.config;
  TARE_ASSIGN(const auto base, metadata.find_float("rope.freq_base"));
  if (!base) notes.push_back("rope.freq_base is absent: 10000, as llama.cpp takes it");
  config["rope_theta"] = base.value_or(10000.0);
  TARE_ASSIGN(const auto rotary, metadata.find_int("rope.dimension_count"));
  const int64_t rotary_dim = rotary.value_or(model.head_dim);
  if (rotary_dim <= 0 || rotary_dim > model.head_dim || rotary_dim % 2 != 0) {
    return invalid_input("bad rotary width", {.where = "rope.dimension_count",
                                              .expected = fmt::format("even, at most {}", model.head_dim),
                                              .found = fmt::format("{}", rotary_dim)});
  }
  if (rotary_dim != model.head_dim) {
    config["partial_rotary_factor"] = static_cast<double>(rotary_dim) / static_cast<double>(model.head_dim);
  }
  json::object scaling;
  TARE_ASSIGN(const auto type, metadata.find_string("rope.scaling.type"));
  TARE_ASSIGN(const auto factor, metadata.find_float("rope.scaling.factor"));
  TARE_ASSIGN(const auto old_linear, metadata.find_float("rope.scale_linear"));
  TARE_ASSIGN(const auto original, metadata.find_int("rope.scaling.original_context_length"));
  TARE_ASSIGN(const auto attention_factor, metadata.find_float("rope.scaling.attn_factor"));
  metadata.ignore("rope.scaling.finetuned");
  const std::string kind = type.value_or(factor || old_linear ? "linear" : "none");
  if (kind == "linear" && (factor || old_linear)) {
    scaling = {{"rope_type", "linear"}, {"factor", factor ? *factor : *old_linear}};
  } else if (kind == "yarn") {
    scaling = {{"rope_type", "yarn"}, {"factor", factor.value_or(1.0)}};
    if (original) scaling["original_max_position_embeddings"] = *original;
    if (attention_factor) scaling["attention_factor"] = *attention_factor;
    for (const auto& [key, hf] : {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                  std::pair{"rope.scaling.yarn_beta_slow", "beta_slow"}}) {
      TARE_ASSIGN(const auto value, metadata.find_float(key));
      if (value) scaling[hf] = *value;
    }
  } else if (kind != "none" && kind != "linear" && kind != "longrope") {
    return unsupported("rotary scaling of this GGUF is not supported", {.where = "rope.scaling.type", .found = kind});
  }
  const io::GgufTensor* freqs = find_tensor(files, kRopeFreqs);
  const io::GgufTensor* longs = find_tensor(files, kRopeLong);
  const io::GgufTensor* shorts = find_tensor(files, kRopeShort);
  if (longs || shorts) {
    if (!longs || !shorts || freqs) {
      return invalid_input("rotary factors are incomplete or come twice",
                           {.expected = fmt::format("{} and {} together", kRopeLong, kRopeShort)});
    }
    TARE_ASSIGN(json::array long_factor, rope_factors(*longs, rotary_dim / 2));
    TARE_ASSIGN(json::array short_factor, rope_factors(*shorts, rotary_dim / 2));
    scaling = {{"rope_type", "longrope"}, {"long_factor", long_factor}, {"short_factor", short_factor}};
    if (attention_factor) scaling["attention_factor"] = *attention_factor;
    if (original) config["original_max_position_embeddings"] = *original;
  } else if (freqs) {
    if (!scaling.empty()) {
      return invalid_input("rotary scaling is given twice",
                           {.where = freqs->name, .found = "rope.scaling.type " + kind + " beside it"});
    }
    TARE_ASSIGN(const json::array factors, rope_factors(*freqs, rotary_dim / 2));
    // longrope with one list for all lengths divides the same frequencies by the same factors, and scales nothing.
    scaling = {{"rope_type", "longrope"},
               {"long_factor", factors},
               {"short_factor", factors},
               {"factor", 1.0},
               {"attention_factor", 1.0}};
    notes.push_back("rotary frequencies are divided by the factors of rope_freqs.weight");
  }
  if (!scaling.empty()) config["rope_scaling"] = scaling;
  return {};
}

Status read_experts(GgufMetadata& metadata, GgufModel& model) {
  TARE_ASSIGN(const auto used, metadata.find_int("expert_used_count"));
  if (model.experts == 0) return {};
  if (!used || *used < 1 || *used > model.experts) {
    return invalid_input("bad number of experts a token", {.where = "expert_used_count",
                                                           .expected = fmt::format("1..{}", model.experts),
                                                           .found = fmt::format("{}", used.value_or(0))});
  }
  const bool mixtral = model.architecture.model_type == "mixtral";
  model.config[mixtral ? "num_local_experts" : "num_experts"] = model.experts;
  model.config["num_experts_per_tok"] = *used;
  return {};
}

Status read_vocabulary(GgufMetadata& metadata, const std::vector<io::GgufFile>& files, GgufModel& model) {
  const io::GgufFile& file = files.front();
  const io::GgufTensor* embedding = find_tensor(files, "token_embd.weight");
  if (!embedding || embedding->shape.size() != 2) {
    return invalid_input("GGUF has no token_embd.weight", {.where = file.path, .expected = "a matrix of that name"});
  }
  const int64_t vocabulary = embedding->shape[0];
  model.config["vocab_size"] = vocabulary;
  TARE_ASSIGN(const auto declared, metadata.find_int("vocab_size"));
  if (declared && *declared != vocabulary) {
    return invalid_input("vocabulary sizes disagree", {.where = file.path,
                                                       .expected = fmt::format("vocab_size {}", *declared),
                                                       .found = fmt::format("{} embeddings", vocabulary)});
  }
  if (const io::GgufValue* tokens = file.find("tokenizer.ggml.tokens")) {
    if (static_cast<int64_t>(tokens->strings.size()) > vocabulary) {
      return invalid_input("more tokens than embeddings", {.where = file.path,
                                                           .expected = fmt::format("at most {} tokens", vocabulary),
                                                           .found = fmt::format("{}", tokens->strings.size())});
    }
  }
  for (const auto& [key, hf] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                std::pair{"tokenizer.ggml.eos_token_id", "eos_token_id"},
                                std::pair{"tokenizer.ggml.padding_token_id", "pad_token_id"}}) {
    if (!file.find(key)) continue;
    TARE_ASSIGN(const uint64_t id, file.get_uint(key));
    if (id >= static_cast<uint64_t>(vocabulary)) {
      return invalid_input("special token outside the vocabulary",
                           {.where = fmt::format("{}: {}", file.path, key), .found = fmt::format("{}", id)});
    }
    model.config[hf] = static_cast<int64_t>(id);
  }
  return {};
}

}  // namespace

bool is_gguf_config_tensor(std::string_view name) {
  return name == kRopeFreqs || name == kRopeLong || name == kRopeShort;
}

Result<GgufModel> read_gguf_model(const std::vector<io::GgufFile>& files, std::vector<std::string>& notes) {
  const io::GgufFile& file = files.front();
  TARE_ASSIGN(const std::string_view name, file.get_string("general.architecture"));
  GgufMetadata metadata(file, name);
  GgufModel model;
  TARE_ASSIGN(const auto experts, metadata.find_int("expert_count"));
  model.experts = experts.value_or(0);
  TARE_ASSIGN(model.architecture, gguf_architecture(name, model.experts > 0));

  json::object& config = model.config;
  config["architectures"] = json::array{model.architecture.model_class};
  config["model_type"] = model.architecture.model_type;
  TARE_ASSIGN(model.layers, metadata.get_int("block_count"));
  TARE_ASSIGN(const int64_t hidden, metadata.get_int("embedding_length"));
  TARE_ASSIGN(const auto heads, metadata.find_uniform_int("attention.head_count"));
  if (!heads || *heads < 1 || hidden < 1 || model.layers < 1) {
    return invalid_input(
        "GGUF metadata is incomplete",
        {.where = file.path, .expected = "block_count, embedding_length, attention.head_count above 0"});
  }
  model.heads = *heads;
  TARE_ASSIGN(const auto kv_heads, metadata.find_uniform_int("attention.head_count_kv"));
  model.kv_heads = kv_heads.value_or(model.heads);
  if (!kv_heads) notes.push_back("attention.head_count_kv is absent: as many as attention.head_count");
  TARE_ASSIGN(const auto key_length, metadata.find_int("attention.key_length"));
  TARE_ASSIGN(const auto value_length, metadata.find_int("attention.value_length"));
  if (!key_length && hidden % model.heads != 0) {
    return invalid_input("heads do not divide the hidden size", {.where = file.path,
                                                                 .expected = fmt::format("a divisor of {}", hidden),
                                                                 .found = fmt::format("{} heads", model.heads)});
  }
  model.head_dim = key_length.value_or(hidden / model.heads);
  if (value_length.value_or(model.head_dim) != model.head_dim) {
    return unsupported("keys and values of different width",
                       {.where = file.path, .found = fmt::format("{} and {}", model.head_dim, *value_length)});
  }
  if (model.kv_heads < 1 || model.head_dim < 2 || model.head_dim % 2 != 0 || model.heads % model.kv_heads != 0) {
    return invalid_input("bad attention shape", {.where = file.path,
                                                 .expected = "an even head_dim and heads divisible by kv heads",
                                                 .found = fmt::format("{} heads, {} kv heads, head_dim {}", model.heads,
                                                                      model.kv_heads, model.head_dim)});
  }
  config["num_hidden_layers"] = model.layers;
  config["hidden_size"] = hidden;
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.head_dim;
  TARE_ASSIGN(const auto intermediate, metadata.find_uniform_int("feed_forward_length"));
  if (!intermediate) return invalid_input("GGUF metadata key is missing", {.where = "feed_forward_length"});
  config["intermediate_size"] = *intermediate;
  TARE_ASSIGN(const auto context, metadata.find_int("context_length"));
  if (context) config["max_position_embeddings"] = *context;
  TARE_ASSIGN(const auto epsilon, metadata.find_float("attention.layer_norm_rms_epsilon"));
  if (!epsilon) return invalid_input("GGUF metadata key is missing", {.where = "attention.layer_norm_rms_epsilon"});
  config["rms_norm_eps"] = *epsilon;
  config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = find_tensor(files, "output.weight") == nullptr;
  if (find_tensor(files, "blk.0.attn_q.bias")) config["attention_bias"] = true;
  TARE_TRY(read_experts(metadata, model));
  TARE_TRY(read_vocabulary(metadata, files, model));
  TARE_TRY(read_rope(metadata, files, model, notes));
  if (model.architecture.configure) TARE_TRY(model.architecture.configure(metadata, config));
  if (!metadata.has("attention.sliding_window")) {
    config["sliding_window"] = nullptr;
  }
  TARE_TRY(metadata.check_all_read());
  return model;
}

}  // namespace tare::checkpoints
