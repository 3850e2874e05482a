// Shares of the machine that the integer products reach, kernel by kernel and M by M.
//
//   int_gemm_bench [--kernel NAME-PART] [--m LIST] [--n N] [--k K] [--threads T] [--seconds S]
//
// Weights are random and cycled through: more bytes than the last-level cache holds, so M = 1 reads memory. Times are
// medians over passes. Ceiling: measure_peaks on all threads. Bandwidth: best of 4 reads of 1 GiB beside each M, all
// threads. Bytes are codes + scales as on disk, never padding. Shares: at M >= 1 the time that min(ceiling, bandwidth)
// would take, divided by the time taken.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "base/checked.h"
#include "kernels/gemm_w4a8.h"
#include "kernels/gemm_w8a8.h"
#include "kernels/huge_array.h"
#include "kernels/peaks.h"
#include "numerics/mini_float.h"

namespace tare::bench {
namespace {

using kernels::LinearKernel;
using kernels::LinearProblem;
using tensor::Grid;
using tensor::GridType;
using tensor::QuantizedFields;
using tensor::QuantizedTensor;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  std::string kernel;
  std::vector<int64_t> m = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  int64_t n = 2048;
  int64_t k = 2048;
  int threads = 2;
  double seconds = 0.7;
  double bytes = 600e6;  // of weights to cycle through
};

uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

std::vector<uint8_t> random_bytes(int64_t count, uint8_t low, uint8_t high, uint64_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(low + next_random(seed) % (high - low + 1u));
  return bytes;
}

struct Form {
  const char* name;
  const LinearKernel* kernels[2];
  bool s8;  // ceiling of s8 x s8
  QuantizedTensor (*make)(int64_t n, int64_t k);
  double (*stored_bytes)(int64_t n, int64_t k);
};

Buffer halves(int64_t n, float value) {
  return Buffer::own(std::vector<uint16_t>(static_cast<size_t>(n), numerics::f32_to_f16(value)));
}

QuantizedTensor make_group(int64_t n, int64_t k) {
  QuantizedFields f{.n = n, .k = k, .bits = 4, .codes = Buffer::own(random_bytes(n * k / 2, 0, 255, 1))};
  f.rule = tensor::Rule::kIntegerFirst;
  f.a = *Grid::make(GridType::kU8, n, k, 1, 128, Buffer::own(random_bytes(n * ((k + 127) / 128), 1, 12, 2)));
  f.b = *Grid::make(GridType::kS8, n, k, 1, 128,
                    Buffer::own(random_bytes(n * ((k + 127) / 128), 160, 196, 3)));  // -96 .. -60: a*c + b is an s8
  f.A = *Grid::make(GridType::kF16, n, k, 1, k, halves(n, 0.001f));
  return *QuantizedTensor::make(std::move(f));
}

QuantizedTensor make_channel(int64_t n, int64_t k) {
  QuantizedFields f{.n = n, .k = k, .bits = 4, .codes = Buffer::own(random_bytes(n * k / 2, 0, 255, 1))};
  f.a = *Grid::make(GridType::kF16, n, k, 1, k, halves(n, 0.01f));
  f.b = *Grid::make(GridType::kF16, n, k, 1, k, halves(n, -0.07f));
  return *QuantizedTensor::make(std::move(f));
}

QuantizedTensor make_w8(int64_t n, int64_t k) {
  QuantizedFields f{.n = n, .k = k, .kind = tensor::CodeKind::kInt, .bits = 8};
  f.codes = Buffer::own(random_bytes(n * k, 0, 255, 1));
  f.a = *Grid::make(GridType::kF16, n, k, 1, k, halves(n, 0.001f));
  return *QuantizedTensor::make(std::move(f));
}

const Form kForms[] = {
    {"w4a8 g128",
     {&kernels::kGemmW4A8Avx512Vnni, &kernels::kGemmW4A8Avx2},
     false,
     make_group,
     [](int64_t n, int64_t k) {
       return static_cast<double>(n) * (static_cast<double>(k) / 2 + static_cast<double>(ceil_div(k, 128)) * 2 + 2);
     }},
    {"w4a8 channel",
     {&kernels::kGemmW4A8Avx512Vnni, &kernels::kGemmW4A8Avx2},
     false,
     make_channel,
     [](int64_t n, int64_t k) { return static_cast<double>(n) * (static_cast<double>(k) / 2 + 4); }},
    {"w8a8 channel",
     {&kernels::kGemmW8A8Avx512Vnni, &kernels::kGemmW8A8Avx2},
     true,
     make_w8,
     [](int64_t n, int64_t k) { return static_cast<double>(n) * (static_cast<double>(k) + 2); }},
};

double peak_macs(ThreadPool& pool, machine::Isa isa, bool s8) {
  const kernels::Peaks peaks = kernels::measure_peaks(isa, pool);
  return (s8 ? peaks.s8s8_tops : peaks.u4s8_tops) * 0.5e12;
}

void run_form(const Form& form, const LinearKernel& kernel, const Options& options, ThreadPool& pool) {
  LinearProblem problem{.n = options.n, .k = options.k};
  problem.activation.type = tensor::ActivationType::kS8;
  const tensor::Weight weight = form.make(options.n, options.k);
  problem.weight = std::get<QuantizedTensor>(weight).spec();
  const double bytes = form.stored_bytes(options.n, options.k);
  const auto copies = static_cast<size_t>(options.bytes / bytes) + 1;
  std::vector<std::unique_ptr<kernels::PackedLinear>> packed;
  const auto pack_start = Clock::now();
  for (size_t i = 0; i < copies; ++i) {
    packed.push_back(std::move(*kernel.prepack(problem, std::span(&weight, 1), {}, pool)));
  }
  const double pack_seconds = seconds_since(pack_start);
  fmt::print("{} on {}: N {} K {}, {} copies of {:.2f} MB ({:.1f} % over the stored bytes), packed at {:.2f} GW/s\n",
             kernel.name, form.name, options.n, options.k, copies, static_cast<double>(packed[0]->bytes()) / 1e6,
             100 * (static_cast<double>(packed[0]->bytes()) / bytes - 1),
             static_cast<double>(options.n * options.k) * static_cast<double>(copies) / pack_seconds / 1e9);
  double peak = 0, bandwidth = 0;
  for (const int64_t m : options.m) {
    // The machine is shared: its ceilings are measured beside each product, and the best seen counts.
    peak = std::max(peak, peak_macs(pool, kernel.isa, form.s8));
    bandwidth = std::max(bandwidth, kernels::measure_read_bytes_per_s(kernel.isa, pool, int64_t{1} << 30, 4));
    const int64_t stride = (options.k + 63) / 64 * 64;
    std::vector<uint8_t> codes = random_bytes(m * stride, 0, 255, 9);
    std::vector<float> scale(static_cast<size_t>(m), 0.01f);
    std::vector<int32_t> sum(static_cast<size_t>(m), 17);
    kernels::Activations x;
    x.form = kernel.form(problem);
    x.m = m, x.k = options.k, x.data = codes.data(), x.row_stride = stride, x.scale = scale.data(),
    x.row_sum = sum.data();
    std::vector<float> out(static_cast<size_t>(m * options.n));
    std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem, m, pool.size())) + 64);
    std::vector<double> times;
    size_t next = 0;
    const auto begin = Clock::now();
    while (times.size() < 20 || seconds_since(begin) < options.seconds) {
      const auto start = Clock::now();
      // At least a millisecond between looks at the clock.
      int calls = 0;
      do {
        kernel.run(*packed[next], x, out.data(), options.n, workspace, pool);
        next = (next + 1) % packed.size();
        ++calls;
      } while (seconds_since(start) < 1e-3);
      times.push_back(seconds_since(start) / calls);
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    const double least = times[times.size() / 20];
    const double macs = static_cast<double>(m * options.n) * static_cast<double>(options.k);
    const double floor = std::max(bytes / bandwidth, macs / peak);
    fmt::print(
        "  M {:4}  {:9.1f} us  {:6.1f} GB/s = {:5.1f} %   {:6.0f} GMAC/s = {:5.1f} %   of min {:5.1f} %, at the 5th "
        "percentile {:5.1f} %\n",
        m, median * 1e6, bytes / median / 1e9, 100 * bytes / median / bandwidth, macs / median / 1e9,
        100 * macs / median / peak, 100 * floor / median, 100 * floor / least);
  }
  fmt::print("  ceiling {:.0f} GMAC/s, read {:.1f} GB/s\n", peak / 1e9, bandwidth / 1e9);
}

