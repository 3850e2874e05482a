#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace tare::text::jinja {

/// The filter, test, global function or method of that name, or null. The tables are plain and constant.
Native find_filter(std::string_view name);
/// What to say of a filter that find_filter does not find: not there at all, or not offered here.
std::string missing_filter(std::string_view name);
Native find_test(std::string_view name);
Native find_global(std::string_view name);
/// Methods of str, list, tuple and dict. Methods that change their object are there as `forbidden`.
Native find_string_method(std::string_view name);
Native find_sequence_method(SequenceForm form, std::string_view name);
Native find_dict_method(std::string_view name);

/// Stands for an attribute that exists in Python but that a sandbox denies: reading it gives an undefined value.
Out<Value> forbidden(Runtime& runtime, const Value& self, CallArguments& arguments);

/// of[path], where "a.b.0" goes down several steps; what attribute= arguments mean.
Out<Value> item_by_path(Runtime& runtime, const Value& of, const Value& path);

/// Parts of the tables, one a file.
Native find_string_filter(std::string_view name);
Native find_sequence_filter(std::string_view name);
Native find_selection_filter(std::string_view name);

template <size_t N>
Native find_native(const NamedNative (&rows)[N], std::string_view name) {
  for (const NamedNative& row : rows) {
    if (row.name == name) return row.run;
  }
  return nullptr;
}

}  // namespace tare::text::jinja
