#pragma once

#include <string_view>

namespace tare::eval {

/// The text that models are judged on when no other is given: share/text/time_machine.txt, 40 kB of English prose.
std::string_view judging_text();

}  // namespace tare::eval
