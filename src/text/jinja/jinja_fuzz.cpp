#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/chat_template.h"

// Any bytes as a template, rendered for one conversation with small limits: no crash, no hang, no leak.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tare::text;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = ChatTemplate::parse(source, "fuzz");
  if (!parsed.ok()) return 0;
  static const boost::json::value messages = boost::json::parse(
      R"([{"role":"system","content":"s é"},{"role":"user","content":[{"type":"text","text":"a <b>"}]},
          {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5,true,null]}}}]}])");
  static const boost::json::value tools = boost::json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  ChatTemplateInput input;
  input.messages = &messages.get_array();
  input.tools = &tools;
  input.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  input.now = CivilTime{2025, 3, 14, 15, 9, 26};
  input.limits.max_steps = 20000;
  input.limits.max_output_bytes = 1 << 16;
  input.limits.max_range = 1000;
  (void)parsed->render(input);
  return 0;
}
