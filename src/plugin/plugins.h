#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoints/format.h"
#include "kernels/linear.h"
#include "tare/plugin.h"
#include "tensor/model_weights.h"

namespace tare::plugin {

/// A plugin that was loaded.
struct Plugin {
  std::string path;
  std::string name;
  std::string version;
};

/// The registries of this run: what is built in, and what the plugins of --plugin add (include/tare/plugin.h).
/// Formats of plugins stand before the dense row, so that detection asks them; their kernels stand first, since naming
/// a plugin asks for them. An algorithm is also a format that quantizes dense weights at load, under its name.
struct Registries {
  std::vector<Plugin> plugins;
  std::vector<checkpoints::CheckpointFormat> formats;
  std::vector<const TareAlgorithm*> algorithms;
  kernels::LinearRegistry linear;
};

/// Loads the libraries in order. They stay loaded until the program ends. Errors, one line each: a file that is no
/// library, without the function `tare_plugin`, of another ABI version, with a missing or too short part; a name that
/// exists already.
Result<Registries> load_plugins(const std::vector<std::string>& files);

/// nullptr when no plugin has it.
const TareAlgorithm* find_algorithm(const Registries& registries, std::string_view name);

/// Replaces every Linear of a dense model by what the algorithm makes of it, lazily. What it leaves is said in notes.
/// Errors: the algorithm's, with the matrix named; no matrix quantized at all.
Status quantize_with(const TareAlgorithm& algorithm, const TareAlgorithmOptions& options,
                     tensor::ModelWeights& weights);

}  // namespace tare::plugin
