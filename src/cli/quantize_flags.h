#pragma once

#include <string>
#include <vector>

#include "cli/quantize_gate.h"
#include "cli/quantize_precision.h"
#include "quantize/recipe.h"

namespace tare::cli {

/// Flags of `tare quantize`.
struct QuantizeFlags {
  std::string model;
  std::string method;  // empty: rtn, or gptq beside a target
  std::string out;
  std::string format;  // empty: the plan's, or the method's
  quantize::SchemeFlags scheme;
  bool symmetric = false;
  bool asymmetric = false;
  std::vector<std::string> ignore;
  std::vector<std::string> set;
  std::string head = "source";
  GateFlags gate;
  std::string report;
  std::string calibration;
  int64_t samples = 64;
  int64_t sequence_length = 512;
  bool dequantize_first = false;
  bool overwrite = false;
  bool resume = false;
  std::string log_json;
  bool allow_loss = false;
  PrecisionFlags precision;
};
void declare_quantize(CLI::App& app, QuantizeFlags& flags);

/// Names of those that say what a matrix becomes and were given.
std::vector<std::string> scheme_flags_given(const QuantizeFlags& flags);

}  // namespace tare::cli
