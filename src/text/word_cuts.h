#pragma once

#include <cstddef>
#include <string_view>

#include "text/tokenizer_state.h"

namespace tare::text {

/// Decides whether a tokenizer gives the same tokens when its text is cut into words first, and sets cuts_into_words
/// and continuation. A cut is before a space that stands alone between two characters that no step joins to a space:
/// ASCII that is printed, and letters of the Latin, Greek, Cyrillic and Han blocks. Says no whenever a step is not
/// known to respect such cuts.
void plan_words(TokenizerState& state);

/// End of the word that starts at text[at]: the next cut, or `end`.
size_t word_end(std::string_view text, size_t at, size_t end);

}  // namespace tare::text
