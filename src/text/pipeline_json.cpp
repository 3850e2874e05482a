#include "text/pipeline_json.h"

#include <fmt/format.h>

#include "text/unicode.h"

namespace tare::text {

namespace {

using json::array;
using json::object;
using json::value;

Result<const object*> as_object(const value& from, std::string_view where) {
  if (from.is_object()) return &from.get_object();
  return invalid_input("a part of the tokenizer has the wrong type",
                       {.where = std::string(where), .expected = "an object"});
}

Result<const array*> list_of(const object& from, std::string_view key, std::string_view where) {
  const value* list = json::find(from, key);
  if (list && list->is_array()) return &list->get_array();
  return invalid_input(fmt::format("'{}' is missing or no list", key), {.where = std::string(where)});
}

Error unknown_type(std::string_view what, std::string_view type, std::string_view where) {
  return unsupported(fmt::format("unknown {} in tokenizer.json", what),
                     {.where = std::string(where), .found = std::string(type)});
}

// {"String": "x"} or {"Regex": "x"}; `literal` or `regex` is set.
Status parse_pattern(const object& from, std::string_view where, std::string& literal,
                     std::shared_ptr<const Regex>& regex, std::optional<Scanner>* scanner) {
  const value* pattern = json::find(from, "pattern");
  if (!pattern || !pattern->is_object()) {
    return invalid_input("'pattern' is missing or no object",
                         {.where = std::string(where), .expected = R"({"String": ...} or {"Regex": ...})"});
  }
  const object& choice = pattern->get_object();
  if (json::find(choice, "String")) {
    TARE_ASSIGN(literal, json::get_string(choice, "String", where));
    return {};
  }
  TARE_ASSIGN(const std::string text, json::get_string(choice, "Regex", where));
  if (scanner) *scanner = find_scanner(text);
  TARE_ASSIGN(Regex compiled, Regex::compile(text, RegexDialect::kOniguruma, where));
  regex = std::make_shared<const Regex>(std::move(compiled));
  return {};
}

Result<SplitBehavior> parse_behavior(std::string_view name, std::string_view where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unsupported("unknown split behavior", {.where = std::string(where), .found = std::string(name)});
}

Status single_char(const std::string& text, std::string_view what, std::string_view where) {
  if (text.empty() || char_bytes(text[0]) != text.size()) {
    return invalid_input(fmt::format("'{}' must be one character", what),
                         {.where = std::string(where), .found = text.substr(0, 40)});
  }
  return {};
}

struct MetaspaceFields {
  std::string replacement;
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};

// New files say prepend_scheme, old ones add_prefix_space; both may stand there if they agree.
Result<MetaspaceFields> parse_metaspace(const object& from, std::string_view where) {
  MetaspaceFields out;
  TARE_ASSIGN(out.replacement, json::get_string(from, "replacement", where));
  TARE_TRY(single_char(out.replacement, "replacement", where));
  TARE_ASSIGN(out.split, json::get_bool_or(from, "split", true, where));
  TARE_ASSIGN(const bool add_prefix_space, json::get_bool_or(from, "add_prefix_space", true, where));
  TARE_ASSIGN(const std::string scheme, json::get_string_or(from, "prepend_scheme", "", where));
  if (scheme.empty()) {
    out.scheme = add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  } else if (scheme == "always") {
    out.scheme = PrependScheme::kAlways;
  } else if (scheme == "first") {
    out.scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    out.scheme = PrependScheme::kNever;
  } else {
    return unsupported("unknown prepend_scheme", {.where = std::string(where), .found = scheme});
  }
  if (!add_prefix_space && out.scheme != PrependScheme::kNever) {
    return invalid_input("add_prefix_space contradicts prepend_scheme", {.where = std::string(where), .found = scheme});
  }
  return out;
}

Status add_normalizer(const value& from, std::string_view where, Normalizer& out) {
  TARE_ASSIGN(const object* fields, as_object(from, where));
  TARE_ASSIGN(const std::string type, json::get_string(*fields, "type", where));
  using Kind = NormalizerStep::Kind;
  NormalizerStep step;
  if (type == "Sequence") {
    TARE_ASSIGN(const array* members, list_of(*fields, "normalizers", where));
    for (const value& member : *members) TARE_TRY(add_normalizer(member, where, out));
    return {};
  }
  if (type == "NFC") {
    step.kind = Kind::kNfc;
  } else if (type == "NFD") {
    step.kind = Kind::kNfd;
  } else if (type == "NFKC") {
    step.kind = Kind::kNfkc;
  } else if (type == "NFKD") {
    step.kind = Kind::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "Nmt") {
    step.kind = Kind::kNmt;
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    TARE_ASSIGN(step.strip_left, json::get_bool_or(*fields, "strip_left", true, where));
    TARE_ASSIGN(step.strip_right, json::get_bool_or(*fields, "strip_right", true, where));
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    TARE_ASSIGN(step.content, json::get_string(*fields, "prepend", where));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    TARE_TRY(parse_pattern(*fields, where, step.pattern, step.regex, nullptr));
    TARE_ASSIGN(step.content, json::get_string(*fields, "content", where));
  } else if (type == "Precompiled") {
    step.kind = Kind::kPrecompiled;
    TARE_ASSIGN(const std::string base64, json::get_string(*fields, "precompiled_charsmap", where));
    TARE_ASSIGN(const std::string blob, decode_base64(base64, where));
    TARE_ASSIGN(Charsmap charsmap, Charsmap::create(blob, where));
    step.charsmap = std::make_shared<const Charsmap>(std::move(charsmap));
  } else if (type == "BertNormalizer") {
    step.kind = Kind::kBert;
    TARE_ASSIGN(step.bert_clean_text, json::get_bool_or(*fields, "clean_text", true, where));
    TARE_ASSIGN(step.bert_chinese, json::get_bool_or(*fields, "handle_chinese_chars", true, where));
    TARE_ASSIGN(step.bert_lowercase, json::get_bool_or(*fields, "lowercase", true, where));
    TARE_ASSIGN(step.bert_strip_accents, json::get_bool_or(*fields, "strip_accents", step.bert_lowercase, where));
  } else {
    return unknown_type("normalizer", type, where);
  }
  out.push_back(std::move(step));
  return {};
}

Status add_pre_tokenizer(const value& from, std::string_view where, PreTokenizer& out) {
  TARE_ASSIGN(const object* fields, as_object(from, where));
  TARE_ASSIGN(const std::string type, json::get_string(*fields, "type", where));
  using Kind = PreTokenizerStep::Kind;
  PreTokenizerStep step;
  if (type == "Sequence") {
    TARE_ASSIGN(const array* members, list_of(*fields, "pretokenizers", where));
    for (const value& member : *members) TARE_TRY(add_pre_tokenizer(member, where, out));
    return {};
  }
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    TARE_ASSIGN(step.add_prefix_space, json::get_bool_or(*fields, "add_prefix_space", true, where));
    TARE_ASSIGN(step.use_regex, json::get_bool_or(*fields, "use_regex", true, where));
  } else if (type == "Split") {
    step.kind = Kind::kSplit;
    TARE_TRY(parse_pattern(*fields, where, step.literal, step.regex, &step.scanner));
    TARE_ASSIGN(const std::string behavior, json::get_string(*fields, "behavior", where));
    TARE_ASSIGN(step.behavior, parse_behavior(behavior, where));
    TARE_ASSIGN(step.invert, json::get_bool_or(*fields, "invert", false, where));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    TARE_ASSIGN(step.individual_digits, json::get_bool_or(*fields, "individual_digits", false, where));
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    TARE_ASSIGN(const std::string behavior, json::get_string_or(*fields, "behavior", "Isolated", where));
    TARE_ASSIGN(step.behavior, parse_behavior(behavior, where));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    TARE_ASSIGN(MetaspaceFields metaspace, parse_metaspace(*fields, where));
    step.literal = std::move(metaspace.replacement);
    step.prepend = metaspace.scheme;
    step.split = metaspace.split;
  } else if (type == "Whitespace") {
    step.kind = Kind::kWhitespace;
    TARE_ASSIGN(Regex regex, Regex::compile(R"(\w+|[^\w\s]+)", RegexDialect::kRust, where));
    step.regex = std::make_shared<const Regex>(std::move(regex));
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
  } else if (type == "CharDelimiterSplit" || type == "Delimiter") {
    step.kind = Kind::kDelimiter;
    TARE_ASSIGN(step.literal, json::get_string(*fields, "delimiter", where));
    TARE_TRY(single_char(step.literal, "delimiter", where));
  } else if (type == "FixedLength") {
    step.kind = Kind::kFixedLength;
    TARE_ASSIGN(const int64_t length, json::get_int_or(*fields, "length", 5, where));
    if (length < 1)
      return invalid_input("'length' must be positive",
                           {.where = std::string(where), .found = fmt::format("{}", length)});
    step.length = static_cast<size_t>(length);
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::kBert;
  } else {
    return unknown_type("pre-tokenizer", type, where);
  }
  out.push_back(std::move(step));
  return {};
}

Status check_id(int64_t id, std::string_view where) {
  if (id >= 0 && id < (1 << 24)) return {};
  return invalid_input("token id out of range", {.where = std::string(where), .found = fmt::format("{}", id)});
}

// ["<s>", 1]
Result<TokenId> named_id(const object& from, std::string_view key, std::string_view where) {
  const value* pair = json::find(from, key);
  if (pair && pair->is_array() && pair->get_array().size() == 2) {
    if (const auto id = json::as_int(pair->get_array()[1])) {
      TARE_TRY(check_id(*id, where));
      return static_cast<TokenId>(*id);
    }
  }
  return invalid_input(fmt::format("'{}' must be a token and its id", key), {.where = std::string(where)});
}

// {"Sequence": {"id": "A"}} or {"SpecialToken": {"id": name}} with the ids of the name in `specials`.
Result<PostProcessorStep::Part> parse_template_part(const value& from, const value* specials, std::string_view where) {
  TARE_ASSIGN(const object* piece, as_object(from, where));
  if (const value* sequence = json::find(*piece, "Sequence")) {
    TARE_ASSIGN(const object* which, as_object(*sequence, where));
    TARE_ASSIGN(const std::string id, json::get_string(*which, "id", where));
    if (id != "A")
      return invalid_input("a template for one text names another", {.where = std::string(where), .found = id});
    return PostProcessorStep::Part{.text = true, .ids = {}};
  }
  const value* special = json::find(*piece, "SpecialToken");
  if (!special) {
    return invalid_input("unknown part of a template",
                         {.where = std::string(where), .expected = "Sequence or SpecialToken"});
  }
  TARE_ASSIGN(const object* which, as_object(*special, where));
  TARE_ASSIGN(const std::string name, json::get_string(*which, "id", where));
  const value* entry = specials && specials->is_object() ? json::find(specials->get_object(), name) : nullptr;
  if (!entry || !entry->is_object()) {
    return invalid_input("the template names a token that 'special_tokens' does not define",
                         {.where = std::string(where), .found = name});
  }
  TARE_ASSIGN(const array* ids, list_of(entry->get_object(), "ids", where));
  PostProcessorStep::Part part;
  for (const value& id : *ids) {
    const auto number = json::as_int(id);
    if (!number) return invalid_input("a template id is no integer", {.where = std::string(where), .found = name});
    TARE_TRY(check_id(*number, where));
    part.ids.push_back(static_cast<TokenId>(*number));
  }
  return part;
}

Status add_post_processor(const value& from, std::string_view where, PostProcessor& out) {
  TARE_ASSIGN(const object* fields, as_object(from, where));
  TARE_ASSIGN(const std::string type, json::get_string(*fields, "type", where));
  using Kind = PostProcessorStep::Kind;
  PostProcessorStep step;
  if (type == "Sequence") {
    TARE_ASSIGN(const array* members, list_of(*fields, "processors", where));
    for (const value& member : *members) TARE_TRY(add_post_processor(member, where, out));
    return {};
  }
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    TARE_ASSIGN(const bool trim, json::get_bool_or(*fields, "trim_offsets", true, where));
    TARE_ASSIGN(const bool add_prefix_space, json::get_bool_or(*fields, "add_prefix_space", true, where));
    if (trim) {
      step.kind = Kind::kTrimOffsets;
      step.add_prefix_space = add_prefix_space;
      out.push_back(step);
    }
    if (type == "ByteLevel") return {};
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    TARE_ASSIGN(const TokenId cls, named_id(*fields, "cls", where));
    TARE_ASSIGN(const TokenId sep, named_id(*fields, "sep", where));
    step.kind = Kind::kTemplate;
    step.parts = {{.text = false, .ids = {cls}}, {.text = true, .ids = {}}, {.text = false, .ids = {sep}}};
    out.push_back(std::move(step));
    return {};
  }
  if (type != "TemplateProcessing") return unknown_type("post-processor", type, where);
  step.kind = Kind::kTemplate;
  const value* specials = json::find(*fields, "special_tokens");
  TARE_ASSIGN(const array* members, list_of(*fields, "single", where));
  for (const value& member : *members) {
    TARE_ASSIGN(PostProcessorStep::Part part, parse_template_part(member, specials, where));
    step.parts.push_back(std::move(part));
  }
  out.push_back(std::move(step));
  return {};
}

