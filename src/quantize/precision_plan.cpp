#include "quantize/precision_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "quantize/forms/form.h"
#include "tensor/scheme.h"

namespace tare::quantize {

namespace {

constexpr int64_t kVersion = 1;

// The sizes of numbers in a plan are for people: six digits come back as they are.
std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

// What comes back from a file.
double as_written(double value) {
  return std::strtod(number(value).c_str(), nullptr);
}

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string(text.data(), text.size()));
}

// Values of --set in the types of JSON.
std::string json_text(const std::string& value) {
  const bool bare =
      value == "true" || value == "false" || (!value.empty() && value.find_first_not_of("-0123456789") == value.npos);
  return bare ? value : quoted(value);
}

Result<PlanRow> parse_row(const json::object& from, int activation, const std::string& where) {
  PlanRow out;
  auto name = json::get_string(from, "name", where);
  if (!name.ok()) return name.error();
  out.name = std::move(*name);
  const std::string here = fmt::format("{}, {}", where, out.name);
  TARE_ASSIGN(const std::string method, json::get_string(from, "method", here));
  SchemeException exception{.pattern = here};
  bool bits = false, group = false;
  for (const auto& [key_text, value] : from) {
    const std::string key(key_text);
    if (key == "name" || key == "method") continue;
    if (key == "bytes") {
      TARE_ASSIGN(out.bytes, json::get_int_or(from, key, -1, here));
      continue;
    }
    if (key == "divergence") {
      if (value.is_null()) continue;
      const auto number = json::as_number(value);
      if (!number || !(*number >= 0)) {
        return invalid_input("wrong divergence", {.where = here, .expected = "a number of nats, 0 or more"});
      }
      out.divergence = *number;
      continue;
    }
    if (key == "keep" || key == "algorithm") {
      return invalid_input("unknown key",
                           {.where = here, .found = fmt::format("'{}'", key), .hint = "say it in method"});
    }
    if (value.is_bool()) {
      exception.values.emplace_back(key, value.get_bool() ? "true" : "false");
    } else if (value.is_string()) {
      exception.values.emplace_back(key, value.get_string());
    } else if (const auto whole = json::as_int(value)) {
      exception.values.emplace_back(key, fmt::format("{}", *whole));
    } else {
      return invalid_input("wrong value", {.where = fmt::format("{}: {}", here, key),
                                           .expected = "a whole number, a string, true or false",
                                           .found = boost::json::serialize(value).substr(0, 60)});
    }
    bits = bits || key == "bits";
    group = group || key == "group_size";
  }
  if (method == "keep") {
    if (!exception.values.empty()) {
      return invalid_input("a kept matrix has no form of its own",
                           {.where = here, .found = fmt::format("'{}'", exception.values.front().first)});
    }
    out.scheme.keep = true;
    return out;
  }
  for (const auto& [key, there] : {std::pair{"bits", bits}, {"group_size", group}}) {
    if (!there) return invalid_input(fmt::format("'{}' is missing", key), {.where = here});
  }
  // Forms bring defaults and go first; other grids go last, since widths and groups change them.
  const auto place = [](const auto& pair) { return pair.first != "grid" ? 1 : find_form(pair.second) ? 0 : 2; };
  std::stable_sort(exception.values.begin(), exception.values.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  const bool own = std::any_of(exception.values.begin(), exception.values.end(), [&](const auto& pair) {
    return place(pair) == 0 && find_form(pair.second)->algorithm == method;
  });
  if (!own) exception.values.emplace_back("algorithm", method);
  if (activation == 8) out.scheme.activation = {.type = tensor::ActivationType::kS8};
  if (const Status applied = apply_exception(exception, out.scheme); !applied.ok()) {
    Error error = applied.error();
    constexpr std::string_view kFlag = "--set ";
    if (error.where.starts_with(kFlag)) error.where.erase(0, kFlag.size());
    if (!error.where.starts_with(here)) error.where = here;
    return error;
  }
  return out;
}

Error row_error(Error error, const std::string& name) {
  if (error.where.find(name) == error.where.npos) {
    error.where = error.where.empty() ? "plan, " + name : fmt::format("plan, {}, {}", name, error.where);
  }
  return error;
}

}  // namespace

bool PrecisionPlan::needs_data() const {
  return std::any_of(rows.begin(), rows.end(),
                     [](const PlanRow& row) { return !row.scheme.keep && row.scheme.algorithm != "rtn"; });
}

std::map<std::string, MatrixScheme> PrecisionPlan::schemes() const {
  std::map<std::string, MatrixScheme> out;
  for (const PlanRow& row : rows) out.emplace(row.name, row.scheme);
  return out;
}

