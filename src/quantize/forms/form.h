#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "quantize/grid.h"
#include "tensor/quantized_tensor.h"

namespace tare::quantize {

/// A form of weight whose numbers follow from the values at once: scales from ranges, then codes, by the rules of the
/// tool that invented it. Unlike a ChosenGrid nothing asks for the code of one value, so an algorithm that moves values
/// (GPTQ) does not work on it.
struct Form {
  std::string_view name;               // of --grid and --set grid=
  std::string_view words;              // "per channel", for reports; the group size stands before it
  std::string_view codes;              // "nf4", "e4m3", ...
  std::vector<int> widths;             // of a code, the default first
  int64_t group_size = 0;              // default; 0: whole row
  bool any_group = false;              // other group sizes exist
  int64_t smallest_group = 1;          // with any_group
  bool power_of_two = false;           // with any_group
  bool typed_scales = false;           // scales may be f16 or bf16 instead of f32
  bool shares_range = false;           // matrices that read one input share an outer scale (GridSpec::shared_range)
  tensor::ActivationSpec activation;   // of inputs, where the scheme says A8
  std::string_view algorithm = "rtn";  // how codes are chosen, for reports

  /// w: [N,K] row-major, finite. Short last groups and blocks are legal. Errors: what making the tensor says.
  Result<tensor::QuantizedTensor> (*quantize)(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                              ThreadPool& pool) = nullptr;
  /// The plainest choice of the same form, for the error that reports compare with; nullptr: `quantize` is it.
  Result<tensor::QuantizedTensor> (*nearest)(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                             ThreadPool& pool) = nullptr;
};

/// All forms (registry.cpp).
const std::vector<Form>& forms();
/// nullptr: there is none of this name.
const Form* find_form(std::string_view name);
/// The form with its own defaults.
GridSpec default_spec(const Form& form);
/// Errors: a width, group size or setting that the form does not have.
Status check_form(const GridSpec& spec);
std::string describe_form(const GridSpec& spec);
/// Codes of spec.form. Errors: NaN or inf (position named).
Result<tensor::QuantizedTensor> quantize_form(const GridSpec& spec, const float* w, int64_t n, int64_t k,
                                              std::string format, ThreadPool& pool);

/// NF4 and FP4 in blocks along the row, absmax in f32 or in 8 bits over runs of 256 blocks; LLM.int8 rows.
/// Source: bitsandbytes 0.50 (quantize_4bit, quantize_blockwise, int8_vectorwise_quant).
Result<tensor::QuantizedTensor> quantize_nf4(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_nf4_double(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_fp4(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_fp4_double(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_llm_int8(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);

/// e4m3, scale absmax / 448 of the row, the matrix, or each block of 128 x 128.
Result<tensor::QuantizedTensor> quantize_fp8_rows(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_fp8_tensor(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_fp8_blocks(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);

/// e2m1 with a power of two for each 32, or with e4m3 scales for each 16 under one that divides.
Result<tensor::QuantizedTensor> quantize_mxfp4(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_nvfp4(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);

/// Half-quadratic: unsigned codes with a float zero that is moved to where the error, shrunk by an L_0.7 proximal step,
/// is least. `nearest`: the range's own zero.
Result<tensor::QuantizedTensor> quantize_hqq(const GridSpec&, const float* w, int64_t n, int64_t k, ThreadPool&);
Result<tensor::QuantizedTensor> quantize_hqq_nearest(const GridSpec&, const float* w, int64_t n, int64_t k,
                                                     ThreadPool&);

}  // namespace tare::quantize
