#include "text/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "text/pipeline_json.h"
#include "text/tokenizer_state.h"
#include "text/unicode.h"

namespace tare::text {

namespace {

constexpr std::string_view kGpt2 = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Named = std::vector<std::string>;

void add_numbered(Named& names, std::string_view prefix, int begin, int end) {
  for (int i = begin; i < end; ++i) names.push_back(fmt::format("<|{}_{}|>", prefix, i));
}

Named llama3_names() {
  Named names = {"<|begin_of_text|>",
                 "<|end_of_text|>",
                 "<|reserved_special_token_0|>",
                 "<|reserved_special_token_1|>",
                 "<|finetune_right_pad_id|>",
                 "<|reserved_special_token_2|>",
                 "<|start_header_id|>",
                 "<|end_header_id|>",
                 "<|eom_id|>",
                 "<|eot_id|>",
                 "<|python_tag|>"};
  add_numbered(names, "reserved_special_token", 3, 248);
  return names;
}

Named llama4_names() {
  Named names = {"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                 "<|header_start|>",  "<|header_end|>",  "<|eom|>",        "<|eot|>",        "<|step|>"};
  add_numbered(names, "text_post_train_reserved_special_token", 0, 6);
  names.insert(names.end(), {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  add_numbered(names, "text_post_train_reserved_special_token", 8, 69);
  names.insert(names.end(), {"<|image_start|>", "<|image_end|>"});
  add_numbered(names, "vision_reserved_special_token", 0, 2);
  names.insert(names.end(), {"<|tile_x_separator|>", "<|tile_y_separator|>"});
  add_numbered(names, "vision_reserved_special_token", 2, 6);
  names.push_back("<|image|>");
  add_numbered(names, "vision_reserved_special_token", 6, 7);
  names.push_back("<|patch|>");
  add_numbered(names, "vision_reserved_special_token", 7, 1048);
  add_numbered(names, "reasoning_reserved_special_token", 0, 8);
  names.insert(names.end(), {"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  const int named = static_cast<int>(names.size());
  add_numbered(names, "reserved_special_token", 0, 2048 - named);
  return names;
}

Named qwen_names() {
  Named names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  add_numbered(names, "extra", 0, 205);
  return names;
}

TiktokenSpec with_names(std::string name, std::string_view pattern, const Named& names, TokenId first) {
  TiktokenSpec spec{.name = std::move(name), .pattern = std::string(pattern)};
  for (const std::string& text : names) spec.special_tokens.emplace_back(text, first++);
  return spec;
}

std::string to_alphabet(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) append_utf8(out, byte_to_char(static_cast<uint8_t>(byte)));
  return out;
}

// ranks: tokens as bytes, index = rank; their ids start at first_id.
Result<Tokenizer> from_ranks(const std::vector<std::string>& ranks, TokenId first_id, const TiktokenSpec& spec,
                             std::string_view where) {
  std::array<bool, 256> seen{};
  TokenId size = first_id + static_cast<TokenId>(ranks.size());
  std::vector<std::string> tokens(static_cast<size_t>(size));
  std::vector<bool> hidden(tokens.size(), false);
  std::vector<uint32_t> order(tokens.size(), Bpe::kNotMerged);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const size_t id = static_cast<size_t>(first_id) + rank;
    if (ranks[rank].empty())
      return invalid_input("a token is empty", {.where = std::string(where), .found = fmt::format("rank {}", rank)});
    if (ranks[rank].size() == 1) seen[static_cast<uint8_t>(ranks[rank][0])] = true;
    tokens[id] = to_alphabet(ranks[rank]);
    order[id] = static_cast<uint32_t>(rank);
  }
  if (const auto missing = std::find(seen.begin(), seen.end(), false); missing != seen.end()) {
    return invalid_input("a byte has no rank",
                         {.where = std::string(where), .found = fmt::format("byte {}", missing - seen.begin())});
  }
  TokenizerParts parts;
  parts.source = std::string(where);
  parts.special = spec.roles;
  for (TokenId id = 0; id < first_id; ++id) {
    tokens[id] = fmt::format("<|unused_{}|>", id);
    hidden[id] = true;
  }
  TokenId highest = size - 1;
  for (const auto& [text, id] : spec.special_tokens) {
    if (id < 0 || (id >= first_id && id < size) || id >= (1 << 24)) {
      return invalid_input("a special token has the id of another token",
                           {.where = std::string(where), .found = fmt::format("'{}': {}", text, id)});
    }
    parts.added.push_back({.id = id, .content = text, .special = true});
    if (id < first_id) tokens[id] = text;
    highest = std::max(highest, id);
  }
  parts.unnamed_ids_are_unused = true;
  TARE_ASSIGN(parts.vocabulary, Vocabulary::create(std::move(tokens), where, hidden));
  BpeOptions options;
  options.ignore_merges = true;
  TARE_ASSIGN(Bpe bpe, Bpe::from_ranks(parts.vocabulary, order, {}, options, where));
  bpe.index_bytes(parts.vocabulary);
  parts.model = std::move(bpe);
  if (spec.nfc) parts.normalizer.push_back({.kind = NormalizerStep::Kind::kNfc});
  PreTokenizerStep split;
  split.scanner = find_scanner(spec.pattern);
  TARE_ASSIGN(Regex regex, Regex::compile(spec.pattern, RegexDialect::kRust, where));
  split.regex = std::make_shared<const Regex>(std::move(regex));
  parts.pre_tokenizer.push_back(std::move(split));
  parts.pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::kByteLevel, .use_regex = false});
  parts.decoder.push_back({.kind = DecoderStep::Kind::kByteLevel});
  if (spec.add_bos && spec.roles.bos) {
    PostProcessorStep frame;
    frame.parts = {{.text = false, .ids = {*spec.roles.bos}}, {.text = true, .ids = {}}};
    parts.post_processor.push_back(std::move(frame));
  }
  return make_tokenizer(std::move(parts), where);
}

}  // namespace

Result<TiktokenSpec> known_tiktoken_spec(size_t ranks, std::string_view where) {
  switch (ranks) {
    case 128000: {
      TiktokenSpec spec = with_names("llama3", kLlama3, llama3_names(), 128000);
      spec.roles.bos = 128000;
      spec.roles.eos = 128001;
      spec.roles.end_of_turn = 128009;
      spec.add_bos = true;
      return spec;
    }
    case 200000: {
      TiktokenSpec spec = with_names("llama4", kO200k, llama4_names(), 200000);
      spec.roles.bos = 200000;
      spec.roles.eos = 200001;
      spec.roles.end_of_turn = 200008;
      spec.add_bos = true;
      return spec;
    }
    case 151643: {
      TiktokenSpec spec = with_names("qwen", kQwen, qwen_names(), 151643);
      spec.nfc = true;
      spec.roles.eos = 151643;
      spec.roles.end_of_turn = 151645;
      return spec;
    }
    case 100256: {
      TiktokenSpec spec{.name = "cl100k", .pattern = std::string(kLlama3)};
      spec.special_tokens = {{"<|endoftext|>", 100257},
                             {"<|fim_prefix|>", 100258},
                             {"<|fim_middle|>", 100259},
                             {"<|fim_suffix|>", 100260},
                             {"<|endofprompt|>", 100276}};
      spec.roles.eos = 100257;
      return spec;
    }
    case 199998: {
      TiktokenSpec spec{.name = "o200k", .pattern = std::string(kO200k)};
      spec.special_tokens = {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}};
      spec.roles.eos = 199999;
      return spec;
    }
    case 50256: {
      TiktokenSpec spec{.name = "r50k", .pattern = std::string(kGpt2)};
      spec.special_tokens = {{"<|endoftext|>", 50256}};
      spec.roles.eos = 50256;
      return spec;
    }
    default:
      return unsupported("rank file of an unknown model",
                         {.where = std::string(where),
                          .expected = "the number of ranks of llama3, llama4, qwen, cl100k, o200k or r50k",
                          .found = fmt::format("{} ranks", ranks),
                          .hint = "use the model's tokenizer.json"});
  }
}

size_t count_tiktoken_ranks(std::string_view bytes) {
  size_t lines = 0;
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || space == 0 || space + 1 >= line.size() || line[space + 1] < '0' || line[space + 1] > '9')
      return 0;
    ++lines;
  }
  return lines;
}

