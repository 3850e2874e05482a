#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoints/module_pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

namespace tare::checkpoints {

Result<ModulePattern> ModulePattern::compile(std::string_view pattern, std::string_view where) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                       PCRE2_ANCHORED | PCRE2_UTF, &code, &offset, nullptr);
  if (!compiled) {
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(code, message, sizeof message);
    return invalid_input("pattern of module names does not compile",
                         {.where = std::string(where),
                          .found = fmt::format("'{}': {} at {}", pattern, reinterpret_cast<char*>(message), offset)});
  }
  ModulePattern out;
  out.code_ = std::shared_ptr<const void>(
      compiled, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  return out;
}

bool ModulePattern::matches(std::string_view name) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(context, 100000);
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, data, context);
  pcre2_match_context_free(context);
  pcre2_match_data_free(data);
  return found >= 0;
}

}  // namespace tare::checkpoints
