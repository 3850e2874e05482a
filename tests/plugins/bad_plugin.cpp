#include "tare/plugin.h"

namespace {

int detect(const TareSource*) {
  return 0;
}
int read(const TareSource*, TareReader*, TareError*) {
  return 1;
}
int load(const TareSource*, const char*, const TareAffineInfo*, TareAffineData*, TareError*) {
  return 1;
}
int can_implement(const TareLinearProblem*, TareError*) {
  return 0;
}
void* prepack(const TareLinearProblem*, const TareLinearWeight*, int64_t*, TareError*) {
  return nullptr;
}
void release(void*) {}
void run(const void*, const float*, int64_t, int64_t, float*, int64_t, const TareThreads*) {}

#ifdef MISTAKE_SAME_FORMAT
const char* kFormat = "AWQ";
#else
const char* kFormat = "bad_format";
#endif
#ifdef MISTAKE_SAME_KERNEL
const char* kKernel = "gemm_reference";
#elif defined(MISTAKE_NO_NAME)
const char* kKernel = "";
#else
const char* kKernel = "bad_kernel";
#endif

const TareFormat kTheFormat = {sizeof(TareFormat), kFormat, "nothing", detect, read, load};
#ifdef MISTAKE_NO_RUN
const TareLinearKernel kTheKernel = {
    sizeof(TareLinearKernel), kKernel, "gemm", can_implement, prepack, release, nullptr};
#else
const TareLinearKernel kTheKernel = {sizeof(TareLinearKernel), kKernel, "gemm", can_implement, prepack, release, run};
#endif
const TareFormat* const kFormats[] = {&kTheFormat};
const TareLinearKernel* const kKernels[] = {&kTheKernel};

#ifdef MISTAKE_ABI
constexpr uint32_t kAbi = 99;
#else
constexpr uint32_t kAbi = TARE_PLUGIN_ABI;
#endif
#ifdef MISTAKE_SHORT
constexpr size_t kBytes = 16;
#else
constexpr size_t kBytes = sizeof(TarePlugin);
#endif
const TarePlugin kPlugin = {kAbi, kBytes, "bad", "1", kFormats, 1, nullptr, 0, kKernels, 1};

}  // namespace

#ifndef MISTAKE_NO_ENTRY
extern "C" const TarePlugin* tare_plugin(void) {
#ifdef MISTAKE_NULL_PLUGIN
  return nullptr;
#else
  return &kPlugin;
#endif
}
#else
extern "C" const TarePlugin* other_name(void);
extern "C" const TarePlugin* other_name(void) {
  return &kPlugin;
}
#endif