Result<Tokenizer> load_tiktoken(std::string_view bytes, const TiktokenSpec& spec, std::string_view where) {
  std::vector<std::pair<std::string, uint32_t>> entries;
  size_t line_number = 0;
  uint32_t highest = 0;
  while (!bytes.empty()) {
    ++line_number;
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string place = fmt::format("{}: line {}", where, line_number);
    const size_t space = line.find(' ');
    uint32_t rank = 0;
    const char* last = line.data() + line.size();
    const auto parsed = space == line.npos ? std::from_chars_result{last, std::errc::invalid_argument}
                                           : std::from_chars(line.data() + space + 1, last, rank);
    if (parsed.ec != std::errc() || parsed.ptr != last) {
      return invalid_input("malformed line of a rank file",
                           {.where = place, .expected = "base64 and a rank", .found = std::string(line.substr(0, 80))});
    }
    TARE_ASSIGN(std::string token, decode_base64(line.substr(0, space), place));
    highest = std::max(highest, rank);
    entries.emplace_back(std::move(token), rank);
  }
  if (entries.empty()) return invalid_input("empty rank file", {.where = std::string(where)});
  std::vector<std::string> ranks(entries.size());
  std::vector<bool> taken(entries.size(), false);
  if (highest >= entries.size()) {
    return invalid_input("the ranks have a hole", {.where = std::string(where),
                                                   .expected = fmt::format("ranks below {}", entries.size()),
                                                   .found = fmt::format("{}", highest)});
  }
  for (auto& [token, rank] : entries) {
    if (taken[rank])
      return invalid_input("two tokens have one rank", {.where = std::string(where), .found = fmt::format("{}", rank)});
    taken[rank] = true;
    ranks[rank] = std::move(token);
  }
  return from_ranks(ranks, 0, spec, where);
}

