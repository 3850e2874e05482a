#include "text/tokenizer_directory.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "text/sentencepiece.h"
#include "text/tiktoken.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_state.h"

namespace tare::text {

namespace fs = std::filesystem;

namespace {

struct Role {
  const char* key;
  std::optional<TokenId> SpecialTokens::*member;
};
constexpr Role kRoles[] = {{"bos_token", &SpecialTokens::bos},
                           {"eos_token", &SpecialTokens::eos},
                           {"unk_token", &SpecialTokens::unknown},
                           {"pad_token", &SpecialTokens::padding},
                           {"mask_token", &SpecialTokens::mask}};
constexpr size_t kRoleCount = std::size(kRoles);

// What the files beside the tokenizer say about it.
struct SideFiles {
  std::array<std::optional<std::string>, kRoleCount> roles;  // texts
  std::optional<bool> add_bos, add_eos;
  std::string tokenizer_class;
  std::vector<AddedToken> added;
  std::vector<std::string> warnings;
};

bool is_file(const fs::path& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

// "<s>" or {"content": "<s>", ...}
std::optional<std::string> token_text(const json::object& from, const char* key) {
  const json::value* found = json::find(from, key);
  if (found && found->is_object()) found = json::find(found->get_object(), "content");
  if (found && found->is_string()) return std::string(found->get_string());
  return std::nullopt;
}

Status read_added(const json::object& config, const std::string& where, SideFiles& out) {
  const json::value* decoder = json::find(config, "added_tokens_decoder");
  if (!decoder || !decoder->is_object()) return {};
  for (const auto& entry : decoder->get_object()) {
    const std::string_view key = entry.key();
    AddedToken token;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    const auto* fields = entry.value().if_object();
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token.id < 0 || !fields) {
      return invalid_input("malformed added_tokens_decoder", {.where = where, .found = std::string(key.substr(0, 40))});
    }
    TARE_ASSIGN(token.content, json::get_string(*fields, "content", where));
    TARE_ASSIGN(token.special, json::get_bool_or(*fields, "special", false, where));
    TARE_ASSIGN(token.lstrip, json::get_bool_or(*fields, "lstrip", false, where));
    TARE_ASSIGN(token.rstrip, json::get_bool_or(*fields, "rstrip", false, where));
    TARE_ASSIGN(token.single_word, json::get_bool_or(*fields, "single_word", false, where));
    TARE_ASSIGN(token.normalized, json::get_bool_or(*fields, "normalized", !token.special, where));
    out.added.push_back(std::move(token));
  }
  return {};
}

Result<SideFiles> read_side_files(const fs::path& directory) {
  SideFiles out;
  const fs::path config_path = directory / "tokenizer_config.json";
  if (is_file(config_path)) {
    const std::string where = config_path.string();
    TARE_ASSIGN(const json::value document, json::parse_file(where));
    const auto* config = document.if_object();
    if (!config) return invalid_input("tokenizer_config.json holds no object", {.where = where});
    for (size_t i = 0; i < kRoleCount; ++i) out.roles[i] = token_text(*config, kRoles[i].key);
    for (const auto& [key, into] :
         {std::pair{"add_bos_token", &out.add_bos}, std::pair{"add_eos_token", &out.add_eos}}) {
      if (!json::find(*config, key)) continue;
      TARE_ASSIGN(const bool flag, json::get_bool_or(*config, key, false, where));
      *into = flag;
    }
    TARE_ASSIGN(out.tokenizer_class, json::get_string_or(*config, "tokenizer_class", "", where));
    TARE_TRY(read_added(*config, where, out));
  }
  const fs::path map_path = directory / "special_tokens_map.json";
  if (is_file(map_path)) {
    TARE_ASSIGN(const json::value document, json::parse_file(map_path.string()));
    const auto* map = document.if_object();
    if (!map) return invalid_input("special_tokens_map.json holds no object", {.where = map_path.string()});
    for (size_t i = 0; i < kRoleCount; ++i) {
      const auto text = token_text(*map, kRoles[i].key);
      if (!text) continue;
      if (out.roles[i] && *out.roles[i] != *text) {
        out.warnings.push_back(
            fmt::format("{} is '{}' in tokenizer_config.json and '{}' in special_tokens_map.json; the first is taken",
                        kRoles[i].key, *out.roles[i], *text));
      } else {
        out.roles[i] = text;
      }
    }
  }
  return out;
}

// Roles by name, onto a tokenizer that was read from its own file.
Tokenizer apply_roles(const Tokenizer& tokenizer, const SideFiles& side) {
  SpecialTokens special = tokenizer.special();
  std::vector<std::string> warnings = side.warnings;
  for (size_t i = 0; i < kRoleCount; ++i) {
    if (!side.roles[i]) continue;
    const auto id = tokenizer.find_token(*side.roles[i]);
    if (!id) {
      warnings.push_back(fmt::format("{} '{}' is no token of {}", kRoles[i].key, *side.roles[i], tokenizer.source()));
      continue;
    }
    special.*kRoles[i].member = id;
  }
  Tokenizer out = with_roles(tokenizer, special, std::move(warnings));
  if (side.add_bos && *side.add_bos != out.adds_bos()) {
    out = with_roles(out, special,
                     {fmt::format("add_bos_token is {} in tokenizer_config.json, but {} {} one; the latter is followed",
                                  *side.add_bos, tokenizer.source(), out.adds_bos() ? "adds" : "does not add")});
  }
  return out;
}

Result<Tokenizer> load_model_file(const fs::path& path, const SideFiles& side) {
  const std::string where = path.string();
  TARE_ASSIGN(const std::string bytes, read_text_file(where));
  if (const size_t ranks = count_tiktoken_ranks(bytes); ranks != 0) {
    TARE_ASSIGN(TiktokenSpec spec, known_tiktoken_spec(ranks, where));
    if (!side.added.empty()) {  // the model's own list
      spec.special_tokens.clear();
      for (const AddedToken& token : side.added) spec.special_tokens.emplace_back(token.content, token.id);
    }
    if (side.add_bos) spec.add_bos = *side.add_bos;
    return load_tiktoken(bytes, spec, where);
  }
  TARE_ASSIGN(SentencePieceModel model, read_sentencepiece_model(bytes, where));
  const bool t5 = side.tokenizer_class.starts_with("T5") || path.filename() == "spiece.model";
  model.add_bos = side.add_bos.value_or(model.special.bos.has_value() && !t5);
  model.add_eos = side.add_eos.value_or(t5);
  model.added = side.added;
  return make_sentencepiece_tokenizer(std::move(model), where);
}

}  // namespace

bool holds_tokenizer(const std::string& directory) {
  const fs::path folder(directory);
  for (const char* name :
       {"tokenizer.json", "tekken.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (is_file(folder / name)) return true;
  }
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".tiktoken") return true;
  }
  return false;
}

