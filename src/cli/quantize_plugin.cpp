#include "cli/quantize_plugin.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/file.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/write.h"
#include "cli/known_answer.h"
#include "plugin/plugins.h"

namespace tare::cli {

Status quantize_by_plugin(Context& context, const TareAlgorithm& algorithm, const QuantizeFlags& flags) {
  if (!flags.scheme.scheme.empty() || !flags.set.empty() || !flags.ignore.empty()) {
    return unsupported("a plugin's algorithm takes no such flag",
                       {.where = "--method " + flags.method, .expected = "--bits, --group-size, --symmetric"});
  }
  TARE_ASSIGN(tensor::ModelWeights weights, checkpoints::load_checkpoint(flags.model, context.load_options()));
  const TareAlgorithmOptions wanted{.struct_bytes = sizeof(TareAlgorithmOptions),
                                    .bits = flags.scheme.bits.value_or(0),
                                    .group_size = flags.scheme.group_size.value_or(0),
                                    .symmetric = flags.symmetric ? 1 : 0};
  TARE_TRY(plugin::quantize_with(algorithm, wanted, weights));
  if (flags.overwrite) TARE_TRY(checkpoints::check_replaceable(flags.out, flags.model));
  TARE_ASSIGN(AtomicDirectory folder, AtomicDirectory::create(flags.out, flags.overwrite));
  TARE_ASSIGN(const checkpoints::SideFiles side,
              checkpoints::copy_side_files(flags.model, folder.path(), flags.format));
  TARE_ASSIGN(const checkpoints::WriteReport written,
              checkpoints::write_checkpoint({.folder = folder.path(),
                                             .format = flags.format,
                                             .source = flags.model,
                                             .weights = &weights,
                                             .settings = {{"method", flags.method}},
                                             .allow_loss = flags.allow_loss}));
  std::vector<std::string> said = weights.notes;
  said.insert(said.end(), side.notes.begin(), side.notes.end());
  said.insert(said.end(), written.losses.begin(), written.losses.end());
  said.push_back("the result of a plugin's algorithm is not compared with its source: see tare eval kld");
  const json::array notes(said.begin(), said.end());
  TARE_ASSIGN(json::object answer, known_answer(context, folder.path()));
  TARE_TRY(checkpoints::write_manifest(folder.path(),
                                       {{"method", flags.method},
                                        {"source", flags.model},
                                        {"substitutions", notes},
                                        {"known_answer", std::move(answer)}},
                                       written.files));
  TARE_TRY(folder.commit());
  json::array layers;
  int64_t parameters = 0;
  for (const std::string& name : weights.names()) {
    const tensor::WeightInfo& info = *weights.find(name);
    TARE_ASSIGN(const int64_t count, tensor::element_count(info.shape));
    parameters += count;
    if (info.shape.size() != 2) continue;
    const auto* spec = std::get_if<tensor::QuantSpec>(&info.form);
    layers.push_back(
        {{"name", name}, {"scheme", spec ? describe(*spec) : "as it was"}, {"status", spec ? flags.method : "kept"}});
  }
  for (const std::string& note : said) context.say("note: " + note);
  context.say(fmt::format("{}: quantized by {}", flags.out, flags.method));
  context.emit(
      {{"out", flags.out},
       {"format", flags.format},
       {"bytes", written.tensor_bytes},
       {"bpw", 8.0 * static_cast<double>(written.tensor_bytes) / static_cast<double>(std::max<int64_t>(parameters, 1))},
       {"layers", std::move(layers)},
       {"substitutions", notes},
       {"gate", nullptr}});
  return {};
}

}  // namespace tare::cli
