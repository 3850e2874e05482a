#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/json.h"
#include "checkpoints/registry.h"
#include "checkpoints/write.h"
#include "cli/command.h"
#include "kernels/linear.h"
#include "kvcache/kv_format.h"
#include "plugin/plugins.h"
#include "quantize/recipe.h"

namespace tare::cli {

namespace {

json::array strings(const std::vector<std::string_view>& from) {
  json::array out;
  for (const std::string_view item : from) out.emplace_back(item);
  return out;
}

json::array describe_formats(Context& context) {
  json::array out;
  const auto& writers = checkpoints::writers();
  context.say("Checkpoint formats");
  for (const checkpoints::CheckpointFormat& format : context.registries().formats) {
    const bool reads = format.read != nullptr || !format.stands_for.empty();
    const auto writer =
        std::find_if(writers.begin(), writers.end(), [&](const auto& w) { return w.name == format.name; });
    const bool writes = writer != writers.end();
    context.say(fmt::format("  {:20} {:6} {:6} {}", format.name, reads ? "reads" : "", writes ? "writes" : "",
                            format.reason.empty() ? format.reads : format.reason));
    out.push_back({{"name", format.name},
                   {"alias_of", nullptr},
                   {"reads", reads},
                   {"reads_what", format.reads},
                   {"writes", writes},
                   {"writes_what", writes ? json::value(writer->writes) : json::value()},
                   {"online", format.online},
                   {"min_capability", format.min_capability},
                   {"activation_dtypes", strings(format.activation_dtypes)},
                   {"devices", json::array{"cpu"}},
                   {"reason", format.reason}});
    for (const std::string_view alias : format.aliases) {
      json::object row = out.back().as_object();
      row["name"] = alias;
      row["alias_of"] = format.name;
      for (const checkpoints::CheckpointWriter& own : writers) {
        if (own.name != alias) continue;
        row["writes"] = true;
        row["writes_what"] = own.writes;
      }
      out.push_back(std::move(row));
    }
  }
  return out;
}

json::array describe_kernels(Context& context) {
  const kernels::LinearRegistry all = context.registries().linear;
  std::vector<kernels::Rejection> dropped;
  const kernels::LinearRegistry usable =
      kernels::available_linear_kernels(all, context.capabilities(), context.pool(), &dropped);
  json::array out;
  context.say("\nKernels, in order of preference");
  for (const kernels::LinearKernel* kernel : all) {
    const bool available = std::find(usable.begin(), usable.end(), kernel) != usable.end();
    std::string reason;
    for (const kernels::Rejection& row : dropped) {
      if (row.kernel == kernel->name) reason = row.reason;
    }
    context.say(fmt::format("  {:28} {:12} {}", kernel->name, machine::isa_name(kernel->isa),
                            available ? "available" : reason));
    out.push_back({{"name", kernel->name},
                   {"op", kernel->op},
                   {"isa", machine::isa_name(kernel->isa)},
                   {"available", available},
                   {"reason", reason}});
  }
  return out;
}

json::array describe_kv(Context& context) {
  json::array out;
  context.say("\nKV cache (--kv-cache-dtype), bytes of a token in a layer, per head of 128");
  for (const char* name : {"f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"}) {
    const auto format = kvcache::parse_kv_format(name, {}, kvcache::KvScaleRule::kCheckpoint);
    if (!format.ok()) continue;
    context.say(fmt::format("  {:20} {}", name, format->bytes_per_token(128)));
    out.push_back({{"name", name}, {"bytes_per_token_head_128", format->bytes_per_token(128)}});
  }
  return out;
}

json::array describe_recipes(Context& context) {
  json::array out;
  context.say("\nRecipes of quantize (--method)");
  for (const quantize::Recipe& recipe : quantize::recipes()) {
    context.say(fmt::format("  {:20} {:12} {}", recipe.name, recipe.scheme, recipe.summary));
    out.push_back({{"name", recipe.name},
                   {"algorithm", recipe.algorithm},
                   {"transforms", strings(recipe.transforms)},
                   {"scheme", recipe.scheme},
                   {"calibrated", recipe.calibrated},
                   {"formats", strings(recipe.formats)},
                   {"summary", recipe.summary}});
  }
  return out;
}

json::array describe_algorithms(const Context& context) {
  json::array out;
  for (const quantize::Recipe& recipe : quantize::recipes()) {
    const json::value name(recipe.algorithm);
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  for (const TareAlgorithm* algorithm : context.registries().algorithms) out.emplace_back(algorithm->name);
  return out;
}

Status methods(Context& context) {
  json::object document;
  json::array plugins;
  for (const plugin::Plugin& one : context.registries().plugins) {
    plugins.push_back({{"name", one.name}, {"version", one.version}, {"path", one.path}});
  }
  document["plugins"] = std::move(plugins);
  document["formats"] = describe_formats(context);
  document["algorithms"] = describe_algorithms(context);
  document["recipes"] = describe_recipes(context);
  document["kernels"] = describe_kernels(context);
  document["kv"] = describe_kv(context);
  context.emit(document);
  return {};
}

}  // namespace

extern const Command kMethods;
const Command kMethods = {
    .name = "methods",
    .summary = "formats, algorithms, kernels and KV caches, with the reasons for what is missing",
    .examples = "tare methods\ntare methods --json --isa avx2",
    .declare = [](CLI::App&) -> Runner { return methods; },
};

}  // namespace tare::cli
