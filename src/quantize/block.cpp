#include "quantize/block.h"

#include <algorithm>
#include <cassert>

#include "base/checked.h"
#include "model/release.h"
#include "model/weight_plan.h"

namespace tare::quantize {

using model::Site;
using tensor::Tensor;

namespace {

constexpr Site kSites[] = {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown};

Result<std::vector<float>> load_floats(const tensor::ModelWeights& source, const std::string& name) {
  TARE_ASSIGN(const tensor::Weight weight, source.load(name));
  TARE_ASSIGN(std::vector<float> values, tensor::to_f32(weight));
  model::release_pages(weight);
  return values;
}

model::LinearGroup& group_of(model::BoundLayer& layer, Site site) {
  switch (site) {
    case Site::kQkv:
      return layer.qkv;
    case Site::kOut:
      return layer.o;
    case Site::kGateUp:
      return layer.gate_up;
    default:
      return layer.down;
  }
}

}  // namespace

std::string_view role_name(Role role) {
  constexpr std::string_view kNames[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  return kNames[static_cast<size_t>(role)];
}

int64_t BlockMatrix::groups() const {
  return scheme.grid.per_tensor || k == 0 ? 1 : ceil_div(k, scheme.grid.group_width(k));
}

Result<Block> Block::load(const tensor::ModelWeights& source, const model::Architecture& arch, int64_t layer) {
  Block out;
  out.layer = layer;
  out.arch = &arch;
  const model::LayerLinears linears = model::layer_linears(arch, layer);
  const std::vector<model::LayerLinear>* groups[] = {&linears.qkv, &linears.o, &linears.gate_up, &linears.down};
  for (size_t site = 0; site < std::size(groups); ++site) {
    for (const model::LayerLinear& linear : *groups[site]) {
      BlockMatrix matrix{.name = linear.name, .site = kSites[site], .n = linear.n, .k = linear.k};
      TARE_ASSIGN(matrix.w, load_floats(source, linear.name + ".weight"));
      if (linear.bias) {
        TARE_ASSIGN(matrix.bias, load_floats(source, linear.name + ".bias"));
      }
      out.matrices.push_back(std::move(matrix));
    }
  }
  const auto norm = [&](const std::string& name, std::vector<float>& into) -> Status {
    if (name.empty()) return {};
    TARE_ASSIGN(into, load_floats(source, model::norm_name(layer, name)));
    return {};
  };
  TARE_TRY(norm(arch.attention_norm_in, out.attention_norm_in));
  TARE_TRY(norm(arch.attention_norm_out, out.attention_norm_out));
  TARE_TRY(norm(arch.mlp_norm_in, out.mlp_norm_in));
  TARE_TRY(norm(arch.mlp_norm_out, out.mlp_norm_out));
  if (arch.qk_norm != model::QkNorm::kNone) {
    TARE_TRY(norm("self_attn.q_norm", out.q_norm));
    TARE_TRY(norm("self_attn.k_norm", out.k_norm));
  }
  return out;
}

size_t Block::matrix_index(Role role) const {
  const size_t qkv = arch->fused_qkv ? 1 : 3;
  switch (role) {
    case Role::kQ:
      return 0;
    case Role::kK:
      return arch->fused_qkv ? 0 : 1;
    case Role::kV:
      return arch->fused_qkv ? 0 : 2;
    case Role::kO:
      return qkv;
    case Role::kGate:
      return qkv + 1;
    case Role::kUp:
      return arch->fused_gate_up ? qkv + 1 : qkv + 2;
    case Role::kDown:
      return matrices.size() - 1;
  }
  return 0;
}

int64_t Block::first_row(Role role) const {
  if (arch->fused_qkv && role == Role::kK) return arch->q_size();
  if (arch->fused_qkv && role == Role::kV) return arch->q_size() + arch->kv_size();
  if (arch->fused_gate_up && role == Role::kUp) return arch->intermediate;
  return 0;
}

RoleView Block::view(Role role) {
  BlockMatrix& m = matrix(role);
  const int64_t first = first_row(role);
  int64_t n = arch->hidden;
  if (role == Role::kQ) n = arch->q_size();
  if (role == Role::kK || role == Role::kV) n = arch->kv_size();
  if (role == Role::kGate || role == Role::kUp) n = arch->intermediate;
  return {.w = m.w.data() + first * m.k, .n = n, .k = m.k, .bias = m.bias.empty() ? nullptr : m.bias.data() + first};
}

std::vector<size_t> Block::reading(Site site) const {
  std::vector<size_t> out;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].site == site) out.push_back(i);
  }
  return out;
}