Result<Tokenizer> load_tokenizer_from_directory(const std::string& directory) {
  const fs::path folder(directory);
  TARE_ASSIGN(const SideFiles side, read_side_files(folder));
  if (const fs::path path = folder / "tokenizer.json"; is_file(path)) {
    TARE_ASSIGN(const std::string text, read_text_file(path.string()));
    TARE_ASSIGN(const Tokenizer tokenizer, load_tokenizer_json(text, path.string()));
    return apply_roles(tokenizer, side);
  }
  if (const fs::path path = folder / "tekken.json"; is_file(path)) {
    TARE_ASSIGN(const std::string text, read_text_file(path.string()));
    TARE_ASSIGN(const Tokenizer tokenizer, load_tekken(text, path.string()));
    return apply_roles(tokenizer, side);
  }
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (const fs::path path = folder / name; is_file(path)) {
      TARE_ASSIGN(const Tokenizer tokenizer, load_model_file(path, side));
      return apply_roles(tokenizer, side);
    }
  }
  std::vector<fs::path> ranks;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".tiktoken") ranks.push_back(it->path());
  }
  if (ranks.size() == 1) {
    TARE_ASSIGN(const Tokenizer tokenizer, load_model_file(ranks[0], side));
    return apply_roles(tokenizer, side);
  }
  return invalid_input("no tokenizer in the folder",
                       {.where = directory,
                        .expected = "tokenizer.json, tekken.json, tokenizer.model, spiece.model or one .tiktoken file",
                        .found = ranks.empty() ? "" : fmt::format("{} .tiktoken files", ranks.size())});
}

}  // namespace tare::text