Status add_decoder(const value& from, std::string_view where, Decoder& out) {
  TARE_ASSIGN(const object* fields, as_object(from, where));
  TARE_ASSIGN(const std::string type, json::get_string(*fields, "type", where));
  using Kind = DecoderStep::Kind;
  DecoderStep step;
  if (type == "Sequence") {
    TARE_ASSIGN(const array* members, list_of(*fields, "decoders", where));
    for (const value& member : *members) TARE_TRY(add_decoder(member, where, out));
    return {};
  }
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    TARE_TRY(parse_pattern(*fields, where, step.pattern, step.regex, nullptr));
    TARE_ASSIGN(step.content, json::get_string(*fields, "content", where));
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    TARE_ASSIGN(step.content, json::get_string(*fields, "content", where));
    TARE_TRY(single_char(step.content, "content", where));
    TARE_ASSIGN(const int64_t start, json::get_int(*fields, "start", where));
    TARE_ASSIGN(const int64_t stop, json::get_int(*fields, "stop", where));
    if (start < 0 || stop < 0)
      return invalid_input("'start' and 'stop' must not be negative", {.where = std::string(where)});
    step.start = static_cast<size_t>(start);
    step.stop = static_cast<size_t>(stop);
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    TARE_ASSIGN(MetaspaceFields metaspace, parse_metaspace(*fields, where));
    step.content = std::move(metaspace.replacement);
    step.prefix_space = metaspace.scheme != PrependScheme::kNever;
  } else if (type == "BPEDecoder") {
    step.kind = Kind::kBpe;
    TARE_ASSIGN(step.pattern, json::get_string_or(*fields, "suffix", "</w>", where));
  } else if (type == "WordPiece") {
    step.kind = Kind::kWordPiece;
    TARE_ASSIGN(step.pattern, json::get_string_or(*fields, "prefix", "##", where));
    TARE_ASSIGN(step.cleanup, json::get_bool_or(*fields, "cleanup", true, where));
  } else if (type == "CTC") {
    step.kind = Kind::kCtc;
    TARE_ASSIGN(step.pattern, json::get_string_or(*fields, "pad_token", "<pad>", where));
    TARE_ASSIGN(step.content, json::get_string_or(*fields, "word_delimiter_token", "|", where));
    TARE_ASSIGN(step.cleanup, json::get_bool_or(*fields, "cleanup", true, where));
  } else {
    return unknown_type("decoder", type, where);
  }
  out.push_back(std::move(step));
  return {};
}

}  // namespace

