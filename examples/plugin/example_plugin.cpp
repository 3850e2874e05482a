// A plugin that adds one of each: the checkpoint format "toy4", the algorithm "toy-rtn" and the linear kernel
// "gemm_toy4". It includes nothing of tare but tare/plugin.h.
//
// toy4: config.json {"quantization_config": {"quant_method": "toy4", "group_size": 32}}; for a matrix P [N, K]
//     P.toy_codes   U8 [N, K/2]       4-bit codes, even columns in the low nibble; zero point 8
//     P.toy_scales  F32 [N, K/32]
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tare/plugin.h"

namespace {

constexpr int64_t kGroup = 32;
constexpr const char* kCodes = ".toy_codes";

int fail(TareError* error, const char* text) {
  if (error && error->bytes > 0) {
    std::strncpy(error->text, text, error->bytes - 1);
    error->text[error->bytes - 1] = 0;
  }
  return 1;
}

// ---- format

int toy_detect(const TareSource* source) {
  return std::strstr(source->quantization, "\"quant_method\":\"toy4\"") != nullptr;
}

int toy_read(const TareSource* source, TareReader* reader, TareError* error) {
  int64_t found = 0;
  for (int64_t i = 0; i < source->tensor_count; ++i) {
    TareTensor codes;
    if (source->tensor_at(source, i, &codes) != 0) return fail(error, "a tensor is gone");
    std::string module = codes.name;
    if (module.size() < 10 || module.compare(module.size() - 10, 10, kCodes) != 0) continue;
    module.resize(module.size() - 10);
    if (codes.rank != 2 || std::strcmp(codes.dtype, "U8") != 0) return fail(error, "toy_codes must be U8 [N, K/2]");
    TareAffineInfo info = {};
    info.struct_bytes = sizeof(info);
    info.n = codes.shape[0];
    info.k = codes.shape[1] * 2;
    info.bits = 4;
    info.group_size = kGroup;
    info.zero = 8;
    const std::string scales = module + ".toy_scales", weight = module + ".weight", name = codes.name;
    TareTensor scale;
    if (source->find(source, scales.c_str(), &scale) != 0) return fail(error, "toy_scales is missing");
    if (scale.rank != 2 || scale.shape[0] != info.n || scale.shape[1] * kGroup != info.k ||
        std::strcmp(scale.dtype, "F32") != 0) {
      return fail(error, "toy_scales must be F32 [N, K/32]");
    }
    const char* uses[] = {name.c_str(), scales.c_str()};
    if (reader->add_affine(reader, weight.c_str(), &info, uses, 2) != 0) return fail(error, "refused");
    ++found;
  }
  return found > 0 ? 0 : fail(error, "no toy_codes");
}

int toy_load(const TareSource* source, const char* weight, const TareAffineInfo* info, TareAffineData* data,
             TareError* error) {
  std::string module = weight;
  module.resize(module.size() - std::strlen(".weight"));
  TareTensor codes, scales;
  if (source->find(source, (module + kCodes).c_str(), &codes) != 0 ||
      source->find(source, (module + ".toy_scales").c_str(), &scales) != 0) {
    return fail(error, "a tensor is gone");
  }
  const auto* bytes = static_cast<const uint8_t*>(codes.data);
  for (int64_t i = 0; i < info->n * info->k; ++i) data->codes[i] = bytes[i / 2] >> 4 * (i % 2) & 15;
  std::memcpy(data->scales, scales.data, scales.bytes);
  return 0;
}

// ---- algorithm: round to nearest, symmetric; output projections stay as they are

int toy_plan(const char* weight, const TareAlgorithmOptions* options, TareAffineInfo* info, TareError* error) {
  if (std::strstr(weight, "o_proj") != nullptr) return TARE_NONE;
  if (options->bits != 0 && (options->bits < 2 || options->bits > 8)) {
    fail(error, "toy-rtn makes 2 to 8 bits");
    return -1;
  }
  info->bits = options->bits != 0 ? options->bits : 4;
  info->group_size = options->group_size > 0 ? options->group_size : options->group_size < 0 ? info->k : kGroup;
  info->has_zeros = 0;
  info->zero = 1 << (info->bits - 1);
  return TARE_QUANTIZE;
}

int toy_quantize(const char*, const float* weights, const TareAffineInfo* info, TareAffineData* data, TareError*) {
  const int64_t groups = (info->k + info->group_size - 1) / info->group_size;
  const auto largest = static_cast<float>((1 << info->bits) - 1);
  const auto zero = static_cast<float>(info->zero);
  for (int64_t n = 0; n < info->n; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = n * info->k + g * info->group_size;
      const int64_t end = n * info->k + std::min(info->k, (g + 1) * info->group_size);
      float amax = 0;
      for (int64_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(weights[i]));
      const float scale = amax > 0 ? amax / (zero - 1) : 1.0f;
      data->scales[n * groups + g] = scale;
      for (int64_t i = begin; i < end; ++i) {
        const float code = std::nearbyint(weights[i] / scale) + zero;
        data->codes[i] = static_cast<uint8_t>(std::min(std::max(code, 0.0f), largest));
      }
    }
  }
  return 0;
}