Result<Tokenizer> load_tekken(std::string_view json_text, std::string_view where) {
  TARE_ASSIGN(const json::value document, json::parse(json_text, where));
  const auto* root = document.if_object();
  const json::value* config_value = root ? json::find(*root, "config") : nullptr;
  const json::value* vocab = root ? json::find(*root, "vocab") : nullptr;
  if (!config_value || !config_value->is_object() || !vocab || !vocab->is_array()) {
    return invalid_input("tekken.json without 'config' or 'vocab'", {.where = std::string(where)});
  }
  const json::object& config = config_value->get_object();
  TiktokenSpec spec{.name = "tekken"};
  TARE_ASSIGN(spec.pattern, json::get_string(config, "pattern", where));
  TARE_ASSIGN(const int64_t vocab_size, json::get_int(config, "default_vocab_size", where));
  TARE_ASSIGN(const int64_t special_count, json::get_int(config, "default_num_special_tokens", where));
  const auto listed = static_cast<int64_t>(vocab->get_array().size());
  if (special_count < 3 || special_count >= vocab_size || vocab_size - special_count > listed) {
    return invalid_input(
        "vocabulary sizes of tekken.json do not fit",
        {.where = std::string(where),
         .found = fmt::format("{} tokens, {} of them special, {} listed", vocab_size, special_count, listed)});
  }
  std::vector<std::string> ranks(static_cast<size_t>(vocab_size - special_count));
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::string place = fmt::format("{}: vocab {}", where, i);
    const auto* entry = vocab->get_array()[i].if_object();
    if (!entry) return invalid_input("a token is no object", {.where = place});
    TARE_ASSIGN(const int64_t rank, json::get_int(*entry, "rank", place));
    if (rank != static_cast<int64_t>(i)) {
      return invalid_input("tokens out of order",
                           {.where = place, .expected = fmt::format("rank {}", i), .found = fmt::format("{}", rank)});
    }
    TARE_ASSIGN(const std::string base64, json::get_string(*entry, "token_bytes", place));
    TARE_ASSIGN(ranks[i], decode_base64(base64, place));
  }
  // Files before v11 do not list their special tokens.
  Named names = {"<unk>",
                 "<s>",
                 "</s>",
                 "[INST]",
                 "[/INST]",
                 "[AVAILABLE_TOOLS]",
                 "[/AVAILABLE_TOOLS]",
                 "[TOOL_RESULTS]",
                 "[/TOOL_RESULTS]",
                 "[TOOL_CALLS]",
                 "[IMG]",
                 "<pad>",
                 "[IMG_BREAK]",
                 "[IMG_END]",
                 "[PREFIX]",
                 "[MIDDLE]",
                 "[SUFFIX]",
                 "[SYSTEM_PROMPT]",
                 "[/SYSTEM_PROMPT]",
                 "[TOOL_CONTENT]"};
  if (const json::value* list = json::find(*root, "special_tokens")) {
    if (!list->is_array()) return invalid_input("'special_tokens' is no list", {.where = std::string(where)});
    names.clear();
    for (const json::value& member : list->get_array()) {
      const auto* entry = member.if_object();
      if (!entry) return invalid_input("a special token is no object", {.where = std::string(where)});
      TARE_ASSIGN(const int64_t rank, json::get_int(*entry, "rank", where));
      if (rank != static_cast<int64_t>(names.size())) {
        return invalid_input("special tokens out of order", {.where = std::string(where),
                                                             .expected = fmt::format("rank {}", names.size()),
                                                             .found = fmt::format("{}", rank)});
      }
      TARE_ASSIGN(std::string text, json::get_string(*entry, "token_str", where));
      names.push_back(std::move(text));
    }
  }
  if (static_cast<int64_t>(names.size()) > special_count) {
    return invalid_input("more special tokens than announced", {.where = std::string(where),
                                                                .expected = fmt::format("{}", special_count),
                                                                .found = fmt::format("{}", names.size())});
  }
  for (int64_t id = 0; id < special_count; ++id) {
    spec.special_tokens.emplace_back(
        id < static_cast<int64_t>(names.size()) ? names[id] : fmt::format("<SPECIAL_{}>", id),
        static_cast<TokenId>(id));
  }
  for (const auto& [text, id] : spec.special_tokens) {
    if (text == "<unk>") spec.roles.unknown = id;
    if (text == "<s>") spec.roles.bos = id;
    if (text == "</s>") spec.roles.eos = id;
    if (text == "<pad>") spec.roles.padding = id;
  }
  spec.add_bos = true;
  return from_ranks(ranks, static_cast<TokenId>(special_count), spec, where);
}

}  // namespace tare::text