int run(const Options& options) {
  ThreadPool pool(options.threads, true);
  const machine::Isa has = machine::detect_isa();
  fmt::print("{}, {} threads\n", machine::cpu_model(), options.threads);
  for (const machine::Isa isa : {machine::Isa::kAvx512Vnni, machine::Isa::kAvx2}) {
    if (isa > has) {
      fmt::print("{}: not run, this CPU lacks it\n", machine::isa_name(isa));
      continue;
    }
    for (const Form& form : kForms) {
      for (const LinearKernel* kernel : form.kernels) {
        if (kernel->isa != isa) continue;
        if (fmt::format("{} {}", kernel->name, form.name).find(options.kernel) == std::string::npos) continue;
        run_form(form, *kernel, options, pool);
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
    if (flag == "--kernel")
      options.kernel = value;
    else if (flag == "--n")
      options.n = std::stoll(value);
    else if (flag == "--k")
      options.k = std::stoll(value);
    else if (flag == "--threads")
      options.threads = std::stoi(value);
    else if (flag == "--bytes")
      options.bytes = std::stod(value);
    else if (flag == "--seconds")
      options.seconds = std::stod(value);
    else if (flag == "--m") {
      options.m.clear();
      for (size_t at = 0; at < value.size();) {
        size_t used = 0;
        options.m.push_back(std::stoll(value.substr(at), &used));
        at += used + 1;
      }
    } else {
      fmt::print(stderr, "unknown flag {}\n", flag);
      return 2;
    }
  }
  return tare::bench::run(options);
}
