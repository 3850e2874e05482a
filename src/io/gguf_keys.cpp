#include "io/gguf_keys.h"

#include <fmt/format.h>

#include "io/names.h"

namespace tare::io {

namespace {

enum class Form { kScalar, kArray, kEither };

struct KnownKey {
  std::string_view pattern;  // a whole key, or one '*' for any text ("*.block_count": of any architecture)
  GgufType type;
  Form form = Form::kScalar;
};

// Source: gguf-py/gguf/constants.py and src/llama-model-loader.cpp of llama.cpp. Per-layer values may be lists.
constexpr KnownKey kKnownKeys[] = {
    {"general.architecture", GgufType::kString},
    {"general.type", GgufType::kString},
    {"general.name", GgufType::kString},
    {"general.alignment", GgufType::kU32},
    {"general.file_type", GgufType::kU32},
    {"general.quantization_version", GgufType::kU32},
    {"split.no", GgufType::kU16},
    {"split.count", GgufType::kU16},
    {"split.tensors.count", GgufType::kI32},
    {"tokenizer.chat_template", GgufType::kString},
    {"tokenizer.ggml.model", GgufType::kString},
    {"tokenizer.ggml.pre", GgufType::kString},
    {"tokenizer.ggml.tokens", GgufType::kString, Form::kArray},
    {"tokenizer.ggml.merges", GgufType::kString, Form::kArray},
    {"tokenizer.ggml.scores", GgufType::kF32, Form::kArray},
    {"tokenizer.ggml.token_type", GgufType::kI32, Form::kArray},
    {"tokenizer.ggml.add_*", GgufType::kBool},
    {"tokenizer.ggml.remove_extra_whitespaces", GgufType::kBool},
    {"tokenizer.ggml.*_token_id", GgufType::kU32},
    {"*.context_length", GgufType::kU32},
    {"*.embedding_length", GgufType::kU32},
    {"*.block_count", GgufType::kU32},
    {"*.vocab_size", GgufType::kU32},
    {"*.feed_forward_length", GgufType::kU32, Form::kEither},
    {"*.leading_dense_block_count", GgufType::kU32},
    {"*.expert_count", GgufType::kU32},
    {"*.expert_used_count", GgufType::kU32},
    {"*.expert_shared_count", GgufType::kU32},
    {"*.expert_feed_forward_length", GgufType::kU32},
    {"*.expert_shared_feed_forward_length", GgufType::kU32},
    {"*.attention.head_count", GgufType::kU32, Form::kEither},
    {"*.attention.head_count_kv", GgufType::kU32, Form::kEither},
    {"*.attention.key_length", GgufType::kU32},
    {"*.attention.value_length", GgufType::kU32},
    {"*.attention.sliding_window", GgufType::kU32},
    {"*.attention.layer_norm_epsilon", GgufType::kF32},
    {"*.attention.layer_norm_rms_epsilon", GgufType::kF32},
    {"*.rope.dimension_count", GgufType::kU32},
    {"*.rope.freq_base", GgufType::kF32},
    {"*.rope.scaling.type", GgufType::kString},
    {"*.rope.scaling.factor", GgufType::kF32},
    {"*.rope.scaling.attn_factor", GgufType::kF32},
    {"*.rope.scaling.original_context_length", GgufType::kU32},
};

bool matches(std::string_view pattern, std::string_view key) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == key;
  const std::string_view head = pattern.substr(0, star);
  const std::string_view tail = pattern.substr(star + 1);
  return key.size() > head.size() + tail.size() && key.starts_with(head) && key.ends_with(tail);
}

std::string describe(GgufType type, bool array) {
  return array ? fmt::format("ARRAY of {}", gguf_type_name(type)) : std::string(gguf_type_name(type));
}

}  // namespace

Status check_known_key(std::string_view key, const GgufValue& value, std::string_view where) {
  for (const KnownKey& known : kKnownKeys) {
    if (!matches(known.pattern, key)) continue;
    const bool array = value.type == GgufType::kArray;
    const GgufType type = array ? value.element : value.type;
    const bool right_form = known.form == Form::kEither || array == (known.form == Form::kArray);
    // Lists of counts are written as I32 by some converters and read alike by llama.cpp.
    const bool signed_list = array && known.type == GgufType::kU32 && type == GgufType::kI32;
    if (right_form && (type == known.type || signed_list)) return {};
    return invalid_input(fmt::format("metadata {} has the wrong type", printable(key)),
                         {.where = std::string(where),
                          .expected = describe(known.type, known.form == Form::kArray),
                          .found = describe(type, array)});
  }
  return {};
}

}  // namespace tare::io
