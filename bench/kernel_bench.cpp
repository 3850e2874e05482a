// Time, rate and share of the read bandwidth of the matrix products, form by form.
//
//   kernel_bench [--kernel NAME] [--form LIST] [--m LIST] [--n N] [--k K] [--threads T] [--seconds S] [--cold MIB]
//                [--isa LEVEL]
//
// Forms are those of kernels/reference/samples.h. Weights are cycled through (kernels/measure.h). Bandwidth: all
// threads, same run.

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/measure.h"
#include "kernels/peaks.h"
#include "kernels/reference/samples.h"
#include "machine/isa.h"

namespace tare::bench {
namespace {

struct Options {
  std::string kernel;
  std::string forms = "bf16,gptq-u4-g128";
  std::string m = "1";
  std::string isa;
  int64_t n = 4096;
  int64_t k = 2048;
  int threads = 2;
  double seconds = 0.4;
  int64_t cold_mib = 512;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

int run(const Options& options) {
  machine::Capabilities caps = machine::capabilities();
  if (!options.isa.empty()) caps = *machine::capabilities(*machine::parse_isa(options.isa));
  ThreadPool pool(options.threads, true);
  const double bandwidth = kernels::measure_read_bytes_per_s(caps.isa, pool);
  fmt::print("{}, {} threads, read bandwidth {:.1f} GB/s\n", machine::cpu_model(), options.threads, bandwidth / 1e9);
  std::vector<int64_t> m;
  for (const std::string& one : split(options.m)) m.push_back(std::atoll(one.c_str()));
  const auto forms = kernels::sample_forms();
  for (const std::string& name : split(options.forms)) {
    const std::string form_name = name.substr(0, name.find('/'));
    for (const kernels::SampleForm& form : forms) {
      if (form.name != form_name) continue;
      const tensor::Weight weight = form.make(form, options.n, options.k, kernels::SamplePattern::kRandom, 1);
      tensor::ActivationSpec activation;
      if (name.ends_with("/s8")) activation.type = tensor::ActivationType::kS8;
      if (name.ends_with("/e4m3")) activation.type = tensor::ActivationType::kE4M3;
      const auto problem = kernels::problem_of(weight, activation, false);
      const auto chosen = kernels::select_linear(kernels::builtin_linear_kernels(), problem, caps, options.kernel);
      if (!chosen.ok()) {
        fmt::print("{}: {}\n", name, chosen.error().message());
        continue;
      }
      const auto timings = kernels::measure_linear(*chosen->kernel, problem, weight, m, caps.isa, pool,
                                                   {.cold_bytes = options.cold_mib << 20, .seconds = options.seconds});
      if (!timings.ok()) {
        fmt::print("{}: {}\n", name, timings.error().message());
        continue;
      }
      const auto bytes = static_cast<double>(kernels::stored_bytes(weight));
      for (const kernels::LinearTiming& t : *timings) {
        const double flops = 2.0 * static_cast<double>(t.m * options.n * options.k);
        fmt::print("{:20} {:24} M {:4} {:9.1f} us (min {:9.1f})  {:6.1f} GB/s {:5.1f} %  {:7.1f} Gop/s\n", name,
                   chosen->kernel->name, t.m, t.median_s * 1e6, t.min_s * 1e6, bytes / t.median_s / 1e9,
                   100 * bytes / t.median_s / bandwidth, flops / t.median_s / 1e9);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace tare::bench

int main(int argc, char** argv) {
  tare::bench::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--kernel") options.kernel = value;
    if (flag == "--form") options.forms = value;
    if (flag == "--m") options.m = value;
    if (flag == "--isa") options.isa = value;
    if (flag == "--n") options.n = std::atoll(value.c_str());
    if (flag == "--k") options.k = std::atoll(value.c_str());
    if (flag == "--cold") options.cold_mib = std::atoll(value.c_str());
    if (flag == "--threads") options.threads = std::atoi(value.c_str());
    if (flag == "--seconds") options.seconds = std::atof(value.c_str());
  }
  return tare::bench::run(options);
}
