/* C interface of tare plugins. A plugin is a shared library with one exported function, `tare_plugin`, that returns a
 * description of what it adds: checkpoint formats, quantization algorithms, linear kernels. `tare ... --plugin FILE`
 * loads it. Nothing of tare's own C++ interface crosses this border.
 *
 * Versions: TARE_PLUGIN_ABI counts incompatible changes; a plugin of another number is refused. Every struct that the
 * plugin fills begins with its size in bytes, so that later versions can add members at the end: the host takes members
 * beyond that size as absent.
 *
 * Life: the library stays loaded until the program ends, and so must everything the description points to. Functions
 * are called from one thread at a time, except `run` of a kernel, which may be called from any thread, for different
 * packed weights at once. No exception may leave a function. Functions that return int give 0 for success; otherwise
 * they may write one line (no line break) into `error`.
 *
 * Shapes are row-major, [N, K] = [out_features, in_features]. See examples/plugin for a plugin that adds one of each.
 */
#ifndef TARE_PLUGIN_H
#define TARE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TARE_PLUGIN_ABI 1

/* Where a function puts the reason of a failure: `bytes` of room, ended by a zero. */
typedef struct TareError {
  char* text;
  size_t bytes;
} TareError;

/* ---- weights ---------------------------------------------------------------------------------------------------- */

/* A matrix w[n,k] = scale[n, k / group_size] * (code[n,k] - zero[n, k / group_size]). */
typedef struct TareAffineInfo {
  size_t struct_bytes;
  int64_t n;
  int64_t k;
  int32_t bits;       /* of a code, 1..8 */
  int64_t group_size; /* columns that share a scale; k for a whole row. The last group may be short */
  int32_t has_zeros;  /* 0: `zero` is the zero point of all */
  int32_t zero;
} TareAffineInfo;

/* Memory of the host that the plugin fills. G = ceil(k / group_size). */
typedef struct TareAffineData {
  uint8_t* codes; /* [N, K], one a byte, unsigned */
  float* scales;  /* [N, G], finite */
  int16_t* zeros; /* [N, G]; NULL when the info says has_zeros 0 */
} TareAffineData;

/* ---- formats ---------------------------------------------------------------------------------------------------- */

/* One stored tensor; pointers live as long as the source. dtype as safetensors spells it ("F16", "I32", ...). */
typedef struct TareTensor {
  const char* name;
  const char* dtype;
  const int64_t* shape;
  int32_t rank;
  const void* data;
  uint64_t bytes;
} TareTensor;

/* What the host knows of an opened checkpoint. */
typedef struct TareSource {
  size_t struct_bytes;
  void* host;
  const char* config;       /* text of config.json; "" without one */
  const char* quantization; /* text of its quantization object; "" without one */
  int64_t tensor_count;
  /* 0 and the tensor, or non-zero when there is none. */
  int (*tensor_at)(const struct TareSource* source, int64_t index, TareTensor* out);
  int (*find)(const struct TareSource* source, const char* name, TareTensor* out);
} TareSource;

/* Where a format declares what it understood. Every tensor of a checkpoint must be used exactly once; what no
 * declaration uses and is no dense weight by name is an error of the host. */
typedef struct TareReader {
  size_t struct_bytes;
  void* host;
  /* Declares matrix `weight` ("model.layers.0.mlp.down_proj.weight"), made of the stored tensors uses[0..count). Its
   * numbers are asked for later, through `load`. Non-zero: refused, and the host has the reason. */
  int (*add_affine)(struct TareReader* reader, const char* weight, const TareAffineInfo* info, const char* const* uses,
                    int32_t count);
} TareReader;

typedef struct TareFormat {
  size_t struct_bytes;
  const char* name;
  const char* summary;
  /* 1 if the checkpoint is this format's: by configuration and headers only. */
  int (*detect)(const TareSource* source);
  int (*read)(const TareSource* source, TareReader* reader, TareError* error);
  /* Fills the numbers of one declared matrix. */
  int (*load)(const TareSource* source, const char* weight, const TareAffineInfo* info, TareAffineData* data,
              TareError* error);
} TareFormat;

/* ---- algorithms ------------------------------------------------------------------------------------------------- */

