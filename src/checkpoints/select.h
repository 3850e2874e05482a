#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoints/format.h"

namespace tare::checkpoints {

/// How a checkpoint is going to be read.
struct Selection {
  const CheckpointFormat* format = nullptr;  // reads it
  const CheckpointFormat* online = nullptr;  // then quantizes it, if the user asked for that
  std::vector<std::string> notes;            // what was decided, for the report
};

/// The format of a checkpoint, held against the name that the user gave (empty: none). Names are compared in lower
/// case,
/// '_' and '-' alike. Rules:
/// - the checkpoint's own words decide; a name that is another format's is refused, naming both;
/// - a name that stands for the checkpoint's format (gptq_marlin for gptq) is taken if its conditions hold, and said;
/// - on a dense checkpoint, a name that quantizes at load does so;
/// - a name without a working path is refused with its reason; an unknown one with the list.
/// Source: the method selection of vLLM 0.8.5 (docs/formats.md 10.2).
Result<Selection> select_format(const std::vector<CheckpointFormat>& formats, const Source& source,
                                std::string_view wanted);

/// Side files that hold the quantization object when config.json has none: the one that is there becomes
/// source.quantization, with quant_method filled in from the tensors where the file does not say it.
/// Errors: several of them; a file that is no object.
Status adopt_side_file(const std::vector<CheckpointFormat>& formats, Source& source);

}  // namespace tare::checkpoints
