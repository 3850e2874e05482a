#include "text/chat_template_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace tare::text {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

struct Found {
  std::string file;
  std::map<std::string, std::string> templates;  // by name; "default" is the usual one
};

// "chat_template" of a JSON file: text, or a list of {name, template}.
Result<std::optional<Found>> read_member(const json::object& config, const std::string& file) {
  const json::value* member = json::find(config, "chat_template");
  if (!member) return std::optional<Found>();
  Found found{file, {}};
  if (member->is_string()) {
    found.templates["default"] = std::string(member->get_string());
    return std::optional(found);
  }
  const Error wrong = invalid_input("'chat_template' has the wrong shape",
                                    {.where = file, .expected = "a string, or a list of {name, template}"});
  if (!member->is_array()) return wrong;
  for (const json::value& row : member->get_array()) {
    if (!row.is_object()) return wrong;
    TARE_ASSIGN(const std::string name, json::get_string(row.get_object(), "name", file));
    TARE_ASSIGN(std::string text, json::get_string(row.get_object(), "template", file));
    if (!found.templates.emplace(name, std::move(text)).second) {
      return invalid_input(fmt::format("chat template '{}' given twice", name), {.where = file});
    }
  }
  if (found.templates.empty()) return std::optional<Found>();
  return std::optional(found);
}

Result<std::map<std::string, std::string>> read_special_tokens(const json::object& config, const std::string& file) {
  std::map<std::string, std::string> tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const json::value* member = json::find(config, name);
    if (!member) continue;
    if (member->is_string()) {
      tokens[name] = std::string(member->get_string());
    } else if (member->is_object()) {
      TARE_ASSIGN(tokens[name], json::get_string(member->get_object(), "content", file));
    } else {
      return invalid_input(fmt::format("'{}' has the wrong shape", name),
                           {.where = file, .expected = "a string, or an object with 'content'"});
    }
  }
  return tokens;
}

Result<std::map<std::string, std::string>> read_additional(const fs::path& folder) {
  std::map<std::string, std::string> named;
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) return named;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (entry->path().extension() != ".jinja") continue;
    TARE_ASSIGN(named[entry->path().stem().string()], read_text_file(entry->path().string(), kMaxTemplateBytes));
  }
  if (failed) return io_error("cannot list folder", {.where = folder.string(), .found = failed.message()});
  return named;
}

}  // namespace

Result<std::optional<ChatTemplateSource>> find_chat_template(const std::string& directory) {
  const fs::path root(directory);
  const auto exists = [](const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
  };
  std::vector<Found> all;
  ChatTemplateSource chosen;
  if (const fs::path file = root / "chat_template.jinja"; exists(file)) {
    Found found{file.string(), {}};
    TARE_ASSIGN(found.templates["default"], read_text_file(file.string(), kMaxTemplateBytes));
    all.push_back(std::move(found));
  }
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    const fs::path file = root / name;
    if (!exists(file)) continue;
    TARE_ASSIGN(const json::value config, json::parse_file(file.string()));
    if (!config.is_object()) return invalid_input("not a JSON object", {.where = file.string()});
    TARE_ASSIGN(std::optional<Found> found, read_member(config.get_object(), file.string()));
    if (found) all.push_back(*std::move(found));
    if (std::string_view(name) == "tokenizer_config.json") {
      TARE_ASSIGN(chosen.special_tokens, read_special_tokens(config.get_object(), file.string()));
    }
  }
  const std::string additional_folder = (root / "additional_chat_templates").string();
  TARE_ASSIGN(auto additional, read_additional(additional_folder));
  if (all.empty() && additional.empty()) return std::optional<ChatTemplateSource>();
  if (!additional.empty()) all.push_back({additional_folder, std::move(additional)});

  // The first place wins, name by name.
  std::map<std::string, const Found*> winner;
  for (const Found& found : all) {
    for (const auto& [name, text] : found.templates) {
      const auto [place, first] = winner.emplace(name, &found);
      if (first) {
        chosen.named[name] = text;
      } else if (chosen.named[name] != text) {
        chosen.warnings.push_back(fmt::format("chat template '{}' of {} differs from the one used, of {}", name,
                                              found.file, place->second->file));
      }
    }
  }
  auto main = chosen.named.find("default");
  if (main == chosen.named.end()) {
    if (chosen.named.size() != 1) {
      std::string names;
      for (const auto& [name, unused] : chosen.named) names += (names.empty() ? "" : ", ") + name;
      return invalid_input("no default chat template",
                           {.where = directory, .expected = "one named 'default'", .found = names});
    }
    main = chosen.named.begin();
    chosen.warnings.push_back(
        fmt::format("the only chat template is named '{}', not 'default'; it is used", main->first));
  }
  chosen.file = winner.at(main->first)->file;
  chosen.text = main->second;
  chosen.named.erase(main);
  return std::optional(std::move(chosen));
}

}  // namespace tare::text