/* What the user asked for; a member may be 0 (the algorithm's choice). */
typedef struct TareAlgorithmOptions {
  size_t struct_bytes;
  int32_t bits;
  int64_t group_size;
  int32_t symmetric;
} TareAlgorithmOptions;

#define TARE_QUANTIZE 0 /* plan: quantize this matrix, in the form of `info` */
#define TARE_NONE 1     /* plan: leave this matrix as it is */

typedef struct TareAlgorithm {
  size_t struct_bytes;
  const char* name;
  const char* summary;
  /* What becomes of one matrix [N, K]: TARE_NONE, or TARE_QUANTIZE and the form in `info` (n and k are set). Called
   * for every Linear of the model by name, before its weights are looked at. Anything else is an error. */
  int (*plan)(const char* weight, const TareAlgorithmOptions* options, TareAffineInfo* info, TareError* error);
  /* weights: [N, K] f32, finite. */
  int (*quantize)(const char* weight, const float* weights, const TareAffineInfo* info, TareAffineData* data,
                  TareError* error);
} TareAlgorithm;

/* ---- linear kernels --------------------------------------------------------------------------------------------- */

/* y[M,N] = x[M,K] w[N,K]^T + bias[N]. */
typedef struct TareLinearProblem {
  size_t struct_bytes;
  int64_t n;
  int64_t k;
  const char* weight;     /* in words: "u4 g128 +zero", "bf16", ... */
  const char* activation; /* in words: "none", "s8 dynamic per token", ... */
  int32_t affine;         /* 1: the weight is scale * (code - zero), and the members below hold */
  int32_t bits;
  int64_t group_size;
} TareLinearProblem;

/* The weight of a problem, for prepacking. */
typedef struct TareLinearWeight {
  size_t struct_bytes;
  void* host;
  const float* bias; /* [N] or NULL */
  /* Rows [begin, end) dequantized, [end - begin, K]. */
  int (*rows)(const struct TareLinearWeight* weight, int64_t begin, int64_t end, float* out);
  /* Codes, scales and zeros of an affine problem: zeros are always filled. Non-zero when it is none. */
  int (*affine)(const struct TareLinearWeight* weight, TareAffineData* data);
} TareLinearWeight;

/* Splits work over the host's threads: body(context, begin, end) for disjoint ranges that cover [0, count). */
typedef struct TareThreads {
  size_t struct_bytes;
  void* host;
  int32_t count;
  void (*parallel_for)(const struct TareThreads* threads, int64_t count, int64_t grain,
                       void (*body)(void* context, int64_t begin, int64_t end), void* context);
} TareThreads;

typedef struct TareLinearKernel {
  size_t struct_bytes;
  const char* name;
  const char* op; /* family, for tables: "gemm", "gemm_wna16" */
  /* 1 yes; 0 no, with the reason in `error`. Pure. */
  int (*can_implement)(const TareLinearProblem* problem, TareError* error);
  /* The weight in the kernel's own layout; NULL on failure. bytes: what it holds in memory. */
  void* (*prepack)(const TareLinearProblem* problem, const TareLinearWeight* weight, int64_t* bytes, TareError* error);
  void (*release)(void* packed);
  /* x: [M] rows of K f32, x_stride apart; out: [M] rows of N f32, out_stride apart. A row of the result may depend on
   * nothing but its own row of x: not on M, not on the number of threads. The host compares every kernel with its
   * reference before it is used. No allocation. */
  void (*run)(const void* packed, const float* x, int64_t m, int64_t x_stride, float* out, int64_t out_stride,
              const TareThreads* threads);
} TareLinearKernel;

/* ---- the plugin ------------------------------------------------------------------------------------------------- */

typedef struct TarePlugin {
  uint32_t abi_version; /* TARE_PLUGIN_ABI; stays the first member for ever */
  size_t struct_bytes;
  const char* name;
  const char* version;
  const TareFormat* const* formats;
  int32_t format_count;
  const TareAlgorithm* const* algorithms;
  int32_t algorithm_count;
  const TareLinearKernel* const* kernels;
  int32_t kernel_count;
} TarePlugin;

#if defined(__GNUC__)
#define TARE_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define TARE_PLUGIN_EXPORT
#endif

/* The one exported function. */
TARE_PLUGIN_EXPORT const TarePlugin* tare_plugin(void);

#ifdef __cplusplus
}
#endif

#endif /* TARE_PLUGIN_H */