std::string plan_text(const PrecisionPlan& plan) {
  std::string out = fmt::format(
      "{{\n  \"tare_plan\": {},\n  \"format\": {},\n  \"activation_bits\": {},\n  \"kv_bits\": {},\n  \"head\": {},\n",
      kVersion, quoted(plan.format), plan.activation, plan.kv, quoted(plan.head));
  out += fmt::format("  \"target_bytes\": {},\n  \"bytes\": {},\n  \"divergence\": {},\n  \"made_from\": {},\n",
                     plan.target_bytes, plan.bytes, plan.predicted ? number(*plan.predicted) : "null",
                     boost::json::serialize(plan.made_from));
  out += "  \"matrices\": [\n";
  for (const PlanRow& row : plan.rows) {
    out += fmt::format("    {{\"name\": {}", quoted(row.name));
    std::string method = "keep";
    for (const auto& [key, value] : exception_values(row.scheme)) {
      if (key == "keep") continue;
      if (key == "algorithm") {
        method = value;
      } else {
        out += fmt::format(", \"{}\": {}", key, json_text(value));
      }
    }
    out += fmt::format(", \"method\": {}, \"bytes\": {}, \"divergence\": {}}}{}\n", quoted(method), row.bytes,
                       row.divergence ? number(*row.divergence) : "null", &row == &plan.rows.back() ? "" : ",");
  }
  return out + "  ]\n}\n";
}

Result<PrecisionPlan> parse_plan(std::string_view text, const std::string& where) {
  TARE_ASSIGN(const json::value parsed, json::parse(text, where));
  if (!parsed.is_object()) return invalid_input("plan is not an object", {.where = where});
  const json::object& from = parsed.get_object();
  TARE_ASSIGN(const int64_t version, json::get_int(from, "tare_plan", where));
  if (version != kVersion) {
    return unsupported("plan of another version of tare",
                       {.where = where, .expected = fmt::format("{}", kVersion), .found = fmt::format("{}", version)});
  }
  static constexpr std::string_view kKeys[] = {"tare_plan",    "format", "activation_bits", "kv_bits",   "head",
                                               "target_bytes", "bytes",  "divergence",      "made_from", "matrices"};
  for (const auto& [key, value] : from) {
    if (std::find(std::begin(kKeys), std::end(kKeys), std::string_view(key)) == std::end(kKeys)) {
      return invalid_input("unknown key", {.where = where, .found = fmt::format("'{}'", std::string_view(key))});
    }
  }
  PrecisionPlan out;
  TARE_ASSIGN(out.format, json::get_string(from, "format", where));
  TARE_ASSIGN(out.head, json::get_string_or(from, "head", "source", where));
  const auto width = [&](const char* key, std::initializer_list<int> known, int& into) -> Status {
    TARE_ASSIGN(const int64_t value, json::get_int_or(from, key, 16, where));
    for (const int k : known) {
      if (k == value) {
        into = k;
        return {};
      }
    }
    return unsupported("width is not made",
                       {.where = fmt::format("{}: {}", where, key), .found = fmt::format("{}", value)});
  };
  TARE_TRY(width("activation_bits", {8, 16}, out.activation));
  TARE_TRY(width("kv_bits", {4, 8, 16}, out.kv));
  TARE_ASSIGN(out.target_bytes, json::get_int_or(from, "target_bytes", 0, where));
  TARE_ASSIGN(out.bytes, json::get_int_or(from, "bytes", 0, where));
  if (const json::value* predicted = json::find(from, "divergence")) {
    out.predicted = json::as_number(*predicted);
    if (!out.predicted) return invalid_input("wrong divergence", {.where = where, .expected = "a number of nats"});
  }
  if (const json::value* made = json::find(from, "made_from")) {
    if (!made->is_object()) return invalid_input("made_from is not an object", {.where = where});
    out.made_from = made->get_object();
  }
  const json::value* rows = json::find(from, "matrices");
  if (!rows || !rows->is_array()) return invalid_input("'matrices' is missing or no list", {.where = where});
  std::set<std::string> seen;
  for (size_t i = 0; i < rows->get_array().size(); ++i) {
    const json::value& row = rows->get_array()[i];
    const std::string here = fmt::format("{}, matrices[{}]", where, i);
    if (!row.is_object()) return invalid_input("matrix is not an object", {.where = here});
    TARE_ASSIGN(PlanRow made, parse_row(row.get_object(), out.activation, here));
    if (!seen.insert(made.name).second) return invalid_input("matrix twice", {.where = here, .found = made.name});
    out.rows.push_back(std::move(made));
  }
  return out;
}

