#pragma once

#include <cstdint>

#include "text/aligned_text.h"

namespace tare::text {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

/// Unicode normalization that keeps the alignment: a decomposed character's parts come from it; a composed character
/// comes from its first part and swallows the others. `base` as in AlignedText::transform.
void normalize_unicode(AlignedText& text, UnicodeForm form, uint32_t base);

}  // namespace tare::text