int64_t Block::width(Site site) const {
  return site == Site::kOut ? arch->q_size() : site == Site::kDown ? arch->intermediate : arch->hidden;
}

tensor::ActivationSpec Block::activation(Site site) const {
  for (const BlockMatrix& m : matrices) {
    if (m.site == site && !m.scheme.keep) return m.scheme.activation;
  }
  return {};
}

Result<model::LinearGroup> bind_site(const Block& block, Site site, const Products& products) {
  std::vector<model::Linear> linears;
  for (const size_t i : block.reading(site)) {
    const BlockMatrix& m = block.matrices[i];
    // The block outlives the packing.
    const Buffer view(nullptr, reinterpret_cast<const std::byte*>(m.w.data()), m.w.size() * sizeof(float));
    model::Linear linear{.name = m.name, .bias = m.bias, .role = {.layer = block.layer, .kind = m.name}};
    linear.parts.emplace_back(Tensor{tensor::DType::kF32, {m.n, m.k}, view});
    linears.push_back(std::move(linear));
  }
  return model::bind_group(std::move(linears), {.registry = products.registry(), .caps = products.caps()},
                           products.pool());
}

model::BoundLayer bind_norms(const Block& block) {
  return {.attention_norm_in = block.attention_norm_in,
          .attention_norm_out = block.attention_norm_out,
          .mlp_norm_in = block.mlp_norm_in,
          .mlp_norm_out = block.mlp_norm_out,
          .q_norm = block.q_norm,
          .k_norm = block.k_norm};
}

Result<model::BoundLayer> bind_block(const Block& block, const Products& products) {
  model::BoundLayer out = bind_norms(block);
  for (const Site site : kSites) {
    TARE_ASSIGN(group_of(out, site), bind_site(block, site, products));
  }
  return out;
}

Status round_matrix(const BlockMatrix& matrix, const float* w, float* out, ThreadPool& pool) {
  if (matrix.scheme.grid.kind == GridKind::kForm) {
    TARE_ASSIGN(const tensor::QuantizedTensor made,
                round_to_nearest(matrix.scheme.grid, w, matrix.n, matrix.k, "tare", pool, matrix.clip));
    pool.parallel_for(matrix.n, 16, [&](int64_t begin, int64_t end) {
      tensor::dequantize(made, begin, end, out + begin * matrix.k);
    });
    return {};
  }
  TARE_ASSIGN(const ChosenGrid grid, ChosenGrid::choose(matrix.scheme.grid, w, matrix.n, matrix.k, pool, matrix.clip));
  pool.parallel_for(matrix.n, 16, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> codes(static_cast<size_t>(matrix.k));
    for (int64_t row = begin; row < end; ++row) {
      grid.encode_row(row, w + row * matrix.k, codes.data());
      for (int64_t i = 0; i < matrix.k; ++i) {
        out[row * matrix.k + i] = grid.decode(row, i, codes[static_cast<size_t>(i)]);
      }
    }
  });
  return {};
}

Result<Block> rounded(const Block& block, std::span<const Site> sites, ThreadPool& pool) {
  Block out = block;
  for (BlockMatrix& m : out.matrices) {
    if (m.scheme.keep || (!sites.empty() && std::find(sites.begin(), sites.end(), m.site) == sites.end())) continue;
    TARE_TRY(round_matrix(m, block.matrices[static_cast<size_t>(&m - out.matrices.data())].w.data(), m.w.data(), pool));
  }
  out.touch();
  return out;
}

}  // namespace tare::quantize
