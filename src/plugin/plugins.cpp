#include "plugin/plugins.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoints/registry.h"
#include "plugin/affine_abi.h"
#include "plugin/algorithm_adapter.h"
#include "plugin/format_adapter.h"
#include "plugin/kernel_adapter.h"
#include "quantize/recipe.h"

namespace tare::plugin {

namespace {

// One plugin while it is looked at.
struct Loading {
  std::string path;
  const TarePlugin* c = nullptr;

  Error bad(std::string what, std::string expected = {}, std::string found = {}) const {
    return invalid_input(std::move(what),
                         {.where = "--plugin " + path, .expected = std::move(expected), .found = std::move(found)});
  }

  // Names go into tables and messages: there, not empty, one line.
  Result<std::string> name(const char* text, std::string_view of) const {
    const std::string out = text ? text : "";
    const bool printable =
        std::all_of(out.begin(), out.end(), [](char letter) { return letter > 32 && letter != 127; });
    if (out.empty() || out.size() > 64 || !printable) return bad(fmt::format("plugin names no {}", of));
    return out;
  }

  Status size(size_t bytes, size_t wanted, const std::string& of) const {
    if (bytes >= wanted) return {};
    return bad(fmt::format("{} is shorter than ABI {} has it", of, TARE_PLUGIN_ABI), fmt::format("{} bytes", wanted),
               fmt::format("{}", bytes));
  }

