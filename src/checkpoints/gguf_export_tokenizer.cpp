#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "checkpoints/gguf_export.h"
#include "io/gguf.h"
#include "text/gguf_pre_tokenizers.h"

namespace tare::checkpoints {

namespace fs = std::filesystem;

namespace {

using Step = text::GgufPreTokenizer::Step;

// llama.cpp's token types.
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

Error no_form(const std::string& path, std::string expected, std::string found) {
  return unsupported("tokenizer has no GGUF form that tare writes",
                     {.where = path,
                      .expected = std::move(expected),
                      .found = std::move(found),
                      .hint = "pass --allow-loss to write the weights without a tokenizer"});
}

std::string text_of(const json::object& from, std::string_view key) {
  const json::value* value = json::find(from, key);
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

bool flag_of(const json::object& from, std::string_view key, bool fallback) {
  const json::value* value = json::find(from, key);
  return value && value->is_bool() ? value->get_bool() : fallback;
}

struct Part {
  Step step;
  std::string pattern;
};

// The pipeline of a pre_tokenizer object; `bytes` is set when it ends in bytes.
Status read_steps(const json::object& from, const std::string& path, std::vector<Part>& parts, bool& bytes) {
  const std::string type = text_of(from, "type");
  if (type == "Sequence") {
    const json::value* list = json::find(from, "pretokenizers");
    if (!list || !list->is_array()) return no_form(path, "a sequence of pre-tokenizers", "none");
    for (const json::value& entry : list->get_array()) {
      if (entry.is_object()) TARE_TRY(read_steps(entry.get_object(), path, parts, bytes));
    }
    return {};
  }
  if (type == "ByteLevel") {
    bytes = true;
    if (flag_of(from, "add_prefix_space", false)) return no_form(path, "no space put in front", "add_prefix_space");
    if (flag_of(from, "use_regex", true)) parts.push_back({Step::kGpt2, ""});
    return {};
  }
  if (type == "Digits" && flag_of(from, "individual_digits", false)) {
    parts.push_back({Step::kDigits, ""});
    return {};
  }
  const json::value* pattern = json::find(from, "pattern");
  const std::string regex = pattern && pattern->is_object() ? text_of(pattern->get_object(), "Regex") : "";
  if (type == "Split" && !regex.empty() && text_of(from, "behavior") == "Isolated" && !flag_of(from, "invert", false)) {
    parts.push_back({Step::kSplit, regex});
    return {};
  }
  return no_form(path, "a pre-tokenizer that llama.cpp has a name for", type.empty() ? "none" : type);
}

// The name under which llama.cpp knows this pipeline.
Result<std::string> pre_name(const std::vector<Part>& parts, bool nfc, bool ignore_merges, bool merges,
                             const std::string& path) {
  if (!merges) return std::string("gpt-2");  // without merges every character is a piece, however text is split
  for (const text::GgufPreTokenizer& entry : text::gguf_pre_tokenizers()) {
    if (entry.nfc != nfc || entry.ignore_merges != ignore_merges || entry.pieces_of_text) continue;
    if (std::equal(parts.begin(), parts.end(), entry.parts.begin(), entry.parts.end(),
                   [](const Part& a, const auto& b) { return a.step == b.step && a.pattern == b.pattern; })) {
      return std::string(entry.name);
    }
  }
  return no_form(path, "a pre-tokenizer that llama.cpp has a name for",
                 fmt::format("another pipeline of {} steps{}", parts.size(), nfc ? " with NFC" : ""));
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

Status put_token(Vocabulary& out, int64_t vocabulary, const json::value& id, std::string_view text, int32_t type,
                 const std::string& path) {
  const auto at = json::as_int(id);
  if (!at || *at < 0 || *at >= vocabulary) {
    return invalid_input(
        "token outside the vocabulary",
        {.where = path, .expected = fmt::format("ids below {}", vocabulary), .found = boost::json::serialize(id)});
  }
  out.tokens[static_cast<size_t>(*at)] = text;
  out.types[static_cast<size_t>(*at)] = type;
  return {};
}

Result<Vocabulary> read_vocabulary(const json::object& document, const json::object& model, int64_t vocabulary,
                                   const std::string& path) {
  Vocabulary out;
  for (int64_t i = 0; i < vocabulary; ++i) out.tokens.push_back(fmt::format("[PAD{}]", i));
  out.types.assign(static_cast<size_t>(vocabulary), kUnused);
  const json::value* vocab = json::find(model, "vocab");
  if (!vocab || !vocab->is_object()) return no_form(path, "a vocabulary", "none");
  for (const auto& [token, id] : vocab->get_object()) {
    TARE_TRY(put_token(out, vocabulary, id, token, kNormal, path));
  }
  const json::value* added = json::find(document, "added_tokens");
  if (added && added->is_array()) {
    for (const json::value& entry : added->get_array()) {
      const json::value* id = entry.is_object() ? json::find(entry.get_object(), "id") : nullptr;
      if (!id) continue;
      const bool special = flag_of(entry.get_object(), "special", false);
      TARE_TRY(put_token(out, vocabulary, *id, text_of(entry.get_object(), "content"),
                         special ? kControl : kUserDefined, path));
    }
  }
  return out;
}

Result<std::vector<std::string>> read_merges(const json::object& model, const std::string& path) {
  std::vector<std::string> out;
  const json::value* merges = json::find(model, "merges");
  if (!merges || !merges->is_array()) return out;
  for (const json::value& merge : merges->get_array()) {
    if (merge.is_string()) {
      out.emplace_back(merge.get_string());
    } else if (merge.is_array() && merge.get_array().size() == 2 && merge.get_array()[0].is_string() &&
               merge.get_array()[1].is_string()) {
      out.push_back(std::string(merge.get_array()[0].get_string()) + " " +
                    std::string(merge.get_array()[1].get_string()));
    } else {
      return invalid_input("bad merge", {.where = path, .found = boost::json::serialize(merge).substr(0, 80)});
    }
  }
  return out;
}

// Whether the post-processor puts a token before or after the text.
bool adds_token(const json::object& document, bool front) {
  const json::value* post = json::find(document, "post_processor");
  if (!post || !post->is_object()) return false;
  std::vector<const json::object*> processors = {&post->get_object()};
  if (const json::value* list = json::find(post->get_object(), "processors"); list && list->is_array()) {
    for (const json::value& entry : list->get_array()) {
      if (entry.is_object()) processors.push_back(&entry.get_object());
    }
  }
  for (const json::object* one : processors) {
    const json::value* single = json::find(*one, "single");
    if (!single || !single->is_array() || single->get_array().empty()) continue;
    const json::value& end = front ? single->get_array().front() : single->get_array().back();
    if (end.is_object() && end.get_object().contains("SpecialToken")) return true;
  }
  return false;
}

void add_special_ids(const json::object& config, io::GgufMetadata& out) {
  for (const auto& [hf, key] :
       {std::pair{"bos_token_id", "bos"}, std::pair{"eos_token_id", "eos"}, std::pair{"pad_token_id", "padding"}}) {
    const json::value* value = json::find(config, hf);
    if (value && value->is_array() && !value->get_array().empty()) value = &value->get_array().front();
    const auto id = value ? json::as_int(*value) : std::nullopt;
    if (id && *id >= 0) out.add_u32(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<uint32_t>(*id));
  }
}

Status add_template(const std::string& directory, io::GgufMetadata& out) {
  std::error_code ec;
  const std::string jinja = (fs::path(directory) / "chat_template.jinja").string();
  if (fs::is_regular_file(jinja, ec)) {
    TARE_ASSIGN(const std::string content, read_text_file(jinja));
    out.add_string("tokenizer.chat_template", content);
    return {};
  }
  const std::string path = (fs::path(directory) / "tokenizer_config.json").string();
  if (!fs::is_regular_file(path, ec)) return {};
  TARE_ASSIGN(const json::value parsed, json::parse_file(path));
  const std::string content = parsed.is_object() ? text_of(parsed.get_object(), "chat_template") : "";
  if (!content.empty()) out.add_string("tokenizer.chat_template", content);
  return {};
}

Status from_tokenizer_json(const std::string& path, int64_t vocabulary, const json::object& config,
                           io::GgufMetadata& out) {
  TARE_ASSIGN(const json::value parsed, json::parse_file(path));
  const json::value* model = parsed.is_object() ? json::find(parsed.get_object(), "model") : nullptr;
  if (!model || !model->is_object()) return invalid_input("no tokenizer", {.where = path});
  const json::object& document = parsed.get_object();
  const json::object& bpe = model->get_object();
  if (text_of(bpe, "type") != "BPE" && !text_of(bpe, "type").empty()) {
    return no_form(path, "a byte-level BPE", text_of(bpe, "type"));
  }
  if (flag_of(bpe, "byte_fallback", false))
    return no_form(path, "a byte-level BPE", "pieces of text with byte fallback");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(bpe, key).empty()) return no_form(path, "a byte-level BPE", key);
  }
  std::vector<Part> parts;
  bool bytes = false;
  if (const json::value* pre = json::find(document, "pre_tokenizer"); pre && pre->is_object()) {
    TARE_TRY(read_steps(pre->get_object(), path, parts, bytes));
  }
  if (!bytes) return no_form(path, "a byte-level BPE", "no ByteLevel step");
  std::string normalizer;
  if (const json::value* n = json::find(document, "normalizer"); n && n->is_object()) {
    normalizer = text_of(n->get_object(), "type");
  }
  if (!normalizer.empty() && normalizer != "NFC") return no_form(path, "no normalizer or NFC", normalizer);
  TARE_ASSIGN(const std::vector<std::string> merges, read_merges(bpe, path));
  TARE_ASSIGN(const std::string pre,
              pre_name(parts, normalizer == "NFC", flag_of(bpe, "ignore_merges", false), !merges.empty(), path));
  TARE_ASSIGN(const Vocabulary tokens, read_vocabulary(document, bpe, vocabulary, path));
  out.add_string("tokenizer.ggml.model", "gpt2");
  out.add_string("tokenizer.ggml.pre", pre);
  out.add_strings("tokenizer.ggml.tokens", tokens.tokens);
  out.add_i32s("tokenizer.ggml.token_type", tokens.types);
  out.add_strings("tokenizer.ggml.merges", merges);
  add_special_ids(config, out);
  out.add_bool("tokenizer.ggml.add_bos_token", adds_token(document, true));
  out.add_bool("tokenizer.ggml.add_eos_token", adds_token(document, false));
  return {};
}

}  // namespace

Status gguf_export_tokenizer(const std::string& directory, int64_t vocabulary, const json::object& config,
                             io::GgufMetadata& out, Losses& losses) {
  std::error_code ec;
  const std::string kept = (fs::path(directory) / "tokenizer.gguf").string();
  if (!directory.empty() && fs::is_regular_file(kept, ec)) {
    TARE_ASSIGN(const io::GgufFile file, io::open_gguf(kept));
    for (const io::GgufKeyValue& pair : file.metadata) {
      if (pair.key.starts_with("tokenizer.")) out.add(pair.key, pair.value);
    }
    return {};
  }
  const std::string path = (fs::path(directory) / "tokenizer.json").string();
  Status status;
  if (directory.empty() || !fs::is_regular_file(path, ec)) {
    status = no_form(directory, "tokenizer.json or tokenizer.gguf", "none of them");
  } else {
    io::GgufMetadata tokenizer = out;
    status = from_tokenizer_json(path, vocabulary, config, tokenizer);
    if (status.ok()) {
      out = std::move(tokenizer);
      return add_template(directory, out);
    }
  }
  if (!losses.allowed()) return status;
  TARE_TRY(losses.lose("tokenizer", "left out: " + status.error().message()));
  out.add_string("tokenizer.ggml.model", "none");
  return {};
}

}  // namespace tare::checkpoints
