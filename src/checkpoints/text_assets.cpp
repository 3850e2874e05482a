#include "checkpoints/text_assets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "checkpoints/source.h"
#include "io/gguf.h"
#include "text/gguf_vocabulary.h"
#include "text/sentencepiece.h"
#include "text/tiktoken.h"
#include "text/tokenizer_directory.h"
#include "text/tokenizer_json.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;

namespace {

bool is_file(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

// The folder whose side files belong to a model path; empty for a GGUF.
std::string folder_of(const std::string& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return path;
  if (path.ends_with(".gguf")) return {};
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string join(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

// The GGUF that a path means: the file itself, or the only one of a folder without safetensors. A folder that tare
// wrote from a GGUF keeps its vocabulary as `tokenizer.gguf`.
std::optional<std::string> gguf_of(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return path.ends_with(".gguf") ? std::optional<std::string>(path) : std::nullopt;
  if (is_file(join(path, "tokenizer.gguf"))) return join(path, "tokenizer.gguf");
  std::optional<std::string> found;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors")) return std::nullopt;
    if (!name.ends_with(".gguf") || (name.find("-of-") != name.npos && name.find("-00001-of-") == name.npos)) continue;
    if (found) return std::nullopt;
    found = it->path().string();
  }
  return found;
}

constexpr std::array<std::string_view, 7> kSpecialKeys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                          "pad_token", "cls_token", "mask_token"};

// "bos_token": "<s>" or {"content": "<s>", ...}
std::map<std::string, std::string> special_tokens(const json::object& config) {
  std::map<std::string, std::string> out;
  for (const std::string_view key : kSpecialKeys) {
    const json::value* v = json::find(config, key);
    if (v && v->is_object()) v = json::find(v->get_object(), "content");
    if (v && v->is_string()) out[std::string(key)] = v->get_string();
  }
  return out;
}

// "chat_template": one text, or a list of {"name", "template"}.
Result<std::optional<std::string>> template_text(const json::object& config, const std::string& wanted,
                                                 const std::string& where, std::vector<std::string>& notes) {
  const json::value* v = json::find(config, "chat_template");
  if (!v) return std::optional<std::string>();
  if (v->is_string()) return std::optional<std::string>(v->get_string());
  if (!v->is_array()) return invalid_input("chat_template is neither a text nor a list", {.where = where});
  const std::string name = wanted.empty() ? "default" : wanted;
  std::string known;
  for (const json::value& entry : v->get_array()) {
    const json::object* row = entry.if_object();
    const json::value* row_name = row ? json::find(*row, "name") : nullptr;
    const json::value* row_text = row ? json::find(*row, "template") : nullptr;
    if (!row_name || !row_name->is_string() || !row_text || !row_text->is_string()) {
      return invalid_input("chat_template list holds something else than named templates", {.where = where});
    }
    known += (known.empty() ? "" : ", ") + std::string(row_name->get_string());
    if (std::string_view(row_name->get_string()) == name) {
      notes.push_back(fmt::format("chat template '{}' of several", name));
      return std::optional<std::string>(row_text->get_string());
    }
  }
  return invalid_input("no chat template of that name", {.where = where, .expected = known, .found = name});
}

Result<std::optional<ChatAssets>> finish(const std::string& source, const std::string& where,
                                         std::map<std::string, std::string> special, std::vector<std::string> notes) {
  TARE_ASSIGN(text::ChatTemplate parsed, text::ChatTemplate::parse(source, where));
  return std::optional<ChatAssets>(
      ChatAssets{.chat_template = std::move(parsed), .special_tokens = std::move(special), .notes = std::move(notes)});
}

Result<std::optional<ChatAssets>> gguf_template(const std::string& path, const std::string& name) {
  TARE_ASSIGN(const io::GgufFile file, io::open_gguf(path));
  const std::string key = name.empty() ? "tokenizer.chat_template" : "tokenizer.chat_template." + name;
  if (!file.find(key)) {
    if (name.empty()) return std::optional<ChatAssets>();
    return invalid_input("no chat template of that name", {.where = path, .found = name});
  }
  TARE_ASSIGN(const std::string_view source, file.get_string(key));
  std::map<std::string, std::string> special;
  TARE_ASSIGN(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  for (const auto& [id_key, role] :
       {std::pair{"tokenizer.ggml.bos_token_id", "bos_token"}, std::pair{"tokenizer.ggml.eos_token_id", "eos_token"},
        std::pair{"tokenizer.ggml.unknown_token_id", "unk_token"},
        std::pair{"tokenizer.ggml.padding_token_id", "pad_token"}}) {
    if (!file.find(id_key)) continue;
    TARE_ASSIGN(const uint64_t id, file.get_uint(id_key));
    if (id >= tokens.size()) {
      return invalid_input("special token outside the vocabulary",
                           {.where = fmt::format("{}: {}", path, id_key), .found = fmt::format("{}", id)});
    }
    special[role] = std::string(tokens[id]);
  }
  return finish(std::string(source), path + ": " + key, std::move(special), {});
}

Result<std::vector<std::string>> strings_or_none(const io::GgufFile& file, std::string_view key) {
  if (!file.find(key)) return std::vector<std::string>();
  TARE_ASSIGN(const auto views, file.get_strings(key));
  return std::vector<std::string>(views.begin(), views.end());
}

Result<std::optional<int64_t>> id_or_none(const io::GgufFile& file, std::string_view key) {
  if (!file.find(key)) return std::optional<int64_t>();
  TARE_ASSIGN(const uint64_t id, file.get_uint(key));
  // Out of any range: the vocabulary's reader refuses it by name.
  return std::optional<int64_t>(static_cast<int64_t>(std::min<uint64_t>(id, INT64_MAX)));
}

Result<std::optional<bool>> bool_or_none(const io::GgufFile& file, std::string_view key) {
  if (!file.find(key)) return std::optional<bool>();
  TARE_ASSIGN(const bool value, file.get_bool(key));
  return std::optional<bool>(value);
}

Result<text::Tokenizer> tokenizer_of_gguf(const std::string& path) {
  TARE_ASSIGN(const io::GgufFile file, io::open_gguf(path));
  text::GgufVocabulary vocabulary;
  const std::string ggml = "tokenizer.ggml.";
  TARE_ASSIGN(vocabulary.model, file.get_string_or(ggml + "model", ""));
  if (vocabulary.model.empty()) {
    return invalid_input("no tokenizer", {.where = path, .expected = "metadata tokenizer.ggml.model"});
  }
  if (file.find(ggml + "pre")) {
    TARE_ASSIGN(const std::string_view pre, file.get_string(ggml + "pre"));
    vocabulary.pre = std::string(pre);
  }
  TARE_ASSIGN(vocabulary.tokens, strings_or_none(file, ggml + "tokens"));
  TARE_ASSIGN(vocabulary.merges, strings_or_none(file, ggml + "merges"));
  vocabulary.has_merges = file.find(ggml + "merges") != nullptr;
  if (file.find(ggml + "scores")) {
    TARE_ASSIGN(vocabulary.scores, file.get_floats(ggml + "scores"));
  }
  if (file.find(ggml + "token_type")) {
    TARE_ASSIGN(const std::vector<int64_t> types, file.get_ints(ggml + "token_type"));
    for (const int64_t type : types) {
      vocabulary.token_type.push_back(type < 0 || type > INT32_MAX ? -1 : static_cast<int32_t>(type));
    }
  }
  if (file.find(ggml + "precompiled_charsmap")) {
    TARE_ASSIGN(const std::vector<int64_t> bytes, file.get_ints(ggml + "precompiled_charsmap"));
    for (const int64_t byte : bytes) vocabulary.precompiled_charsmap += static_cast<char>(byte);
  }
  TARE_ASSIGN(vocabulary.bos_id, id_or_none(file, ggml + "bos_token_id"));
  TARE_ASSIGN(vocabulary.eos_id, id_or_none(file, ggml + "eos_token_id"));
  TARE_ASSIGN(vocabulary.unknown_id, id_or_none(file, ggml + "unknown_token_id"));
  TARE_ASSIGN(vocabulary.padding_id, id_or_none(file, ggml + "padding_token_id"));
  TARE_ASSIGN(vocabulary.eot_id, id_or_none(file, ggml + "eot_token_id"));
  TARE_ASSIGN(vocabulary.mask_id, id_or_none(file, ggml + "mask_token_id"));
  TARE_ASSIGN(vocabulary.add_bos, bool_or_none(file, ggml + "add_bos_token"));
  TARE_ASSIGN(vocabulary.add_eos, bool_or_none(file, ggml + "add_eos_token"));
  TARE_ASSIGN(vocabulary.add_space_prefix, bool_or_none(file, ggml + "add_space_prefix"));
  TARE_ASSIGN(vocabulary.remove_extra_whitespaces, bool_or_none(file, ggml + "remove_extra_whitespaces"));
  TARE_ASSIGN(vocabulary.name, file.get_string_or("general.name", ""));
  return text::load_gguf_vocabulary(vocabulary, path);
}

// Told by name, and for tokenizer.model by content: SentencePiece's protocol buffer and lists of ranks share the name.
Result<text::Tokenizer> tokenizer_of_file(const std::string& path) {
  if (path.ends_with(".gguf")) return tokenizer_of_gguf(path);
  TARE_ASSIGN(const std::string bytes, read_text_file(path));
  if (fs::path(path).filename().string().starts_with("tekken")) return text::load_tekken(bytes, path);
  if (path.ends_with(".json")) return text::load_tokenizer_json(bytes, path);
  if (const size_t ranks = text::count_tiktoken_ranks(bytes); ranks > 0) {
    TARE_ASSIGN(const text::TiktokenSpec spec, text::known_tiktoken_spec(ranks, path));
    return text::load_tiktoken(bytes, spec, path);
  }
  return text::load_sentencepiece_model(bytes, path);
}

}  // namespace

Result<text::Tokenizer> load_tokenizer(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return io_error("no such model", {.where = path});
  if (!fs::is_directory(path, ec) && !path.ends_with(".safetensors")) return tokenizer_of_file(path);
  const std::string folder = folder_of(path);
  if (text::holds_tokenizer(folder)) return text::load_tokenizer_from_directory(folder);
  if (const std::string kept = join(folder, "tokenizer.gguf"); is_file(kept)) return tokenizer_of_file(kept);
  if (const auto gguf = gguf_of(path)) return tokenizer_of_file(*gguf);
  return text::load_tokenizer_from_directory(folder);  // its error says what would do
}

Result<std::optional<ChatAssets>> load_chat_template(const std::string& path, const std::string& name) {
  std::error_code ec;
  if (!fs::exists(path, ec)) return io_error("no such model", {.where = path});
  const std::string folder = folder_of(path);
  const std::optional<std::string> gguf = gguf_of(path);
  std::vector<std::string> notes;
  std::map<std::string, std::string> special;
  std::optional<std::string> found;
  std::string found_where;
  const auto take = [&](std::optional<std::string> candidate, const std::string& where) -> Status {
    if (!candidate) return {};
    if (found && *found != *candidate) {
      return invalid_input("two different chat templates", {.where = found_where, .found = "another in " + where});
    }
    found = std::move(candidate);
    found_where = where;
    return {};
  };
  if (!folder.empty()) {
    const std::string config_path = join(folder, "tokenizer_config.json");
    if (is_file(config_path)) {
      TARE_ASSIGN(const json::value parsed, json::parse_file(config_path));
      if (!parsed.is_object()) return invalid_input("tokenizer_config.json is not an object", {.where = config_path});
      special = special_tokens(parsed.get_object());
      TARE_ASSIGN(auto text, template_text(parsed.get_object(), name, config_path, notes));
      TARE_TRY(take(std::move(text), config_path));
    }
    const std::string json_path = join(folder, "chat_template.json");
    if (is_file(json_path)) {
      TARE_ASSIGN(const json::value parsed, json::parse_file(json_path));
      if (!parsed.is_object()) return invalid_input("chat_template.json is not an object", {.where = json_path});
      TARE_ASSIGN(auto text, template_text(parsed.get_object(), name, json_path, notes));
      TARE_TRY(take(std::move(text), json_path));
    }
    const std::string jinja_path = name.empty() || name == "default"
                                       ? join(folder, "chat_template.jinja")
                                       : join(folder, "additional_chat_templates/" + name + ".jinja");
    if (is_file(jinja_path)) {
      TARE_ASSIGN(std::string text, read_text_file(jinja_path, size_t{16} << 20));
      TARE_TRY(take(std::move(text), jinja_path));
    }
  }
  if (found) return finish(*found, found_where, std::move(special), std::move(notes));
  if (gguf) return gguf_template(*gguf, name);
  return std::optional<ChatAssets>();
}

}  // namespace tare::checkpoints
