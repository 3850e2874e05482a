#include "text/decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace tare::text {

namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string out;
  size_t last = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, last)) {
    out.append(text, last, at - last);
    out += to;
    last = at + from.size();
  }
  if (last == 0) return;
  out.append(text, last);
  text = std::move(out);
}

void byte_level(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const size_t before = bytes.size();
    for (size_t at = 0; at < token.size();) {
      const DecodedChar c = decode_char(token.data(), at);
      at += c.bytes;
      const int byte = char_to_byte(c.value);
      if (byte < 0) {
        bytes.resize(before);
        bytes += token;
        break;
      }
      bytes += static_cast<char>(byte);
    }
  }
  tokens.assign(1, utf8_lossy(bytes));
}

// A run of byte tokens is text if all of it is; else every byte of it is a replacement character.
void byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes)) {
      for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
    } else {
      out.push_back(bytes);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of_token(token);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

void strip(const DecoderStep& step, std::string& token) {
  if (step.content.empty()) return;
  std::string_view rest = token;
  for (size_t i = 0; i < step.start && rest.starts_with(step.content); ++i) rest.remove_prefix(step.content.size());
  for (size_t i = 0; i < step.stop && rest.ends_with(step.content); ++i) rest.remove_suffix(step.content.size());
  token = std::string(rest);
}

void clean_up(std::string& token) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) replace_all(token, from, to);
}

Status apply(const DecoderStep& step, std::vector<std::string>& tokens) {
  switch (step.kind) {
    case DecoderStep::Kind::kByteLevel:
      byte_level(tokens);
      break;
    case DecoderStep::Kind::kByteFallback:
      byte_fallback(tokens);
      break;
    case DecoderStep::Kind::kFuse: {
      std::string joined;
      for (const std::string& token : tokens) joined += token;
      tokens.assign(1, std::move(joined));
      break;
    }
    case DecoderStep::Kind::kReplace:
      for (std::string& token : tokens) {
        if (!step.regex) {
          replace_all(token, step.pattern, step.content);
          continue;
        }
        std::vector<RegexMatch> matches;
        TARE_TRY(step.regex->find_all(token, 0, token.size(), matches));
        std::string out;
        size_t last = 0;
        for (const RegexMatch& match : matches) {
          out.append(token, last, match.begin - last);
          out += step.content;
          last = match.end;
        }
        out.append(token, last);
        token = std::move(out);
      }
      break;
    case DecoderStep::Kind::kStrip:
      for (std::string& token : tokens) strip(step, token);
      break;
    case DecoderStep::Kind::kMetaspace:
      for (size_t i = 0; i < tokens.size(); ++i) {
        replace_all(tokens[i], step.content, i == 0 && step.prefix_space ? "" : " ");
      }
      break;
    case DecoderStep::Kind::kBpe:
      for (size_t i = 0; i < tokens.size(); ++i)
        replace_all(tokens[i], step.pattern, i + 1 == tokens.size() ? "" : " ");
      break;
    case DecoderStep::Kind::kWordPiece:
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) {
          if (tokens[i].starts_with(step.pattern)) {
            tokens[i].erase(0, step.pattern.size());
          } else {
            tokens[i].insert(tokens[i].begin(), ' ');
          }
        }
        if (step.cleanup) clean_up(tokens[i]);
      }
      break;
    case DecoderStep::Kind::kCtc: {
      std::vector<std::string> out;
      tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
      for (std::string& token : tokens) {
        replace_all(token, step.pattern, "");
        if (step.cleanup) {
          clean_up(token);
          replace_all(token, step.content, " ");
        }
        if (!token.empty()) out.push_back(std::move(token));
      }
      tokens = std::move(out);
      break;
    }
  }
  return {};
}

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    value *= 16;
    if (c >= '0' && c <= '9') {
      value += c - '0';
    } else if (c >= 'A' && c <= 'F') {
      value += c - 'A' + 10;
    } else if (c >= 'a' && c <= 'f') {
      value += c - 'a' + 10;
    } else {
      return -1;
    }
  }
  return value;
}

Result<std::string> decode_tokens(const Decoder& decoder, std::vector<std::string> tokens) {
  for (const DecoderStep& step : decoder) TARE_TRY(apply(step, tokens));
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (decoder.empty() && i > 0) out += ' ';
    out += tokens[i];
  }
  return out;
}

}  // namespace tare::text