  Status function(bool there, std::string_view function, const std::string& of) const {
    if (there) return {};
    return bad(fmt::format("{} has no function {}", of, function));
  }
};

Result<const TarePlugin*> open(const Loading& loading) {
  void* library = dlopen(loading.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return loading.bad("plugin cannot be loaded", {}, text_of(dlerror()));
  auto* entry = reinterpret_cast<const TarePlugin* (*)(void)>(dlsym(library, "tare_plugin"));
  if (!entry) return loading.bad("plugin has no function tare_plugin");
  const TarePlugin* plugin = entry();
  if (!plugin) return loading.bad("plugin describes nothing", "a TarePlugin", "a null pointer");
  if (plugin->abi_version != TARE_PLUGIN_ABI) {
    return loading.bad("plugin was made for another version of the interface", fmt::format("ABI {}", TARE_PLUGIN_ABI),
                       fmt::format("ABI {}", plugin->abi_version));
  }
  TARE_TRY(loading.size(plugin->struct_bytes, sizeof(TarePlugin), "the plugin's description"));
  const auto list = [&](const void* entries, int32_t count) { return count >= 0 && (count == 0 || entries); };
  if (!list(plugin->formats, plugin->format_count) || !list(plugin->algorithms, plugin->algorithm_count) ||
      !list(plugin->kernels, plugin->kernel_count)) {
    return loading.bad("plugin counts entries that are not there");
  }
  return plugin;
}

Error taken(const Loading& loading, std::string_view kind, const std::string& name) {
  return loading.bad(fmt::format("{} '{}' exists already", kind, name), "a name of its own");
}

std::string lowered(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

Status add_format(const Loading& loading, const TareFormat* format, std::set<std::string>& names, Registries& out) {
  if (!format) return loading.bad("plugin lists a format that is not there");
  TARE_TRY(loading.size(format->struct_bytes, sizeof(TareFormat), "a format of the plugin"));
  TARE_ASSIGN(const std::string name, loading.name(format->name, "format"));
  const std::string what = fmt::format("format {} of the plugin", name);
  TARE_TRY(loading.function(format->summary != nullptr, "summary", what));
  TARE_TRY(loading.function(format->detect != nullptr, "detect", what));
  TARE_TRY(loading.function(format->read != nullptr, "read", what));
  TARE_TRY(loading.function(format->load != nullptr, "load", what));
  if (!names.insert(lowered(name)).second) return taken(loading, "format", name);
  out.formats.insert(out.formats.end() - 1, adapt_format(*format));  // the last row takes what is left
  return {};
}

Status add_algorithm(const Loading& loading, const TareAlgorithm* algorithm, std::set<std::string>& names,
                     Registries& out) {
  if (!algorithm) return loading.bad("plugin lists an algorithm that is not there");
  TARE_TRY(loading.size(algorithm->struct_bytes, sizeof(TareAlgorithm), "an algorithm of the plugin"));
  TARE_ASSIGN(const std::string name, loading.name(algorithm->name, "algorithm"));
  const std::string what = fmt::format("algorithm {} of the plugin", name);
  TARE_TRY(loading.function(algorithm->summary != nullptr, "summary", what));
  TARE_TRY(loading.function(algorithm->plan != nullptr, "plan", what));
  TARE_TRY(loading.function(algorithm->quantize != nullptr, "quantize", what));
  if (!names.insert(lowered(name)).second || quantize::find_recipe(name).ok()) return taken(loading, "method", name);
  out.algorithms.push_back(algorithm);
  out.formats.insert(out.formats.end() - 1, adapt_algorithm(*algorithm));
  return {};
}

Status add_kernel(const Loading& loading, const TareLinearKernel* kernel, int32_t place, Registries& out) {
  if (!kernel) return loading.bad("plugin lists a kernel that is not there");
  TARE_TRY(loading.size(kernel->struct_bytes, sizeof(TareLinearKernel), "a kernel of the plugin"));
  TARE_ASSIGN(const std::string name, loading.name(kernel->name, "kernel"));
  const std::string what = fmt::format("kernel {} of the plugin", name);
  TARE_TRY(loading.function(kernel->op != nullptr, "op", what));
  TARE_TRY(loading.function(kernel->can_implement != nullptr, "can_implement", what));
  TARE_TRY(loading.function(kernel->prepack != nullptr, "prepack", what));
  TARE_TRY(loading.function(kernel->release != nullptr, "release", what));
  TARE_TRY(loading.function(kernel->run != nullptr, "run", what));
  const bool exists = std::any_of(out.linear.begin(), out.linear.end(),
                                  [&](const kernels::LinearKernel* row) { return row->name == name; });
  if (exists) return taken(loading, "kernel", name);
  TARE_ASSIGN(const kernels::LinearKernel* row, adapt_kernel(*kernel));
  out.linear.insert(out.linear.begin() + place, row);
  return {};
}

}  // namespace

Result<Registries> load_plugins(const std::vector<std::string>& files) {
  Registries out{.formats = checkpoints::builtin_formats(), .linear = kernels::builtin_linear_kernels()};
  std::set<std::string> names;
  for (const checkpoints::CheckpointFormat& format : out.formats) {
    names.insert(lowered(format.name));
    for (const std::string_view alias : format.aliases) names.insert(lowered(alias));
  }
  int32_t kernels_before = 0;
  for (const std::string& path : files) {
    Loading loading{.path = path};
    TARE_ASSIGN(loading.c, open(loading));
    TARE_ASSIGN(const std::string name, loading.name(loading.c->name, "plugin"));
    const bool again =
        std::any_of(out.plugins.begin(), out.plugins.end(), [&](const Plugin& p) { return p.name == name; });
    if (again) return taken(loading, "plugin", name);
    for (int32_t i = 0; i < loading.c->format_count; ++i) {
      TARE_TRY(add_format(loading, loading.c->formats[i], names, out));
    }
    for (int32_t i = 0; i < loading.c->algorithm_count; ++i) {
      TARE_TRY(add_algorithm(loading, loading.c->algorithms[i], names, out));
    }
    for (int32_t i = 0; i < loading.c->kernel_count; ++i) {
      TARE_TRY(add_kernel(loading, loading.c->kernels[i], kernels_before++, out));
    }
    out.plugins.push_back({path, name, text_of(loading.c->version)});
  }
  return out;
}

const TareAlgorithm* find_algorithm(const Registries& registries, std::string_view name) {
  for (const TareAlgorithm* algorithm : registries.algorithms) {
    if (algorithm->name == name) return algorithm;
  }
  return nullptr;
}

}  // namespace tare::plugin
