#pragma once

#include "model/architecture.h"

/// One function a family; registry.cpp lists them.
namespace tare::model {

Result<Architecture> describe_llama(const json::object& config);
Result<Architecture> describe_mistral(const json::object& config);
Result<Architecture> describe_qwen2(const json::object& config);
Result<Architecture> describe_qwen3(const json::object& config);
Result<Architecture> describe_gemma2(const json::object& config);
Result<Architecture> describe_gemma3(const json::object& config);
Result<Architecture> describe_phi3(const json::object& config);
Result<Architecture> describe_olmo2(const json::object& config);
Result<Architecture> describe_granite(const json::object& config);
Result<Architecture> describe_smollm3(const json::object& config);
Result<Architecture> describe_exaone4(const json::object& config);

/// Qwen's way to say which layers have a sliding window.
Status apply_qwen_window(const json::object& config, Architecture& arch);

}  // namespace tare::model
