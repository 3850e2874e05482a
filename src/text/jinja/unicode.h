#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tare::text::jinja {

/// Python's view of text: code points, its white space, its case mappings. Text is UTF-8; a byte that does not decode
/// counts as one code point U+FFFD and is copied unchanged by everything that only moves text.

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 1;  // in the source
};
/// The code point at text[at], at < size.
CodePoint code_point_at(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t code_point);
bool valid_utf8(std::string_view text);

size_t code_point_count(std::string_view text);
/// Byte offset of code point `index`, or text.size() when there are fewer.
size_t byte_offset(std::string_view text, size_t index);
/// Byte offsets of all code points, and text.size() last.
std::vector<size_t> code_point_offsets(std::string_view text);

/// str.isspace, which is also \s of Python's regular expressions.
bool is_space(char32_t c);
/// A line break of str.splitlines.
bool is_line_break(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_alnum(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_cased(char32_t c);
bool is_printable(char32_t c);
/// \w of Python's regular expressions.
bool is_word(char32_t c);

/// White space (chars null), or any of the code points of `chars`, taken from the ends.
enum class Side { kLeft, kRight, kBoth };
std::string_view strip(std::string_view text, Side side, const std::string_view* chars = nullptr);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// str.title: first letter of each run of letters in title case, the others in lower case.
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string casefold(std::string_view text);
std::string swapcase(std::string_view text);

/// Case mapping of one code point to several (Unicode SpecialCasing); null when it maps to one.
const char32_t* special_upper(char32_t c);
const char32_t* special_title(char32_t c);

}  // namespace tare::text::jinja
