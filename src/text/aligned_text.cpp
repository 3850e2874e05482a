#include "text/aligned_text.h"

#include <algorithm>

#include "text/unicode.h"

namespace tare::text {

void AlignedText::append_original(std::string_view original, size_t offset) {
  text.append(original);
  const size_t before = source.size();
  source.resize(before + original.size());
  ByteRange* out = source.data() + before;
  for (size_t at = 0; at < original.size();) {
    const uint32_t bytes = char_bytes(original[at]);
    const auto begin = static_cast<uint32_t>(offset + at);
    const ByteRange range{begin, begin + bytes};
    for (uint32_t i = 0; i < bytes && at + i < original.size(); ++i) *out++ = range;
    at += bytes;
  }
}

void AlignedText::transform(const std::vector<ChangedChar>& changed, size_t dropped_first, uint32_t base) {
  AlignedText out;
  out.text.reserve(text.size());
  out.source.reserve(source.size());
  size_t at = 0;  // in the old text
  const auto skip = [&](size_t characters) {
    while (characters-- > 0 && at < text.size()) at += char_bytes(text[at]);
  };
  skip(dropped_first);
  for (const ChangedChar& c : changed) {
    ByteRange from{base, base};
    if (c.change > 0) {
      if (at > 0) from = source[std::min(at, source.size()) - 1];
    } else if (at < source.size()) {
      from = source[at];
    } else if (!source.empty()) {
      from = source.back();
    }
    const size_t before = out.text.size();
    append_utf8(out.text, c.value);
    out.source.insert(out.source.end(), out.text.size() - before, from);
    if (c.change <= 0) skip(1 + static_cast<size_t>(-c.change));
  }
  *this = std::move(out);
}

void AlignedText::replace(const std::vector<std::pair<size_t, size_t>>& ranges, std::string_view content) {
  if (ranges.empty()) return;
  size_t removed = 0;
  for (const auto& [begin, end] : ranges) removed += end - begin;
  const size_t size = text.size() - removed + ranges.size() * content.size();
  std::string new_text(size, '\0');
  std::vector<ByteRange> new_source(size);
  char* text_out = new_text.data();
  ByteRange* source_out = new_source.data();
  size_t last = 0;
  const auto keep = [&](size_t end) {
    text_out = std::copy(text.data() + last, text.data() + end, text_out);
    source_out = std::copy(source.data() + last, source.data() + end, source_out);
  };
  for (const auto& [begin, end] : ranges) {
    keep(begin);
    text_out = std::copy(content.begin(), content.end(), text_out);
    source_out = std::fill_n(source_out, content.size(), end > 0 ? source[end - 1] : ByteRange{});
    last = end;
  }
  keep(text.size());
  text = std::move(new_text);
  source = std::move(new_source);
}

}  // namespace tare::text
