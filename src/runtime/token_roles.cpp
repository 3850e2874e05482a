#include "runtime/token_roles.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

namespace tare::runtime {

namespace fs = std::filesystem;

namespace {

Result<std::optional<int64_t>> id_of(const json::object& from, const char* key, const std::string& where) {
  if (!json::find(from, key)) return std::optional<int64_t>();
  TARE_ASSIGN(const int64_t id, json::get_int(from, key, where));
  return id < 0 ? std::optional<int64_t>() : std::optional<int64_t>(id);  // -1: none, in some configs
}

}  // namespace

Result<json::object> read_generation_config(const std::string& model_path) {
  std::error_code ignored;
  const fs::path path(model_path);
  const fs::path file = (fs::is_directory(path, ignored) ? path : path.parent_path()) / "generation_config.json";
  if (model_path.ends_with(".gguf") || !fs::is_regular_file(file, ignored)) return json::object();
  TARE_ASSIGN(json::value document, json::parse_file(file.string()));
  if (!document.is_object()) return invalid_input("not a JSON object", {.where = file.string()});
  return std::move(document.get_object());
}

Result<std::vector<std::string>> token_contradictions(const std::string& model_path, const json::object& config,
                                                      const text::Tokenizer* tokenizer, int64_t vocab_size) {
  TARE_ASSIGN(const json::object generation, read_generation_config(model_path));
  std::vector<std::string> out;
  const text::SpecialTokens special = tokenizer ? tokenizer->special() : text::SpecialTokens{};
  const struct {
    const char* key;
    std::optional<text::TokenId> of_tokenizer;
    const char* followed;
  } roles[] = {{"bos_token_id", special.bos, "the tokenizer's is used"},
               {"pad_token_id", special.padding, "none is used: sequences are not padded"}};
  for (const auto& role : roles) {
    TARE_ASSIGN(auto in_config, id_of(config, role.key, "config.json"));
    const json::value* text = json::find(config, "text_config");
    if (text && text->is_object() && !in_config) {
      TARE_ASSIGN(in_config, id_of(text->get_object(), role.key, "config.json: text_config"));
    }
    TARE_ASSIGN(const auto in_generation, id_of(generation, role.key, "generation_config.json"));
    std::optional<int64_t> in_tokenizer;
    if (role.of_tokenizer) in_tokenizer = *role.of_tokenizer;
    std::string said;
    std::optional<int64_t> first;
    bool differ = false;
    for (const auto& [name, id] :
         {std::pair{"config.json", in_config}, std::pair{"generation_config.json", in_generation},
          std::pair{"the tokenizer", in_tokenizer}}) {
      if (!id) continue;
      said += fmt::format("{}{} in {}", said.empty() ? "" : ", ", *id, name);
      if (!first) first = id;
      differ = differ || *id != *first;
    }
    if (differ) out.push_back(fmt::format("{} is {} ({})", role.key, said, role.followed));
  }
  if (!tokenizer) return out;
  const auto known = static_cast<int64_t>(tokenizer->vocab_size());
  if (known > vocab_size) {
    out.push_back(
        fmt::format("the tokenizer has ids up to {}, the model embeds {} (prompts with a higher id are refused)",
                    known - 1, vocab_size));
  }
  for (const auto& [name, from] :
       {std::pair{"config.json", &config}, std::pair{"generation_config.json", &generation}}) {
    const json::value* ends = json::find(*from, "eos_token_id");
    if (!ends) continue;
    const json::array list = ends->is_array() ? ends->get_array() : json::array{*ends};
    for (const json::value& end : list) {
      const auto id = json::as_int(end);
      if (id && *id >= known) {
        out.push_back(
            fmt::format("{} ends sequences at {}, which is no token of the tokenizer (it ends them)", name, *id));
      }
    }
  }
  return out;
}

}  // namespace tare::runtime
