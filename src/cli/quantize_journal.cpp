#include "cli/quantize_journal.h"

#include <boost/json.hpp>
#include <filesystem>

#include "base/sha256.h"
#include "base/version.h"
#include "quantize/pipeline.h"

namespace tare::cli {

namespace fs = std::filesystem;

std::string journal_of(std::string out) {
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out + ".journal";
}

void remove_leftovers(std::string out) {
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  const fs::path path(out);
  const std::string prefix = path.filename().string() + ".partial-";
  std::error_code ec;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(parent, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string pid = name.substr(prefix.size());
    if (pid.empty() || pid.find_first_not_of("0123456789") != pid.npos || fs::exists("/proc/" + pid, ec)) continue;
    fs::remove_all(entry.path(), ec);
  }
}

Result<json::object> fingerprint(const QuantizeFlags& flags, const quantize::PipelineOptions& options,
                                 const CalibrationInput& calibration, const std::string& plan, const Context& context) {
  TARE_ASSIGN(json::object model, quantize::model_fingerprint(flags.model));
  json::object settings{{"method", flags.method},
                        {"scheme", quantize::describe(options.widths)},
                        {"grid", quantize::describe(options.scheme)},
                        {"scale_rule", flags.scheme.scale_rule},
                        {"scale_dtype", flags.scheme.scale_dtype},
                        {"format", flags.format},
                        {"head", quantize::head_name(options.head)},
                        {"ignore", json::array(flags.ignore.begin(), flags.ignore.end())},
                        {"set", json::array(flags.set.begin(), flags.set.end())},
                        {"dequantize_first", flags.dequantize_first},
                        {"allow_loss", flags.allow_loss},
                        {"gate", flags.gate.limits},
                        {"gate_text", flags.gate.text_file},
                        {"isa", machine::isa_name(context.capabilities().isa)}};
  if (flags.precision.any()) {
    settings["target_bytes"] = flags.precision.target_bytes;
    settings["target_bpw"] = flags.precision.target_bpw.value_or(0);
    settings["plan"] = sha256_hex(std::as_bytes(std::span(plan)));
  }
  json::object data;
  if (calibration.data.tokens > 0) data = {{"tokens", calibration.data.tokens}, {"sha256", calibration.sha256}};
  return json::object{
      {"version", kVersion}, {"model", std::move(model)}, {"data", std::move(data)}, {"settings", std::move(settings)}};
}

Result<json::object> plan_identity(const std::string& model, const std::string& data) {
  TARE_ASSIGN(json::object files, quantize::model_fingerprint(model));
  json::object out{{"model", std::move(files)}};
  if (!data.empty()) out["calibration"] = data;
  return out;
}

}  // namespace tare::cli
