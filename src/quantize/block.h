#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/architecture.h"
#include "model/layer_runner.h"
#include "model/transformer.h"
#include "quantize/products.h"
#include "quantize/recipe.h"
#include "tensor/model_weights.h"

namespace tare::quantize {

/// What rows of a matrix do in a layer. On disk several roles may be one matrix (Phi-3: qkv_proj, gate_up_proj).
enum class Role { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr Role kRoles[] = {Role::kQ, Role::kK, Role::kV, Role::kO, Role::kGate, Role::kUp, Role::kDown};
std::string_view role_name(Role role);  // "q_proj", ...

/// Rows of one role, writable in place. Whoever changes them calls Block::touch().
struct RoleView {
  float* w = nullptr;     // [N, K] packed
  int64_t n = 0;          // out_features
  int64_t k = 0;          // in_features
  float* bias = nullptr;  // [N], nullptr: none
};

/// A matrix of a layer as the file has it, dense, with what it should become.
struct BlockMatrix {
  std::string name;                      // module, without ".weight"
  model::Site site = model::Site::kQkv;  // what it reads
  int64_t n = 0;
  int64_t k = 0;
  std::vector<float> w;     // [N, K]
  std::vector<float> bias;  // [N] or empty
  MatrixScheme scheme;
  /// Factors on the range of each group, [N * groups] of scheme.grid; empty: 1. A clip search fills it.
  std::vector<float> clip;

  int64_t groups() const;
};

/// One transformer layer in f32 while it is being worked on: loaded from the source, transformed, quantized, released.
/// A plain value: a copy is a candidate to try something on.
class Block {
 public:
  /// Loads layer `layer` of a source. Mapped pages are given back. Schemes are left at their default.
  /// Errors: a missing weight; whatever loading says.
  static Result<Block> load(const tensor::ModelWeights& source, const model::Architecture& arch, int64_t layer);

  int64_t layer = 0;
  const model::Architecture* arch = nullptr;  // outlives the block
  std::vector<BlockMatrix> matrices;          // forward order: q, k, v, o, gate, up, down (fused ones are one)
  // Weights of the norms; empty: the architecture has none there. See Architecture for norm_plus_one.
  std::vector<float> attention_norm_in, attention_norm_out, mlp_norm_in, mlp_norm_out;
  std::vector<float> q_norm, k_norm;

  RoleView view(Role role);
  BlockMatrix& matrix(Role role) { return matrices[matrix_index(role)]; }
  const BlockMatrix& matrix(Role role) const { return matrices[matrix_index(role)]; }
  /// Indices of the matrices that read at a site, in order.
  std::vector<size_t> reading(model::Site site) const;
  /// In_features at a site.
  int64_t width(model::Site site) const;
  /// How the input at a site is rounded at run time: that of the first matrix there that is not kept.
  tensor::ActivationSpec activation(model::Site site) const;

  /// Counts changes; statistics of an older revision are collected anew.
  int64_t revision() const { return revision_; }
  void touch() { ++revision_; }

 private:
  size_t matrix_index(Role role) const;
  int64_t first_row(Role role) const;
  int64_t revision_ = 0;
};

/// Binds the matrices at one site, or all of them, as dense f32 (copies are packed; the block may change afterwards).
Result<model::LinearGroup> bind_site(const Block& block, model::Site site, const Products& products);
Result<model::BoundLayer> bind_block(const Block& block, const Products& products);
/// The norms only.
model::BoundLayer bind_norms(const Block& block);

/// A copy of the block whose matrices at `sites` (all, when empty) hold what their nearest codes decode to, clip
/// factors included; kept matrices stay.
Result<Block> rounded(const Block& block, std::span<const model::Site> sites, ThreadPool& pool);

/// Nearest codes, decoded: w [N, K] -> out [N, K] on the matrix's grid and clip factors.
Status round_matrix(const BlockMatrix& matrix, const float* w, float* out, ThreadPool& pool);

}  // namespace tare::quantize
