#include "checkpoints/text_assets.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "checkpoints/source.h"
#include "io/gguf.h"
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

// The GGUF that a path means: the file itself, or the only one of a folder without safetensors.
std::optional<std::string> gguf_of(const std::string& path) {
  if (path.ends_with(".gguf")) return path;
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return std::nullopt;
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

}  // namespace

Result<text::Tokenizer> load_tokenizer(const std::string& path) {
  if (fs::path(path).filename() == "tokenizer.json") {
    TARE_ASSIGN(const std::string json, read_text_file(path));
    return text::load_tokenizer_json(json, path);
  }
  const std::string folder = folder_of(path);
  if (!folder.empty() && is_file(join(folder, "tokenizer.json"))) {
    return load_tokenizer(join(folder, "tokenizer.json"));
  }
  return invalid_input("no tokenizer", {.where = path, .expected = "tokenizer.json in a folder, or a GGUF"});
}

Result<std::optional<ChatAssets>> load_chat_template(const std::string& path, const std::string& name) {
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