Result<Normalizer> parse_normalizer(const value& from, std::string_view where) {
  Normalizer out;
  TARE_TRY(add_normalizer(from, fmt::format("{}: normalizer", where), out));
  return out;
}

Result<PreTokenizer> parse_pre_tokenizer(const value& from, std::string_view where) {
  PreTokenizer out;
  TARE_TRY(add_pre_tokenizer(from, fmt::format("{}: pre_tokenizer", where), out));
  return out;
}

Result<PostProcessor> parse_post_processor(const value& from, std::string_view where) {
  PostProcessor out;
  TARE_TRY(add_post_processor(from, fmt::format("{}: post_processor", where), out));
  return out;
}

Result<Decoder> parse_decoder(const value& from, std::string_view where) {
  Decoder out;
  TARE_TRY(add_decoder(from, fmt::format("{}: decoder", where), out));
  return out;
}

Result<std::string> decode_base64(std::string_view text, std::string_view where) {
  const auto value_of = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    if (c == '/') return 63;
    return -1;
  };
  const auto bad = [&](size_t at) {
    return invalid_input("malformed base64", {.where = std::string(where), .found = fmt::format("byte {}", at)});
  };
  if (text.size() % 4 != 0) return bad(text.size());
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    int padding = 0;
    if (at + 4 == text.size() && text[at + 3] == '=') padding = text[at + 2] == '=' ? 2 : 1;
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) {
      const int v = i >= 4 - padding ? 0 : value_of(text[at + static_cast<size_t>(i)]);
      if (v < 0) return bad(at + static_cast<size_t>(i));
      bits = bits << 6 | static_cast<uint32_t>(v);
    }
    for (int i = 0; i < 3 - padding; ++i) out += static_cast<char>(bits >> (16 - 8 * i) & 0xFF);
  }
  return out;
}

}  // namespace tare::text
