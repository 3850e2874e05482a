#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "io/output_file.h"

namespace tare::checkpoints {

inline constexpr std::string_view kManifestName = "tare_manifest.json";
inline constexpr std::string_view kPlanName = "tare_plan.json";  // form of every matrix, where a plan decided it

/// Writes the manifest: `record` (settings, versions, errors), `files`: name, bytes and SHA-256 of every file in the
/// folder, the known ones taken from `written`; and a seal, the SHA-256 of the manifest's own text with zeros in its
/// place. Errors: kIo.
Status write_manifest(const std::string& folder, json::object record, const std::vector<io::WrittenFile>& written);

/// One file that is not as it was written.
struct ManifestProblem {
  std::string file;
  std::string what;
};

/// Holds every byte of a folder against its manifest: the manifest's seal, sizes, hashes, files missing and files too
/// many. Empty: all is as written. progress: before each file, with the bytes done; an error stops.
/// Errors: no manifest there; kIo; what progress says. A manifest that cannot be understood is a problem, not an error.
Result<std::vector<ManifestProblem>> check_manifest(
    const std::string& folder, const std::function<Status(const std::string& file)>& progress = {});
bool has_manifest(const std::string& folder);

/// Whether a result may take the place of `folder`: it is not there, empty, or holds a manifest and so was written by
/// tare; and it is not the model that is being read. Errors: it holds something else, which would be lost.
Status check_replaceable(const std::string& folder, const std::string& source);

}  // namespace tare::checkpoints
