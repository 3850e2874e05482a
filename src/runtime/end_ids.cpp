#include "runtime/end_ids.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "runtime/token_roles.h"

namespace tare::runtime {

namespace {

Result<std::set<int32_t>> read_ids(const json::object& from, const std::string& where, int64_t vocab_size) {
  std::set<int32_t> out;
  const json::value* value = json::find(from, "eos_token_id");
  if (!value) return out;
  const auto add = [&](const json::value& v) -> Status {
    const auto id = json::as_int(v);
    if (!id || *id < 0 || *id >= vocab_size) {
      return invalid_input("eos_token_id is no token of the model", {.where = where,
                                                                     .expected = fmt::format("0..{}", vocab_size - 1),
                                                                     .found = boost::json::serialize(v).substr(0, 40)});
    }
    out.insert(static_cast<int32_t>(*id));
    return {};
  };
  if (!value->is_array()) {
    TARE_TRY(add(*value));
    return out;
  }
  for (const json::value& v : value->get_array()) TARE_TRY(add(v));
  return out;
}

}  // namespace

Result<EndIds> end_ids(const std::string& model_path, const json::object& config, const text::Tokenizer* tokenizer,
                       int64_t vocab_size) {
  struct Source {
    std::string name;
    std::set<int32_t> ids;
  };
  std::vector<Source> sources;
  TARE_ASSIGN(std::set<int32_t> from_config, read_ids(config, "config.json", vocab_size));
  sources.push_back({"config.json", std::move(from_config)});
  if (const json::value* text = json::find(config, "text_config"); text && text->is_object()) {
    TARE_ASSIGN(std::set<int32_t> ids, read_ids(text->get_object(), "config.json: text_config", vocab_size));
    sources.push_back({"text_config of config.json", std::move(ids)});
  }
  TARE_ASSIGN(const json::object generation, read_generation_config(model_path));
  TARE_ASSIGN(std::set<int32_t> from_generation, read_ids(generation, "generation_config.json", vocab_size));
  sources.push_back({"generation_config.json", std::move(from_generation)});
  std::set<int32_t> from_tokenizer;
  const text::SpecialTokens special = tokenizer ? tokenizer->special() : text::SpecialTokens{};
  for (const auto& id : {special.eos, special.end_of_turn}) {
    if (id && static_cast<int64_t>(*id) < vocab_size) from_tokenizer.insert(static_cast<int32_t>(*id));
  }
  sources.push_back({"tokenizer", std::move(from_tokenizer)});

  EndIds out;
  std::set<int32_t> all;
  for (const Source& source : sources) all.insert(source.ids.begin(), source.ids.end());
  for (const Source& source : sources) {
    if (!source.ids.empty() && source.ids != all) {
      out.notes.push_back(fmt::format("{} ends sequences at {}, taken together {}", source.name,
                                      fmt::join(source.ids, ","), fmt::join(all, ",")));
    }
  }
  out.ids.assign(all.begin(), all.end());
  return out;
}

}  // namespace tare::runtime
