#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoints/gguf_architectures.h"
#include "checkpoints/losses.h"
#include "io/gguf_writer.h"

namespace tare::checkpoints {

/// What a model is called and configured as in a GGUF.
struct GgufExport {
  GgufArchitecture architecture;
  io::GgufMetadata metadata;      // all but general.file_type
  std::vector<float> rope_freqs;  // of rope_freqs.weight; empty: none
  int64_t heads = 0, kv_heads = 0, head_dim = 0, experts = 0;
};

/// The configuration of a Hugging Face model as GGUF metadata (docs/formats.md 6.7), as llama.cpp's converter names it.
/// name: for general.name. Errors: kUnsupported for a model family or a setting that has no GGUF form here, by name.
Result<GgufExport> gguf_export(const json::object& config, const std::string& name, Losses& losses);

/// The tokenizer of the folder `directory` as metadata: the keys kept in a tokenizer.gguf, or those of a byte-level BPE
/// tokenizer.json, padded to `vocabulary` tokens. Errors: kUnsupported, naming what has no GGUF form.
Status gguf_export_tokenizer(const std::string& directory, int64_t vocabulary, const json::object& config,
                             io::GgufMetadata& out, Losses& losses);

}  // namespace tare::checkpoints
