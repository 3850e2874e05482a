#include "quantize/matrix_plan.h"

#include <fmt/format.h>

#include <map>

#include "checkpoints/module_pattern.h"

namespace tare::quantize {

using model::LayerLinear;
using tensor::WeightInfo;

BlockSizes block_sizes(const std::vector<PlannedMatrix>& matrices) {
  BlockSizes out;
  for (const PlannedMatrix& planned : matrices) {
    const int64_t count = planned.linear.n * planned.linear.k;
    out.largest = std::max(out.largest, count);
    out.widest = std::max(out.widest, planned.linear.k);
    if (planned.layer == 0) out.block += count;
  }
  return out;
}

Result<std::vector<PlannedMatrix>> plan_matrices(const model::Architecture& arch, const PipelineOptions& options) {
  struct Rule {
    std::string text;
    checkpoints::ModulePattern pattern;
    const SchemeException* exception = nullptr;  // nullptr: ignored
    int64_t hits = 0;
  };
  std::vector<Rule> rules;
  for (const std::string& text : options.ignore) {
    TARE_ASSIGN(checkpoints::ModulePattern pattern, checkpoints::ModulePattern::compile(text, "--ignore"));
    rules.push_back({text, std::move(pattern)});
  }
  for (const SchemeException& exception : options.exceptions) {
    TARE_ASSIGN(checkpoints::ModulePattern pattern, checkpoints::ModulePattern::compile(exception.pattern, "--set"));
    rules.push_back({exception.pattern, std::move(pattern), &exception});
  }
  std::vector<PlannedMatrix> out;
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const model::LayerLinears linears = model::layer_linears(arch, layer);
    for (const auto* group : {&linears.qkv, &linears.o, &linears.gate_up, &linears.down}) {
      for (const LayerLinear& linear : *group) {
        PlannedMatrix planned{.linear = linear, .layer = layer, .scheme = options.scheme};
        if (!options.plan.empty()) {
          const auto row = options.plan.find(linear.name);
          if (row == options.plan.end()) return invalid_input("the plan misses a matrix", {.where = linear.name});
          planned.scheme = row->second;
          out.push_back(std::move(planned));
          continue;
        }
        for (Rule& rule : rules) {
          if (!rule.pattern.matches(linear.name)) continue;
          ++rule.hits;
          planned.excepted = true;
          if (rule.exception) {
            TARE_TRY(apply_exception(*rule.exception, planned.scheme));
          } else {
            planned.scheme.keep = true;
          }
        }
        out.push_back(std::move(planned));
      }
    }
  }
  for (const Rule& rule : rules) {
    if (rule.hits == 0 && options.plan.empty()) {
      return invalid_input("pattern matches no matrix of the layers",
                           {.where = rule.exception ? "--set" : "--ignore",
                            .expected = "names like model.layers.0.mlp.down_proj",
                            .found = fmt::format("'{}'", rule.text)});
    }
  }
  return out;
}

Status check_source(const tensor::ModelWeights& source, const std::vector<PlannedMatrix>& matrices,
                    const PipelineOptions& options, std::vector<std::string>& substitutions) {
  std::map<std::string, int64_t> forms;
  for (const PlannedMatrix& planned : matrices) {
    const WeightInfo* info = source.find(planned.linear.name + ".weight");
    if (!info || planned.scheme.keep) continue;
    if (const auto* spec = std::get_if<tensor::QuantSpec>(&info->form)) ++forms[describe(*spec)];
  }
  if (forms.empty()) return {};
  std::string found;
  for (const auto& [form, count] : forms)
    found += fmt::format("{}{} matrices {}", found.empty() ? "" : ", ", count, form);
  if (source.format != "gguf" && !options.dequantize_first) {
    return invalid_input(
        "source is quantized already",
        {.where = source.format,
         .expected = "unquantized weights",
         .found = found,
         .hint = "start from the original model, or pass --dequantize-first and accept the double loss"});
  }
  substitutions.push_back(
      fmt::format("the source is quantized already ({}): its dequantized weights are quantized again, and errors are "
                  "measured against them, not against the original model",
                  found));
  return {};
}

}  // namespace tare::quantize
