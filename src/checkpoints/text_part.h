#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "checkpoints/source.h"

namespace tare::checkpoints {

/// Models of several parts (Gemma 3 with its vision tower) nest the configuration of the text part in `text_config` and
/// put `language_model.` or `model.language_model.` in front of its tensors. Only the text part is read.

/// The name of a tensor of the text part without that prefix; nothing for a tensor of another part.
std::optional<std::string> name_in_text_part(std::string_view name);

/// Makes the source look like a checkpoint of the text part alone: its configuration stands at the top, with the keys
/// that only the outer one has (special ids, dtype, quantization), and names in the quantization object lose the
/// prefix. What was done and what the two configurations say differently goes to the notes. left_out: tensors of other
/// parts.
void adopt_text_part(Source& source, int64_t left_out);

}  // namespace tare::checkpoints