std::vector<std::pair<size_t, size_t>> joined(const std::vector<PlannedMatrix>& matrices, bool joined_alike) {
  const auto part = [](const PlannedMatrix& m) {
    const std::string& kind = m.linear.kind;
    return kind == "q_proj" || kind == "k_proj" || kind == "v_proj" ? 1
           : kind == "gate_proj" || kind == "up_proj"               ? 2
                                                                    : 0;
  };
  std::vector<std::pair<size_t, size_t>> out;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const bool goes_on = joined_alike && i > 0 && part(matrices[i]) != 0 &&
                         part(matrices[i]) == part(matrices[i - 1]) && matrices[i].layer == matrices[i - 1].layer;
    if (goes_on) {
      out.back().second = i + 1;
    } else {
      out.emplace_back(i, i + 1);
    }
  }
  return out;
}

double mean_bits(const PrecisionPlan& plan) {
  double bits = 0, weights = 0;
  for (const PlanRow& row : plan.rows) {
    bits += static_cast<double>(row.weights) * (row.scheme.keep ? 16 : row.scheme.grid.bits);
    weights += static_cast<double>(row.weights);
  }
  return weights > 0 ? bits / weights : 16;
}

Status settle_plan(PrecisionPlan& plan, const std::vector<PlannedMatrix>& matrices, const tensor::ModelWeights& source,
                   const checkpoints::CheckpointWriter& writer, Storage& storage, const WeightTensors& rest,
                   std::vector<std::string>& notes) {
  std::map<std::string, PlanRow> rows;
  for (PlanRow& row : plan.rows) rows.emplace(row.name, std::move(row));
  plan.rows.clear();
  for (const PlannedMatrix& planned : matrices) {
    const auto at = rows.find(planned.linear.name);
    if (at == rows.end()) {
      return invalid_input("the plan misses a matrix of the model",
                           {.where = planned.linear.name, .expected = "a row with that name in 'matrices'"});
    }
    plan.rows.push_back(std::move(at->second));
    rows.erase(at);
  }
  if (!rows.empty()) {
    return invalid_input("the plan names a matrix that the model does not have", {.where = rows.begin()->first});
  }
  if (!writer.mixed.held) {
    const auto other = std::find_if(plan.rows.begin(), plan.rows.end(),
                                    [&](const PlanRow& row) { return !(row.scheme == plan.rows.front().scheme); });
    if (other != plan.rows.end()) {
      return unsupported("format does not hold matrices of different forms",
                         {.where = other->name,
                          .expected = "one form for all matrices",
                          .found = std::string(writer.name),
                          .hint = "use --format tare, compressed-tensors or gptq"});
    }
  }
  for (const auto& [first, last] : joined(matrices, writer.mixed.joined_alike)) {
    for (size_t i = first + 1; i < last; ++i) {
      // The algorithm leaves no trace in the form.
      MatrixScheme a = plan.rows[first].scheme, b = plan.rows[i].scheme;
      a.algorithm = b.algorithm;
      if (a == b) continue;
      return unsupported("readers of the format join matrices that the plan stores differently",
                         {.where = plan.rows[i].name,
                          .expected = fmt::format("{} as in {}", describe(a), plan.rows[first].name),
                          .found = describe(b),
                          .hint = "make them alike, or use --format tare"});
    }
  }

  WeightTensors by_weight = rest;
  std::map<std::string, int64_t> slow;
  double sum = 0;
  bool known = true;
  for (size_t i = 0; i < matrices.size(); ++i) {
    PlanRow& row = plan.rows[i];
    const model::LayerLinear& linear = matrices[i].linear;
    row.weights = linear.n * linear.k;
    auto tensors = storage.tensors(source, linear, row.scheme);
    if (!tensors.ok()) return row_error(std::move(tensors).error(), linear.name);
    if (!row.scheme.keep) {
      auto kernel = storage.kernel(linear.n, linear.k, linear.bias, row.scheme);
      if (!kernel.ok()) return row_error(std::move(kernel).error(), linear.name);
      if ((*kernel)->isa == machine::Isa::kReference) ++slow[describe(row.scheme)];
    }
    TARE_ASSIGN(const int64_t bytes, data_bytes(*tensors));
    if (row.bytes != bytes) row.divergence.reset();
    row.bytes = bytes;
    if (row.divergence) row.divergence = as_written(*row.divergence);
    known = known && row.divergence;
    sum += row.divergence.value_or(0);
    by_weight[linear.name + ".weight"] = std::move(*tensors);
  }
  for (const auto& [form, count] : slow) {
    notes.push_back(
        fmt::format("plan: {} matrices are {}, which only the reference kernel runs on this machine", count, form));
  }
  plan.predicted.reset();
  if (known) plan.predicted = sum;
  std::vector<io::TensorDeclaration> all;
  for (auto& [name, tensors] : by_weight) all.insert(all.end(), tensors.begin(), tensors.end());
  TARE_ASSIGN(const uint64_t total, io::SafetensorsWriter::bytes_in_folder(
                                        all, {.max_shard_bytes = checkpoints::WriteRequest{}.max_shard_bytes}));
  plan.bytes = static_cast<int64_t>(total);
  return {};
}

}  // namespace tare::quantize