// ---- kernel: one f32 chain an output, in the order of k

struct Packed {
  int64_t n = 0, k = 0, group = 0, groups = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<int16_t> zeros;
  std::vector<float> bias;
};

int toy_can_implement(const TareLinearProblem* problem, TareError* error) {
  if (!problem->affine || problem->bits != 4) {
    fail(error, "4-bit codes with one scale a group only");
    return 0;
  }
  return 1;
}

void* toy_prepack(const TareLinearProblem* problem, const TareLinearWeight* weight, int64_t* bytes, TareError* error) {
  std::unique_ptr<Packed> p(new (std::nothrow) Packed);
  if (!p) {
    fail(error, "no memory");
    return nullptr;
  }
  p->n = problem->n;
  p->k = problem->k;
  p->group = problem->group_size;
  p->groups = (p->k + p->group - 1) / p->group;
  p->codes.resize(static_cast<size_t>(p->n * p->k));
  p->scales.resize(static_cast<size_t>(p->n * p->groups));
  p->zeros.resize(p->scales.size());
  TareAffineData data = {p->codes.data(), p->scales.data(), p->zeros.data()};
  if (weight->affine(weight, &data) != 0) {
    fail(error, "the weight has another form");
    return nullptr;
  }
  if (weight->bias) p->bias.assign(weight->bias, weight->bias + p->n);
  *bytes = static_cast<int64_t>(p->codes.size() + p->scales.size() * 6 + p->bias.size() * 4);
  return p.release();
}

void toy_release(void* packed) {
  delete static_cast<Packed*>(packed);
}

struct Job {
  const Packed* packed;
  const float* x;
  int64_t m, x_stride;
  float* out;
  int64_t out_stride;
};

void toy_rows(void* context, int64_t begin, int64_t end) {
  const Job& job = *static_cast<const Job*>(context);
  const Packed& p = *job.packed;
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t m = 0; m < job.m; ++m) {
      const float* x = job.x + m * job.x_stride;
      float sum = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        const int64_t g = n * p.groups + k / p.group;
        const float w = p.scales[static_cast<size_t>(g)] *
                        static_cast<float>(p.codes[static_cast<size_t>(n * p.k + k)] - p.zeros[static_cast<size_t>(g)]);
        sum += w * x[k];
      }
      job.out[m * job.out_stride + n] = p.bias.empty() ? sum : sum + p.bias[static_cast<size_t>(n)];
    }
  }
}

void toy_run(const void* packed, const float* x, int64_t m, int64_t x_stride, float* out, int64_t out_stride,
             const TareThreads* threads) {
  Job job = {static_cast<const Packed*>(packed), x, m, x_stride, out, out_stride};
  threads->parallel_for(threads, job.packed->n, 16, toy_rows, &job);
}

// ---- what the plugin adds

const TareFormat kFormat = {sizeof(TareFormat), "toy4",   "4-bit codes in groups of 32 (example plugin)",
                            toy_detect,         toy_read, toy_load};
const TareAlgorithm kAlgorithm = {sizeof(TareAlgorithm), "toy-rtn", "round to nearest, o_proj left (example plugin)",
                                  toy_plan, toy_quantize};
const TareLinearKernel kKernel = {
    sizeof(TareLinearKernel), "gemm_toy4", "gemm", toy_can_implement, toy_prepack, toy_release, toy_run};
const TareFormat* const kFormats[] = {&kFormat};
const TareAlgorithm* const kAlgorithms[] = {&kAlgorithm};
const TareLinearKernel* const kKernels[] = {&kKernel};
const TarePlugin kPlugin = {
    TARE_PLUGIN_ABI, sizeof(TarePlugin), "example", "1.0", kFormats, 1, kAlgorithms, 1, kKernels, 1};

}  // namespace

extern "C" const TarePlugin* tare_plugin(void) {
  return &kPlugin;
}
