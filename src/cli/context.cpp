#include <fmt/format.h>

#include <boost/json.hpp>
#include <cassert>
#include <cstdio>

#include "base/log.h"
#include "base/size_text.h"
#include "checkpoints/checkpoint.h"
#include "cli/command.h"
#include "cli/json_out.h"
#include "plugin/plugins.h"

namespace tare::cli {

Context::Context(const GlobalOptions& options) : options_(options) {}
Context::~Context() = default;

checkpoints::LoadOptions Context::load_options(std::string_view format) const {
  return {.format = std::string(format), .formats = &registries_->formats};
}

Result<std::unique_ptr<Context>> Context::create(const GlobalOptions& options) {
  TARE_ASSIGN(const log::Level level, log_level(options));
  log::set_level(level);

  std::unique_ptr<Context> context(new Context(options));
  if (!options.memory.empty()) {
    TARE_ASSIGN(const uint64_t limit, parse_size(options.memory, "--memory"));
    context->memory_ = MemoryBudget(limit);
  }
  TARE_ASSIGN(context->program_, context->memory_.reserve("the program", current_rss_bytes()));

  context->capabilities_ = machine::capabilities();
  if (!options.isa.empty()) {
    TARE_ASSIGN(const machine::Isa isa, machine::parse_isa(options.isa));
    TARE_ASSIGN(context->capabilities_, machine::capabilities(isa));
  }
  context->threads_ = options.threads > 0 ? options.threads : owned_cpu_count();
  const bool hidden = options.quiet || options.no_progress || level == log::Level::kOff;
  context->progress_ = hidden ? ProgressMode::kOff : detect_progress_mode();
  TARE_ASSIGN(plugin::Registries registries, plugin::load_plugins(options.plugins));
  for (const plugin::Plugin& one : registries.plugins) {
    log::info("plugin {} {} from {}: its kernels are tried first", one.name, one.version, one.path);
  }
  context->registries_ = std::make_unique<plugin::Registries>(std::move(registries));
  return context;
}

ThreadPool& Context::pool() {
  if (!pool_) pool_ = std::make_unique<ThreadPool>(threads_);
  return *pool_;
}

void Context::say(std::string_view line) const {
  if (!json()) fmt::print("{}\n", line);
}

void Context::stream(std::string_view text) const {
  if (json()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void Context::emit(const boost::json::object& document) {
  if (!json()) return;
  assert(!emitted_ && "a command prints one document");
  emit_line(document);
}

void Context::emit_line(const boost::json::object& document) {
  emitted_ = true;
  fmt::print("{}\n", json_line(document));
}

}  // namespace tare::cli
