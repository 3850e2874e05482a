#include "checkpoints/text_part.h"

#include <fmt/format.h>

namespace tare::checkpoints {

namespace {

// Other parts by the start of their names, as the same models write them.
constexpr std::string_view kOtherParts[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                            "model.multi_modal_projector."};

void strip_names(json::value& in) {
  if (in.is_string()) {
    const std::string_view text = in.get_string();
    if (const auto name = name_in_text_part(text); name && *name != text) in = *name;
  } else if (in.is_array()) {
    for (json::value& item : in.get_array()) strip_names(item);
  } else if (in.is_object()) {
    for (auto& member : in.get_object()) strip_names(member.value());
  }
}

}  // namespace

std::optional<std::string> name_in_text_part(std::string_view name) {
  for (const std::string_view part : kOtherParts) {
    if (name.starts_with(part)) return std::nullopt;
  }
  constexpr std::string_view kOld = "language_model.", kNew = "model.language_model.";
  if (name.starts_with(kOld)) return std::string(name.substr(kOld.size()));
  if (name.starts_with(kNew)) return "model." + std::string(name.substr(kNew.size()));
  return std::string(name);
}

void adopt_text_part(Source& source, int64_t left_out) {
  json::object text = source.config.at("text_config").get_object();
  for (const char* key : {"model_type", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype",
                          "torch_dtype", "quantization_config", "compression_config", "transformers_version"}) {
    const json::value* outer = json::find(source.config, key);
    if (!outer) continue;
    const json::value* inner = json::find(text, key);
    const std::string_view name = key;
    if (!inner) {
      text[key] = *outer;
    } else if (*inner != *outer && (name.ends_with("_token_id") || name == "tie_word_embeddings")) {
      source.notes.push_back(
          fmt::format("config.json says {} {} outside and {} inside text_config; the latter is taken", name,
                      boost::json::serialize(*outer), boost::json::serialize(*inner)));
    }
  }
  if (const json::value* type = json::find(text, "model_type"); type && *type == "gemma3_text") {
    text["architectures"] = json::array{"Gemma3ForCausalLM"};
  }
  source.config = std::move(text);
  for (auto& member : source.quantization) strip_names(member.value());
  source.notes.push_back(
      fmt::format("only the text part of the model is read, {} tensors of other parts are left out", left_out));
}

}  // namespace tare::checkpoints
