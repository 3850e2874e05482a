#include "quantize/block_report.h"

#include <bit>
#include <boost/json.hpp>

namespace tare::quantize {

namespace {

constexpr std::string_view kWhere = "journal";

// JSON parsers may lose the last bit of a number; the bytes of a resumed run's manifest must not.
int64_t bits_of(double value) {
  return std::bit_cast<int64_t>(value);
}
Result<double> number(const json::object& row, std::string_view key) {
  TARE_ASSIGN(const int64_t bits, json::get_int(row, key, kWhere));
  return std::bit_cast<double>(bits);
}

Result<const json::array*> list(const json::object& from, std::string_view key) {
  const json::value* at = from.if_contains(key);
  if (!at || !at->is_array()) return invalid_input("damaged journal", {.where = std::string(key)});
  return &at->get_array();
}

Result<std::vector<std::string>> strings(const json::object& from, std::string_view key) {
  TARE_ASSIGN(const json::array* items, list(from, key));
  std::vector<std::string> out;
  for (const json::value& item : *items) {
    if (!item.is_string()) return invalid_input("damaged journal", {.where = std::string(key)});
    out.emplace_back(item.get_string());
  }
  return out;
}

Result<MatrixReport> read_matrix(const json::object& row) {
  MatrixReport out;
  TARE_ASSIGN(out.name, json::get_string(row, "name", kWhere));
  TARE_ASSIGN(out.scheme, json::get_string(row, "scheme", kWhere));
  TARE_ASSIGN(out.status, json::get_string(row, "status", kWhere));
  TARE_ASSIGN(out.bpw, number(row, "bpw"));
  TARE_ASSIGN(out.error, number(row, "error"));
  TARE_ASSIGN(out.error_rtn, number(row, "error_rtn"));
  TARE_ASSIGN(out.tokens, json::get_int(row, "tokens", kWhere));
  TARE_ASSIGN(out.layer, json::get_int(row, "layer", kWhere));
  return out;
}

Result<TransformReport> read_transform(const json::object& row) {
  TransformReport out;
  TARE_ASSIGN(out.name, json::get_string(row, "name", kWhere));
  TARE_ASSIGN(out.layer, json::get_int(row, "layer", kWhere));
  TARE_ASSIGN(out.summary, json::get_string(row, "summary", kWhere));
  TARE_ASSIGN(out.output_change, number(row, "output_change"));
  TARE_ASSIGN(out.notes, strings(row, "notes"));
  TARE_ASSIGN(const json::array* numbers, list(row, "numbers"));
  for (const json::value& item : *numbers) {
    const json::array* pair = item.if_array();
    if (!pair || pair->size() != 2 || !(*pair)[0].is_string()) {
      return invalid_input("damaged journal", {.where = "numbers"});
    }
    out.numbers.emplace_back((*pair)[0].get_string(), std::bit_cast<double>(json::as_int((*pair)[1]).value_or(0)));
  }
  return out;
}

}  // namespace

json::object block_report(std::span<const MatrixReport> matrices, std::span<const TransformReport> transforms,
                          std::span<const std::string> substitutions) {
  json::array rows, changes, sentences;
  for (const MatrixReport& m : matrices) {
    rows.push_back(json::object{{"name", m.name},
                                {"scheme", m.scheme},
                                {"bpw", bits_of(m.bpw)},
                                {"error", bits_of(m.error)},
                                {"error_rtn", bits_of(m.error_rtn)},
                                {"tokens", m.tokens},
                                {"status", m.status},
                                {"layer", m.layer}});
  }
  for (const TransformReport& t : transforms) {
    json::array numbers;
    for (const auto& [name, value] : t.numbers) numbers.push_back(json::array{name, bits_of(value)});
    changes.push_back(json::object{{"name", t.name},
                                   {"layer", t.layer},
                                   {"summary", t.summary},
                                   {"numbers", std::move(numbers)},
                                   {"notes", json::array(t.notes.begin(), t.notes.end())},
                                   {"output_change", bits_of(t.output_change)}});
  }
  for (const std::string& s : substitutions) sentences.emplace_back(s);
  return {{"matrices", std::move(rows)}, {"transforms", std::move(changes)}, {"substitutions", std::move(sentences)}};
}

Status read_block_report(const json::object& report, Outcome& outcome) {
  TARE_ASSIGN(const json::array* rows, list(report, "matrices"));
  for (const json::value& row : *rows) {
    if (!row.is_object()) return invalid_input("damaged journal", {.where = "matrices"});
    TARE_ASSIGN(MatrixReport matrix, read_matrix(row.get_object()));
    outcome.matrices.push_back(std::move(matrix));
  }
  TARE_ASSIGN(const json::array* changes, list(report, "transforms"));
  for (const json::value& row : *changes) {
    if (!row.is_object()) return invalid_input("damaged journal", {.where = "transforms"});
    TARE_ASSIGN(TransformReport transform, read_transform(row.get_object()));
    outcome.transforms.push_back(std::move(transform));
  }
  TARE_ASSIGN(std::vector<std::string> sentences, strings(report, "substitutions"));
  for (std::string& sentence : sentences) outcome.substitutions.push_back(std::move(sentence));
  return {};
}

}  // namespace tare::quantize
