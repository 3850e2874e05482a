#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tare::tensor {

/// What one code of a quantized weight means before scales.
enum class CodeKind {
  kUint,  // 0 .. 2^bits - 1
  kInt,   // two's complement
  kE4M3,
  kE5M2,
  kE2M1,
  kLut,  // index into a table of 2^bits floats
  kVq,   // index into a codebook of short vectors, summed over codebooks
};

/// How codes, scales and zeros make a weight (docs/architecture.md section 2).
enum class Rule {
  kScaleFirst,    // w = (A*a) * (c - z) + (B*b), every product and sum rounded to f32 in this order
  kIntegerFirst,  // w = A * (a*c + b), the bracket exact in int32
  kNested,        // w = c * (lut256[a]*A + offset)
};

enum class ZeroKind { kNone, kConstant, kInteger, kFloat };

/// The form of a quantized weight without its numbers: what a kernel needs to say whether it can run it. Comparable:
/// parts of a fused matrix are fused only when their specs are equal.
struct QuantSpec {
  CodeKind kind = CodeKind::kUint;
  int bits = 4;
  Rule rule = Rule::kScaleFirst;
  int64_t group_n = 1;           // rows that share one inner scale (1 row, 128 block, N whole tensor)
  int64_t group_size = 0;        // columns that share one inner scale; K when the whole row does
  bool has_inner_scale = true;   // a
  bool has_outer_scale = false;  // A
  int64_t outer_group_n = 0;     // rows and columns that share one outer scale
  int64_t outer_group_size = 0;
  ZeroKind zero = ZeroKind::kNone;
  float zero_constant = 0;
  bool has_min = false;  // b
  bool act_order = false;
  bool round_inner = false;

  bool operator==(const QuantSpec&) const = default;
};

/// "u4 g128 +zero", "e4m3 block 128x128", "u4 g128 s8-progressive": for tables and reasons.
std::string describe(const QuantSpec& spec);

enum class ActivationType { kNone, kS8, kU8, kS4, kE4M3, kE2M1 };
enum class ActivationGranularity { kTensor, kToken, kTokenGroup };

/// What happens to the input of a matrix product. kNone: it stays f32/bf16/f16.
struct ActivationSpec {
  ActivationType type = ActivationType::kNone;
  ActivationGranularity granularity = ActivationGranularity::kToken;
  int64_t group_size = 0;  // kTokenGroup
  bool dynamic = true;
  bool symmetric = true;  // dynamic integer codes: false = the range [min, max] with a zero point; static: see zero
  float scale = 0;        // static only; x ~ scale * (q - zero)
  int32_t zero = 0;       // static asymmetric only
  float cap = 0;          // upper bound of the dynamic amax, 0 = none (fbgemm activation_scale_ub)
  float outlier_threshold = 0;  // LLM.int8: |x| above it stays in floating point; 0 = off

  bool operator==(const ActivationSpec&) const = default;
};

/// "none", "s8 dynamic per token", ...
std::string describe(const ActivationSpec& spec);

/// What the KV cache of a checkpoint should be, as far as the checkpoint says.
struct KvSpec {
  std::string k_dtype;  // names of --kv-cache-dtype: "auto", "fp8_e4m3", "int8", "int4", ...
  std::string v_dtype;

  bool operator==(const KvSpec&) const = default;
};

/// What a matrix should become (quantize) or is (load): its weight form and the treatment of its input.
struct Scheme {
  std::variant<DType, QuantSpec> weight;
  ActivationSpec activation;
};

}  // namespace tare::tensor
